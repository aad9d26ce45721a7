"""The command."""

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedveil import __version__
from fedveil.artifacts import NodeLedger
from fedveil.cli import cli


def invoke(*arguments: str):
    """Run the command inside this process."""
    return CliRunner().invoke(cli, list(arguments))


def test_the_version_is_printed():
    assert invoke("--version").stdout.strip() == __version__


def test_a_good_run_exits_with_0(trap: Path):
    assert invoke("run", str(trap), "--engine", "in-process", "-c", "num-server-rounds=1").exit_code == 0


def test_a_failed_run_exits_with_1(trap: Path):
    result = invoke("run", str(trap), "--engine", "in-process", "-c", "mode='server-raises'")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "fedveil: the run failed: the server always fails"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-c", "mod='ok'"], "did you mean 'mode'"),
        (["-c", "mode=ok"], "a text needs quotes"),
        (["--engine", "spark"], "engine must be one of"),
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(trap: Path, arguments: list[str], complaint: str):
    result = invoke("run", str(trap), *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedveil: ")
    assert complaint in line


def test_the_keys_of_an_app_are_printed(trap: Path):
    lines = invoke("config", str(trap)).stdout.splitlines()
    assert lines[0].split() == ["key", "default", "unit", "meaning"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["mode", '"ok"'],
        ["num-server-rounds", "2"],
        ["note", '""'],
    ]


def test_the_doctor_says_ok_or_fail_for_each_check(monkeypatch: pytest.MonkeyPatch):
    from fedveil.run import doctor

    checks = [doctor.Check("disk", True, "9 GB"), doctor.Check("ray", False, "missing")]
    monkeypatch.setattr(doctor, "examine", lambda node: checks)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["ok    disk: 9 GB", "FAIL  ray: missing"]


def test_plugins_are_listed_with_their_package_and_a_broken_one_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
):
    from fedveil import plugins

    wide = plugins.Plugin("model", "wide", "good.nets:Wide", "good-things", "2.1", "/site")
    bad = plugins.Plugin("strategy", "bad", "bad:f", "bad-things", "0.1", "/site")
    checks = (plugins.Checked(wide, ""), plugins.Checked(bad, f"{bad} cannot be imported."))
    monkeypatch.setattr(plugins, "check_all", lambda: checks)
    result = invoke("list")
    assert result.exit_code == 0
    heading, *rows, reason = result.stdout.splitlines()
    assert heading.split() == ["kind", "name", "from", "object", "state"]
    assert [row.split() for row in rows] == [
        ["model", "wide", "good-things", "2.1", "good.nets:Wide", "ok"],
        ["strategy", "bad", "bad-things", "0.1", "bad:f", "broken"],
    ]
    assert reason == "broken: strategy 'bad' of bad-things 0.1 cannot be imported."


def test_this_installation_is_well():
    from fedveil.run.doctor import examine

    assert [f"{check.name}: {check.detail}" for check in examine() if not check.ok] == []


def test_a_node_is_well_without_what_simulates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in the image of nodes, which has no Ray, no Hugging Face datasets, and a small /tmp."""
    from fedveil.run import doctor

    monkeypatch.setattr(doctor, "_FREE_GIGABYTES", 1e9)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path / "home"))
    checks = {check.name: check for check in doctor.examine(node=True)}
    assert [f"{check.name}: {check.detail}" for check in checks.values() if not check.ok] == []
    assert not {"ray", "datasets", "free disk"} & set(checks)
    assert ", 0 run(s), " in checks["ledger"].detail
    assert not (tmp_path / "home").exists()  # it has looked, and made nothing
    failed = {check.name for check in doctor.examine() if not check.ok}
    assert failed >= {"ray", "datasets", "free disk"}


def test_a_node_that_cannot_keep_its_ledger_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fedveil.config.places import node_ledger_path
    from fedveil.run import doctor

    def ledger() -> doctor.Check:
        return next(check for check in doctor.examine(node=True) if check.name == "ledger")

    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    NodeLedger(node_ledger_path()).book("trial", {"record": 1.0})
    assert ledger().ok
    assert ", 1 run(s), " in ledger().detail
    monkeypatch.setattr(doctor, "_LEDGER_GIGABYTES", 1e9)
    assert "make room" in ledger().detail
    for closed in (tmp_path, node_ledger_path()):
        monkeypatch.setattr(os, "access", lambda path, mode, closed=closed: path != closed)
        assert f"{closed} cannot be written" in ledger().detail
    monkeypatch.undo()
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    node_ledger_path().write_bytes(b"no SQLite at all" * 99)
    monkeypatch.setattr(doctor, "_LEDGER_GIGABYTES", 0)
    assert not ledger().ok
    assert "damaged" in ledger().detail
    node_ledger_path().unlink()
    node_ledger_path().symlink_to(tmp_path / "not-mounted.sqlite")
    assert not ledger().ok


def test_a_package_that_hides_hugging_face_datasets_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fedveil.run.doctor import examine

    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert "datasets" in [check.name for check in examine() if not check.ok]
