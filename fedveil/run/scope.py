"""What one run may leave on the machine, and the promise that nothing of it stays.

A run has a folder of its own for temporary files (Flower's home, an empty working folder, Ray's session), an
environment of its own, and a marker that all its processes inherit. A reaper process removes all of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedveil.run import reaper

__all__ = ["RunScope", "executable", "run_environment"]

_LONGEST_PREFIX = 24  # Ray's sockets lie 75 characters deeper, and a socket's path has at most 107


def executable(name: str) -> Path:
    """A console script that lies beside the running interpreter, never another installation's.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    """
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{name} is not beside {sys.executable}; install flwr[simulation] into this environment."
        )
    return path


def run_environment(folder: Path, marker: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run's processes, from the runner's own.

    Flower's SuperLink inherits the environment of whoever starts it, installs dependencies with uv and finds
    its helpers on PATH; each of these is fixed here. Relative paths are made absolute, since the processes
    run in another folder, and a proxy is kept out of what they say to each other.
    """
    result = {
        name: value for name, value in environment.items() if name not in {"RAY_ADDRESS", "RAY_NAMESPACE"}
    }
    for name in ("PYTHONPATH", "FEDVEIL_HOME"):
        if result.get(name):
            parts = result[name].split(os.pathsep) if name == "PYTHONPATH" else [result[name]]
            result[name] = os.pathsep.join(
                os.path.abspath(os.path.expanduser(part)) for part in parts if part
            )
    for name in ("NO_PROXY", "no_proxy"):
        result[name] = ",".join(filter(None, [result.get(name), "127.0.0.1", "localhost"]))
    result |= {
        reaper.MARKER_VARIABLE: marker,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "RAY_TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return result


class RunScope:
    """A context in which a run's processes live; leaving it, or being killed in it, ends them.

    Attributes
    ----------
    folder : Path
        Temporary folder of this run: ``home`` (Flower's), ``work`` (empty working folder), Ray's session.
    marker : str
        Value of ``FEDVEIL_RUN`` in every process of this run.
    """

    def __init__(self) -> None:
        self.marker = uuid.uuid4().hex
        base = tempfile.gettempdir()
        if len(base) > _LONGEST_PREFIX and os.path.isdir("/tmp"):
            base = "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="fedveil-", dir=base))
        self.work = self.folder / "work"
        self._spawned: list[subprocess.Popen[str]] = []
        self.environment = run_environment(self.folder, self.marker, os.environ)

    def __enter__(self) -> Self:
        (self.folder / "home").mkdir()
        self.work.mkdir()
        self._reaper = subprocess.Popen(
            [sys.executable, "-P", reaper.__file__, self.marker, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def spawn(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process of this run, in the empty working folder and a session of its own.

        The session keeps the terminal's Ctrl-C for the runner, which then ends the run in order.
        """
        process = subprocess.Popen(
            command,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            errors="replace",
            **options,
        )
        self._spawned.append(process)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reaper.communicate()
        if self._reaper.returncode != 0:  # the reaper itself was killed
            reaper.end_run(self.marker, self.folder)
        for process in self._spawned:
            process.wait()
