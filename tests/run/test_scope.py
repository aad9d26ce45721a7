"""What a run leaves behind: nothing, whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedveil.run.reaper import MARKER_VARIABLE, is_alive, processes_of
from fedveil.run.scope import RunScope, executable, run_environment

# Leaves its parent's process group and session, as Ray's daemons do, and ignores polite requests.
DETACHED = """
import os, signal, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(os.path.join(os.environ["RAY_TMPDIR"], "ready"), "w").close()
    time.sleep(600)
"""
RUNNER = """
import sys, time
from fedveil.run.scope import RunScope
with RunScope() as scope:
    scope.spawn([sys.executable, sys.argv[1]])
    print(scope.marker, scope.folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def detached(tmp_path: Path) -> Path:
    """A program that starts a process which detaches itself."""
    file = tmp_path / "detached.py"
    file.write_text(DETACHED)
    return file


def wait_for(condition, seconds: float = 60.0) -> bool:
    """Whether the condition came true; the limit is a hang guard."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_detached_processes_and_the_folder_are_gone_when_a_run_ends(detached: Path):
    with RunScope() as scope:
        scope.spawn([sys.executable, str(detached)])
        assert wait_for((scope.folder / "ready").exists)
        processes = processes_of(scope.marker, scope.folder)
        assert processes
    assert not [process for process in processes if is_alive(process)]
    assert not scope.folder.exists()


def test_they_are_gone_when_the_runner_is_killed(detached: Path):
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(detached)], stdout=subprocess.PIPE, text=True
    )
    marker, folder = runner.stdout.readline().split()
    assert wait_for((Path(folder) / "ready").exists)
    processes = processes_of(marker, Path(folder))
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    assert wait_for(lambda: not any(is_alive(process) for process in processes))
    assert wait_for(lambda: not Path(folder).exists())
    runner.stdout.close()


def test_they_are_gone_when_the_reaper_is_killed_too(detached: Path):
    with RunScope() as scope:
        scope.spawn([sys.executable, str(detached)])
        assert wait_for((scope.folder / "ready").exists)
        for child in psutil.Process().children():
            if is_alive(child) and scope.marker in child.cmdline():
                child.kill()
    assert not processes_of(scope.marker, scope.folder)
    assert not scope.folder.exists()


def test_other_processes_are_left_alone(detached: Path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with RunScope() as scope:
            assert bystander.pid not in [process.pid for process in processes_of(scope.marker, scope.folder)]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_runs_environment_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    outside = {
        "FLWR_HOME": "/other",
        "PATH": "/usr/bin",
        "PYTHONPATH": f"lib{os.pathsep}/abs",
        "FEDVEIL_HOME": "results",
        "RAY_ADDRESS": "auto",
        "http_proxy": "http://proxy:1",
    }
    inside = run_environment(Path("/run"), "mark", outside)
    assert inside[MARKER_VARIABLE] == "mark"
    assert inside["FLWR_HOME"] == "/run/home"
    assert inside["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert inside["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert inside["PYTHONPATH"] == f"{tmp_path / 'lib'}{os.pathsep}/abs"
    assert inside["FEDVEIL_HOME"] == str(tmp_path / "results")
    assert "RAY_ADDRESS" not in inside
    assert "127.0.0.1" in inside["no_proxy"].split(",")


def test_rays_sockets_fit_into_the_folder_whatever_the_temporary_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "x" * 60)
    with RunScope() as scope:
        assert len(str(scope.folder)) < 32


def test_console_scripts_are_those_of_this_environment():
    assert executable("flwr").parent == Path(sys.executable).parent
    with pytest.raises(FileNotFoundError, match="no-such-script is not beside"):
        executable("no-such-script")
