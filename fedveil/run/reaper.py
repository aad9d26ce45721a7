"""End every process of a run and remove its folder, whatever became of the runner.

Run as a script, ``python -P reaper.py MARKER FOLDER``: it waits until its standard input closes, which
happens when the runner lets go of the pipe, and also when the runner is killed. It needs nothing but psutil,
so that it is there within a tenth of a second.

Ray's daemons leave the process group and the session of their parent, so a run's processes are found by an
environment variable that they inherit.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

__all__ = ["MARKER_VARIABLE", "end_run", "is_alive", "processes_of"]

MARKER_VARIABLE = "FEDVEIL_RUN"
"""Environment variable that names the run a process belongs to."""

_GRACE_SECONDS = 3.0
_KILL_SECONDS = 15.0


def processes_of(marker: str, folder: Path) -> list[psutil.Process]:
    """The live processes of a run: those with its marker, their descendants, Ray's workers in its folder.

    The marker alone does not do: Ray's agents set their title, which overwrites the environment that the
    system shows.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER_VARIABLE) == marker or _is_rays(process, folder):
                found[process.pid] = process
                found.update({child.pid: child for child in process.children(recursive=True)})
        except psutil.Error:  # ended meanwhile, a zombie, or another user's
            continue
    found.pop(os.getpid(), None)
    return [process for process in found.values() if is_alive(process)]


def end_run(marker: str, folder: Path) -> bool:
    """End the processes of a run, first politely, and remove its folder.

    Returns
    -------
    bool
        Whether none is left.
    """
    processes = processes_of(marker, folder)
    for process in processes:
        _signal(process, signal.SIGTERM)
    _wait(processes, _GRACE_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    while processes := [p for p in processes if is_alive(p)] + processes_of(marker, folder):
        if time.monotonic() > deadline:
            break
        for process in processes:
            _signal(process, signal.SIGKILL)
        _wait(processes, 1.0)
    shutil.rmtree(folder, ignore_errors=True)
    return not processes


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(is_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_rays(process: psutil.Process, folder: Path) -> bool:
    return process.name().startswith("ray::") and Path(process.cwd()).is_relative_to(folder)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:  # ended meanwhile
        return


def main() -> int:
    """Wait for the runner to let go, then end its run."""
    marker, folder = sys.argv[1], Path(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are for the runner; the reaper outlives it
    sys.stdin.buffer.read()
    return 0 if end_run(marker, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
