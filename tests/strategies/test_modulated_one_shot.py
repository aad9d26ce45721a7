"""One-shot learning: the same coefficients however people are spread over nodes, and an honest end when noise wins."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from fedveil import wire


def reverse(found: list) -> list:
    return found[::-1]


@pytest.mark.parametrize("reply", ["sum", "each"])
@pytest.mark.parametrize("num_nodes", [1, 3, 16])
def test_any_number_of_nodes_and_any_order_of_replies_gives_the_same_bits(town, num_nodes, reply):
    plan = town.plan()
    one = town.run(town.one_shot(1, plan), town.grid(1, plan))
    many = town.run(town.one_shot(num_nodes, plan, reply=reply), town.grid(num_nodes, plan, arrange=reverse))
    assert many.tobytes() == one.tobytes()


@pytest.mark.parametrize("num_nodes", [3, 16])
def test_noised_labels_too(town, num_nodes):
    plan, own = town.plan(label_privacy=True), {"label_scale": 4.0, "largest_label": None}
    one = town.run(town.one_shot(1, plan, **own), town.grid(1, plan, **own))
    strategy = town.one_shot(num_nodes, plan, reply="each", **own)
    many = town.run(strategy, town.grid(num_nodes, plan, **own))
    assert many.tobytes() == one.tobytes()
    assert strategy.moments.label_scale == 4.0


@pytest.mark.parametrize("alpha", [0.3, -1.0])
def test_without_noise_it_is_least_squares_of_the_clipped_records(town, alpha):
    town.modulation = type(town.modulation)(alpha=alpha)
    got = town.run(town.one_shot(3, None), town.grid(3, None))
    x = town.features.astype(np.float64)
    x *= np.minimum(1, town.bound / np.linalg.norm(x, axis=1))[:, None]
    design = np.column_stack([x, np.ones(len(x))])
    want = np.linalg.lstsq(design, town.targets)[0]
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert town.outcomes[-1].releases == ()


def test_the_moments_are_kept_for_intervals(town):
    plan = town.plan()
    strategy = town.one_shot(3, plan)
    town.run(strategy, town.grid(3, plan))
    moments = strategy.moments
    assert (moments.count, moments.scale) == (300, town.modulation.scale)
    (correction,) = moments.corrections
    assert (correction.sigma, correction.amplitude) == (plan.sigma, town.modulation.amplitude)
    assert correction.directions.shape == (1, 3)


def test_directions_are_orthogonal_to_the_model_that_it_starts_from(town):
    plan = town.plan()
    grid = town.grid(1, plan)
    start = np.array([3.0, -1.0, 2.0, 0.5])
    town.run(town.one_shot(1, plan), grid, start=start)
    directions = grid.sent[0].content.array_records[wire.ARRAYS][wire.DIRECTIONS].numpy()
    np.testing.assert_allclose(directions @ start[:3], 0, atol=1e-12)
    np.testing.assert_allclose(directions @ directions.T, np.eye(1), atol=1e-12)


def test_a_covariance_without_a_positive_eigenvalue_is_said_and_no_model_comes_of_it(town):
    def drowned(content: RecordDict) -> RecordDict:
        old = {name: array.numpy() for name, array in content.array_records[wire.ARRAYS].items()}
        old["gram"] = np.zeros_like(old["gram"])  # less than the noise alone adds
        record = ArrayRecord({name: Array(value) for name, value in old.items()})
        return RecordDict({**dict(content), wire.ARRAYS: record})

    plan = town.plan()
    got = town.run(town.one_shot(1, plan), town.grid(1, plan, tamper={101: drowned}))
    outcome = town.outcomes[-1]
    assert f"round 1: {outcome.problem}" in town.said
    assert "no positive eigenvalue" in outcome.problem
    assert got[:3].tolist() == [0, 0, 0]
    # the mean label, but for the 2^-41 or finer grid of the sums
    assert got[3] == pytest.approx(town.targets.mean(), abs=1e-9)


def test_a_ridge_of_ones_own_takes_the_place_of_the_rule(town):
    plan = town.plan()
    town.run(town.one_shot(1, plan, ridge=1e9), town.grid(1, plan))
    np.testing.assert_allclose(town.outcomes[-1].coefficients[:3], 0, atol=1e-8)


def test_a_part_of_the_clients_can_be_enough(town):
    plan = town.plan()
    strategy = town.one_shot(3, plan, participation="sampled", fraction_train=0.5)
    town.run(strategy, town.grid(3, plan))
    outcome = town.outcomes[-1]
    assert outcome.num_clients == strategy.moments.count == 150
    (sent,) = outcome.releases
    assert sent.count == 150


def test_the_initial_model_is_told_and_evaluated_too(town):
    plan = town.plan()
    start = np.array([0.0, 0.0, 0.0, 2.5])
    got = town.run(town.one_shot(1, plan), town.grid(1, plan), start=start)
    assert [number for number, _ in town.evaluated] == [0, 1]
    assert town.evaluated[0][1].tolist() == start.tolist()
    assert town.evaluated[1][1].tobytes() == got.tobytes()
    before, after = town.outcomes
    assert (before.server_round, before.releases, before.num_clients) == (0, (), 0)
    assert before.coefficients.tolist() == start.tolist()
    assert after.coefficients.tobytes() == got.tobytes()
    assert town.said[0] == "each round asks all clients on 1 node for one message a client"


def test_there_is_one_round(town):
    plan = town.plan()
    with pytest.raises(ValueError, match="num_rounds = 2 is not allowed: one-shot learning has 1 round"):
        town.run(town.one_shot(1, plan), town.grid(1, plan), rounds=2)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"coefficients": np.zeros(3)}, "initial coefficients have shape"),
        ({"coefficients": np.array([0, 0, 0, np.nan])}, "4 finite numbers"),
        ({"weights": np.zeros(4)}, "the initial arrays are"),
    ],
)
def test_other_initial_arrays_are_refused(town, arrays, words):
    plan = town.plan()
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    with pytest.raises(ValueError, match=words):
        town.one_shot(1, plan).start(town.grid(1, plan), record)


@pytest.mark.parametrize("name", ["bound", "label_scale", "largest_label"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_public_constants_are_above_zero(town, name, value):
    others = {"largest_label": None} if name == "label_scale" else {}
    with pytest.raises(ValueError, match=f"{name} = .* is not allowed"):
        town.one_shot(1, town.plan(), **{**others, name: value})
