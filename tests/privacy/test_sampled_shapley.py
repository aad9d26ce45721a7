"""Sampled Shapley values: whole permutations in antithetic pairs, their errors, and their sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy.sampled_shapley import draw_permutations, sampled_shapley
from fedveil.privacy.shapley import shapley_sensitivity, shapley_values
from fedveil.streams import Streams


def stream(seed):
    return Streams.seeded("test", seed).stream("permutations")


def members(masks, num_players):
    return masks[:, None] >> np.arange(num_players) & 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 62), st.integers(2, 5), st.integers(0, 2**32))
def test_sampled_values_sum_to_what_all_players_add(num_players, pairs, seed):
    seen = {}

    def utility(masks):
        values = np.random.default_rng(seed).uniform(size=len(masks))
        seen.update(zip(masks.tolist(), values, strict=True))
        return values

    found = sampled_shapley(utility, draw_permutations(num_players, pairs, stream(seed)))
    expected = seen[2**num_players - 1] - seen[0]
    assert math.fsum(found.values) == pytest.approx(expected, abs=1e-12)


def test_the_utility_is_asked_once_for_distinct_coalitions():
    calls = []

    def utility(masks):
        calls.append(masks)
        return members(masks, 6).sum(axis=1) / 6

    sampled_shapley(utility, draw_permutations(6, 40, stream(0)))
    (masks,) = calls
    assert masks.dtype == np.int64
    assert len(set(masks.tolist())) == len(masks) == 64


def test_all_permutations_give_the_exact_values():
    utilities = np.random.default_rng(1).uniform(size=16)
    orders = np.array([[0, *p] for p in ([1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1])])
    # All 24 orders, each once as a pair's first half: rotate the labels of the six that start with 0.
    every = np.concatenate([(orders + shift) % 4 for shift in range(4)])
    found = sampled_shapley(lambda masks: utilities[masks], every)
    np.testing.assert_allclose(found.values, shapley_values(utilities), rtol=0, atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 30), st.integers(0, 2**32))
def test_one_pair_is_exact_for_games_of_pairs(num_players, seed):
    rng = np.random.default_rng(seed)
    alone, together = rng.normal(size=num_players), np.triu(rng.normal(size=(num_players, num_players)), 1)

    def utility(masks):
        inside = members(masks, num_players)
        return inside @ alone + np.einsum("ki,ij,kj->k", inside, together, inside)

    found = sampled_shapley(utility, draw_permutations(num_players, 2, stream(seed)))
    expected = alone + (together + together.T).sum(axis=1) / 2
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-10)
    assert found.standard_errors.max() < 1e-10


def test_standard_errors_are_as_large_as_the_errors():
    # 400 sets of 25 pairs of one game of 6 players: the mean square of error over standard error is that of a t with
    # 24 degrees of freedom, 24/22, for near-normal pair means. Its own deviation over 2,400 dependent values is below
    # 0.1, so bounds of 0.35 are missed by a right estimator with a probability below 1e-3 (fixed seeds anyhow).
    utilities = np.random.default_rng(2).uniform(size=64)
    exact = shapley_values(utilities)
    ratios = []
    for seed in range(400):
        found = sampled_shapley(lambda masks: utilities[masks], draw_permutations(6, 25, stream(seed)))
        ratios.append((found.values - exact) / found.standard_errors)
    assert np.mean(np.square(ratios)) == pytest.approx(24 / 22, abs=0.35)


def test_the_same_stream_draws_the_same_permutations():
    drawn = draw_permutations(20, 7, stream(5))
    assert drawn.shape == (7, 20)
    assert (np.sort(drawn, axis=1) == np.arange(20)).all()
    assert (drawn == draw_permutations(20, 7, stream(5))).all()
    assert (drawn != draw_permutations(20, 7, stream(6))).any()


def estimator(orders):
    """Matrix of the map from the utilities of the coalitions asked for to the values, and those coalitions."""
    asked = []
    sampled_shapley(lambda masks: asked.append(masks) or np.zeros(len(masks)), orders)
    (masks,) = asked
    columns = [sampled_shapley(lambda m, unit=unit: unit, orders).values for unit in np.eye(len(masks))]
    return np.array(columns).T, masks


@pytest.mark.parametrize("num_players", [13, 16])
@pytest.mark.parametrize("private", [None, 1, 3])
def test_local_ascent_finds_no_change_beyond_the_stated_sensitivity(num_players, private):
    rng = np.random.default_rng(num_players)
    matrix, masks = estimator(draw_permutations(num_players, 3, stream(num_players)))
    free = np.ones(len(masks), bool) if private is None else masks & (2**private - 1) != 0
    directions = rng.standard_normal((num_players, 300))
    for _ in range(40):
        directions = matrix[:, free] @ np.sign(matrix[:, free].T @ directions)
    largest = np.linalg.norm(directions, axis=0).max()
    assert 1.2 < largest <= shapley_sensitivity(num_players, private) * (1 + 1e-12)


def test_one_order_alone_attains_the_stated_sensitivity():
    order = np.arange(13)
    matrix, masks = estimator(np.stack([order, order]))
    prefix = {2**size - 1: size for size in range(14)}
    change = np.array(
        [(-1) ** prefix[m] if m in prefix else -((-1) ** prefix[2**13 - 1 - m]) for m in masks.tolist()]
    )
    assert np.linalg.norm(matrix @ change) == pytest.approx(shapley_sensitivity(13), rel=1e-12)


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (np.array([[0, 1], [1, 1]]), "order of the players"),
        (np.array([[0, 1]]), "at least 2 rows"),
        (np.array([0, 1]), "shape"),
        (np.zeros((2, 0), dtype=np.int64), "shape"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), "float64"),
    ],
)
def test_rows_that_are_no_permutations_are_refused(orders, words):
    with pytest.raises(ValueError, match=words):
        sampled_shapley(lambda masks: np.zeros(len(masks)), orders)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda masks: np.zeros(3), "3 values for 4 coalitions"),
        (lambda masks: np.full(4, np.nan), "finite"),
        (lambda masks: None, "type object"),
    ],
)
def test_a_utility_that_answers_wrongly_is_refused(answer, words):
    with pytest.raises(ValueError, match=words):
        sampled_shapley(answer, np.array([[0, 1], [1, 0]]))


@pytest.mark.parametrize(("num_players", "pairs"), [(0, 2), (63, 2), (5, 1), (5, 0)])
def test_numbers_of_players_and_pairs_outside_their_range_are_refused(num_players, pairs):
    with pytest.raises(ValueError, match=r"num_players|pairs"):
        draw_permutations(num_players, pairs, stream(0))


def test_the_standard_error_is_never_above_one_over_the_root_of_the_pairs_for_utilities_of_a_share():
    """A pair's value lies in [-1, 1]; the sample's own deviation can pass 1 by sqrt(pairs/(pairs - 1)) only."""
    generator = np.random.default_rng(5)
    for pairs in (2, 5, 40):
        permutations = draw_permutations(13, pairs, Streams.seeded("test", pairs).stream("permutations"))
        extreme = sampled_shapley(
            lambda masks: generator.integers(0, 2, len(masks)).astype(float), permutations
        )
        assert extreme.standard_errors.max() <= 1 / math.sqrt(pairs - 1)
        assert np.abs(extreme.values).max() <= 1
