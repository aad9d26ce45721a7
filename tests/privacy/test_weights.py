"""Noise-aware weights: least variance, equal bits wherever they are computed, and refused extremes."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import Release
from fedveil.privacy.weights import noise_aware_weight

sigmas = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20)
sizes = st.floats(1e-3, 1e3)


def variance(weights, spreads):
    """Variance of one coordinate of the weighted mean of independent updates."""
    return math.fsum(
        (w / math.fsum(weights)) ** 2 * spread for w, spread in zip(weights, spreads, strict=True)
    )


@settings(deadline=None)
@given(sigmas, sizes, sizes)
def test_the_weight_is_the_closed_form(steps, learning_rate, tau):
    squared = sum((Fraction(learning_rate) * Fraction(sigma)) ** 2 for sigma in steps)
    exact = Fraction(tau) ** 2 / (squared + Fraction(tau) ** 2)
    found = noise_aware_weight(steps, learning_rate, tau)
    assert 0 < found <= 1
    assert found == pytest.approx(float(exact), rel=1e-14)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 1)), min_size=2, max_size=8), sizes)
def test_no_other_weights_give_the_mean_less_variance(clients, tau):
    """Variance of client i's update is s_i^2 + tau^2; the least of a weighted mean is 1/sum_i 1/(s_i^2 + tau^2)."""
    spreads = [sigma**2 + tau**2 for sigma, _ in clients]
    least = variance([noise_aware_weight([sigma], 1.0, tau) for sigma, _ in clients], spreads)
    assert least == pytest.approx(1 / math.fsum(1 / spread for spread in spreads), rel=1e-12)
    assert least <= variance([other for _, other in clients], spreads) * (1 + 1e-12)


def test_simulated_updates_average_best_under_these_weights():
    """Equal truth, spread and noise of several steps; false alarm below 1e-6 (the ratio's five standard errors)."""
    rng, tau, learning_rate, draws = np.random.default_rng(3), 0.2, 0.5, 100_000
    steps = [[0.1, 0.1], [0.5], [2.0, 1.0, 0.5]]
    updates = np.array(
        [
            tau * rng.standard_normal(draws)
            - sum(learning_rate * s * rng.standard_normal(draws) for s in own)
            for own in steps
        ]
    )
    weights = np.array([noise_aware_weight(own, learning_rate, tau) for own in steps])
    found = np.var(weights / weights.sum() @ updates)
    expected = 1 / sum(1 / (tau**2 + learning_rate**2 * sum(s * s for s in own)) for own in steps)
    assert found == pytest.approx(expected, rel=5 * math.sqrt(2 / draws))
    assert found < 0.5 * np.var(updates.mean(axis=0))


@settings(deadline=None)
@given(sigmas, sizes, sizes, st.randoms(use_true_random=False))
def test_the_order_of_the_ledger_rows_changes_no_bit(steps, learning_rate, tau, order):
    rows = [Release(0, 1, step, "gradient", "record", 1.0, sigma) for step, sigma in enumerate(steps)]
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert noise_aware_weight((row.sigma for row in shuffled), learning_rate, tau) == noise_aware_weight(
        [row.sigma for row in rows], learning_rate, tau
    )


@settings(deadline=None)
@given(sigmas, sizes, sizes, st.floats(1.01, 10))
def test_more_noise_never_weighs_more_and_a_larger_tau_evens_out(steps, learning_rate, tau, factor):
    weight = noise_aware_weight(steps, learning_rate, tau)
    assert noise_aware_weight([factor * sigma for sigma in steps], learning_rate, tau) <= weight
    assert noise_aware_weight([*steps, steps[0]], learning_rate, tau) <= weight
    assert noise_aware_weight(steps, learning_rate, factor * tau) >= weight


def test_no_noise_weighs_1_and_noise_of_tau_weighs_one_half():
    assert noise_aware_weight([], 0.1, 0.5) == noise_aware_weight([0.0, 0.0], 0.1, 0.5) == 1.0
    assert noise_aware_weight([0.25], 2.0, 0.5) == 0.5
    assert noise_aware_weight([1e-200], 1e-200, 1e-300) == 1.0  # tau^2 alone would vanish


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0.1], 0.0, 0.5), "learning_rate = 0.0"),
        (([0.1], 1.0, 0.0), "tau = 0.0"),
        (([0.1, math.nan], 1.0, 0.5), "sigma = nan"),
        (([-0.1], 1.0, 0.5), "sigma = -0.1"),
        (([1e200], 1.0, 1e-10), "the client's weight vanishes"),
        (([1e300], 1e300, 1.0), "the client's weight vanishes"),
        (([1.3e154, 1.3e154], 1.0, 1.0), "the client's weight vanishes"),
    ],
)
def test_an_argument_outside_its_range_is_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        noise_aware_weight(*arguments)
