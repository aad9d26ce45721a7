"""A node that fails or falls silent costs its clients their messages, and the run goes on with the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Error, Message

from fedveil.artifacts import NodeLedger, WriteFailed
from fedveil.flower import ErrorCode
from fedveil.privacy import gaussian_mu
from fedveil.run import InProcessGrid
from fedveil.strategies import NoGoodReplies

ITERATIVE = {"strategy": "modulated-iterative", "num-server-rounds": 4}
WAYS: dict[str, dict[str, Any]] = {
    "one-shot": {},
    "one-shot, each, private labels": {"reply": "each", "label-privacy": True},
    "cohorts": ITERATIVE,
    "all": {**ITERATIVE, "participation": "all"},
    "averaged": {**ITERATIVE, "participation": "all", "estimate": "averaged", "reply": "each"},
}


def round_of(message: Message) -> int | None:
    if message.metadata.message_type != "train":
        return None
    return int(message.content.config_records["config"]["server-round"])


@pytest.fixture
def losing(modulated: Callable[..., Any]) -> Callable[..., Any]:
    """Run with four nodes, the second of which is silent, or answers with an error, in some rounds."""

    def run(settings: dict[str, Any], rounds: set[int], *, silent: bool) -> Any:
        class Losing(InProcessGrid):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self.requests: list[Message] = []
                self.replies: list[Message] = []

            def push_messages(self, messages: Any) -> Any:
                messages = list(messages)
                names = list(super().push_messages(messages))
                second = list(self.get_node_ids())[1]
                for name, message in zip(names, messages, strict=True):
                    if message.metadata.dst_node_id == second and round_of(message) in rounds:
                        del self._replies[name]
                        if not silent:
                            reason = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the node's disk is full")
                            self._replies[name] = Message(reason, reply_to=message)
                return names

        return modulated(settings, nodes=4, grid=Losing)

    return run


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("name", WAYS)
def test_the_run_ends_with_the_others_and_assumes_what_may_have_left(
    losing: Callable[..., Any], name: str, silent: bool
):
    settings = WAYS[name]
    number = 1 if settings.get("strategy") is None else 2
    run = losing(settings, {number}, silent=silent)
    lost = set(range(100, 200))
    assumed = [row for row in run.rows if row["source"] == "assumed"]
    assert assumed
    assert {row["round"] for row in assumed} == {number}
    assert {row["client"] for row in assumed} <= lost
    if name != "cohorts":
        assert {row["client"] for row in assumed} == lost
    # assumed or not, nobody has more than its budget, and the statement covers the messages that were lost
    spent: dict[int, float] = {}
    for row in run.rows:
        spent[row["client"]] = spent.get(row["client"], 0.0) + row["mu"] ** 2
    assert math.sqrt(max(spent.values())) <= gaussian_mu(8.0, 1e-5) * (1 + 1e-12)
    relation = "record" if settings.get("label-privacy") else "attribute"
    assert 7.99 < run.guarantees[relation]["epsilon"] <= 8.0
    # it is told once, by its clients; the nodes' own ledger knows that the messages were made
    reason = "none came in time" if silent else "the node's disk is full"
    lines = [line for line in run.output.splitlines() if "dropped" in line]
    assert len(lines) == 1
    assert reason in lines[0]
    assert f"round {number}: dropped the reply for " in lines[0]
    assert "failed replies 1" in run.output
    assert [row["failures"] for row in run.metrics].count(1.0) == 1
    assert sum(cohort.count for cohort in run.node_cohorts) == len(run.rows)


def test_clients_of_the_lost_reply_are_not_in_the_estimate(
    losing: Callable[..., Any], modulated: Callable[..., Any]
):
    run = losing({}, {1}, silent=True)
    assert Counter(row["source"] for row in run.rows) == {"reply": 300, "assumed": 100}
    assert run.metrics[-1]["clients"] == 300
    assert "the modulation of 300 messages of 3 features" in run.estimate["identification"]


def test_a_node_that_fails_while_ranges_are_estimated_is_assumed_there(losing: Callable[..., Any]):
    run = losing({"standardization": "estimated"}, {0}, silent=False)
    assumed = [row for row in run.rows if row["source"] == "assumed"]
    assert {(row["release"], row["round"]) for row in assumed} == {("range-message", 0)}
    assert len(assumed) == 100
    assert "ranges: dropped the reply for 100 clients, 100 to 199" in run.output
    assert 7.99 < run.guarantees["attribute"]["epsilon"] <= 8.0


def test_when_no_node_answers_the_run_fails_with_every_reason(
    modulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    def full(self: NodeLedger, *arguments: Any, **options: Any) -> None:
        raise WriteFailed("the disk is full")

    monkeypatch.setattr(NodeLedger, "record_cohort", full)
    with pytest.raises(NoGoodReplies, match=r"round 1: no node sent a usable reply: .*the disk is full"):
        modulated()


def test_a_node_with_a_ledger_that_fails_sends_nothing(
    modulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Rows are on disk before messages leave: without a row there is no message."""
    record = NodeLedger.record_cohort

    def full(self: NodeLedger, run: str, digests: Any, cohort: Any, **options: Any) -> None:
        if 0 in cohort.clients:
            raise WriteFailed("the disk is full")
        record(self, run, digests, cohort, **options)

    monkeypatch.setattr(NodeLedger, "record_cohort", full)
    run = modulated(nodes=4)
    train = [reply for reply in run.replies if reply.metadata.message_type == "train"]
    assert [reply.has_error() for reply in train] == [True, False, False, False]
    assert Counter(row["source"] for row in run.rows) == {"reply": 300, "assumed": 100}
    assert sum(cohort.count for cohort in run.node_cohorts) == 300
