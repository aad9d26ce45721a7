"""A deployment as processes of this machine: one SuperLink and many SuperNodes over TLS, each SuperNode with its key.

It is what docker-compose.yml starts, without containers and proxies: the same programs and options, a home of its own
for every node, certificates and keys from deploy/keys.sh. So it can have forty nodes, and costs little to start.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

TOP = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CONNECTION = "deployment"
_REGISTER = """
import sys
from flwr.cli.app import app
for key in sys.argv[1:]:
    app(["supernode", "register", key, "deployment", "--name", key.split("/")[-2]], standalone_mode=False)
"""


@dataclass(frozen=True)
class Line:
    """A line of a run's log, with the seconds since the run was submitted."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Memory:
    """Resident bytes of the long-lived processes, summed over the nodes where there are several."""

    superlink: int
    server_superexec: int
    serverapp: int
    supernodes: int
    node_superexecs: int
    clientapps: int


class Deployment:
    """Processes of a deployment; ended when the block ends.

    Parameters
    ----------
    folder : Path
        Empty, for everything.
    data_paths : sequence of Path
        The records of each node.
    environment : mapping of str to str
        For every process, beside what all deployments have.
    source : Path
        Folder of the FedVeil that runs.
    nice : int
        Added to the nodes' niceness: where one machine plays many, their work must not starve the server's.
    """

    def __init__(
        self,
        folder: Path,
        data_paths: list[Path],
        environment: Mapping[str, str] | None = None,
        source: Path = TOP,
        nice: int = 0,
    ) -> None:
        self.folder, self.data_paths, self.source, self.nice = folder, data_paths, source, nice
        self.port, *self._node_ports = _free_ports(1 + len(data_paths))
        self._environment = dict(environment or {})
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Deployment:
        self._keys("server")
        for place in self._nodes():
            self._keys("node", str(place), str(self.folder / "ca/ca.crt"))
        try:
            self._start_server()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _nodes(self) -> list[Path]:
        return [self.folder / "nodes" / f"node-{k + 1}" for k in range(len(self.data_paths))]

    def _keys(self, *words: str) -> None:
        given = {
            "FEDVEIL_DEPLOYMENT": str(self.folder),
            "FEDVEIL_ENV": str(self.folder / "compose.env"),
            "FEDVEIL_CONTROL_PORT": str(self.port),
        }
        script = str(self.source / "deploy/keys.sh")
        subprocess.run(
            ["sh", script, *words], env={**os.environ, **given}, check=True, stdout=subprocess.DEVNULL
        )

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a process whose home is this folder."""
        return {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("FLWR_", "FEDVEIL_"))
            },
            "FEDVEIL_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "PYTHONPATH": str(self.source),
            "PYTHONUNBUFFERED": "1",
            **self._environment,
        }

    def _start(self, name: str, home: Path, *command: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("w") as log:
            self._started[name] = subprocess.Popen(
                command,
                cwd=home,
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _start_server(self) -> None:
        here, authority = self.folder / "superlink", f"{self.folder}/ca/ca.crt"
        secret = f"--superexec-auth-secret-file={here}/superexec.secret"
        self._start(
            "superlink",
            here / "state",
            *("flower-superlink", "--isolation=process", "--host=127.0.0.1", f"--port={self.port}"),
            *(f"--ssl-ca-certfile={authority}", f"--ssl-certfile={here}/server.crt"),
            *(f"--ssl-keyfile={here}/server.key", "--enable-supernode-auth", secret),
            f"--database={here}/state/state.db",
        )
        wait_for("the SuperLink", lambda: _listens(self.port), 120)
        api = ("--runtime-api-address", f"127.0.0.1:{self.port}", "--root-certificates", authority)
        self._start("superexec-server", self.folder / "server", "flower-superexec", *api, secret)

    def start_nodes(self, seconds: float = 600) -> None:
        """Register and start all nodes, and wait till the SuperLink sees them."""
        operator = {**self.environment(self.folder), "FLWR_HOME": str(self.folder / "operator")}
        keys = [str(place / "node.key.pub") for place in self._nodes()]
        subprocess.run(
            [sys.executable, "-c", _REGISTER, *keys], env=operator, check=True, stdout=subprocess.DEVNULL
        )
        count = len(keys)
        for k, (place, port, path) in enumerate(
            zip(self._nodes(), self._node_ports, self.data_paths, strict=True)
        ):
            secret = f"--superexec-auth-secret-file={place}/superexec.secret"
            self._start(
                f"supernode-{k + 1}",
                place / "supernode",
                *self._lowered(),
                *("flower-supernode", f"--superlink=127.0.0.1:{self.port}", "--isolation=process"),
                f"--root-certificates={self.folder}/ca/ca.crt",
                f"--auth-supernode-private-key={place}/node.key",
                *("--host=127.0.0.1", f"--port={port}", f"--ssl-ca-certfile={place}/runtime-ca.crt"),
                *(f"--ssl-certfile={place}/runtime.crt", f"--ssl-keyfile={place}/runtime.key", secret),
                "--node-config",
                f'partition-id={k} num-partitions={count} data-path="{path}"',
            )
            self._start(
                f"superexec-{k + 1}",
                place / "state",
                *self._lowered(),
                *("flower-superexec", f"--runtime-api-address=127.0.0.1:{port}", secret),
                f"--root-certificates={place}/runtime-ca.crt",
            )
        wait_for(f"{count} nodes", lambda: self.online() == count, seconds)

    def _lowered(self) -> list[str]:
        return ["nice", "-n", str(self.nice)] if self.nice else []

    @property
    def node_superexecs(self) -> list[int]:
        """Process numbers of the nodes' SuperExecs."""
        names = [name for name in self._started if name.startswith("superexec-")]
        return [self._started[name].pid for name in names if name != "superexec-server"]

    def flwr(self, *words: str) -> str:
        """What Flower's command answers."""
        operator = {**self.environment(self.folder), "FLWR_HOME": str(self.folder / "operator")}
        done = subprocess.run(
            ["flwr", *words], env=operator, cwd=self.folder, text=True, capture_output=True, check=False
        )
        return done.stdout

    def online(self) -> int:
        """How many nodes the SuperLink sees."""
        try:
            nodes = json.loads(self.flwr("supernode", "list", CONNECTION, "--format", "json"))["nodes"]
        except (ValueError, KeyError):
            return -1
        return sum(node["status"] == "online" for node in nodes)

    def stream(self, app: Path, config: Mapping[str, Any]) -> Iterator[Line]:
        """Run an app; the lines of its log as they come.

        Raises
        ------
        RuntimeError
            If the run does not complete.
        """
        settings = self.folder / "config.toml"
        settings.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        operator = {**self.environment(self.folder), "FLWR_HOME": str(self.folder / "operator")}
        began, lines = time.monotonic(), []
        command = ["flwr", "run", str(app), CONNECTION, "--stream", "--run-config", str(settings)]
        with subprocess.Popen(
            command,
            env=operator,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            assert running.stdout is not None
            for text in running.stdout:
                lines.append(text)
                yield Line(time.monotonic() - began, text.rstrip())
        end, run = time.monotonic() + 900, {"status": ""}
        while not run["status"].startswith("finished") and time.monotonic() < end:  # a stream may break off
            answer = json.loads(self.flwr("ls", CONNECTION, "--limit", "1", "--format", "json"))
            run = answer["runs"][0]
            time.sleep(1)
        status = run["status"]
        if status != "finished:completed":
            raise RuntimeError(f"the run ended as {status!r}: {''.join(lines[-30:])}")

    def memory(self) -> Memory:
        """Resident memory now."""
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"], []).append(process)

        def resident(processes: list[psutil.Process]) -> int:
            total = 0
            for process in processes:
                with suppress(psutil.Error):  # ended meanwhile
                    total += process.memory_info().rss
            return total

        def descendants(pid: int) -> list[psutil.Process]:
            return [one for child in children.get(pid, []) for one in (child, *descendants(child.pid))]

        pids = {name: process.pid for name, process in self._started.items()}
        server = pids["superexec-server"]
        nodes = self.node_superexecs
        return Memory(
            superlink=resident([psutil.Process(pids["superlink"])]),
            server_superexec=resident([psutil.Process(server)]),
            serverapp=resident(descendants(server)),
            supernodes=resident(
                [psutil.Process(pids[name]) for name in pids if name.startswith("supernode-")]
            ),
            node_superexecs=resident([psutil.Process(pid) for pid in nodes]),
            clientapps=resident([one for pid in nodes for one in descendants(pid)]),
        )

    def close(self) -> None:
        """End everything that was started here, nodes first."""
        for process in reversed(list(self._started.values())):
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                for child in family:
                    with suppress(psutil.Error):
                        child.kill()
                process.wait()
        self._started.clear()


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Ask until it is so.

    Raises
    ------
    TimeoutError
        If it is not so in time.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not there after {seconds:.0f} s.")
        time.sleep(0.3)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
