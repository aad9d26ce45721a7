"""A SuperLink that belongs to one run: started in an empty folder on a free port, asked for its run's status.

Flower's own local SuperLink is shared: it keeps the folder and environment of the first ``flwr run``, from
where Ray's workers then import client code, and it never ends (seen in Flower 1.42).
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedveil.run.reaper import is_alive
from fedveil.run.scope import RunScope, executable

__all__ = ["RunStatus", "SuperLink", "SuperLinkFailed"]

CONNECTION = "fedveil"
_START_SECONDS = 60.0
_START_ATTEMPTS = 3  # another process may take the free port first
_STATUS_SECONDS = 15.0
_STATUS_ATTEMPTS = 3


class SuperLinkFailed(RuntimeError):
    """The SuperLink did not start, or does not answer."""


@dataclass(frozen=True)
class RunStatus:
    """What the SuperLink says about its run.

    Attributes
    ----------
    status : str
        ``pending``, ``starting``, ``running`` or ``finished:<completed|failed|stopped>``.
    details : str
        The reason of a failure, in Flower's words.
    """

    status: str
    details: str

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.status.startswith("finished")


class SuperLink:
    """A started SuperLink, inside a RunScope, which ends it.

    Parameters
    ----------
    scope : RunScope
        Entered scope of the run.

    Raises
    ------
    SuperLinkFailed
        If it ends, or does not answer within a minute.
    """

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope
        self._log = scope.folder / "superlink.log"
        self._simulation: psutil.Process | None = None
        self._ended_at: float | None = None
        for attempt in range(1, _START_ATTEMPTS + 1):
            port = _free_port()
            self.process = self._start(port)
            if self._answers(port):
                break
            if attempt == _START_ATTEMPTS or self.process.poll() is None:
                raise SuperLinkFailed(f"the SuperLink did not start: {self.last_words()}")
        (scope.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )

    def _start(self, port: int) -> subprocess.Popen[str]:
        command = [str(executable("flower-superlink")), "--insecure", "--simulation"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--isolation", "subprocess", "--disable-runtime-dependency-installation"]
        with self._log.open("w") as log:
            return self._scope.spawn(command, stdout=log, stderr=subprocess.STDOUT)

    def _answers(self, port: int) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with direct.open(f"http://127.0.0.1:{port}/health", timeout=1.0):
                    return self.process.poll() is None  # else another process has this port
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        return False

    def last_words(self) -> str:
        """How the SuperLink ended; unless something killed it, with the last line of its log."""
        code = self.process.poll()
        if code is not None and code < 0:
            return f"killed by signal {-code}"
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        end = "still running" if code is None else f"exit status {code}"
        return f"{end}; its last line: {lines[-1] if lines else '(none)'}"

    @property
    def simulation_ended_for(self) -> float:
        """Seconds since the simulation's process was seen to have ended; 0 while it lives or is not there."""
        if self._simulation is None:
            self._simulation = self._find_simulation()
        if self._simulation is None or is_alive(self._simulation):
            return 0.0
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at

    def _find_simulation(self) -> psutil.Process | None:
        try:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                if any(Path(part).name == "flwr-simulation" for part in process.cmdline()[:3]):
                    return process
        except psutil.Error:  # ended meanwhile
            return None
        return None

    def submit(self, app: Path, run_config: Path | None, federation: str) -> subprocess.Popen[str]:
        """Start ``flwr run`` for an app; its output, which ends when the run ends, is the run's log."""
        command = [
            str(executable("flwr")),
            "run",
            str(app),
            CONNECTION,
            "--stream",
            "--federation-config",
            federation,
        ]
        if run_config is not None:
            command += ["--run-config", str(run_config)]
        return self._scope.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run_status(self) -> RunStatus | None:
        """The status of this SuperLink's only run; None before a run was accepted.

        Raises
        ------
        SuperLinkFailed
            If the SuperLink does not answer.
        """
        for attempt in range(1, _STATUS_ATTEMPTS + 1):
            runs = self._runs()
            if runs is not None:
                return RunStatus(runs[0]["status"], runs[0]["status-details"]) if runs else None
            if self.process.poll() is not None:
                break
            time.sleep(attempt)  # a busy SuperLink may miss one question
        raise SuperLinkFailed(f"the SuperLink does not answer: {self.last_words()}")

    def _runs(self) -> list[dict[str, str]] | None:
        """What ``flwr ls`` lists; None when it gets no answer."""
        command = [str(executable("flwr")), "ls", CONNECTION, "--limit", "1", "--format", "json"]
        process = self._scope.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            output, _ = process.communicate(timeout=_STATUS_SECONDS)
            answer = json.loads(output)
            return list(answer["runs"]) if answer.get("success") else None
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            process.kill()
            return None


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
