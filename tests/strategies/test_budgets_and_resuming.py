"""The strategy over a run's life: budgets that end it, and a run that goes on where another stopped."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil import wire
from fedveil.strategies import (
    CentralMechanism,
    ServerOptimizer,
)

CENTRAL = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=1.0, num_clients=6)


# budgets


def budget_of(rounds: int, scene):
    """Clients answer until they have taken part in so many rounds; those with odd numbers one round longer."""
    served: dict[int, set[str]] = {}

    def answer(message):
        clients = message.content.config_records[wire.CONFIG][wire.CLIENTS]
        out = [c for c in clients if len(served.setdefault(c, set())) >= rounds + c % 2]
        for client in set(clients) - set(out):
            served[client].add(message.metadata.group_id)
        return scene.honest(message, out_of_budget=out)

    return answer


def test_training_ends_when_every_budget_is_spent(scene):
    grid = scene.grid(budget_of(2, scene))
    result = scene.run(scene.strategy(), grid, rounds=50)
    # in round 3 the even ones stop, in round 4 the odd ones; there is no round 5
    assert [outcome.server_round for outcome in scene.outcomes] == [0, 1, 2, 3, 4]
    assert [outcome.out_of_budget for outcome in scene.outcomes] == [
        (),
        (),
        (),
        (0, 2, 4),
        (0, 1, 2, 3, 4, 5),
    ]
    assert "every client has spent its budget: the run ends after round 4" in scene.said
    assert "round 4: every sampled client has spent its budget; the model stays" in scene.said
    assert [row.client for row in scene.outcomes[3].releases] == [1, 1, 3, 3, 5, 5]
    assert scene.outcomes[4].releases == ()
    for name in scene.shapes:
        assert np.array_equal(scene.outcomes[4].arrays[name], scene.outcomes[3].arrays[name])
        assert np.array_equal(result.arrays[name].numpy(), scene.outcomes[3].arrays[name])


def test_who_is_out_of_budget_is_not_asked_again(scene):
    grid = scene.grid(budget_of(1, scene))
    scene.run(scene.strategy(), grid, rounds=9)
    asked = [
        (message.metadata.group_id, list(message.content[wire.CONFIG][wire.CLIENTS])) for message in grid.sent
    ]
    assert asked[-3:] == [("3", [1]), ("3", [3]), ("3", [5])]


def test_the_trusted_server_goes_on_with_noise_alone(scene):
    """Its schedule is fixed: an empty sample is part of it."""
    rare = CentralMechanism(1.0, 0.5, 1e-6, 6)
    grid = scene.grid(scene.honest, looks=[(101, 102, 103)])
    result = scene.run(scene.strategy(central=rare, fraction_train=1e-6), grid, rounds=3)
    assert grid.sent == []
    assert [len(outcome.releases) for outcome in scene.outcomes] == [0, 1, 1, 1]
    assert not any(np.any(array.numpy() == 0.5) for array in result.arrays.values())


# resuming


@pytest.mark.parametrize("central", [None, CENTRAL], ids=["local", "central"])
@pytest.mark.parametrize("kind", ["plain", "momentum", "adam"])
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(scene, bits, central, kind, stop):
    settings = {"central": central, "fraction_train": 0.5}
    whole = scene.run(
        scene.strategy(optimizer=ServerOptimizer(kind), **settings), scene.grid(scene.honest), rounds=5
    )
    unbroken = scene.outcomes[1:]

    first = ServerOptimizer(kind)
    half = scene.run(scene.strategy(optimizer=first, **settings), scene.grid(scene.honest), rounds=stop)
    scene.outcomes.clear()
    second = ServerOptimizer(kind).load_state(first.state())
    resumed = scene.run(
        scene.strategy(optimizer=second, completed_rounds=stop, **settings),
        scene.grid(scene.honest),
        rounds=5,
        initial=half.arrays,
    )
    assert bits(resumed.arrays) == bits(whole.arrays)
    assert [outcome.server_round for outcome in scene.outcomes] == list(range(stop + 1, 6))
    for again, before in zip(scene.outcomes, unbroken[stop - 5 :], strict=True):
        assert again.releases == before.releases
        assert bits(again.arrays) == bits(before.arrays)


def test_a_resumed_run_does_not_ask_those_who_had_stopped(scene):
    grid = scene.grid(scene.honest)
    scene.run(scene.strategy(completed_rounds=3, out_of_budget=(0, 1, 4)), grid, rounds=4)
    assert [list(message.content[wire.CONFIG][wire.CLIENTS]) for message in grid.sent] == [[2, 3], [5]]
    assert scene.outcomes[0].out_of_budget == (0, 1, 4)


def test_a_run_that_was_complete_asks_nobody(scene, bits):
    grid = scene.grid(scene.honest)
    result = scene.run(scene.strategy(completed_rounds=4), grid, rounds=4)
    assert grid.sent == []
    assert scene.outcomes == []
    assert bits(result.arrays) == bits(scene.start())


def test_a_resumed_run_whose_clients_have_all_stopped_ends_at_once(scene):
    grid = scene.grid(scene.honest)
    scene.run(scene.strategy(completed_rounds=2, out_of_budget=tuple(range(6))), grid, rounds=9)
    assert grid.sent == []
    assert "every client has spent its budget: the run ends after round 2" in scene.said
