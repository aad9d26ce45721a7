"""Rounds of messages: good replies are added exactly, bad ones dropped by name, and what may have left is counted."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from fedveil import wire
from fedveil.flower import ErrorCode
from fedveil.moment_sums import sum_messages
from fedveil.privacy import one_shot
from fedveil.strategies import NoGoodReplies
from fedveil.strategies.message_moments import moments_of


def ledger(**changed) -> Callable[[RecordDict], RecordDict]:
    """Other values in the ledger record; None leaves a key out."""

    def change(content: RecordDict) -> RecordDict:
        values = {**dict(content.config_records[wire.LEDGER]), **changed}
        record = ConfigRecord({key: value for key, value in values.items() if value is not None})
        return RecordDict({**dict(content), wire.LEDGER: record})

    return change


def arrays(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable:
    """Other arrays."""

    def changed(content: RecordDict) -> RecordDict:
        old = {name: array.numpy().copy() for name, array in content.array_records[wire.ARRAYS].items()}
        record = ArrayRecord({name: Array(value) for name, value in change(old).items()})
        return RecordDict({**dict(content), wire.ARRAYS: record})

    return changed


def row(**changed) -> Callable[[RecordDict], RecordDict]:
    """Another ledger row."""

    def change(content: RecordDict) -> RecordDict:
        rows = json.loads(content.config_records[wire.LEDGER][wire.ROWS])
        rows = [{**rows[0], **changed}]
        return ledger(**{wire.ROWS: json.dumps(rows).encode()})(content)

    return change


def scaled(**factors: float) -> Callable[[RecordDict], RecordDict]:
    """A ledger row with numbers changed by factors."""

    def change(content: RecordDict) -> RecordDict:
        rows = json.loads(content.config_records[wire.LEDGER][wire.ROWS])
        return row(**{name: rows[0][name] * factor for name, factor in factors.items()})(content)

    return change


def masks(change: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Callable:
    """Other clients that took part, and others out of budget; the count goes with them."""

    def changed(content: RecordDict) -> RecordDict:
        honest = wire.decode_clients(content.config_records[wire.LEDGER][wire.CLIENT_MASK], 10**6)
        took_part, out = change(honest)
        told = {
            wire.CLIENT_MASK: wire.encode_clients(took_part),
            wire.OUT_OF_BUDGET: wire.encode_clients(out),
        }
        content = ledger(**told)(content)
        return RecordDict({**dict(content), wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: len(took_part)})})

    return changed


def two_rows(content: RecordDict) -> RecordDict:
    """The same row twice."""
    rows = json.loads(content.config_records[wire.LEDGER][wire.ROWS])
    return ledger(**{wire.ROWS: json.dumps(rows * 2).encode()})(content)


def overwritten(name: str, value) -> Callable:
    """One entry of an array changed."""

    def change(old):
        old[name].reshape(-1)[0] = value
        return old

    return arrays(change)


NONE = np.zeros(0, np.int64)
MALFORMED = {
    "no content": (lambda content: RecordDict(), "one ArrayRecord"),
    "no ledger": (
        lambda content: RecordDict({k: v for k, v in content.items() if k != wire.LEDGER}),
        "ledger row",
    ),
    "an error": (lambda content: Error(ErrorCode.UNKNOWN, "out of memory"), "out of memory"),
    "other source": (ledger(source="beef"), "runs other code than the server"),
    "no library": (ledger(library=None), "runs other code than the server"),
    "no mask": (ledger(**{wire.CLIENT_MASK: None}), "no client-mask"),
    "a list for a mask": (ledger(**{wire.CLIENT_MASK: [1, 2]}), "no client-mask"),
    "rubbish for a mask": (ledger(**{wire.CLIENT_MASK: b"\0" * 9}), "a set of clients must"),
    "a foreign client": (masks(lambda own: (np.append(own, 299), NONE)), "not the 100 that were asked"),
    "a missing client": (masks(lambda own: (own[1:], NONE)), "not the 100 that were asked"),
    "a client twice": (masks(lambda own: (own, own[:1])), "not the 100 that were asked"),
    "too many counted": (
        lambda content: RecordDict({**dict(content), wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: 1000})}),
        "it counts 1000 clients",
    ),
    "no row": (ledger(**{wire.ROWS: b"[]"}), "cost no ledger row"),
    "rubbish for a row": (ledger(**{wire.ROWS: b"\xff"}), "cannot be read"),
    "no bytes for a row": (ledger(**{wire.ROWS: "[]"}), "has no ledger row"),
    "two rows": (two_rows, "at most 1 records"),
    "hardly less noise": (scaled(sigma=1 - 1e-10), "and the plan of the run says"),
    "less noise": (row(sigma=0.01), "and the plan of the run says"),
    "more noise": (row(sigma=100.0), "and the plan of the run says"),
    "another sensitivity": (row(sensitivity=0.5), "and the plan of the run says"),
    "another round": (row(round=2), "of round 2"),
    "another relation": (row(relation="record"), "relation 'record'"),
    "a client in the row": (row(client=100), "and the plan of the run says"),
    "an array more": (arrays(lambda old: {**old, "extra": old["labels"]}), "its arrays are named"),
    "an array less": (arrays(lambda old: {"labels": old["labels"]}), "its arrays are named"),
    "floats for integers": (arrays(lambda old: {**old, "labels": old["labels"] * 1.0}), "expected numpy"),
    "another shape": (arrays(lambda old: {**old, "gram": old["gram"][:2]}), "expected numpy.ndarray"),
    "transposed bytes": (
        arrays(lambda old: {**old, "gram": np.asfortranarray(old["gram"])}),
        "that its label says",
    ),
    "a sum too large": (overwritten("cross", 2**62), "beyond what 100 messages can add up to"),
    "the smallest integer": (overwritten("gram", -(2**63)), "beyond what 100 messages can add up to"),
}
MALFORMED_EACH = {
    "NaN": (overwritten("messages", np.nan), "messages is not finite"),
    "a label of infinity": (overwritten("labels", np.inf), "labels is not finite"),
    "a message beyond all honesty": (overwritten("messages", 1e6), "no honest message does"),
    "a label beyond its bound": (overwritten("labels", -1e3), "no honest message does"),
    "a message less": (arrays(lambda old: {**old, "messages": old["messages"][1:]}), "expected numpy"),
    "sums for messages": (arrays(lambda old: {"gram": np.zeros((3, 3))}), "its arrays are named"),
}


def cases() -> list:
    every = [("sum", *MALFORMED[name]) for name in MALFORMED]
    names = [f"sum-{name}" for name in MALFORMED]
    every += [("each", *MALFORMED_EACH[name]) for name in MALFORMED_EACH]
    names += [f"each-{name}" for name in MALFORMED_EACH]
    return [pytest.param(*case, id=name) for case, name in zip(every, names, strict=True)]


def without(town, plan, gone: range) -> np.ndarray:
    """The coefficients of everyone else, from their single messages: a second way to the same sums."""
    strategy = town.one_shot(1, plan, reply="each")
    town.run(strategy, town.grid(1, plan))
    collected, rounds = strategy._collected, strategy._rounds
    kept = ~np.isin(collected.took_part, gone)
    clients = collected.took_part[kept]
    sums = sum_messages(collected.messages[kept], collected.labels[kept], clients, rounds.grid)
    part = type(collected)(sums, clients, NONE)
    moments = moments_of(
        part,
        rounds.grid,
        plan=plan,
        modulation=town.modulation,
        directions=strategy.moments.corrections[0].directions,
        label_scale=None,
    )
    return one_shot(moments.normal_equations(), bound=town.bound).coefficients


@pytest.mark.parametrize(("reply", "tamper", "words"), cases())
def test_a_malformed_reply_is_dropped_by_name_and_the_model_is_that_of_the_others(
    new_town, reply, tamper, words
):
    town = new_town()
    plan = town.plan()
    got = town.run(
        town.one_shot(3, plan, reply=reply), town.grid(3, plan, tamper={102: tamper}), start=np.zeros(4)
    )
    outcome = town.outcomes[-1]
    (failure,) = outcome.failures
    assert failure.startswith("the reply for 100 clients, 100 to 199: ")
    assert words in failure
    assert f"round 1: dropped {failure}" in town.said
    assert outcome.num_clients == 200
    assert [release.clients.tolist() for release in outcome.assumed] == [list(range(100, 200))]
    assert got.tobytes() == without(new_town(), plan, range(100, 200)).tobytes()


@pytest.mark.parametrize("answer", [None, Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")])
def test_messages_of_a_lost_reply_count_as_sent(town, new_town, answer):
    plan = town.plan()
    got = town.run(town.one_shot(3, plan), town.grid(3, plan, tamper={101: lambda honest: answer}))
    outcome = town.outcomes[-1]
    (sent,), (assumed,) = outcome.releases, outcome.assumed
    assert sent.clients.tolist() == list(range(100, 300))
    assert assumed.clients.tolist() == list(range(100))
    assert assumed.release == sent.release == plan.release(-1, 1)
    assert ("none came in time" if answer is None else "Node Unavailable") in outcome.failures[0]
    assert got.tobytes() == without(new_town(), plan, range(100)).tobytes()


def test_who_may_have_sent_is_not_asked_more_often_than_planned(town):
    plan = town.plan(num_releases=1)
    strategy = town.iterative(3, plan, participation="sampled", fraction_train=0.9)
    grid = town.grid(3, plan, tamper={101: lambda honest: None})
    town.run(strategy, grid, rounds=2)
    first = town.outcomes[1]
    assert first.assumed[0].count > 80
    asked = np.concatenate([first.assumed[0].clients, first.releases[0].clients])
    told = [message.content.config_records[wire.CONFIG] for message in grid.sent[3:]]
    again = np.concatenate([wire.decode_clients(config[wire.CLIENT_MASK], 299) for config in told])
    assert not np.isin(again, asked).any()
    assert len(again) + len(asked) == 300


def test_the_last_bits_of_another_machine_are_no_lie(town):
    plan = town.plan()
    others = scaled(sigma=1 + 2.0**-50, sensitivity=1 - 2.0**-50)
    town.run(town.one_shot(3, plan), town.grid(3, plan, tamper={102: others}))
    outcome = town.outcomes[-1]
    assert outcome.failures == ()
    (sent,) = outcome.releases
    assert sent.release == plan.release(-1, 1)


def test_a_round_without_a_good_reply_ends_the_run_with_every_reason(town):
    plan = town.plan()
    tamper = {101: lambda honest: None, 102: row(sigma=0.1), 103: lambda honest: RecordDict()}
    with pytest.raises(NoGoodReplies, match="round 1: no node sent a usable reply") as caught:
        town.run(town.one_shot(3, plan), town.grid(3, plan, tamper=tamper))
    for words in ("none came in time", "the plan of the run says", "one ArrayRecord"):
        assert words in str(caught.value)


def test_clients_out_of_budget_are_remembered_and_owe_nothing(town):
    plan = town.plan(num_releases=3)
    strategy = town.iterative(3, plan, estimate="fresh")

    def half(content: RecordDict) -> RecordDict:
        """A node whose clients have spent their budget in another run: none of them sends."""
        zeros = arrays(lambda old: {name: np.zeros_like(value) for name, value in old.items()})
        return masks(lambda own: (NONE, own))(zeros(content))

    town.run(strategy, town.grid(3, plan, tamper={103: half}), rounds=2)
    first, second = town.outcomes[1:]
    assert (first.num_clients, first.out_of_budget, first.failures) == (200, 100, ())
    assert first.assumed == ()
    assert second.num_clients == 200
    assert strategy._asked[-1].metadata.dst_node_id == 102  # nobody is asked in vain


def test_every_node_is_asked_once_for_its_own_clients(town):
    plan = town.plan()
    grid = town.grid(16, plan)
    town.run(town.one_shot(16, plan), grid)
    told = [message.content.config_records[wire.CONFIG] for message in grid.sent]
    asked = [wire.decode_clients(config[wire.CLIENT_MASK], town.num_clients - 1) for config in told]
    assert len({message.metadata.dst_node_id for message in grid.sent}) == len(grid.sent) == 16
    assert np.concatenate(asked).tolist() == list(range(town.num_clients))
    assert {(config[wire.RUN], config[wire.VARIANT], config[wire.MECHANISM]) for config in told} == {
        ("run-1", "main", "modulated")
    }


def test_a_label_bound_goes_with_labels_in_the_clear_only(town):
    with pytest.raises(ValueError, match=r"largest_label = 8\.0 is not allowed where labels are noised"):
        town.one_shot(1, town.plan(label_privacy=True), label_scale=4.0)


def test_settings_beside_the_strategys_own_are_refused_before_anybody_is_asked(town):
    plan = town.plan()
    grid = town.grid(1, plan)
    start = ArrayRecord({wire.COEFFICIENTS: Array(np.zeros(4))})
    with pytest.raises(
        ValueError, match="the training config has 'note', and nodes of one-record clients take no"
    ):
        town.one_shot(1, plan).start(grid, start, train_config=ConfigRecord({"note": "lost"}))
    assert grid.sent == []
    town.one_shot(1, plan).start(grid, start, train_config=ConfigRecord())
    assert len(grid.sent) == 1
