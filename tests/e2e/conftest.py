"""Real runs through ``fedveil run``, and what they leave behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

_VARIABLE = "FEDVEIL_TEST"
_GUARD_SECONDS = 150  # a hang guard; a run of the trap app takes 20 s on two free cores


@dataclass
class Launch:
    """One ``fedveil run``, with a mark that all its processes inherit and a temporary folder of its own."""

    process: subprocess.Popen[str]
    mark: str
    folder: Path
    output: Path

    def text(self) -> str:
        """What the run has written so far, on both streams."""
        return self.output.read_text(errors="replace")

    def last_line(self) -> str:
        """The last line that it wrote."""
        return self.text().strip().splitlines()[-1]

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(timeout=_GUARD_SECONDS)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition came true before the hang guard."""
        end = time.monotonic() + _GUARD_SECONDS
        while not condition() and time.monotonic() < end:
            time.sleep(0.2)
        return condition()

    def processes(self) -> list[psutil.Process]:
        """All live processes of the run, the runner's too."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                in_folder = str(self.folder) in f"{process.cwd()} {process.cmdline()}"
                if in_folder or process.environ().get(_VARIABLE) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def named(self, name: str) -> list[psutil.Process]:
        """Live processes of the run whose program has this name."""
        return [p for p in self.processes() if any(Path(part).name == name for part in p.cmdline()[:3])]

    def at_work(self) -> bool:
        """Whether Ray's workers are there, so that the run is in its first round."""
        for process in self.processes():
            with suppress(psutil.Error):  # it may have ended since it was found
                if process.name().startswith("ray::ClientApp"):
                    return True
        return False

    def nothing_left(self) -> bool:
        """Whether no process and no file of the run is left."""
        return self.wait_for(lambda: not self.processes() and not list(self.folder.iterdir()))


@pytest.fixture
def launch() -> Iterator[Callable[..., Launch]]:
    """Start ``fedveil run`` with these arguments; whatever it leaves is ended after the test."""
    launches: list[Launch] = []

    def start(*arguments: str | Path, cwd: Path | None = None) -> Launch:
        mark = uuid.uuid4().hex
        folder = Path(tempfile.mkdtemp(prefix="fv", dir="/tmp"))  # short: it holds Ray's sockets
        output = Path(tempfile.mkdtemp(prefix="fvout")) / "output"
        environment = os.environ | {_VARIABLE: mark, "TMPDIR": str(folder)}
        with output.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedveil.cli", "run", *map(str, arguments)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
                text=True,
            )
        launches.append(Launch(process, mark, folder, output))
        return launches[-1]

    yield start
    for each in launches:
        for process in each.processes():
            process.send_signal(signal.SIGKILL)
        each.process.wait()
        shutil.rmtree(each.folder, ignore_errors=True)
        shutil.rmtree(each.output.parent, ignore_errors=True)
