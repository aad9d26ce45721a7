"""Weights from the noise of updates: the server divides by what clients multiplied with, and drops what has none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedveil import wire
from fedveil.privacy import StepMechanism, noise_aware_weight
from fedveil.strategies import NoGoodReplies


def test_updates_weighed_by_their_noise_are_divided_by_the_weights_of_the_rows(scene):
    def weigh(sigmas: Any) -> float:
        return noise_aware_weight(sigmas, 1.0, 0.5)

    def answer(message: Message) -> RecordDict:
        content = scene.honest(message)
        clients = message.content.config_records[wire.CONFIG][wire.CLIENTS]
        arrays = content.array_records[wire.ARRAYS]
        for name in scene.shapes:
            total = sum(wire.to_fixed(weight[c] * scene.update_of(c, 1)[name]) for c in clients)
            arrays[name] = type(arrays[name])(total)
        return content

    plans = {
        client: StepMechanism(scene.examples[client], 1.0, 0.1 * (client + 1), 0.2) for client in range(6)
    }
    weight = {client: 0.25 / (plans[client].sigma ** 2 + 0.25) for client in range(6)}

    def with_rows(message: Message) -> RecordDict:
        content = answer(message)
        clients = message.content.config_records[wire.CONFIG][wire.CLIENTS]
        rows = [row for client in clients for row in plans[client].releases(client, 1, 0)]
        content[wire.LEDGER][wire.ROWS] = wire.encode_releases(rows)
        return content

    result = scene.run(scene.strategy(plans=plans, weigh=weigh), scene.grid(with_rows))
    for name in scene.shapes:
        mean = sum(weight[c] * scene.update_of(c, 1)[name] for c in range(6)) / sum(weight.values())
        np.testing.assert_allclose(result.arrays[name].numpy(), 0.5 + mean, rtol=1e-6, atol=1e-7)


def test_a_reply_whose_noise_leaves_no_weight_is_dropped_and_the_run_goes_on(scene):
    def weigh(sigmas: Any) -> float:
        return noise_aware_weight(sigmas, 1e100, 1e-100)

    def answer(message: Message) -> RecordDict:
        content = scene.honest(message)
        still = {name: Array(np.zeros(shape, np.int64)) for name, shape in scene.shapes.items()}
        content[wire.ARRAYS] = ArrayRecord(still)
        if message.metadata.dst_node_id == 101:
            rows = json.loads(content[wire.LEDGER][wire.ROWS])
            wild = [
                {**row, "sigma": row["sigma"] * 1e90, "sensitivity": row["sensitivity"] * 1e90}
                for row in rows
            ]
            content[wire.LEDGER][wire.ROWS] = json.dumps(wild).encode()
        return content

    with pytest.raises(NoGoodReplies, match="tau = 1e-100 is too small beside the noise"):
        scene.run(scene.strategy(weigh=weigh), scene.grid(answer))
    scene.outcomes.clear()
    scene.run(scene.strategy(weigh=lambda sigmas: noise_aware_weight(sigmas, 1.0, 1e-70)), scene.grid(answer))
    (failure,) = scene.outcomes[1].failures
    assert failure.startswith("the reply for clients 0-1: a ledger row of client 0 is 'gradient' of round 1")
    assert "sigma 5e+88, and the plan of the run says" in failure
