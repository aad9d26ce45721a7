"""Nodes that are asked again in a round: the server's ledger has what the nodes' own has, also after a death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedveil import wire
from fedveil.artifacts import NodeLedger
from fedveil.run import InProcessGrid
from fedveil.strategies import NoGoodReplies
from fedveil.strategies.judging import TooFewReplies

ROUNDS = 4
FEDSVA = {"num-server-rounds": ROUNDS, "round-attempts": 3}
ITERATIVE = {
    "strategy": "modulated-iterative",
    "participation": "all",
    "num-server-rounds": ROUNDS,
    "round-attempts": 3,
}


class Death(Exception):
    """The server's process ends here."""


def grid_that_loses(number: int, times: int, *, dies_in: int = 99) -> type[InProcessGrid]:
    """Nodes of which the second one's replies are lost in one round, so often; the server may die in an attempt of it.

    It dies when the nodes have answered that attempt, and before it knows.
    """

    class Losing(InProcessGrid):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.requests: list[Message] = []
            self.replies: list[Message] = []
            self.attempts = 0

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.requests += messages
            names = list(super().push_messages(messages))
            if messages[0].metadata.group_id == str(number):
                self.attempts += 1
                second = list(self.get_node_ids())[1]
                for name, message in zip(names, messages, strict=True):
                    if message.metadata.dst_node_id == second and self.attempts <= times:
                        del self._replies[name]
                if self.attempts == dies_in:
                    raise Death
            return names

    return Losing


def rows_of(folder: Path, run: Any) -> tuple[Counter[Any], Counter[Any]]:
    """How often each release is in the run's ledger, and in the nodes' own."""
    told = Counter((r["client"], r["round"], r["step"], r["release"], r["relation"]) for r in run.rows)
    own = NodeLedger(folder / "node-ledger.sqlite")
    rows = Counter((r.client, r.round, r.step, r.name, r.relation) for r in own.releases())
    for cohort in own.cohort_releases():
        rows.update((r.client, r.round, r.step, r.name, r.relation) for r in cohort)
    return told, rows


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_seeded_run_whose_node_is_asked_again_has_the_bytes_of_one_whose_node_was_not(
    fedsva: Callable[..., Any], tmp_path: Path, times: int
):
    whole = fedsva(FEDSVA, output_dir=tmp_path / "whole")
    run = fedsva(FEDSVA, grid=grid_that_loses(2, times))
    told, own = rows_of(run.folder, run)
    assert told == own
    if times < 3:
        assert run.results == whole.results
        assert (
            "round 2: attempt 2 of 3: 1 of 2 nodes are asked again, for the reply for clients 4-7"
            in run.output
        )
    else:
        assert {row["client"] for row in run.rows if row["source"] == "assumed"} == {4, 5, 6, 7}
        assert run.results[0] != whole.results[0]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_with_fresh_noise_the_ledger_has_every_attempt(fedsva: Callable[..., Any], times: int):
    run = fedsva({**FEDSVA, "seed": ""}, grid=grid_that_loses(2, times))
    told, own = rows_of(run.folder, run)
    assert told == own
    assert told[4, 2, 0, "gradient", "attribute"] == (times + 1 if times < 3 else 3)
    assert told[0, 2, 0, "gradient", "attribute"] == 1
    assumed = Counter(row["client"] for row in run.rows if row["source"] == "assumed")
    assert assumed == dict.fromkeys((4, 5, 6, 7), 2 * times)  # under two relations


@pytest.mark.parametrize("dies_in", [1, 2, 3])
def test_a_run_that_dies_in_an_attempt_goes_on_with_all_that_was_spent(
    fedsva: Callable[..., Any], fedveil_run: Callable[..., Any], tmp_path: Path, dies_in: int
):
    settings = {**FEDSVA, "seed": "", "epsilon": 4.0}
    with pytest.raises(Death):
        fedsva(settings, grid=grid_that_loses(2, 9, dies_in=dies_in), output_dir=tmp_path / "dead")
    (folder,) = (tmp_path / "dead").glob("*")
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    run = type(fedsva({"num-server-rounds": 1}))(folder, result.stdout, [], [])
    told, own = rows_of(folder, run)
    assert told == own
    # the round went on, was interrupted and was done again: once a client, and once more for each attempt it missed
    assumed = Counter(row["client"] for row in run.rows if row["source"] == "assumed" and row["round"] == 2)
    assert assumed == {client: 2 * (dies_in if client > 3 else 1) for client in range(8)}


@pytest.mark.parametrize("times", [1, 3])
def test_with_fresh_noise_the_ledger_has_every_attempt_of_messages(modulated: Callable[..., Any], times: int):
    run = modulated({**ITERATIVE, "seed": ""}, nodes=4, grid=grid_that_loses(2, times))
    told, own = rows_of(run.folder, run)
    assert told == own
    assumed = Counter(row["client"] for row in run.rows if row["source"] == "assumed")
    assert assumed == dict.fromkeys(range(100, 200), times)


@pytest.mark.parametrize("dies_in", [1, 2, 3])
def test_messages_of_a_run_that_dies_in_an_attempt_are_counted(
    modulated: Callable[..., Any], modulated_run: Callable[..., Any], tmp_path: Path, dies_in: int
):
    dead = tmp_path / "dead"
    with pytest.raises(Death):
        modulated(
            {**ITERATIVE, "seed": ""}, nodes=4, grid=grid_that_loses(2, 9, dies_in=dies_in), output_dir=dead
        )
    (folder,) = dead.glob("*")
    result = modulated_run({}, "--resume", folder, "--num-supernodes", "4")
    assert result.exit_code == 0, result.stderr
    run = type(modulated())(folder, result.stdout, [], [])
    told, own = rows_of(folder, run)
    # whoever had to stop early for what it had sent sent less, so none is there that is not counted
    assert not own - told
    assumed = Counter(row["client"] for row in run.rows if row["source"] == "assumed" and row["round"] == 2)
    assert assumed == {client: dies_in if 100 <= client < 200 else 1 for client in range(400)}


@pytest.mark.parametrize("dies_in", [1, 2])
def test_ranges_are_not_asked_for_again_after_a_death_in_an_attempt(
    modulated: Callable[..., Any], modulated_run: Callable[..., Any], tmp_path: Path, dies_in: int
):
    dead = tmp_path / "dead"
    settings = {"standardization": "estimated", "seed": "", "round-attempts": 3}
    with pytest.raises(Death):
        modulated(settings, nodes=4, grid=grid_that_loses(0, 9, dies_in=dies_in), output_dir=dead)
    (folder,) = dead.glob("*")
    result = modulated_run({}, "--resume", folder, "--num-supernodes", "4")
    assert result.exit_code == 0, result.stderr
    assert "public ones serve" in result.stdout
    told, own = rows_of(folder, type(modulated())(folder, result.stdout, [], []))
    assert told == own
    ranges = Counter[int]()
    for (client, _, _, release, _), count in told.items():
        ranges[client] += count if release == "range-message" else 0
    assert ranges == {client: dies_in if 100 <= client < 200 else 1 for client in range(400)}


def test_a_skipped_round_stays_in_the_ledger_and_the_run_goes_on(fedsva: Callable[..., Any]):
    run = fedsva({**FEDSVA, "round-attempts": 1, "min-replies": 2, "seed": ""}, grid=grid_that_loses(2, 9))
    assert (
        "round 2: 1 of 2 nodes sent something to average, and min-replies is 2: the round is skipped"
        in run.output
    )
    told, own = rows_of(run.folder, run)
    assert told == own
    assert [row["round"] for row in run.metrics] == [0, 1, 2, 3, 4]
    assert run.metrics[2]["loss"] == run.metrics[1]["loss"] != run.metrics[3]["loss"]


def test_too_few_nodes_are_told_before_there_is_a_folder(
    fedsva: Callable[..., Any], modulated: Callable[..., Any], tmp_path: Path
):
    for run in (fedsva, modulated):
        with pytest.raises(ValueError, match="min-replies = 3 can never be met"):
            run({"min-replies": 3}, output_dir=tmp_path / "none")
    assert not list((tmp_path / "none").glob("*"))


def test_one_shot_learning_with_too_few_replies_fails_and_says_so(modulated: Callable[..., Any]):
    with pytest.raises(TooFewReplies, match="3 of 4 nodes sent something to average, and min-replies is 4"):
        modulated({"min-replies": 4}, nodes=4, grid=grid_that_loses(1, 9))


def test_a_forged_noise_level_is_refused_where_the_server_knows_the_plan(
    fedsva: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "fedveil.clients.replies.encode_releases",
        lambda rows: wire.encode_releases(replace(row, sigma=1e50) for row in rows),
    )
    with pytest.raises(NoGoodReplies, match=r"sigma 1e\+50, and the plan of the run says"):
        fedsva()
