"""A deployment in containers, from the docker-compose.yml that users get: made, used, hurt and taken down by tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
_TAG = os.environ.get("FEDVEIL_TEST_TAG", "test")  # of the images that tests build
NODE_IMAGE, PROXY_IMAGE = f"fedveil-node:{_TAG}", f"fedveil-proxy:{_TAG}"
_NODE_BASE, _PROXY_BASE = "python:3.11-slim", "debian:bookworm-slim"
PUBLIC_NAME = "learn.test"  # what sites on other networks call the proxy
_OWN_PROXY_BASE = "fedveil-debian:bookworm"


class DeploymentError(AssertionError):
    """A command about the deployment failed; the message holds what it said."""


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    check: bool = True,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """One command to its end, output and errors together."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=dict(os.environ) | dict(env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and result.returncode:
        words = " ".join(str(part) for part in command)
        raise DeploymentError(f"{words}: exit status {result.returncode}\n{result.stdout[-6000:]}")
    return result


def wait_for(what: str, condition: Callable[[], object], seconds: float = 120.0, pause: float = 1.0) -> None:
    """Until the condition holds, or an error that says what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DeploymentError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def flwr_command() -> Path:
    """Flower's command of the environment that the tests run in."""
    return Path(sys.executable).parent / "flwr"


@dataclass(frozen=True)
class Engine:
    """A container engine: how to talk to it, and how to compose on it."""

    env: Mapping[str, str]
    compose: tuple[str, ...]

    @classmethod
    def find(cls) -> Engine:
        """The engine of $DOCKER_HOST or of this machine, else one that a tool starts.

        The tool is $FEDVEIL_CONTAINER_ENGINE (``TOOL start`` prints the DOCKER_HOST, ``TOOL base`` makes
        ``python:3.11-slim`` where nothing can be pulled).
        """
        if shutil.which("docker") and not run(["docker", "info"], check=False).returncode:
            return cls._with_compose({})
        tool = Path(
            os.environ.get("FEDVEIL_CONTAINER_ENGINE") or ROOT.parent / "shared/tools/container-engine.sh"
        )
        if not tool.is_file():
            raise DeploymentError(
                "no container engine answers: start Docker, set DOCKER_HOST, or name in "
                "FEDVEIL_CONTAINER_ENGINE a program whose `start` prints the DOCKER_HOST of one it started."
            )
        said = run(["bash", tool, "start"]).stdout
        found = re.search(r"DOCKER_HOST=(\S+)", said)
        if not found:
            raise DeploymentError(f"{tool} start printed no DOCKER_HOST=...: {said[-500:]}")
        env = {"DOCKER_HOST": found[1]}
        if run(["docker", "image", "inspect", _NODE_BASE], env=env, check=False).returncode:
            run(["bash", tool, "base"])
        return cls._with_compose(env)

    @classmethod
    def _with_compose(cls, env: Mapping[str, str]) -> Engine:
        for words in (("docker", "compose"), ("docker-compose",)):
            if shutil.which(words[0]) and not run([*words, "version"], env=env, check=False).returncode:
                return cls(env, words)
        raise DeploymentError("docker compose is missing: install its plugin, or docker-compose 1.29.")

    def docker(self, *words: str | Path, check: bool = True, timeout: float = 1200.0) -> str:
        """What ``docker ...`` prints."""
        return run(["docker", *words], env=self.env, check=check, timeout=timeout).stdout.strip()

    def fair_shares(self, composed: Path, folder: Path) -> list[Path]:
        """An override that lets each container of a compose file count as one among this machine's processes.

        By default all containers together weigh as much as one process outside, which starves them on a busy machine,
        so that Flower takes its tasks for dead. Only the cgroupfs driver takes a parent outside the engine's own.
        """
        if self.docker("info", "--format", "{{.CgroupDriver}}") != "cgroupfs":
            return []
        override = folder / f"{composed.parent.name}-shares.yml"
        services = yaml.safe_load(composed.read_text())["services"]
        override.write_text(json.dumps({"services": {name: {"cgroup_parent": "/"} for name in services}}))
        return [override]

    def build(self, source: Path = ROOT) -> None:
        """The two images, from a checkout; only what changed is built anew.

        Wheels are downloaded by this machine's pip where deploy/wheels lacks some, for containers may reach no index.
        """
        run([source / "deploy/wheels.sh"], env={"PIP": f"{sys.executable} -m pip"}, timeout=1200)
        self.docker("build", "-t", NODE_IMAGE, "-f", source / "deploy/Dockerfile", source)
        base = _PROXY_BASE
        if run(["docker", "image", "inspect", base], env=self.env, check=False).returncode and (
            run(["docker", "pull", "-q", base], env=self.env, check=False).returncode
        ):
            base = _OWN_PROXY_BASE
            run([source / "deploy/debian-base.sh", base], env=self.env, timeout=1200)
        self.docker("build", "-t", PROXY_IMAGE, "--build-arg", f"PROXY_BASE={base}", source / "deploy/proxy")


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: Flower's status, its log, and its folder on this machine (None if it made none)."""

    number: str
    status: str
    log: str
    folder: Path | None

    def completed(self) -> FinishedRun:
        """This run; an error with the end of its log unless it completed."""
        if self.status != "finished:completed":
            raise DeploymentError(f"run {self.number}: {self.status}\n{self.log[-6000:]}")
        return self


@dataclass
class Stack:
    """One compose project with keys, data, ledgers and runs in a folder of its own.

    Attributes
    ----------
    engine : Engine
    folder : Path
        ``deployment/`` in it is what deploy/keys.sh made.
    nodes : int
        0 (the server's side only) to 5; services ``supernode-K`` and ``superexec-client-K`` count from 1,
        partitions from 0.
    overrides : list of Path
        More compose files, on top of docker-compose.yml; set before ``up``.
    """

    engine: Engine
    folder: Path
    nodes: int = 3
    source: Path = ROOT
    overrides: list[Path] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project = f"fedveil-{os.getpid()}-{self.folder.name}".lower().replace("_", "-")
        self.deployment = self.folder / "deployment"
        self.sites_port, self.control_port = free_port(), free_port()
        self._env_file = self.folder / "compose.env"
        words = ["local", str(self.nodes)] if self.nodes else ["server"]
        run(
            [self.source / "deploy/keys.sh", *words, PUBLIC_NAME],
            env={
                "FEDVEIL_DEPLOYMENT": str(self.deployment),
                "FEDVEIL_ENV": str(self._env_file),
                "FEDVEIL_CONTROL_PORT": str(self.control_port),
            },
        )
        self.settings = {
            "FEDVEIL_IMAGE": NODE_IMAGE,
            "FEDVEIL_PROXY_IMAGE": PROXY_IMAGE,
            "FEDVEIL_SITES_PORT": str(self.sites_port),
            "FEDVEIL_CONTROL_PORT": str(self.control_port),
        } | self.settings
        if not self.nodes:
            self._env_file.write_text(f"FEDVEIL_DEPLOYMENT={self.deployment}\n")
        lines = "".join(f"{key}={value}\n" for key, value in self.settings.items())
        self._env_file.write_text(self._env_file.read_text() + lines)

    # --- the project -------------------------------------------------------------------------------------------

    def compose(self, *words: str, check: bool = True, timeout: float = 600.0) -> str:
        """What ``docker compose ...`` prints about this project."""
        composed = self.source / "docker-compose.yml"
        files = [
            part
            for file in (composed, *self.engine.fair_shares(composed, self.folder), *self.overrides)
            for part in ("-f", file)
        ]
        command = [*self.engine.compose, "-p", self.project, "--env-file", self._env_file, *files, *words]
        return run(command, env=self.engine.env, check=check, timeout=timeout, cwd=self.source).stdout

    def up(self, *services: str) -> None:
        """Start everything (or these services) and wait until every node is online."""
        self.compose("up", "--detach", "--no-build", *services)
        if not services and self.nodes:
            self.wait_online(self.nodes)

    def down(self) -> None:
        """Stop and remove containers, networks and volumes; the folder stays."""
        self.compose("down", "--remove-orphans", "--volumes", "--timeout", "3", check=False)

    def node_folder(self, node: int) -> Path:
        """Keys, ``data/`` (seen as /data), ``state/`` (the ledger's) and ``policy.toml`` of node 1, 2, ..."""
        return self.deployment / "nodes" / f"node-{node}"

    def ledger(self, node: int) -> Path:
        """The SQLite file of a node's ledger."""
        return self.node_folder(node) / "state" / "node-ledger.sqlite"

    @property
    def server_data(self) -> Path:
        """Folder that the ServerApp sees as /data: public description, public test set."""
        return self.deployment / "server" / "data"

    @property
    def runs(self) -> Path:
        """Folder of the runs' folders."""
        return self.deployment / "runs"

    def give(self, path: Path, text: str) -> None:
        """Write a file that the containers' user may read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)

    # --- containers --------------------------------------------------------------------------------------------

    def container(self, service: str) -> str:
        """Id of a service's container, running or not."""
        words = ["--filter", f"label=com.docker.compose.project={self.project}"]
        words += ["--filter", f"label=com.docker.compose.service={service}"]
        found = self.engine.docker("ps", "-aq", *words).split()
        if not found:
            raise DeploymentError(f"service {service} has no container in {self.project}.")
        return found[0]

    def inspect(self, service: str, template: str) -> str:
        """One field of a container, as a Go template says it."""
        return self.engine.docker("inspect", "--format", template, self.container(service))

    def logs(self, service: str) -> str:
        """All that a service's container has printed."""
        return self.engine.docker("logs", self.container(service))

    def execute(self, service: str, *words: str, check: bool = True) -> str:
        """What a command inside a service's container prints."""
        return self.engine.docker("exec", self.container(service), *words, check=check)

    def kill(self, service: str) -> None:
        """SIGKILL, and no restart by the engine: ``start`` brings it back."""
        self.engine.docker("kill", "--signal", "KILL", self.container(service))

    def crash(self, service: str) -> None:
        """SIGKILL to all processes of a service but the init, so that its restart policy brings it back."""
        self.execute(service, "sh", "-c", "kill -9 -1", check=False)

    def crash_process(self, service: str, name: str) -> None:
        """SIGKILL to the processes of a service whose command line has this name; the others go on."""
        pattern = f"{name[:-1]}[{name[-1]}]"  # not found in the command line of the search itself
        self.execute(
            *(service, "sh", "-c"),
            f"for p in /proc/[0-9]*; do grep -qa '{pattern}' $p/cmdline && kill -9 ${{p#/proc/}}; done; true",
        )

    def runs_process(self, service: str, name: str) -> bool:
        """Whether a process with this name in its command line runs in a service."""
        return name in self.engine.docker("top", self.container(service), "-o", "pid,args", check=False)

    def start(self, service: str) -> None:
        """Start a container that was killed or stopped."""
        self.engine.docker("start", self.container(service))

    def pause(self, service: str) -> None:
        """Freeze all processes of a service."""
        self.engine.docker("pause", self.container(service))

    def unpause(self, service: str) -> None:
        """Go on after ``pause``."""
        self.engine.docker("unpause", self.container(service))

    def cut(self, service: str, network: str) -> None:
        """Take a service off a network of the project, ``sites`` for example."""
        self.engine.docker("network", "disconnect", f"{self.project}_{network}", self.container(service))

    def heal(self, service: str, network: str, *aliases: str) -> None:
        """Put a service back on a network, under its own name and these."""
        words = [part for name in (service, *aliases) for part in ("--alias", name)]
        self.engine.docker("network", "connect", *words, f"{self.project}_{network}", self.container(service))

    # --- the operator ------------------------------------------------------------------------------------------

    def flwr(self, *words: str | Path, check: bool = True, timeout: float = 120.0) -> str:
        """What ``flwr ...`` prints on this machine, with the operator's connection."""
        env = {
            "FLWR_HOME": str(self.deployment / "operator"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        return run([flwr_command(), *words], env=env, check=check, timeout=timeout).stdout

    def _listed(self, *words: str) -> dict[str, object] | None:
        said = self.flwr(*words, "--format", "json", check=False)
        try:
            answer = json.loads(said[said.index("{") :])
        except ValueError:
            return None
        return dict(answer) if answer.get("success") else None

    def online(self) -> int:
        """Nodes that the SuperLink takes for online."""
        listed = self._listed("supernode", "ls", "deployment")
        nodes = listed.get("nodes", []) if listed else []
        return sum(node["status"] == "online" for node in nodes) if isinstance(nodes, list) else 0

    def wait_online(self, nodes: int, seconds: float = 400.0) -> None:
        """Until so many nodes are online."""
        wait_for(f"{nodes} nodes online", lambda: self.online() == nodes, seconds)

    def submit(self, app: str | Path, config: Mapping[str, object]) -> str:
        """Start an app (``fedsva``, ``modulated`` or a folder) with these settings; the run's number."""
        folder = self.source / "flwr_apps" / app if isinstance(app, str) else app
        file = self.folder / f"run-{time.monotonic_ns()}.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        said = self.flwr("run", folder, "deployment", "--run-config", file)
        found = re.search(r"started run (\d+)", said)
        if not found:
            raise DeploymentError(f"flwr run started nothing: {said[-2000:]}")
        return found[1]

    def status(self, number: str) -> str:
        """Flower's word for the state of a run; empty if the SuperLink does not answer."""
        listed = self._listed("ls", "deployment", "--run-id", number)
        runs = listed.get("runs", []) if listed else []
        return str(runs[0]["status"]) if isinstance(runs, list) and runs else ""

    def wait(self, number: str, seconds: float = 900.0) -> FinishedRun:
        """Until a run has ended, however it ends."""
        wait_for(f"end of run {number}", lambda: self.status(number).startswith("finished"), seconds, pause=5)
        log = self.flwr("log", number, "deployment", "--show", check=False)
        paths = [Path(found) for found in re.findall(r"/fedveil/runs/[\w.:+-]+", log)]
        folders = [self.runs / path.name for path in paths if (self.runs / path.name).is_dir()]
        return FinishedRun(number, self.status(number), log, folders[-1] if folders else None)

    def run_app(self, app: str | Path, config: Mapping[str, object], seconds: float = 900.0) -> FinishedRun:
        """``submit``, then ``wait``."""
        return self.wait(self.submit(app, config), seconds)

    def all_logs(self, lines: int = 40) -> str:
        """The end of every container's log, for a test that failed."""
        return self.compose("logs", "--no-color", f"--tail={lines}", check=False)[-20000:]


@dataclass
class Site:
    """One site as a compose project of its own, on networks of its own: deploy/site/docker-compose.yml.

    Attributes
    ----------
    server : Stack
        Whose proxy it reaches, through the published port of this machine.
    number, count : int
        Its partition, from 0, and how many there are.
    """

    server: Stack
    number: int
    count: int

    def __post_init__(self) -> None:
        self.project = f"{self.server.project}-site-{self.number}"
        self.folder = self.server.folder / f"site-{self.number}"
        run(
            [self.server.source / "deploy/keys.sh", "node", self.folder, self.server.deployment / "ca/ca.crt"]
        )
        key = self.server.deployment / "operator-container/nodes" / f"site-{self.number}.pub"
        self.server.give(key, (self.folder / "node.key.pub").read_text())
        self._env_file = self.folder / "site.env"
        filled = {
            "SUPERLINK": f"{PUBLIC_NAME}:{self.server.sites_port}",
            "PARTITION": self.number,
            "NODES": self.count,
            "FEDVEIL_IMAGE": self.server.settings["FEDVEIL_IMAGE"],
        }
        with self._env_file.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in filled.items())
        self._extra = self.folder / "gateway.yml"
        self._extra.write_text(f'services: {{supernode: {{extra_hosts: ["{PUBLIC_NAME}:host-gateway"]}}}}\n')

    def compose(self, *words: str, check: bool = True) -> str:
        """What ``docker compose ...`` prints about this project."""
        engine = self.server.engine
        composed = self.server.source / "deploy/site/docker-compose.yml"
        files = [
            part
            for file in (composed, *engine.fair_shares(composed, self.folder), self._extra)
            for part in ("-f", file)
        ]
        command = [*engine.compose, "-p", self.project, "--env-file", self._env_file, *files, *words]
        return run(command, env=engine.env, check=check, cwd=self.server.source).stdout

    def up(self) -> None:
        """Start it."""
        self.compose("up", "--detach", "--no-build")

    def down(self) -> None:
        """Stop and remove containers and networks."""
        self.compose("down", "--timeout", "3", check=False)
