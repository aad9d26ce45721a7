"""FedSVA on a deployment: a SuperLink and two SuperNodes that start a process for every message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from fedveil.artifacts import NodeLedger, RunFolder

pytestmark = pytest.mark.e2e

APP = Path(__file__).parents[2] / "flwr_apps" / "fedsva"
BIN = Path(sys.executable).parent
SETTINGS = "num-server-rounds=2 num-clients=4 model='softmax'"


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes, each with a home of its own."""

    folder: Path
    port: int

    def environment(self, name: str) -> dict[str, str]:
        """The environment of one of the machines."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return {
            **os.environ,
            "FEDVEIL_HOME": str(home / "fedveil"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        }

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A long-running process of one of the machines; its output goes to a log in its home."""
        environment = self.environment(name)
        with (self.folder / name / "log").open("w") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder / name,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def flwr(self, *arguments: str) -> str:
        """What Flower's command says to its user."""
        done = subprocess.run(
            ["flwr", *arguments],
            cwd=self.folder,
            env=self.environment("user"),
            text=True,
            capture_output=True,
            timeout=240,
            check=False,
        )
        return done.stdout + done.stderr

    def run(self, settings: str) -> tuple[str, str, str]:
        """Run the app; its log, its status, and the reason of a failure."""
        log = self.flwr("run", str(APP), "here", "--stream", "--run-config", settings)
        end = time.monotonic() + 60
        while True:
            run = json.loads(self.flwr("ls", "here", "--limit", "1", "--format", "json"))["runs"][0]
            if run["status"].startswith("finished") or time.monotonic() > end:
                return log, run["status"], run["status-details"]
            time.sleep(1)

    def logs(self) -> str:
        """All logs, for a test that failed."""
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*/log"))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A SuperLink and two SuperNodes on this machine; all that they started is ended afterwards."""
    port, *node_ports = free_ports(3)
    here = Deployment(tmp_path_factory.mktemp("deployment"), port)
    here.environment("user")
    (here.folder / "user" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    local = ["--insecure", "--isolation", "subprocess", "--host", "127.0.0.1"]
    started = [
        here.start(
            "superlink",
            *("flower-superlink", *local, "--port", str(port), "--disable-runtime-dependency-installation"),
        )
    ]
    try:
        _wait_for(lambda: _is_healthy(port))
        for number, node_port in enumerate(node_ports):
            place = f"partition-id={number} num-partitions=2"
            command = ["flower-supernode", *local, "--superlink", f"127.0.0.1:{port}"]
            started.append(
                here.start(f"node{number}", *command, "--port", str(node_port), "--node-config", place)
            )
        yield here
    finally:
        for process in started:
            _end(process)


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the SuperLink did not start")
        time.sleep(0.2)


def _is_healthy(port: int) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=1.0):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                child.send_signal(signal.SIGKILL)
            except psutil.Error:  # ended meanwhile
                continue
        process.kill()
    process.wait()


def test_a_seed_is_refused_before_any_node_is_asked(deployment: Deployment):
    log, status, reason = deployment.run(f"{SETTINGS} seed=7")
    sentence = "seed = 7 in a deployment: whoever knows it could subtract the noise; leave seed empty."
    assert status == "finished:failed", deployment.logs()
    assert sentence in reason or sentence in log
    assert not (deployment.folder / "superlink" / "fedveil").exists()
    assert not list(deployment.folder.glob("node*/fedveil"))


def test_a_run_without_a_seed_leaves_its_folder_here_and_a_ledger_on_each_node(deployment: Deployment):
    log, status, reason = deployment.run(SETTINGS)
    assert status == "finished:completed", f"{reason}\n{log}\n{deployment.logs()}"
    (path,) = (deployment.folder / "superlink" / "fedveil" / "runs").iterdir()
    folder = RunFolder(path)
    assert f"fedveil | run folder: {path}" in log
    assert "simulation" not in log
    assert folder.is_finished
    rows = pq.read_table(path / "ledger.parquet").to_pylist()
    assert {row["source"] for row in rows} == {"reply"}
    # four clients, each row under two relations: a step in two rounds, and the contribution once
    assert Counter(row["release"] for row in rows) == {"gradient": 4 * 2 * 2, "contribution": 4 * 2}
    assert 0.99 < folder.load_model()[1]["guarantees"][0]["epsilon"] <= 1.0
    for number in range(2):
        own = NodeLedger(deployment.folder / f"node{number}" / "fedveil" / "node-ledger.sqlite").releases()
        assert {row.client for row in own} == {2 * number, 2 * number + 1}
        assert sorted((row.client, row.round, row.relation, row.mu) for row in own) == sorted(
            (row["client"], row["round"], row["relation"], row["mu"])
            for row in rows
            if row["client"] // 2 == number
        )
    assert not (path / "node-ledger.sqlite").exists()
