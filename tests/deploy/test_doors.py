"""Who may do what: sites reach ten calls with a registered key over TLS, and nothing of the operator's."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.deploy

REFUSED = (
    "/v1/control/start-run",
    "/v1/control/stop-run",
    "/v1/control/register-node",
    "/v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fstart-run",
    "/v1/fleet/pull-messages/..;/../control/start-run",
    "/v1/fleet//pull-messages",
    "//v1/control/start-run",
    "/V1/FLEET/pull-messages",
    "/v1/fleet/pull-messages/",
    "/v1/control/start-run?/v1/fleet/pull-messages",
    "/v1/control/start-run#/v1/fleet/pull-messages",
    "https://superlink:8000/v1/control/start-run",
    "/docs",
    "/openapi.json",
    "/health",
    "/",
)


def ask(stack: Any, port: int, target: str, *, method: str = "POST", headers: Sequence[str] = ()) -> int:
    """Status of the answer to one request, its target sent as it is; 0 if the connection is closed without one."""
    context = ssl.create_default_context(cafile=stack.deployment / "ca/ca.crt")
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += headers or ["Content-Length: 0", "Content-Type: application/protobuf"]
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as channel,
    ):
        channel.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = channel.recv(4096)
    return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize("target", REFUSED)
def test_the_door_for_sites_lets_nothing_through_but_the_fleet_calls(running: Any, target: str):
    assert ask(running, running.sites_port, target) in (400, 403)


def test_the_door_for_sites_reaches_the_superlink_for_a_fleet_call_which_needs_a_signature(running: Any):
    assert ask(running, running.sites_port, "/v1/fleet/pull-messages") == 401
    assert ask(running, running.sites_port, "/v1/fleet/pull-messages", method="GET") == 403


def test_a_request_that_hides_a_second_one_or_is_too_large_is_refused(running: Any):
    target, kind = "/v1/fleet/pull-messages", "Content-Type: application/protobuf"
    for headers in (
        [kind, "Content-Length: 0", "Transfer-Encoding: chunked"],
        [kind, "Transfer-Encoding: chunked"],
        [kind, "Content-Length: 0", "Content-Length: 44"],
    ):
        assert ask(running, running.sites_port, target, headers=headers) in (400, 403), headers
    assert ask(running, running.sites_port, target, headers=[kind, f"Content-Length: {2**30}"]) == 413


@pytest.mark.parametrize(
    "target", ["/v1/runtime/acquire-task", "/v1/fleet/pull-messages", "/docs", "/openapi.json"]
)
def test_the_operator_s_door_has_neither_the_runtime_nor_the_documentation(running: Any, target: str):
    assert ask(running, running.control_port, target) == 403


@pytest.mark.parametrize(
    "words",
    [
        ("run", "flwr_apps/fedsva", "site"),
        ("stop", "1", "site"),
        ("ls", "site"),
        ("supernode", "register", "KEY", "site", "--name", "mine"),
        ("supernode", "ls", "site"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_flower_s_own_command_can_do_nothing_from_a_site(
    running: Any, deploy: ModuleType, tmp_path: Path, words: Sequence[str]
):
    authority = running.deployment / "ca/ca.crt"
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{running.sites_port}"\n'
        f'root-certificates = "{authority}"\n'
    )
    before = (
        running.flwr("supernode", "ls", "deployment", "--format", "json"),
        running.flwr("ls", "deployment"),
    )
    deploy.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", tmp_path / "mine"])
    words = [str(tmp_path / "mine.pub") if word == "KEY" else word for word in words]
    env = {"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    result = deploy.run([deploy.flwr_command(), *words], env=env, check=False, timeout=120)
    assert result.returncode, result.stdout
    after = (
        running.flwr("supernode", "ls", "deployment", "--format", "json"),
        running.flwr("ls", "deployment"),
    )
    assert [text.count("node-") for text in after] == [text.count("node-") for text in before]
    assert after[1] == before[1]


def supernode(stack: Any, folder: Path, *words: str, authority: Path | None = None) -> str:
    """What a SuperNode on the sites' network says that must give up: its key is in the folder."""
    authority = authority or stack.deployment / "ca/ca.crt"
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    return str(
        stack.engine.docker(
            *("run", "--rm", "--network", f"{stack.project}_sites", "--tmpfs", "/state:mode=1777"),
            *("-v", f"{folder}:/keys:ro", "-v", f"{authority}:/ca.crt:ro", stack.settings["FEDVEIL_IMAGE"]),
            *("timeout", "45", "flower-supernode", "--superlink=proxy:8443", "--isolation=process"),
            *("--max-retries=1", "--node-config=partition-id=0 num-partitions=3", *words),
            check=False,
        )
    )


@pytest.fixture
def stranger(deploy: ModuleType, tmp_path: Path) -> Path:
    """A folder with a node key that nobody has registered."""
    folder = tmp_path / "keys"
    folder.mkdir()
    deploy.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", folder / "key"])
    return folder


TLS, KEY = "--root-certificates=/ca.crt", "--auth-supernode-private-key=/keys/key"


def test_a_node_whose_key_is_not_registered_does_not_come_in(running: Any, stranger: Path):
    said = supernode(running, stranger, TLS, KEY)
    assert running.online() == 3
    assert "Starting Flower SuperNode" in said
    assert "Task" not in said


def test_a_node_that_trusts_another_authority_does_not_talk_to_the_proxy(
    running: Any, deploy: ModuleType, stranger: Path, tmp_path: Path
):
    elsewhere = {"FEDVEIL_DEPLOYMENT": str(tmp_path / "other"), "FEDVEIL_ENV": str(tmp_path / "other.env")}
    deploy.run([deploy.ROOT / "deploy/keys.sh", "server"], env=elsewhere)
    said = supernode(running, stranger, TLS, KEY, authority=tmp_path / "other/ca/ca.crt")
    assert "certificate" in said.lower()
    assert running.online() == 3


def test_a_client_without_tls_gets_no_answer(running: Any, stranger: Path):
    supernode(running, stranger, "--insecure")
    assert running.online() == 3
    with socket.create_connection(("127.0.0.1", running.sites_port), timeout=20) as plain:
        plain.sendall(
            b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        )
        assert not plain.recv(4096).startswith(b"HTTP")


CONNECT = """
import socket, sys
port, *names = sys.argv[1:]
for name in names:
    try:
        socket.create_connection((name, int(port)), timeout=2).close()
    except OSError:
        continue
    print("reached")
"""


@pytest.mark.parametrize(
    ("service", "name", "port", "reached"),
    [
        ("supernode-1", "proxy", 8443, True),
        ("supernode-1", "proxy", 8444, False),
        ("supernode-1", "superlink", 8000, False),
        ("supernode-1", "operator-proxy", 8444, False),
        ("supernode-1", "superexec-client-2", 9094, False),
        ("superexec-client-1", "supernode", 9094, True),
        ("superexec-client-1", "proxy", 8443, False),
        ("superexec-client-1", "superlink", 8000, False),
        ("superexec-server", "superlink", 8000, True),
        ("superexec-server", "supernode-1", 9094, False),
    ],
)
def test_a_container_reaches_what_it_needs_and_nothing_else(
    running: Any, service: str, name: str, port: int, reached: bool
):
    target = "supernode-1" if name == "supernode" else name
    addresses = running.inspect(target, "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}").split()
    assert addresses
    said = running.execute(service, "python", "-c", CONNECT, str(port), name, *addresses)
    assert ("reached" in said) is reached
