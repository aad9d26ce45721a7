"""The strategy: rounds, lost replies, and the same bits in any order on any number of nodes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedveil import wire
from fedveil.flower import ErrorCode
from fedveil.privacy import StepMechanism
from fedveil.strategies import (
    CentralMechanism,
    Fleet,
    NoGoodReplies,
    PrivateAveraging,
    ServerOptimizer,
    central_update,
    to_record,
)
from fedveil.strategies.replies import TrainReply
from fedveil.streams import Streams

CENTRAL = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=1.0, num_clients=6)


def test_it_is_a_flower_strategy():
    assert issubclass(PrivateAveraging, Strategy)


# rounds


def test_three_rounds_average_by_records(scene):
    result = scene.run(scene.strategy(), scene.grid(scene.honest), rounds=3)
    total = sum(scene.examples.values())
    model = {name: np.full(shape, 0.5, np.float32) for name, shape in scene.shapes.items()}
    for server_round in (1, 2, 3):
        for name in model:
            mean = sum(scene.examples[c] * scene.update_of(c, server_round)[name] for c in range(6)) / total
            model[name] = (model[name].astype(np.float64) + mean).astype(np.float32)
    for name, values in model.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), values, rtol=1e-6, atol=1e-7)
        assert result.arrays[name].dtype == "float32"
    assert [outcome.server_round for outcome in scene.outcomes] == [0, 1, 2, 3]
    assert result.train_metrics_clientapp[3] == {"replies": 3, "failures": 0}


def test_the_trusted_server_averages_by_clients(scene):
    result = scene.run(scene.strategy(central=CENTRAL), scene.grid(scene.honest))
    updates = [scene.update_of(client, 1) for client in range(6)]
    stacked = {name: np.stack([update[name] for update in updates]) for name in scene.shapes}
    reply = TrainReply(stacked, 210, tuple(range(6)), (), ())
    mean = central_update([reply], scene.shapes, CENTRAL, Streams.seeded("c0ffee", 3), 1)
    for name in scene.shapes:
        np.testing.assert_allclose(result.arrays[name].numpy(), 0.5 + mean[name], rtol=1e-6, atol=1e-7)
    assert [row.client for row in scene.outcomes[1].releases] == [-1]


def test_a_request_names_the_round_the_run_the_mode_and_the_clients(scene):
    grid = scene.grid(scene.honest)
    scene.run(scene.strategy(), grid, train_config=ConfigRecord({"note": "kept"}))
    assert [message.metadata.dst_node_id for message in grid.sent] == [101, 102, 103]
    for message, clients in zip(grid.sent, ([0, 1], [2, 3], [4, 5]), strict=True):
        assert set(message.content) == {wire.ARRAYS, wire.CONFIG}
        assert message.metadata.message_type == "train"
        assert message.metadata.group_id == "1"
        assert dict(message.content[wire.CONFIG]) == {
            "note": "kept",
            wire.ROUND: 1,
            wire.RUN: "run-1",
            wire.REPLY: "sum",
            wire.CLIENTS: clients,
        }


def test_a_caller_cannot_overwrite_what_the_strategy_says(scene):
    grid = scene.grid(scene.honest)
    hostile = ConfigRecord({wire.ROUND: 99, wire.CLIENTS: [0], wire.RUN: "other", wire.REPLY: "each"})
    scene.run(scene.strategy(), grid, train_config=hostile)
    config = grid.sent[0].content[wire.CONFIG]
    assert (config[wire.ROUND], config[wire.CLIENTS], config[wire.RUN], config[wire.REPLY]) == (
        1,
        [0, 1],
        "run-1",
        "sum",
    )


def test_nodes_are_never_asked_to_evaluate(scene):
    grid = scene.grid(scene.honest)
    seen = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"accuracy": 0.1 * server_round, "per-class": [1.0, 2.0]})

    result = scene.run(scene.strategy(), grid, rounds=2, evaluate_fn=evaluate)
    assert seen == [0, 1, 2]
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == pytest.approx(0.2)
    assert not result.evaluate_metrics_clientapp
    assert scene.outcomes[2].evaluation == {"accuracy": pytest.approx(0.2)}


def test_the_ledger_rows_of_a_round_come_in_the_order_of_clients(scene):
    grid = scene.grid(lambda m: scene.honest(m, steps=2), arrange=lambda found: found[::-1])
    interleaved = Fleet({client: 101 + client % 3 for client in range(6)}, scene.examples)
    scene.run(scene.strategy(local_steps=2, fleet=interleaved), grid)
    keys = [(row.client, row.step, row.relation) for row in scene.outcomes[1].releases]
    assert keys == list(itertools.product(range(6), range(2), ("attribute", "record")))
    assert scene.outcomes[1].num_clients == 6


# bits


@pytest.mark.parametrize("central", [None, CENTRAL], ids=["local", "central"])
@pytest.mark.parametrize("kind", ["plain", "momentum", "adam"])
def test_order_of_replies_and_number_of_nodes_change_no_bit(scene, bits, central, kind):
    models = []
    for num_nodes in (1, 2, 3, 6):
        orders = [list, lambda found: found[::-1], lambda found: found[1:] + found[:1]]
        for arrange in orders:
            strategy = scene.strategy(num_nodes=num_nodes, central=central, optimizer=ServerOptimizer(kind))
            result = scene.run(strategy, scene.grid(scene.honest, arrange=arrange), rounds=3)
            models.append(bits(result.arrays))
    assert all(model == models[0] for model in models)


def test_the_same_seed_gives_the_same_rounds_and_another_seed_others(scene, bits):
    def model(seed: int):
        strategy = scene.strategy(seed=seed, fraction_train=0.5)
        return bits(scene.run(strategy, scene.grid(scene.honest), rounds=4).arrays)

    assert model(3) == model(3) != model(4)


# lost and bad replies


def test_a_missing_reply_is_counted_and_its_releases_are_assumed(scene):
    grid = scene.grid(lambda m: None if m.metadata.dst_node_id == 102 else scene.honest(m, steps=2))
    scene.run(scene.strategy(local_steps=2), grid)
    outcome = scene.outcomes[1]
    assert outcome.failures == ("the reply for clients 2-3: none came in time",)
    expected = [row for c in (2, 3) for step in (0, 1) for row in scene.planned(c).releases(c, 1, step)]
    assert list(outcome.assumed) == expected
    assert {row.client for row in outcome.releases} == {0, 1, 4, 5}
    assert outcome.num_clients == 4


def test_a_lost_round_is_not_assumed_again_in_the_next(scene):
    def answer(message):
        lost = message.metadata.dst_node_id == 102 and message.metadata.group_id == "1"
        return None if lost else scene.honest(message)

    scene.run(scene.strategy(), scene.grid(answer), rounds=2)
    assert [len(outcome.assumed) for outcome in scene.outcomes] == [0, 4, 0]
    assert [len(outcome.failures) for outcome in scene.outcomes] == [0, 1, 0]


def test_clients_without_noise_are_not_assumed_to_have_released(scene):
    def without_rows(message):
        content = scene.honest(message)
        content[wire.LEDGER][wire.ROWS] = wire.encode_releases(())
        return content

    grid = scene.grid(lambda m: None if m.metadata.dst_node_id == 102 else without_rows(m))
    scene.run(scene.strategy(plans=dict.fromkeys(range(6))), grid)
    assert scene.outcomes[1].assumed == ()
    assert len(scene.outcomes[1].failures) == 1


@pytest.mark.parametrize("position", range(3))
def test_the_error_reply_of_a_dead_node_is_its_own(scene, position):
    """It comes from the SuperLink, whose node id is 1, in any place among the replies."""
    error = Error(ErrorCode.NODE_UNAVAILABLE, "the node is gone")

    def rotated(found):
        return found[position:] + found[:position]

    grid = scene.grid(lambda m: error if m.metadata.dst_node_id == 103 else scene.honest(m), arrange=rotated)
    scene.run(scene.strategy(), grid)
    assert scene.outcomes[1].failures == ("the reply for clients 4-5: the node is gone",)
    assert {row.client for row in scene.outcomes[1].assumed} == {4, 5}


def test_two_dead_nodes_are_told_apart(scene):
    reasons = {101: "disk full", 103: "out of memory"}

    def answer(message):
        reason = reasons.get(message.metadata.dst_node_id)
        return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason) if reason else scene.honest(message)

    scene.run(scene.strategy(), scene.grid(answer, arrange=lambda found: found[::-1]))
    assert scene.outcomes[1].failures == (
        "the reply for clients 0-1: disk full",
        "the reply for clients 4-5: out of memory",
    )


def test_replies_to_no_request_of_the_round_are_named_and_change_nothing(scene, bits):
    alone = bits(scene.run(scene.strategy(), scene.grid(scene.honest)).arrays)
    stray = scene.request([0, 1])

    def with_a_stray_one(found):
        from flwr.app import Message

        from fedveil.flower import stamp_message

        stamp_message(stray, run_id=1, message_id="another-run", src_node_id=1)
        return [Message(scene.honest(stray), reply_to=stray), *found]

    assert (
        bits(scene.run(scene.strategy(), scene.grid(scene.honest, arrange=with_a_stray_one)).arrays) == alone
    )
    assert scene.outcomes[-1].failures == ("1 reply of node 101 to no request of this round",)
    assert scene.outcomes[-1].assumed == ()
    assert len(scene.outcomes[-1].releases) == 12


def test_a_long_reason_is_cut(scene):
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "line one\n" + "x" * 10**6)
    grid = scene.grid(lambda m: error if m.metadata.dst_node_id == 103 else scene.honest(m))
    scene.run(scene.strategy(), grid)
    (failure,) = scene.outcomes[1].failures
    assert failure.startswith("the reply for clients 4-5: line one xxx")
    assert len(failure) < 600
    assert "\n" not in failure


@pytest.mark.parametrize("central", [None, CENTRAL], ids=["local", "central"])
def test_a_round_without_a_good_reply_ends_the_run_with_every_reason(scene, central):
    answers = {
        101: lambda message: None,
        102: lambda message: Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "disk full"),
        103: lambda message: RecordDict(),
    }
    grid = scene.grid(lambda message: answers[message.metadata.dst_node_id](message))
    with pytest.raises(NoGoodReplies) as ended:
        scene.run(scene.strategy(central=central), grid)
    for words in ("round 1", "none came in time", "disk full", "must hold one ArrayRecord"):
        assert words in str(ended.value)
    assert [outcome.server_round for outcome in scene.outcomes] == [0]


def test_sums_that_would_overflow_are_refused_with_what_to_do(scene):
    def answer(message):
        content = scene.honest(message)
        arrays = {name: Array(np.full(shape, 2**62, np.int64)) for name, shape in scene.shapes.items()}
        return RecordDict({**dict(content), wire.ARRAYS: ArrayRecord(arrays)})

    with pytest.raises(NoGoodReplies, match=r"its sum of weight reaches 1\.074e\+09, .* lower learning-rate"):
        scene.run(scene.strategy(), scene.grid(answer))


# models


def test_names_order_and_scalars_of_a_model_are_kept():
    record = to_record({"b": np.array(2.0, np.float32), "a": np.zeros((2, 3), np.float32).T})
    assert list(record) == ["b", "a"]
    assert record["b"].numpy().shape == ()
    assert record["a"].shape == (3, 2)
    assert record["a"].numpy().flags.c_contiguous


def test_plans_of_another_size_are_assumed_as_they_were_planned(scene):
    plans = {client: scene.planned(client) for client in range(2, 6)}
    plans |= {client: StepMechanism(7, 2.0, 0.3) for client in range(2)}
    grid = scene.grid(lambda m: None if m.metadata.dst_node_id == 101 else scene.honest(m))
    scene.run(scene.strategy(plans=plans), grid)
    assert [(row.client, row.sensitivity, row.sigma) for row in scene.outcomes[1].assumed] == [
        (0, 4 / 7, 0.3),
        (1, 4 / 7, 0.3),
    ]


def test_the_start_says_how_rounds_will_run(scene):
    scene.run(scene.strategy(num_nodes=2, fraction_train=0.5, local_steps=1), scene.grid(scene.honest))
    assert scene.said[0] == "each round trains 0.5 of the clients, 1 step(s) each, on 2 nodes"
