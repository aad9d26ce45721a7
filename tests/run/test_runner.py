"""Exit statuses and reasons, on the in-process engine."""

import json
import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.artifacts import RunFolder
from fedveil.config import FedSVAConfig
from fedveil.config.base import RunConfig
from fedveil.config.modulated import ModulatedConfig
from fedveil.run import BadInput, plan_run, run_app
from fedveil.run.app import find_app


def test_a_good_run_ends_with_status_0(trap: Path, tmp_path: Path):
    note = tmp_path / "note.json"
    assert run_app(str(trap), "in-process", {"note": str(note)}, num_nodes=3) == 0
    found = json.loads(note.read_text())
    assert found["model"] == [2.0, 2.0]
    assert found["nodes_at_start"] == 3


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("server-raises", "the server always fails"),
        (
            "clients-raise",
            "no client gave a good reply in rounds 1, 2: <class 'ValueError'>:<'this client always",
        ),
        ("exit", "SystemExit"),
        ("none", "the ClientApp returned NoneType instead of a Message"),
        ("nan", "values that are not finite in arrays/0"),
    ],
)
def test_a_bad_run_ends_with_status_1_and_one_sentence(
    trap: Path, mode: str, reason: str, capsys: pytest.CaptureFixture[str]
):
    assert run_app(str(trap), "in-process", {"mode": mode}) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("fedveil: the run failed: ")
    assert reason in last


def test_code_that_cannot_be_imported_is_a_failure_with_its_reason(
    copy_of_trap: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
):
    folder = copy_of_trap("broken")
    (folder / "trap_app" / "client_app.py").write_text("import no_such_package\n")
    assert run_app(str(folder), "in-process") == 1
    assert "No module named 'no_such_package'" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_so(
    trap: Path, number: signal.Signals, status: int, capsys: pytest.CaptureFixture[str]
):
    before = signal.getsignal(number)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    assert run_app(str(trap), "in-process", {"mode": "slow"}) == status
    timer.join()
    assert "the run was stopped by" in capsys.readouterr().err
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"engine": "ray"}, "engine must be one of flower, in-process, got 'ray'"),
        ({"num_nodes": 0}, "num-supernodes must be at least 1"),
        ({"num_cpus": 100_000}, "client-resources-num-cpus must be from 1 to"),
        ({"num_gpus": -1.0}, "client-resources-num-gpus must not be negative"),
        (
            {"num_gpus": math.nan},
            "client-resources-num-gpus must not be negative and must be finite, got nan",
        ),
        (
            {"num_gpus": math.inf},
            "client-resources-num-gpus must not be negative and must be finite, got inf",
        ),
        ({"num_cpus": math.nan}, "client-resources-num-cpus must be from 1 to .*, got nan"),
        ({"resume": "nowhere"}, "nowhere is not the folder of a run"),
        ({"output_dir": "x"}, "unknown key 'output-dir'"),
        ({"overrides": {"mod": "ok"}}, "did you mean 'mode'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(trap: Path, options, complaint: str):
    with pytest.raises(BadInput, match=complaint):
        plan_run(str(trap), **options)


@pytest.mark.parametrize(
    ("app", "of"), [("fedsva", ModulatedConfig()), ("modulated", FedSVAConfig()), ("trap", FedSVAConfig())]
)
def test_the_run_of_another_app_is_refused_by_name(trap: Path, tmp_path: Path, app: str, of: RunConfig):
    asked = str(trap) if app == "trap" else app
    folder = RunFolder.create(tmp_path, "another", of.to_run_config()).path
    with pytest.raises(BadInput) as refused:
        plan_run(asked, resume=str(folder))
    sentence, key, _ = str(refused.value).split("'")
    assert sentence == f"the run in {folder} is not one of app {app}, which has no setting "
    assert key in of.to_run_config()
    assert key not in find_app(asked).defaults


def test_a_resumed_run_takes_its_settings_from_its_folder(
    copy_of_trap: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = copy_of_trap("resumable")
    file = folder / "pyproject.toml"
    file.write_text(file.read_text() + 'resume = ""\nseed = ""\n')
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(
        'mode = "nan"\nnum-server-rounds = 7\nresume = "/old"\nseed = "secret"\n'
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="seed of the run in run is not written down: give it again"):
        plan_run(str(folder), resume="run")
    plan = plan_run(str(folder), resume="run", overrides={"seed": 3, "mode": "ok"})
    expected = {"num-server-rounds": 7, "resume": str(run), "seed": 3, "mode": "ok"}
    assert plan.overrides == expected
    assert plan.config == {"note": ""} | expected
