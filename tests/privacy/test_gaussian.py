"""Exact Gaussian conversions: golden values, extended precision, extremes, monotone, private side."""

import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import compose_mu, gaussian_delta, gaussian_epsilon, gaussian_mu, zcdp_epsilon, zcdp_rho

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())

epsilons = st.floats(-3, 3).map(lambda x: 10.0**x)
deltas = st.one_of(st.floats(-300, -0.01).map(lambda x: 10.0**x), st.floats(0.01, 0.999999))


def true_delta(epsilon: float, mu: float) -> mp.mpf:
    """Second implementation: the textbook difference of two tails, with 120 digits against cancellation."""
    with mp.workdps(120):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        root = mp.sqrt(2)
        return (mp.erfc((e / m - m / 2) / root) - mp.exp(e) * mp.erfc((e / m + m / 2) / root)) / 2


@pytest.mark.parametrize("row", GOLDEN["gaussian_calibration"], ids=str)
def test_noise_of_a_budget_matches_the_golden_value(row):
    assert 1 / gaussian_mu(row["epsilon"], row["delta"]) == pytest.approx(
        row["sigma_over_sensitivity"], rel=1e-9
    )


@pytest.mark.parametrize("row", GOLDEN["gaussian_composition"], ids=lambda row: f"{len(row['mus'])} releases")
def test_a_composition_matches_the_golden_mu_and_epsilon(row):
    assert compose_mu(row["mus"]) == pytest.approx(row["mu_total"], rel=1e-9)
    assert gaussian_epsilon(compose_mu(row["mus"]), row["delta"]) == pytest.approx(row["epsilon"], rel=1e-9)


@pytest.mark.parametrize("row", GOLDEN["zcdp"], ids=str)
def test_the_zcdp_view_matches_the_golden_rho(row):
    assert zcdp_rho(row["epsilon"], row["delta"]) == pytest.approx(row["rho"], rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(epsilons, deltas)
def test_mu_is_never_above_the_truth_and_is_the_largest_to_ten_digits(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert true_delta(epsilon, mu) <= delta
    assert true_delta(epsilon, mu * (1 + 1e-9)) > delta


@settings(max_examples=150, deadline=None)
@given(st.floats(-5, 1.7).map(lambda x: 10.0**x), deltas)
def test_epsilon_is_never_below_the_truth_and_is_the_smallest_to_nine_digits(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert true_delta(epsilon, mu) <= delta
    # Where delta is almost free of epsilon, epsilon has an absolute and no relative precision.
    smaller = epsilon * (1 - 1e-9) - 1e-11 * mu
    assert smaller <= 0 or true_delta(smaller, mu) > delta


@settings(max_examples=150, deadline=None)
@given(epsilons, st.floats(-5, 2).map(lambda x: 10.0**x))
def test_delta_is_never_below_the_truth_and_agrees_to_ten_digits(epsilon, mu):
    delta, truth = gaussian_delta(epsilon, mu), true_delta(epsilon, mu)
    assert delta >= truth
    assert truth < 1e-300 or delta <= truth * (1 + mp.mpf("1e-10"))


@given(epsilons, deltas)
def test_converting_back_never_asks_for_more_than_was_given(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) <= epsilon
    assert gaussian_delta(epsilon, mu) <= delta
    assert zcdp_epsilon(zcdp_rho(epsilon, delta), delta) <= epsilon


@given(epsilons, deltas)
def test_zcdp_is_the_looser_view(epsilon, delta):
    assert math.sqrt(2 * zcdp_rho(epsilon, delta)) < gaussian_mu(epsilon, delta)
    mu = gaussian_mu(epsilon, delta)
    assert zcdp_epsilon(mu * mu / 2, delta) > gaussian_epsilon(mu, delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-200, 1e-5), (1e-160, 1e-300), (1e-146, 0.5)])
def test_a_rho_without_digits_is_refused_with_an_epsilon_that_has_them(epsilon, delta):
    with pytest.raises(
        ValueError, match=r"^epsilon = 1e-\d+ is not allowed through zCDP .*: give at least"
    ) as said:
        zcdp_rho(epsilon, delta)
    least = float(str(said.value).split()[-1].rstrip("."))
    assert 1e-290 <= zcdp_rho(least, delta) < 1.1e-290
    assert zcdp_epsilon(zcdp_rho(least, delta), delta) <= least
    assert gaussian_mu(epsilon, delta) > 0  # which needs no rho


@settings(deadline=None)
@given(st.tuples(epsilons, deltas), st.floats(1e-9, 1), st.floats(1e-9, 1))
def test_conversions_are_monotone(point, more_epsilon, more_delta):
    epsilon, delta = point
    larger_epsilon, larger_delta = epsilon * (1 + more_epsilon), delta + (1 - delta) * more_delta * 0.9
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_mu(larger_epsilon, delta) >= mu
    assert gaussian_mu(epsilon, larger_delta) >= mu
    assert gaussian_epsilon(mu * (1 + more_epsilon), delta) >= gaussian_epsilon(mu, delta)
    assert gaussian_epsilon(mu, larger_delta) <= gaussian_epsilon(mu, delta)
    assert gaussian_delta(larger_epsilon, mu) <= gaussian_delta(epsilon, mu)
    assert gaussian_delta(epsilon, mu * (1 + more_epsilon)) >= gaussian_delta(epsilon, mu)


@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-5, 0.5])
def test_extreme_budgets_stay_finite_and_strictly_ordered(delta):
    mus = np.array([gaussian_mu(epsilon, delta) for epsilon in np.geomspace(1e-3, 1e3, 400)])
    assert np.isfinite(mus).all()
    assert (mus > 0).all()
    assert (np.diff(mus) > 0).all()
    back = np.array([gaussian_epsilon(mu, delta) for mu in mus])
    assert back == pytest.approx(np.geomspace(1e-3, 1e3, 400), rel=1e-7)


def test_epsilon_is_zero_exactly_when_delta_covers_the_total_variation():
    mu = 0.3
    total_variation = math.erf(mu / math.sqrt(8))
    assert gaussian_epsilon(mu, total_variation * (1 + 1e-9)) == 0
    assert gaussian_epsilon(mu, total_variation * (1 - 1e-9)) > 0
    assert gaussian_delta(0, mu) == pytest.approx(total_variation, rel=1e-10)


def test_edges_of_the_domain_have_their_limits():
    assert gaussian_epsilon(0, 1e-5) == 0
    assert gaussian_delta(1, 0) == 0
    assert 0 < gaussian_delta(1000, 1e-3) < 1e-300
    assert gaussian_delta(1, 1e5) == 1
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert compose_mu([]) == 0


def test_a_composition_is_rounded_up_and_exact_where_it_can_be():
    assert compose_mu([2.0]) == 2.0
    assert compose_mu([0.5] * 4) == 1.0
    mus = np.random.default_rng(7).uniform(0, 1, 200).tolist()
    total = compose_mu(mus)
    exact = sum(Fraction(mu) ** 2 for mu in mus)
    assert Fraction(math.nextafter(total, 0)) ** 2 < exact <= Fraction(total) ** 2


def test_the_smallest_floats_are_finite_and_on_the_private_side():
    assert gaussian_epsilon(5e-324, 1e-5) == 0.0
    assert 0 < gaussian_epsilon(5e-324, 1e-300) < 1e-140


@pytest.mark.parametrize("mu", [1e11, 1e13, 1e29, 1e31, 1e70, 1e99, 1e153])
def test_the_largest_mu_have_a_finite_epsilon_that_no_rounding_brings_below_the_truth(mu):
    # at such mu epsilon is mu^2/2 to the last digit, from above
    epsilon = gaussian_epsilon(mu, 1e-5)
    assert mu * mu / 2 <= epsilon <= mu * mu / 2 * (1 + 1e-9)
