"""Nodes that die or are cut off while they work: the run goes on, and every release is in two ledgers that agree."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedveil.artifacts import RunFolder

pytestmark = pytest.mark.deploy

NODES = (1, 2, 3)


@pytest.fixture
def books(hurt: Any, accounts: ModuleType) -> Callable[[Path], Any]:
    """The accounts of a run in the shared stack."""
    return lambda folder: accounts.accounts(folder, {node - 1: hurt.ledger(node) for node in NODES})


@pytest.fixture
def round_begins(hurt: Any, deploy: ModuleType) -> Callable[[str, int, set[str]], Path]:
    """Wait until a run has saved the round before; its folder."""

    def wait(number: str, round: int, before: set[str]) -> Path:
        def saved() -> bool:
            new = [path for path in hurt.runs.iterdir() if path.name not in before and path.name[0] != "."]
            checkpoint = RunFolder(new[0]).load_checkpoint() if new else None
            return checkpoint is not None and checkpoint.round >= round - 1

        deploy.wait_for(f"round {round} of run {number}", saved, 600, 0.2)
        (folder,) = (path for path in hurt.runs.iterdir() if path.name not in before)
        return folder

    return wait


@pytest.fixture
def all_online(hurt: Any) -> Iterator[None]:
    """Every node is online before a test and after it."""
    hurt.wait_online(len(NODES))
    yield
    hurt.wait_online(len(NODES))


def names(hurt: Any) -> set[str]:
    return {path.name for path in hurt.runs.iterdir()}


def has_request(hurt: Any, node: int, number: str, round: int) -> bool:
    """Whether a SuperNode has taken in its request of a round."""
    _, _, after = hurt.logs(f"supernode-{node}").partition(f"[RUN {number}, ROUND {round}]")
    return "Received successfully" in after


@pytest.mark.usefixtures("all_online")
def test_nodes_killed_in_a_round_come_back_and_are_asked_again_and_every_release_is_counted(
    hurt: Any, scenes: ModuleType, deploy: ModuleType, books: Any, accounts: ModuleType, round_begins: Any
):
    before = names(hurt)
    config = {**scenes.FEDSVA, "round-attempts": 2, "round-timeout": 400.0}
    number = hurt.submit("fedsva", config)
    folder = round_begins(number, 2, before)
    to_cut = {2, 3}

    def both_cut() -> bool:
        for node in sorted(to_cut):
            if has_request(hurt, node, number, 2):
                hurt.cut(f"supernode-{node}", "sites")  # no reply gets away
                to_cut.discard(node)
        return not to_cut

    deploy.wait_for("a request of round 2 at nodes 2 and 3", both_cut, 600, 0.5)
    # node 3 dies at once, node 2 after its release was recorded
    hurt.crash("superexec-client-3")
    hurt.crash("supernode-3")
    recorded = lambda: any(row[1] == 2 for row in accounts.node_rows(hurt.ledger(2), folder.name))  # noqa: E731
    deploy.wait_for("node 2's release in its ledger", recorded, 600, 0.5)
    hurt.crash("superexec-client-2")
    hurt.crash("supernode-2")
    for node in (2, 3):
        hurt.heal(f"supernode-{node}", "sites")
    run = hurt.wait(number).completed()
    assert "attempt 2 of 2: 2 of 3 nodes are asked again" in run.log
    for client in (1, 2):  # named by elimination: the error replies come from the SuperLink
        assert f"the reply for clients {client} in attempt 1: " in run.log
    found = books(run.folder).check()
    assert found.of(0, 2) == (1, 0, 1)
    assert found.of(1, 2) == (
        0,
        1,
        1,
    )  # its budget pays for two releases: the one that got lost was the second
    replied, assumed, left = found.of(2, 2)
    assert (assumed, left) == (1, 1)
    assert replied in (0, 1)  # 1 if it died before it had recorded anything
    assert {int(hurt.inspect(f"supernode-{node}", "{{.RestartCount}}")) > 0 for node in (2, 3)} == {True}


@pytest.mark.usefixtures("all_online")
def test_a_round_whose_node_is_not_asked_again_completes_with_the_others(
    hurt: Any, scenes: ModuleType, deploy: ModuleType, books: Any, round_begins: Any
):
    before = names(hurt)
    number = hurt.submit("fedsva", {**scenes.FEDSVA, "num-server-rounds": 1})
    round_begins(number, 1, before)
    deploy.wait_for("a request", lambda: has_request(hurt, 3, number, 1), 600, 0.5)
    hurt.crash("supernode-3")
    hurt.crash("superexec-client-3")
    run = hurt.wait(number).completed()
    assert "round 1: dropped the reply for clients 2: " in run.log
    found = books(run.folder).check()
    assert found.of(0, 1) == found.of(1, 1) == (1, 0, 1)
    assert found.of(2, 1)[:2] == (0, 1)


@pytest.mark.usefixtures("all_online")
def test_a_node_cut_off_for_twenty_seconds_loses_nothing(
    hurt: Any, scenes: ModuleType, deploy: ModuleType, books: Any, round_begins: Any
):
    before = names(hurt)
    number = hurt.submit("fedsva", scenes.FEDSVA)
    round_begins(number, 1, before)
    deploy.wait_for("a request", lambda: has_request(hurt, 1, number, 1), 600, 0.5)
    hurt.cut("supernode-1", "sites")
    time.sleep(20)
    hurt.heal("supernode-1", "sites")
    run = hurt.wait(number).completed()
    found = books(run.folder).check()
    assert not found.assumed
    assert found.replied == found.left
    assert {row[:2] for row in found.left} == {(client, round) for client in range(3) for round in (1, 2)}


@pytest.fixture
def fresh_ledger(hurt: Any) -> Iterator[Path]:
    """Node 1 without a past; its ledger and its policy come back afterwards."""
    path, policy = hurt.ledger(1), hurt.node_folder(1) / "policy.toml"
    aside, rules = path.with_suffix(".aside"), policy.read_text()
    if path.exists():
        shutil.move(path, aside)
    yield path
    hurt.give(policy, rules)
    if aside.exists():
        shutil.move(aside, path)


@pytest.mark.usefixtures("all_online")
def test_twenty_restarts_do_not_reset_what_a_node_has_spent_and_a_run_too_many_is_refused(
    hurt: Any, scenes: ModuleType, books: Any, fresh_ledger: Path
):
    # sum of mu^2 of two runs of epsilon 8 is above that of epsilon 10
    hurt.give(hurt.node_folder(1) / "policy.toml", "delta = 1e-5\n[epsilon]\nrecord = 10.0\n")
    config = {**scenes.FEDSVA, "num-server-rounds": 1}
    first = hurt.run_app("fedsva", config).completed()
    assert books(first.folder).check().of(0, 1) == (1, 0, 1)
    spent = fresh_ledger.read_bytes()
    container = hurt.container("superexec-client-1")
    for _ in range(20):
        hurt.engine.docker("restart", "--time", "0", container)
    second = hurt.run_app("fedsva", config)
    assert second.status == "finished:failed"
    assert second.folder is None
    assert "refused by rule 'epsilon.record' of this node's policy" in second.log
    assert fresh_ledger.read_bytes() == spent
