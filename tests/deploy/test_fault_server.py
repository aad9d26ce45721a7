"""The server's side dies: nodes come back by themselves, and the run goes on from its folder to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedveil.artifacts import RunFolder

pytestmark = pytest.mark.deploy

NODES = (1, 2, 3)
ITERATIVE = {"strategy": "modulated-iterative", "participation": "all", "num-server-rounds": 2}


@pytest.fixture
def unfinished(hurt: Any, deploy: ModuleType) -> Callable[[str, dict[str, Any], int], tuple[str, Path]]:
    """Start a run and wait until a round is on disk: its number and its folder."""

    def start(app: str, config: dict[str, Any], round: int) -> tuple[str, Path]:
        hurt.wait_online(len(NODES))
        before = {path.name for path in hurt.runs.iterdir()}
        number = hurt.submit(app, config)

        def folders() -> list[Path]:
            return [path for path in hurt.runs.iterdir() if path.name not in before and path.name[0] != "."]

        def saved() -> bool:
            checkpoint = RunFolder(folders()[0]).load_checkpoint() if folders() else None
            return checkpoint is not None and checkpoint.round >= round

        deploy.wait_for(f"round {round} of run {number} on disk", saved, 600, 0.2)
        (folder,) = folders()
        return number, folder

    return start


@pytest.fixture
def resumed(hurt: Any) -> Callable[[str, dict[str, Any], Path], Any]:
    """Go on with a run from its folder, to its end."""

    def resume(app: str, config: dict[str, Any], folder: Path) -> Any:
        hurt.wait_online(len(NODES))
        settings = {**config, "resume": f"/fedveil/runs/{folder.name}"}
        run = hurt.run_app(app, settings).completed()
        assert run.folder == folder
        return run

    return resume


def ledgers(hurt: Any) -> dict[int, Path]:
    return {node - 1: hurt.ledger(node) for node in NODES}


def test_a_superlink_that_its_restart_policy_brings_back_ends_no_run(
    hurt: Any, scenes: ModuleType, accounts: ModuleType, unfinished: Any
):
    number, folder = unfinished("fedsva", scenes.FEDSVA, 1)
    hurt.crash("superlink")
    run = hurt.wait(number).completed()
    assert int(hurt.inspect("superlink", "{{.RestartCount}}")) > 0
    assert run.folder == folder
    found = accounts.accounts(folder, ledgers(hurt)).check()
    assert {found.of(client, 1) for client in range(3)} == {(1, 0, 1)}


def test_a_superlink_that_stays_away_for_minutes_ends_the_run_which_goes_on_from_its_folder(
    hurt: Any, scenes: ModuleType, accounts: ModuleType, unfinished: Any, resumed: Any
):
    number, folder = unfinished("fedsva", scenes.FEDSVA, 1)
    hurt.kill("superlink")
    time.sleep(120)
    hurt.start("superlink")
    assert hurt.wait(number).status == "finished:failed"  # Flower gives it up, whatever its app could do
    assert not RunFolder(folder).is_finished
    run = resumed("fedsva", scenes.FEDSVA, folder)
    assert "resuming after round 1" in run.log
    found = accounts.accounts(folder, ledgers(hurt)).check()
    for client in range(3):
        assert found.of(client, 1) == (1, 0, 1)
        replied, assumed, left = found.of(client, 2)
        assert (assumed, left) == (1, 1)  # the interrupted round counts; nobody can pay for a third release
        assert replied in (0, 1)  # 1 if the SuperLink died before the node had recorded anything


def test_a_killed_server_process_leaves_a_run_that_goes_on(
    hurt: Any, scenes: ModuleType, deploy: ModuleType, accounts: ModuleType, unfinished: Any, resumed: Any
):
    number, folder = unfinished("fedsva", scenes.FEDSVA, 1)
    second = lambda: any(row[1] == 2 for row in accounts.node_rows(hurt.ledger(1), folder.name))  # noqa: E731
    deploy.wait_for("node 1's release of round 2", second, 600, 0.1)
    hurt.crash_process("superexec-server", "flwr-serverapp")
    assert hurt.wait(number).status == "finished:failed"
    assert not RunFolder(folder).is_finished
    resumed("fedsva", scenes.FEDSVA, folder)
    found = accounts.accounts(folder, ledgers(hurt)).check()
    assert found.of(0, 2) == (
        0,
        1,
        1,
    )  # what left before the server died is in no reply, and its budget is spent


def test_a_killed_server_process_of_modulated_learning_leaves_a_run_that_goes_on(
    hurt: Any, scenes: ModuleType, accounts: ModuleType, unfinished: Any, resumed: Any
):
    config = {**scenes.MODULATED, **ITERATIVE}
    number, folder = unfinished("modulated", config, 1)
    hurt.crash_process("superexec-server", "flwr-serverapp")
    assert hurt.wait(number).status == "finished:failed"
    resumed("modulated", config, folder)
    found = accounts.accounts(folder, ledgers(hurt), scenes.SIZES).check()
    assert {client for client, *_ in found.left} == set(range(sum(scenes.SIZES)))
    assert {found.of(client, 1) for client in range(sum(scenes.SIZES))} == {(1, 0, 1)}
