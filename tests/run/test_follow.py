"""Following a run's log: everything that it says is shown, however late it comes, and the folder's line is the last."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil.run import runner
from fedveil.run.log_watch import LogWatch
from fedveil.run.superlink import RunStatus


@dataclass
class Link:
    """A SuperLink whose run has ended before its log has been told."""

    simulation_ended_for: float = 0.0
    process: Any = field(default_factory=lambda: SimpleNamespace(poll=lambda: None))

    def run_status(self) -> RunStatus:
        return RunStatus("finished:completed", "")


def follow(script: str) -> None:
    log = subprocess.Popen([sys.executable, "-uc", script], stdout=subprocess.PIPE, text=True)
    status = runner._follow(Link(), log, LogWatch())  # type: ignore[arg-type]
    assert status.status == "finished:completed"
    log.wait()


def test_a_log_that_lags_behind_the_run_is_shown_to_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "_QUIET_SECONDS", 0.5)
    monkeypatch.setattr(runner, "_TICK", 0.05)
    follow("import time; print('first'); time.sleep(0.8); print('fedveil | run folder: /there')")
    assert capsys.readouterr().out.splitlines() == ["first", "fedveil | run folder: /there"]


def test_what_others_say_later_does_not_take_the_last_line(capsys: pytest.CaptureFixture[str]):
    follow("print('fedveil | run folder: /there'); print('a worker says goodbye')")
    assert capsys.readouterr().out.splitlines()[-1] == "fedveil | run folder: /there"


def test_a_log_that_never_closes_is_left_after_a_while(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "_QUIET_SECONDS", 0.5)
    monkeypatch.setattr(runner, "_TICK", 0.05)
    log = subprocess.Popen(
        [sys.executable, "-uc", "import time; print('fedveil | run folder: /there'); time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert runner._follow(Link(), log, LogWatch()).is_final  # type: ignore[arg-type]
    finally:
        log.kill()
        log.wait()
    assert capsys.readouterr().out.splitlines() == ["fedveil | run folder: /there"]
