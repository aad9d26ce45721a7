"""Asking clients for their losses: good answers are kept, bad ones dropped by name and counted as spent."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedveil import wire
from fedveil.loss_query import QUERY_LOSSES, LossQuery, moments_vector
from fedveil.privacy import LossMoments, LossReleases, Release
from fedveil.strategies.loss_question import LossAnswers, ask_losses

PAIRS, NORMS = (2, 1), (0.3, 0.5)
SIZE = 5 + 2


def query(kind: Any = "released") -> LossQuery:
    candidates = {"weight": np.zeros((5, 2, 3), np.float32), "bias": np.zeros((5, 2), np.float32)}
    return LossQuery(9, "run-1", kind, PAIRS, NORMS, candidates)


def plans(scene: Any) -> dict[int, LossReleases]:
    return {
        client: LossReleases.planned(n, PAIRS, NORMS, {"record": 0.5}) for client, n in scene.examples.items()
    }


def vector(client: int) -> list[float]:
    return np.random.default_rng(client).normal(size=SIZE).tolist()


def moments(client: int) -> list[float]:
    rng = np.random.default_rng(client)
    parts = [LossMoments.from_losses(rng.normal(size=(10 * (client + 1), q + 1))) for q in PAIRS]
    return np.concatenate([moments_vector(part) for part in parts]).tolist()


def honest(scene: Any, request: Message, out: tuple[int, ...] = ()) -> RecordDict:
    """What a good node answers."""
    config = request.content.config_records["config"]
    clients = [client for client in config["clients"] if client not in out]
    if config["kind"] == "study":
        rows, released = [], {client: {"loss-moments": moments(client)} for client in clients}
    else:
        rows = [row for client in clients for row in plans(scene)[client].releases(client, 9)]
        released = {client: {"loss-differences": vector(client)} for client in clients}
    ledger = {
        "rows": wire.encode_releases(rows),
        "released": wire.encode_released(released),
        "clients": clients,
        "out-of-budget": [client for client in config["clients"] if client in out],
        **scene.code,
    }
    return RecordDict({"ledger": ConfigRecord(ledger)})


def ask(scene: Any, answer: Callable[[Message], Any], kind: str = "released", **grid: Any) -> LossAnswers:
    owed = plans(scene) if kind == "released" else {}
    made = scene.grid(answer, **grid)
    answers = ask_losses(made, scene.fleet(), query(kind), owed, code=scene.code, timeout=5)
    scene.sent = made.sent
    return answers


def test_every_node_is_asked_once_for_its_clients_and_all_quantizers(scene: Any) -> None:
    answers = ask(scene, lambda request: honest(scene, request))
    assert [message.metadata.message_type for message in scene.sent] == [QUERY_LOSSES] * 3
    assert [list(m.content.config_records["config"]["clients"]) for m in scene.sent] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]
    read, clients = LossQuery.read(scene.sent[1].content)
    assert (read.round, read.run, read.kind, read.pairs, read.clip_norms, clients) == (
        9,
        "run-1",
        "released",
        PAIRS,
        NORMS,
        (2, 3),
    )
    assert {client: list(values) for client, values in answers.vectors.items()} == {
        client: vector(client) for client in range(6)
    }
    assert answers.releases == tuple(
        row for client, plan in plans(scene).items() for row in plan.releases(client, 9)
    )
    assert (answers.assumed, answers.out_of_budget, answers.failures) == ((), (), ())


def test_the_order_of_replies_changes_nothing(scene: Any) -> None:
    plain = ask(scene, lambda request: honest(scene, request))
    turned = ask(scene, lambda request: honest(scene, request), arrange=lambda found: found[::-1])
    assert list(plain.vectors) == list(turned.vectors)
    assert plain.releases == turned.releases


def test_clients_out_of_budget_owe_nothing(scene: Any) -> None:
    answers = ask(scene, lambda request: honest(scene, request, out=(1, 4, 5)))
    assert list(answers.vectors) == [0, 2, 3]
    assert answers.out_of_budget == (1, 4, 5)
    assert {row.client for row in answers.releases} == {0, 2, 3}
    assert answers.assumed == ()


@pytest.mark.parametrize("answer", [None, Error(code=2, reason="the node died")], ids=["none", "an error"])
def test_what_a_silent_node_may_have_sent_counts_as_spent(scene: Any, answer: Any) -> None:
    def answers_of(request: Message) -> Any:
        return answer if request.metadata.dst_node_id == 102 else honest(scene, request)

    answers = ask(scene, answers_of)
    assert list(answers.vectors) == [0, 1, 4, 5]
    assert answers.assumed == tuple(row for c in (2, 3) for row in plans(scene)[c].releases(c, 9))
    (reason,) = answers.failures
    assert reason.startswith("the reply for clients 2")


@pytest.mark.parametrize("factor", [1 - 2.0**-52, 1 + 2.0**-52])
@pytest.mark.parametrize("number", ["sensitivity", "sigma"])
def test_a_row_that_another_kind_of_machine_has_computed_may_differ_in_its_last_bits(
    scene: Any, factor: float, number: str
) -> None:
    rows = _rows(lambda rows: [replace(row, **{number: factor * getattr(row, number)}) for row in rows[::-1]])
    answers = ask(scene, lambda request: rows(honest(scene, request)))
    assert (answers.failures, answers.assumed) == ((), ())
    assert list(answers.vectors) == list(range(6))
    assert [(row.client, row.step) for row in answers.releases] == [
        (client, step) for client in range(6) for step in range(2)
    ]


class Twice:
    """A grid that gives a second reply to the request of the first node, before or after its own."""

    def __init__(
        self, scene: Any, second: Callable[[RecordDict], RecordDict], *, first: bool, node: int
    ) -> None:
        self.scene, self.second, self.first, self.node = scene, second, first, node

    def __call__(self, found: list[Message]) -> list[Message]:
        own = found[0]
        more = copy.deepcopy(own)
        more.__dict__["_content"] = self.second(own.content)
        more.metadata.__dict__["_src_node_id"] = self.node
        return [more, *found] if self.first else [*found, more]


@pytest.mark.parametrize("first", [True, False])
def test_answers_that_contradict_each_other_are_all_dropped_and_count_as_releases(
    scene: Any, first: bool
) -> None:
    other = Twice(scene, _values(lambda values: [values[0] + 1, *values[1:]]), first=first, node=101)
    answers = ask(scene, lambda request: honest(scene, request), arrange=other)
    assert list(answers.vectors) == [2, 3, 4, 5]
    assert "contradict each other" in answers.failures[0]
    assert Counter(answers.assumed) == Counter(
        2 * [row for client in (0, 1) for row in plans(scene)[client].releases(client, 9)]
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_node_cannot_answer_for_another(scene: Any, first: bool) -> None:
    other = Twice(scene, _values(lambda values: [values[0] + 1, *values[1:]]), first=first, node=102)
    answers = ask(scene, lambda request: honest(scene, request), arrange=other)
    assert list(answers.vectors[0]) == vector(0)
    assert list(answers.vectors) == list(range(6))
    assert answers.failures == ("the reply for clients 0-1: node 102 sent it, and node 101 was asked",)
    assert answers.assumed == ()


@pytest.mark.parametrize("key", ["rows", "released"])
def test_more_bytes_than_owed_are_not_decoded(scene: Any, key: str) -> None:
    long = _ledger(**{key: b"[" + b" " * 100_000 + b"]"})
    answers = ask(scene, lambda request: long(honest(scene, request)))
    assert len(answers.failures) == 3
    assert "100002 bytes, for the" in answers.failures[0]


def test_the_question_expires_when_its_answers_are_no_longer_waited_for(scene: Any) -> None:
    now = time.time()
    ask(scene, lambda request: honest(scene, request))
    for request in scene.sent:
        left = request.metadata.created_at + request.metadata.ttl - now
        assert 5 + 5 <= left < 5 + 100  # a node's clock may be 5 s ahead


def _ledger(**values: Any) -> Callable[[RecordDict], RecordDict]:
    def change(content: RecordDict) -> RecordDict:
        record = {**content["ledger"], **{key.replace("_", "-"): value for key, value in values.items()}}
        return RecordDict(
            {"ledger": ConfigRecord({key: value for key, value in record.items() if value is not None})}
        )

    return change


def _rows(change: Callable[[list[Release]], list[Release]]) -> Callable[[RecordDict], RecordDict]:
    def mutate(content: RecordDict) -> RecordDict:
        rows = list(wire.decode_releases(content["ledger"]["rows"]))
        return _ledger(rows=json.dumps([asdict(row) for row in change(rows)]).encode())(content)

    return mutate


def _released(change: Callable[[dict[str, Any]], Any]) -> Callable[[RecordDict], RecordDict]:
    def mutate(content: RecordDict) -> RecordDict:
        table = change(json.loads(content["ledger"]["released"]))
        return _ledger(released=json.dumps(table).encode())(content)

    return mutate


def _values(change: Callable[[list[float]], list[Any]]) -> Callable[[RecordDict], RecordDict]:
    return _released(
        lambda table: {**table, "0": {name: change(values) for name, values in table["0"].items()}}
    )


BAD: dict[str, Callable[[RecordDict], RecordDict]] = {
    "it is empty": lambda content: RecordDict(),
    "it has arrays": lambda content: RecordDict({**content, "arrays": ArrayRecord({})}),
    "it has metrics": lambda content: RecordDict({**content, "metrics": MetricRecord({"num-examples": 30})}),
    "its ledger is a metric record": lambda content: RecordDict({"ledger": MetricRecord({"rows": 1})}),
    "it runs other code": _ledger(source="beef"),
    "it has no library": _ledger(library=None),
    "a client is missing": _ledger(clients=[0]),
    "a client is unknown": _ledger(clients=[0, 7]),
    "a client is twice there": _ledger(clients=[0, 0]),
    "a client took part and did not": _ledger(out_of_budget=[1]),
    "its clients are texts": _ledger(clients=["0", "1"]),
    "it has no rows": _ledger(rows=None),
    "its rows are no JSON": _ledger(rows=b"{"),
    "it does not say what was released": _ledger(released=None),
    "what was released is no JSON": _ledger(released=b"["),
    "what was released is no table": _released(lambda table: [1, 2]),
    "a client released nothing": _released(lambda table: {"1": table["1"]}),
    "another client released something": _released(lambda table: {**table, "5": table["0"]}),
    "something else was released": _released(lambda table: {**table, "0": {"losses": table["0"]}}),
    "a value is missing": _values(lambda values: values[1:]),
    "a value is too much": _values(lambda values: [*values, 0.0]),
    "a value is NaN": _values(lambda values: [float("nan"), *values[1:]]),
    "a value is infinite": _values(lambda values: [float("inf"), *values[1:]]),
    "a value is beyond all measure": _values(lambda values: [1e101, *values[1:]]),
    "a value is a text": _values(lambda values: ["1", *values[1:]]),
    "a value is a list": _values(lambda values: [[1.0], *values[1:]]),
}

BAD_ROWS: dict[str, Callable[[RecordDict], RecordDict]] = {
    "a row is missing": _rows(lambda rows: rows[1:]),
    "a row is twice there": _rows(lambda rows: [*rows, rows[0]]),
    "a row has less noise than planned": _rows(lambda rows: [replace(rows[0], sigma=1e-9), *rows[1:]]),
    "a row has more noise than planned": _rows(lambda rows: [replace(rows[0], sigma=1e9), *rows[1:]]),
    "a row is of another round": _rows(lambda rows: [replace(rows[0], round=1), *rows[1:]]),
    "a row is of another client": _rows(lambda rows: [replace(rows[0], client=5), *rows[1:]]),
    "a row is called fixed": _rows(lambda rows: [replace(rows[0], chosen="fixed"), *rows[1:]]),
    "a row is under another relation": _rows(lambda rows: [replace(rows[0], relation="client"), *rows[1:]]),
}


def check_dropped(scene: Any, bad: Callable[[RecordDict], RecordDict], kind: str, assumed: set[int]) -> None:
    """The first node's answer is bad."""

    def answer(request: Message) -> RecordDict:
        content = honest(scene, request)
        return bad(content) if request.metadata.dst_node_id == 101 else content

    answers = ask(scene, answer, kind)
    assert list(answers.vectors) == [2, 3, 4, 5]
    (reason,) = answers.failures
    assert reason.startswith("the reply for clients 0")
    assert "\n" not in reason
    assert {row.client for row in answers.assumed} == assumed


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_an_answer_with_other_rows_than_planned_is_dropped(
    scene: Any, bad: Callable[[RecordDict], RecordDict]
) -> None:
    check_dropped(scene, bad, "released", {0, 1})


@pytest.mark.parametrize("kind", ["released", "study"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_answer_is_dropped_by_name_and_the_others_stay(
    scene: Any, bad: Callable[[RecordDict], RecordDict], kind: str
) -> None:
    check_dropped(scene, bad, kind, {0, 1} if kind == "released" else set())


def test_exact_moments_with_clients_out_of_budget_are_dropped(scene: Any) -> None:
    check_dropped(scene, _ledger(clients=[0], out_of_budget=[1]), "study", set())


def test_numbers_that_are_no_moments_are_dropped(scene: Any) -> None:
    """A scatter below 0 in the first quantizer's moments."""
    check_dropped(scene, _values(lambda values: [*values[:3], -1.0, *values[4:]]), "study", set())
