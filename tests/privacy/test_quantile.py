"""The private quantile: its noise and cost, and how it moves C_p."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.privacy import PrivacyFilter, QuantileRelease, compose_mu, next_attribute_clip_norm

shares = st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 1000)), max_size=8)


def moved(current, pairs, *, quantile=0.5, clip_norm=1.0):
    return next_attribute_clip_norm(
        current,
        [share for share, _ in pairs],
        [weight for _, weight in pairs],
        quantile=quantile,
        clip_norm=clip_norm,
    )


def test_a_share_of_n_records_moves_by_one_over_n():
    rows = QuantileRelease(40, 0.1).releases(client=3, round=7)
    assert [(row.client, row.round, row.step, row.name) for row in rows] == [(3, 7, -1, "quantile")] * 2
    assert [(row.relation, row.sensitivity, row.sigma) for row in rows] == [
        ("attribute", pytest.approx(1 / 40, rel=1e-12), 0.1),
        ("record", pytest.approx(1 / 40, rel=1e-12), 0.1),
    ]
    assert {row.chosen for row in rows} == {"fixed"}


def test_rounded_shares_of_neighbours_are_never_further_apart_than_the_sensitivity():
    for n in (3, 7, 49, 1000, 99_991):
        counts = np.arange(n + 1) / n
        stated = QuantileRelease(n, 0.1).sensitivity
        assert np.diff(counts).max() <= stated
        assert max(Fraction(b) - Fraction(a) for a, b in pairwise(counts[:2000].tolist())) <= Fraction(stated)


@given(
    st.integers(1, 10**6),
    st.integers(1, 500),
    st.dictionaries(st.sampled_from(["attribute", "record"]), st.floats(1e-4, 30), min_size=1),
)
def test_all_rounds_together_cost_no_more_than_they_may_and_hardly_less(num_records, rounds, mus):
    release = QuantileRelease.planned(num_records, mus, rounds)
    rows = [row for number in range(rounds) for row in release.releases(0, number)]
    assert PrivacyFilter(mus).admits(rows)
    spent = compose_mu(row.mu for row in rows if row.relation == "record")
    assert spent == pytest.approx(min(mus.values()), rel=1e-9)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_clip_moves_by_the_geometric_step_of_the_publication(quantile):
    """Andrew et al., arXiv 1905.03871: C <- C exp(-0.2 (b - gamma))."""
    mean = (0.3 * 10 + 0.9 * 30) / 40
    expected = 0.25 * math.exp(-0.2 * (mean - quantile))
    assert moved(0.25, [(0.3, 10), (0.9, 30)], quantile=quantile) == pytest.approx(expected, rel=1e-12)


def test_it_grows_where_too_many_are_clipped_and_shrinks_where_too_few_are():
    assert moved(0.25, [(0.1, 1)]) > 0.25 > moved(0.25, [(0.9, 1)])
    assert moved(0.25, [(0.5, 1)]) == 0.25


def test_without_a_share_it_stays():
    assert moved(0.25, []) == 0.25


@given(st.floats(0.01, 1.0), shares, st.floats(0, 1), st.floats(1e-3, 1e3))
def test_it_stays_between_a_hundredth_of_the_clip_and_the_clip_whatever_is_released(
    start, pairs, quantile, clip
):
    current = start * clip
    after = moved(current, pairs, quantile=quantile, clip_norm=clip)
    assert 0.01 * clip * (1 - 1e-12) <= after <= clip
    # noise beyond [0, 1] moves it no further than a share could
    assert math.exp(-0.2) * (1 - 1e-12) <= after / current <= math.exp(0.2) * (1 + 1e-12)


@pytest.mark.parametrize("wanted", [0.3, 0.7])
def test_it_settles_at_the_quantile(wanted):
    """Uniform norms on [0, 1]: the share within c is c, so that C_p ends at the quantile itself."""
    current = 0.02
    for _ in range(600):
        current = moved(current, [(current, 1)], quantile=wanted)
    assert current == pytest.approx(wanted, rel=1e-6)


def test_it_settles_near_the_quantile_under_noise_too():
    """The mean of 500 noisy steps after 200; their standard deviation is below 0.02, so a miss by 0.05 is no chance."""
    rng, current, seen = np.random.default_rng(1), 0.9, []
    for _ in range(700):
        current = moved(current, [(current + rng.normal(0, 0.1), 1)], quantile=0.4)
        seen.append(current)
    assert np.mean(seen[200:]) == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"current": 0.0}, "attribute_clip_norm = 0.0"),
        ({"current": math.nan}, "attribute_clip_norm = nan"),
        ({"quantile": 1.1}, "quantile = 1.1"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0"),
    ],
)
def test_values_outside_their_range_are_refused(changes, words):
    given_ = {"current": 0.3, "shares": [0.5], "weights": [1.0], "quantile": 0.5, "clip_norm": 1.0}
    with pytest.raises(ValueError, match=words):
        next_attribute_clip_norm(**{**given_, **changes})


@pytest.mark.parametrize(
    ("num_records", "mus", "rounds", "words"),
    [
        (0, {"record": 1.0}, 1, "num_records = 0 is"),
        (5, {"record": 0.0}, 1, "mu = 0.0 is"),
        (5, {"record": 1.0}, 0, "num_rounds = 0 is"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(num_records, mus, rounds, words):
    with pytest.raises(ValueError, match=words):
        QuantileRelease.planned(num_records, mus, rounds)
