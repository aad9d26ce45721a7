"""A node whose clock is a day off: it is refused, the run goes on with the others, and it is back when set right."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedveil.artifacts import RunFolder

pytestmark = pytest.mark.deploy

NODES = (1, 2, 3)
DAY = 86400
NODE_3 = ("supernode-3", "superexec-client-3")
SHIFTED = """\
  {name}:
    environment: {{LD_PRELOAD: /clock/clock.so, CLOCK_SHIFT: /clock/{name}}}
    volumes: ["{folder}:/clock:ro"]
"""


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shift of each of node 3's containers in seconds, and the library that applies it."""
    folder = tmp_path_factory.mktemp("clock")
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", folder / "clock.so", source], check=True)
    for name in NODE_3:
        (folder / name).write_bytes(struct.pack("<q", 0))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def clocked(
    new_stack: Callable[..., Any], scenes: ModuleType, clocks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Three nodes; the containers of node 3 read the time of day through their shift."""
    override = tmp_path_factory.mktemp("clocks") / "clocks.yml"
    shifted = [SHIFTED.format(name=name, folder=clocks) for name in NODE_3]
    override.write_text("".join(["services:\n", *shifted]))
    stack = new_stack(overrides=[override])
    scenes.furnish(stack)
    stack.up()
    return stack


@pytest.fixture
def set_clocks(clocks: Path) -> Iterator[Callable[..., None]]:
    """Shift the time of day of services by seconds, at once and for processes that run; right again after the test."""

    def write(seconds: int, *services: str) -> None:
        for service in services:
            with (clocks / service).open("r+b") as file:  # in place: the processes have mapped this very file
                file.write(struct.pack("<q", seconds))

    yield write
    write(0, *NODE_3)


@pytest.fixture
def begun(clocked: Any, deploy: ModuleType) -> Callable[[dict[str, Any]], str]:
    """Start a run of FedSVA and wait until round 1 is on disk; its number."""

    def start(config: dict[str, Any]) -> str:
        clocked.wait_online(len(NODES))
        before = {path.name for path in clocked.runs.iterdir()}
        number = clocked.submit("fedsva", config)

        def saved() -> bool:
            new = [path for path in clocked.runs.iterdir() if path.name not in before and path.name[0] != "."]
            checkpoint = RunFolder(new[0]).load_checkpoint() if new else None
            return checkpoint is not None and checkpoint.round >= 1

        deploy.wait_for(f"round 1 of run {number}", saved, 600, 0.2)
        return str(number)

    return start


@pytest.fixture
def books(clocked: Any, accounts: ModuleType) -> Callable[[Path], Any]:
    """The accounts of a run, checked."""
    ledgers = {node - 1: clocked.ledger(node) for node in NODES}
    return lambda folder: accounts.accounts(folder, ledgers).check()


@pytest.mark.parametrize("days", [1, -1], ids=["ahead", "behind"])
def test_a_node_whose_clock_jumps_a_day_is_left_out_until_the_clock_is_right_and_nothing_is_lost(
    clocked: Any, scenes: ModuleType, deploy: ModuleType, set_clocks: Any, begun: Any, books: Any, days: int
):
    number = begun({**scenes.FEDSVA, "round-timeout": 300.0})
    set_clocks(days * DAY, *NODE_3)
    shifted, right = (int(clocked.execute(f"superexec-client-{node}", "date", "+%s")) for node in (3, 1))
    assert abs(shifted - right - days * DAY) < 60
    run = clocked.wait(number).completed()
    assert "round 2: dropped the reply for clients 2: " in run.log
    found = books(run.folder)
    assert {found.of(client, 1) for client in range(3)} == {(1, 0, 1)}
    assert found.of(0, 2) == found.of(1, 2) == (1, 0, 1)
    assert found.of(2, 2)[:2] == (0, 1)
    deploy.wait_for("two nodes online", lambda: clocked.online() == 2, 120)
    set_clocks(0, *NODE_3)
    clocked.wait_online(3)
    again = clocked.run_app("fedsva", {**scenes.FEDSVA, "num-server-rounds": 1}).completed()
    assert {books(again.folder).of(client, 1) for client in range(3)} == {(1, 0, 1)}


def test_a_node_whose_two_containers_disagree_about_the_day_is_online_and_silent_until_they_agree(
    clocked: Any, scenes: ModuleType, set_clocks: Any, begun: Any, books: Any
):
    number = begun({**scenes.FEDSVA, "round-timeout": 90.0})
    set_clocks(DAY, "superexec-client-3")
    run = clocked.wait(number).completed()
    assert clocked.online() == 3
    assert "round 2: dropped the reply for clients 2: " in run.log
    assert books(run.folder).of(2, 2)[:2] == (0, 1)
    set_clocks(0, "superexec-client-3")
    again = clocked.run_app("fedsva", {**scenes.FEDSVA, "num-server-rounds": 1}).completed()
    assert {books(again.folder).of(client, 1) for client in range(3)} == {(1, 0, 1)}
