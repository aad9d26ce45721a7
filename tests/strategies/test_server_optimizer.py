"""The server's optimisers: a second implementation in numpy, and Flower's own driven as Flower drives them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from fedveil.artifacts import Checkpoint
from fedveil.artifacts.checkpoint import CheckpointEncoder, decode_checkpoint
from fedveil.flower import set_task_identity
from fedveil.strategies import ServerOptimizer

SHAPES = {"weight": (4, 3), "bias": (4,), "scale": ()}
SETTINGS = {
    "plain": {"learning_rate": 0.7},
    "plain, step 1": {"learning_rate": 1.0},
    "momentum": {"learning_rate": 0.5, "momentum": 0.8},
    "adam": {"learning_rate": 0.05, "beta_1": 0.85, "beta_2": 0.97, "tau": 1e-2},
}
ROUNDS = range(1, 6)

Arrays = dict[str, np.ndarray]


def optimizer(kind: str) -> ServerOptimizer:
    return ServerOptimizer(kind.partition(",")[0], **SETTINGS[kind])


def start() -> Arrays:
    rng = np.random.default_rng(0)
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def update(server_round: int) -> Arrays:
    rng = np.random.default_rng([1, server_round])
    return {name: np.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()}


def second_implementation(kind: str) -> list[Arrays]:
    """The published rules: SGD, SGD with momentum (Hsu et al. 2019), FedAdam (Reddi et al. 2021) with Kingma's step."""
    setting = SETTINGS[kind]
    eta = setting["learning_rate"]
    x = {name: array.astype(np.float64) for name, array in start().items()}
    first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    models = []
    for t in ROUNDS:
        for name, delta in update(t).items():
            if kind.startswith("plain"):
                step = eta * delta
            elif kind == "momentum":
                first[name] = setting["momentum"] * first[name] + delta
                step = eta * first[name]
            else:
                b1, b2 = setting["beta_1"], setting["beta_2"]
                first[name] = b1 * first[name] + (1 - b1) * delta
                second[name] = b2 * second[name] + (1 - b2) * delta**2
                # Flower counts rounds from 1 and corrects with t + 1
                eta_t = eta * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
                step = eta_t * first[name] / (np.sqrt(second[name]) + setting["tau"])
            # the model that clients get is float32
            x[name] = np.asarray(x[name] + step, np.float32).astype(np.float64)
        models.append({name: np.asarray(array, np.float32) for name, array in x.items()})
    return models


def steps(adapter: ServerOptimizer, model: Arrays, rounds: range = ROUNDS) -> list[Arrays]:
    models = []
    for server_round in rounds:
        model = adapter.step(server_round, model, update(server_round))
        models.append(model)
    return models


@pytest.mark.parametrize("kind", SETTINGS)
def test_five_steps_equal_a_second_implementation(kind):
    for ours, theirs in zip(steps(optimizer(kind), start()), second_implementation(kind), strict=True):
        assert list(ours) == list(SHAPES)
        for name, shape in SHAPES.items():
            assert ours[name].dtype == np.float32
            assert ours[name].shape == shape
            # one rounding to float32 a step may fall to the other side
            np.testing.assert_allclose(ours[name], theirs[name], rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_saved_state_goes_on_with_the_same_bits(kind, stop):
    unbroken = steps(optimizer(kind), start())
    before = optimizer(kind)
    models = steps(before, start(), range(1, stop + 1))
    checkpoint = Checkpoint(stop, models[-1], before.state(), (), [], "c0ffee")
    saved = decode_checkpoint(CheckpointEncoder().encode(checkpoint), "memory")
    after = optimizer(kind).load_state(saved.optimizer)
    for ours, whole in zip(steps(after, saved.arrays, range(stop + 1, 6)), unbroken[stop:], strict=True):
        assert {n: a.tobytes() for n, a in ours.items()} == {n: a.tobytes() for n, a in whole.items()}


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_state_that_is_left_out_would_be_noticed(kind):
    before = optimizer(kind)
    model = steps(before, start(), range(1, 3))[-1]
    assert before.state()
    forgetful = optimizer(kind).step(3, model, update(3))
    faithful = before.step(3, model, update(3))
    assert any(not np.array_equal(forgetful[name], faithful[name]) for name in SHAPES)


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_fresh_optimizer_has_no_state_and_takes_an_empty_one(kind):
    assert optimizer(kind).state() == {}
    fresh, loaded = optimizer(kind), optimizer(kind).load_state({})
    one, other = (adapter.step(1, start(), update(1)) for adapter in (fresh, loaded))
    assert all(np.array_equal(one[name], other[name]) for name in SHAPES)


def test_plain_averaging_with_step_1_adds_the_update():
    stepped = optimizer("plain, step 1").step(1, start(), update(1))
    for name in SHAPES:
        expected = (start()[name].astype(np.float64) + update(1)[name]).astype(np.float32)
        np.testing.assert_allclose(stepped[name], expected, rtol=2e-7)


def driven_by_flower(strategy: FedAvg, scene) -> list[Arrays]:
    """Flower's loop: configure_train, replies of two nodes whose weighted mean is the update, aggregate_train."""
    grid = scene.grid(lambda message: None, looks=[[1, 2]])
    record = ArrayRecord({name: Array(array.astype(np.float64)) for name, array in start().items()})
    models = []
    for server_round in ROUNDS:
        requests = list(strategy.configure_train(server_round, record, ConfigRecord(), grid))
        assert len(requests) == 2
        replies = []
        for request, weight, share in zip(requests, (1, 3), (-2.0, 2.0), strict=True):
            # (1 * -2 + 3 * 2) / 4 = 1 of the update
            moved = {
                name: Array(np.asarray(array.numpy() + share * update(server_round)[name]))
                for name, array in record.items()
            }
            content = RecordDict(
                {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": weight})}
            )
            replies.append(Message(content, reply_to=request))
        result, _ = strategy.aggregate_train(server_round, replies)
        record = result
        models.append({name: array.numpy() for name, array in record.items()})
    return models


def flowers_own(kind: str) -> FedAvg:
    setting = SETTINGS[kind]
    if kind == "adam":
        return FedAdam(eta=setting["learning_rate"], **{k: setting[k] for k in ("beta_1", "beta_2", "tau")})
    if kind == "plain, step 1":
        return FedAvg()
    return FedAvgM(
        server_learning_rate=setting["learning_rate"], server_momentum=setting.get("momentum", 0.0)
    )


@pytest.mark.parametrize("kind", SETTINGS)
def test_flowers_own_strategies_driven_normally_come_to_the_same_models(kind, scene):
    set_task_identity(1)
    theirs: list[Mapping[str, np.ndarray]] = driven_by_flower(flowers_own(kind), scene)
    for ours, other in zip(steps(optimizer(kind), start()), theirs, strict=True):
        for name in SHAPES:
            # theirs stays in float64, ours is rounded to float32 in every round
            np.testing.assert_allclose(ours[name], other[name], rtol=2e-6, atol=2e-6)
