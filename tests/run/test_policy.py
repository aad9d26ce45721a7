"""``fedveil policy``: what a node's owner allows, what is spent, and what is left, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedveil.artifacts import NodeLedger
from fedveil.cli import cli
from fedveil.privacy import Release, gaussian_mu
from fedveil.run.doctor import examine

TOTAL = 'relations = ["record"]\ndelta = 1e-5\nepsilon = {record = 2.0}\n'


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["policy", *arguments])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    monkeypatch.delenv("FEDVEIL_POLICY", raising=False)
    return tmp_path


def spend(home: Path, run: str, epsilon: float, **more: Any) -> None:
    row = Release(0, 1, 0, "gradient", "record", gaussian_mu(epsilon, 1e-5), 1.0, **more)
    NodeLedger(home / "node-ledger.sqlite").record(run, {0: "d"}, [row], replay=False)


def test_what_is_allowed_spent_and_left_is_told(home: Path) -> None:
    (home / "policy.toml").write_text(TOTAL)
    spend(home, "first", 1.0)
    result = invoke()
    assert result.exit_code == 0
    assert "relations, one of which a run must promise its epsilon under: record" in result.stdout
    assert (
        "epsilon.record: over all runs together at most 2 at delta 1e-05 for one whole record"
        in result.stdout
    )
    # by 30 digits: mu_2^2 - mu_1^2 is the square of the mu of epsilon 1.65844...
    assert (
        "record: epsilon 1 at delta 1e-05 from 1 run; of 2 allowed, 1.658 is left for one more"
        in result.stdout
    )
    assert "client: no bound, 1 of 1 run had none" in result.stdout


def test_a_run_without_a_bound_is_told_as_what_it_is(home: Path) -> None:
    (home / "policy.toml").write_text(TOTAL)
    spend(home, "first", 1.0)
    spend(home, "second", 1.0, chosen="data-dependent")
    assert "record: no bound, 1 of 2 runs had none (second); of 2 allowed, nothing is left" in invoke().stdout


def test_a_node_without_a_policy_and_without_a_ledger_is_told(home: Path) -> None:
    result = invoke()
    assert (
        "no policy: this node serves every run, but none without noise or under noise that proves nothing"
        in result.stdout
    )
    assert "nothing has been spent" in result.stdout
    assert list(home.iterdir()) == []
    assert invoke("--check").exit_code == 0


def test_a_file_can_be_tried_before_it_is_the_nodes(home: Path) -> None:
    (home / "draft.toml").write_text(TOTAL.replace("record", "recrd"))
    result = invoke("--check", "--file", str(home / "draft.toml"))
    assert result.exit_code == 2
    assert "draft.toml cannot be used" in result.stderr
    (home / "draft.toml").write_text(TOTAL)
    result = invoke("--check", "--file", str(home / "draft.toml"))
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)


def test_a_policy_that_is_named_and_missing_fails_the_check(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVEIL_POLICY", str(home / "none.toml"))
    assert invoke("--check").exit_code == 2


def test_trust_in_the_server_is_told_in_words(home: Path) -> None:
    (home / "policy.toml").write_text('privacy = ["central"]\ndelta = 1e-5\nepsilon = {client = 2.0}\n')
    assert "trusts the server" in invoke().stdout


def test_noise_that_proves_nothing_is_told_in_words(home: Path) -> None:
    (home / "policy.toml").write_text('privacy = ["local", "unproven"]\n')
    assert "unproven: noise may follow from records and be read off what it hides" in invoke().stdout


@pytest.mark.parametrize(("text", "ok"), [(None, True), (TOTAL, True), ("nonsense", False)])
def test_the_doctor_looks_at_the_policy(home: Path, text: str | None, ok: bool) -> None:
    if text is not None:
        (home / "policy.toml").write_text(text)
    (found,) = [check for check in examine() if check.name == "policy"]
    assert found.ok is ok


def test_a_ledger_that_is_a_link_to_nothing_is_not_told_as_one_that_was_never_written(home: Path) -> None:
    (home / "node-ledger.sqlite").symlink_to(home / "not-mounted" / "node-ledger.sqlite")
    result = invoke()
    assert result.exit_code != 0
    assert "nothing has been spent" not in result.stdout
