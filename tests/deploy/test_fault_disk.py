"""Full disks: told in a sentence, nothing half-written, nothing sent without its row, and a run goes on after them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedveil.artifacts import RunFolder

pytestmark = pytest.mark.deploy

NODES = (1, 2, 3)
SMALL = """\
services:
  superexec-server: {volumes: ["small-runs:/fedveil/runs"]}
  superexec-client-3: {volumes: ["small-state:/fedveil"]}
volumes:
  small-runs: &small {driver: local, driver_opts: {type: tmpfs, device: tmpfs, o: "size=2m,mode=1777"}}
  small-state: *small
"""


@pytest.fixture(scope="module")
def small(new_stack: Callable[..., Any], scenes: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three nodes; the runs' folder and node 3's ledger lie on small file systems of their own."""
    override = tmp_path_factory.mktemp("small") / "small.yml"
    override.write_text(SMALL)
    stack = new_stack(overrides=[override])
    scenes.furnish(stack)
    stack.up()
    return stack


@pytest.fixture
def full(small: Any) -> Callable[[str, str], None]:
    """Leave no byte of the file system of a folder inside a service."""

    def fill(service: str, folder: str) -> None:
        small.execute(service, "sh", "-c", f"cat /dev/zero >{folder}/ballast", check=False)
        assert small.execute(service, "df", "--output=avail", folder).split()[-1] == "0"

    return fill


@pytest.fixture
def copied(small: Any, tmp_path: Path) -> Callable[[str, str], Path]:
    """A file or folder out of a service, as it is now."""

    def copy(service: str, path: str) -> Path:
        target = tmp_path / service
        target.mkdir(exist_ok=True)
        small.engine.docker("cp", f"{small.container(service)}:{path}", target)
        return target / Path(path).name

    return copy


@pytest.fixture
def ledgers(small: Any, copied: Any) -> Callable[[], dict[int, Path]]:
    """The ledgers of all nodes, by partition."""

    def found() -> dict[int, Path]:
        third = copied("superexec-client-3", "/fedveil")  # where there may be none, if it had no room
        return {0: small.ledger(1), 1: small.ledger(2), 2: third / "node-ledger.sqlite"}

    return found


def test_no_message_leaves_a_node_whose_ledger_has_no_room(
    small: Any, scenes: ModuleType, accounts: ModuleType, full: Any, copied: Any, ledgers: Any
):
    full("superexec-client-3", "/fedveil")
    run = small.run_app("fedsva", {**scenes.FEDSVA, "num-server-rounds": 1})
    assert run.status == "finished:completed", run.log
    (line,) = [line for line in run.log.splitlines() if "round 1: dropped" in line]
    assert "clients 2" in line
    assert "/fedveil/node-ledger.sqlite could not be" in line
    (name,) = small.execute("superexec-server", "ls", "/fedveil/runs").split()
    found = accounts.accounts(copied("superexec-server", f"/fedveil/runs/{name}"), ledgers()).check()
    assert found.of(0, 1) == found.of(1, 1) == (1, 0, 1)
    assert found.of(2, 1) == (0, 1, 0)  # the server cannot know that nothing left
    small.execute("superexec-client-3", "rm", "/fedveil/ballast")


def test_a_run_whose_folder_has_no_room_fails_in_one_sentence_and_goes_on_when_there_is(
    small: Any,
    scenes: ModuleType,
    deploy: ModuleType,
    accounts: ModuleType,
    full: Any,
    copied: Any,
    ledgers: Any,
):
    before = set(small.execute("superexec-server", "ls", "/fedveil/runs").split())
    number = small.submit("fedsva", scenes.FEDSVA)

    def begun() -> set[str]:
        lines = small.execute(
            "superexec-server", "sh", "-c", "ls -d /fedveil/runs/*/checkpoint/last.safetensors"
        )
        return {line.split("/")[3] for line in lines.splitlines() if line.startswith("/")} - before

    deploy.wait_for("a checkpoint of the run", begun, 240, 0.5)
    (name,) = begun()
    full("superexec-server", "/fedveil/runs")
    ended = small.wait(number)
    assert ended.status == "finished:failed"
    place = f"/fedveil/runs/{name}"
    assert re.search(
        rf"WriteFailed: {place}/\S+ could not be written \(No space left on device\): make room", ended.log
    )
    interrupted = copied("superexec-server", place)
    assert not RunFolder(interrupted).is_finished
    assert RunFolder(interrupted).load_checkpoint().round == 0  # whole, of the round before
    small.execute("superexec-server", "rm", "/fedveil/runs/ballast")
    small.run_app("fedsva", {**scenes.FEDSVA, "resume": place}).completed()
    interrupted.rename(interrupted.with_name("interrupted"))
    found = accounts.accounts(copied("superexec-server", place), ledgers()).check()
    for client in range(3):
        assert found.of(client, 1) == (1, 1, 2)  # sent, not saved, sent again
        assert found.of(client, 2)[2] == 0  # and so its budget of two releases is spent
