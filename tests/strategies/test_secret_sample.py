"""A secret sample: whoever sees all that the server shows, and how it goes on, sees the same whoever was sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from fedveil import wire
from fedveil.flower import ErrorCode
from fedveil.strategies import CentralMechanism, NoGoodReplies, ServerOptimizer, central_update, check_reply
from fedveil.streams import Streams

NODES = (101, 102, 103, 104, 105, 106)  # each serves one client, and 101 serves the victim
RATE = 0.3
CENTRAL = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=RATE, num_clients=6)
SEEDS = range(12)
ROUNDS = 3
RAISED = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "disk full")

Answer = Callable[[Any], Callable[[Message], Any]]


def node_of(message: Message) -> int:
    return message.metadata.dst_node_id


def huge(scene: Any) -> Callable[[Message], Any]:
    """Finite numbers whose squares, or the sum of whose squares, no double holds."""

    def answer(message: Message) -> Any:
        content = scene.honest(message)
        arrays = {
            name: Array(np.full((1, *shape), 1.2e154 / np.sqrt(np.prod(shape))))
            for name, shape in scene.shapes.items()
        }
        return RecordDict({**dict(content), wire.ARRAYS: ArrayRecord(arrays)})

    return answer


def failing_at_first(scene: Any) -> Callable[[Message], Any]:
    """The victim fails whenever it is first asked in a round."""
    asked = Counter[str]()

    def answer(message: Message) -> Any:
        if node_of(message) == 101:
            asked[message.metadata.group_id] += 1
            if asked[message.metadata.group_id] == 1:
                return RAISED
        return scene.honest(message)

    return answer


def stopped(scene: Any) -> Callable[[Message], Any]:
    """Clients that claim to have spent a budget."""
    return lambda message: scene.honest(message, out_of_budget=range(6))


BEHAVIOURS: dict[str, Answer] = {
    "all honest": lambda scene: scene.honest,
    "others silent": lambda scene: lambda m: scene.honest(m) if node_of(m) == 101 else None,
    "the victim silent": lambda scene: lambda m: None if node_of(m) == 101 else scene.honest(m),
    "the victim flaky": failing_at_first,
    "all silent": lambda scene: lambda m: None,
    "all fail": lambda scene: lambda m: RAISED,
    "all bad": lambda scene: lambda m: RecordDict(),
    "all out of budget": stopped,
    "all huge": huge,
}


def observed(scene: Any, answer: Callable[[Message], Any], seed: int, **settings: Any) -> dict[str, Any]:
    """All that the server shows and decides, but for the bits of models; and who was asked, under another key."""
    told = []
    strategy = scene.strategy(
        central=CENTRAL,
        fraction_train=RATE,
        num_nodes=6,
        on_repeat=lambda *given: told.append(given),
        streams=Streams.seeded("c0ffee", seed),
        **settings,
    )
    scene.said.clear()
    scene.outcomes.clear()
    grid = scene.grid(answer, looks=[NODES])
    ended = ""
    metrics: Any = None
    try:
        result = scene.run(strategy, grid, rounds=ROUNDS)
        metrics = {number: dict(record) for number, record in result.train_metrics_clientapp.items()}
    except NoGoodReplies as error:
        ended = str(error)
    models = [scene_bits(outcome.arrays) for outcome in scene.outcomes]
    seen = {
        "said": list(scene.said),
        "outcomes": [replace(outcome, arrays={}) for outcome in scene.outcomes],
        "metrics": metrics,
        "ended": ended,
        "repeats": told,
        "looks": grid.looked,
        "moved": [before != after for before, after in pairwise(models)],
        "out of budget": strategy.out_of_budget,
    }
    asked = frozenset((m.metadata.group_id, node_of(m)) for m in grid.sent)
    return {"seen": str(seen), "asked": asked, "rounds": len(scene.outcomes) - 1, "moved": seen["moved"]}


def scene_bits(arrays: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("name", BEHAVIOURS)
@pytest.mark.filterwarnings("error")
def test_whoever_is_sampled_and_whoever_answers_all_that_can_be_seen_is_the_same(scene, name):
    runs = [observed(scene, BEHAVIOURS[name](scene), seed) for seed in SEEDS]
    for number in range(1, ROUNDS + 1):  # or there would be nothing to tell apart
        assert {(str(number), 101) in run["asked"] for run in runs} == {True, False}
    assert len({run["asked"] for run in runs}) > 8
    assert len({run["seen"] for run in runs}) == 1
    assert all(run["rounds"] == ROUNDS and all(run["moved"]) for run in runs)


def test_how_nodes_behave_is_not_seen_either(scene):
    seen = {observed(scene, answer(scene), seed)["seen"] for seed in (0, 1) for answer in BEHAVIOURS.values()}
    assert len(seen) == 1


def test_what_is_left_out_is_said_once_at_the_start(scene):
    scene.run(
        scene.strategy(central=CENTRAL, fraction_train=RATE, num_nodes=6),
        scene.grid(lambda message: None, looks=[NODES]),
        rounds=ROUNDS,
    )
    assert [line for line in scene.said if "nodes' own logs tell" in line] == [scene.said[1]]
    assert len(scene.said) == 2
    assert all(np.isnan(outcome.seconds) for outcome in scene.outcomes)


@pytest.mark.parametrize("silent", [set(), {102}, {101, 103, 106}, set(NODES)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_reply_is_a_zero_in_the_sum_over_the_fixed_number_of_clients(scene, silent, seed):
    """The second implementation: the sum of those who were sampled and did answer, and the noise of the round."""
    grid = scene.grid(lambda m: None if node_of(m) in silent else scene.honest(m), looks=[NODES])
    result = scene.run(scene.strategy(central=CENTRAL, fraction_train=RATE, num_nodes=6, seed=seed), grid)
    arrived = [node_of(message) - 101 for message in grid.sent if node_of(message) not in silent]
    noise = Streams.seeded("c0ffee", seed).stream("central-noise", round=1)
    for name, shape in scene.shapes.items():
        total = np.zeros(shape)
        for client in sorted(arrived):
            update = scene.update_of(client, 1)
            norm = np.sqrt(sum(np.sum(array**2) for array in update.values()))
            total += update[name] * min(1.0, (1 - 1e-9) / norm)
        step = (total + 0.5 * noise.normal(shape)) / (RATE * 6)
        assert result.arrays[name].numpy() == pytest.approx(0.5 + step, rel=1e-6)
    (released,) = scene.outcomes[1].releases
    assert (released.client, released.sensitivity) == (-1, pytest.approx(2 / (RATE * 6)))


@pytest.mark.parametrize("seed", SEEDS)
def test_only_a_fleet_of_which_no_node_is_connected_ends_the_run(scene, seed):
    """Asked in every round, also in one for which nobody is sampled; a stranger is not of the fleet."""
    rare = replace(CENTRAL, sampling_rate=0.05)
    grid = scene.grid(scene.honest, looks=[(106,), (999, 104), (999,)])
    strategy = scene.strategy(central=rare, fraction_train=0.05, num_nodes=6, seed=seed)
    with pytest.raises(NoGoodReplies, match="round 3: none of the 6 nodes is connected; start them"):
        scene.run(strategy, grid, rounds=9)
    assert [outcome.server_round for outcome in scene.outcomes] == [0, 1, 2]
    assert grid.looked == 3


def test_a_resumed_run_goes_on_as_it_would_have(scene, bits):
    settings = {"central": CENTRAL, "fraction_train": RATE, "num_nodes": 6}
    lonely = BEHAVIOURS["others silent"](scene)
    whole = scene.run(scene.strategy(**settings), scene.grid(lonely, looks=[NODES]), rounds=6)
    optimizer = ServerOptimizer("plain")
    gone = scene.grid(lonely, looks=[NODES, NODES, ()])
    scene.outcomes.clear()
    with pytest.raises(NoGoodReplies):
        scene.run(scene.strategy(**settings, optimizer=optimizer), gone, rounds=6)
    kept = scene.outcomes[-1]
    assert kept.server_round == 2
    initial = ArrayRecord({name: Array(array) for name, array in kept.arrays.items()})
    again = scene.strategy(**settings, optimizer=optimizer, completed_rounds=2)
    resumed = scene.run(again, scene.grid(lonely, looks=[NODES]), rounds=6, initial=initial)
    assert bits(resumed.arrays) == bits(whole.arrays)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_replies": 2}, "min-replies = 2 and round-attempts = 1 with a secret sample"),
        ({"round_attempts": 2}, "min-replies = 1 and round-attempts = 2 with a secret sample"),
    ],
)
def test_rounds_that_are_skipped_or_repeated_are_refused(scene, settings, words):
    grid = scene.grid(scene.honest, looks=[NODES])
    with pytest.raises(ValueError, match=words):
        scene.run(scene.strategy(central=CENTRAL, fraction_train=RATE, num_nodes=6, **settings), grid)
    assert (grid.sent, grid.looked, scene.said) == ([], 0, [])
    everyone = replace(CENTRAL, sampling_rate=1.0)
    scene.run(scene.strategy(central=everyone, num_nodes=6, **settings), grid)
    assert len(grid.sent) == 6


def test_clients_with_ledger_rows_of_their_own_are_refused(scene):
    plans = {client: scene.planned(client) if client == 4 else None for client in range(6)}
    grid = scene.grid(scene.honest, looks=[NODES])
    with pytest.raises(ValueError, match="their ledger rows would tell who was sampled"):
        scene.run(scene.strategy(central=CENTRAL, fraction_train=RATE, plans=plans), grid)
    assert grid.sent == []


@pytest.mark.filterwarnings("error")
def test_an_update_whose_norm_no_double_holds_counts_as_zero(scene):
    request = scene.request([2], mode="each")
    reply = Message(huge(scene)(request), reply_to=request)
    checked = check_reply(reply, scene.expected([2], mode="each"))
    found, alone = (
        central_update(replies, scene.shapes, CENTRAL, Streams.seeded("c0ffee", 1), 1)
        for replies in ([checked], [])
    )
    assert {name: array.tobytes() for name, array in found.items()} == scene_bits(alone)
