"""Covariance, bias and intervals of the estimate: against simulation of real messages and closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import chdtri

from fedveil.privacy import (
    Correction,
    ModulatedMoments,
    Modulation,
    NormalEquations,
    NotIdentified,
    asymptotic_covariance,
    averaged,
    confidence_intervals,
    confidence_region,
    draw_directions,
    least_squares,
    least_squares_bias,
    modulated,
    score_covariance,
)

ALPHA = 0.3
SCALE = 1 - ALPHA


def records(rng, count, d, *, intercept=True, residual=0.4):
    """Correlated features, heteroscedastic labels, and least squares of both; columns (X, 1) with an intercept."""
    x = rng.standard_normal((count, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d)) / math.sqrt(d))
    x += 0.3 * intercept
    design = np.column_stack([x, np.ones(count)]) if intercept else x
    slopes = np.array([0.9, -0.5, 0.3, 0.1, -0.2, 0.4, 0.2, -0.6])[:d]
    y = x @ slopes + 0.7 * intercept + residual * (1 + np.abs(x[:, 0])) * rng.standard_normal(count)
    return x, y, design, np.linalg.lstsq(design, y, rcond=None)[0]


def exact_equations(design, y, corrections, label_scale, intercept):
    """Normal equations without noise that know what noise the messages will have."""
    count = sum(one.count for one in corrections)
    return NormalEquations(
        covariance=design.T @ design / len(design),
        cross=design.T @ y / len(design),
        label_square=float(y @ y) / len(design),
        count=count,
        scale=SCALE,
        corrections=tuple(one.with_intercept() if intercept else one for one in corrections),
        label_scale=label_scale,
        intercept=intercept,
    )


def send(rng, x, y, v, sigma, amplitude, label_scale):
    """One message and label of each record, through the real modulation."""
    modulation = Modulation(ALPHA, amplitude, 1.0, max(1, len(v)))
    messages = modulated(x, v, rng.uniform(0, 2 * math.pi, (len(x), len(v))), modulation)
    messages += sigma * rng.standard_normal(x.shape)
    if label_scale is None:
        return messages, y
    return messages, SCALE * y / label_scale + sigma * rng.standard_normal(len(y))


def released(rng, x, y, rounds, sigma, amplitude, label_scale, *, average, intercept):
    """Equations from a message of every client in each of the rounds, pooled or averaged per client."""
    modulation = Modulation(ALPHA, amplitude, 1.0, max(1, len(rounds[0])))
    sent = [send(rng, x, y, v, sigma, amplitude, label_scale) for v in rounds]
    laws = [Correction(len(x), sigma, amplitude, v) for v in rounds]
    if average:
        sent = [tuple(sum(part) / len(rounds) for part in zip(*sent, strict=True))]
        laws = [averaged(laws, len(x))]
    total = None
    for (messages, labels), law in zip(sent, laws, strict=True):
        one = ModulatedMoments.from_messages(
            messages, labels, modulation=modulation, corrections=[law], label_scale=label_scale
        )
        total = one if total is None else total + one
    return total.normal_equations(intercept)


CASES = {
    "one direction": {"m": 1, "label_scale": None, "rounds": 1},
    "three directions, intercept": {"m": 3, "label_scale": None, "rounds": 1, "intercept": True},
    "no modulation": {"m": 0, "label_scale": None, "rounds": 1, "amplitude": 0.0},
    "label privacy, intercept": {"m": 1, "label_scale": 2.0, "rounds": 1, "intercept": True},
    "label privacy, three directions": {"m": 3, "label_scale": 3.0, "rounds": 1},
    "several rounds": {"m": 1, "label_scale": None, "rounds": 3, "intercept": True},
    "several rounds, label privacy": {"m": 2, "label_scale": 2.0, "rounds": 3, "intercept": True},
    "averages of rounds": {"m": 1, "label_scale": None, "rounds": 3, "average": True, "intercept": True},
    "averages of rounds, label privacy": {"m": 2, "label_scale": 2.0, "rounds": 2, "average": True},
}


def setting(m, label_scale, rounds, average=False, intercept=False, amplitude=4.0):
    return m, label_scale, rounds, average, intercept, amplitude


def excess(errors, expected):
    """n |W - 1|^2/2, W the mean square of n errors whitened by the expected covariance: close to chi-squared with
    D (D + 1)/2 degrees of freedom when they have that covariance and mean 0. And its bound at 1e-6."""
    whitened = np.array(errors) @ np.linalg.inv(np.linalg.cholesky(expected)).T
    count, size = whitened.shape
    distance = np.linalg.norm(whitened.T @ whitened / count - np.eye(size)) ** 2
    return count * distance / 2, chdtri(size * (size + 1) / 2, 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_score_at_the_truth_has_the_stated_covariance_however_strong_the_noise(name):
    """1,500 repetitions for the same 60 records; exact for every K. False alarm about 1e-6 each (see `excess`). The
    same figure without the noise of private labels is above the bound."""
    m, label_scale, rounds, average, intercept, amplitude = setting(**CASES[name])
    rng, d = np.random.default_rng(20), 4
    x, y, design, beta = records(rng, 60, d, intercept=intercept)
    v = [draw_directions(m, d, rng.standard_normal) for _ in range(rounds)]
    errors = []
    for _ in range(1500):
        equations = released(rng, x, y, v, 0.8, amplitude, label_scale, average=average, intercept=intercept)
        errors.append(equations.covariance @ beta - equations.cross)
    truth = exact_equations(design, y, equations_laws(equations, intercept), label_scale, intercept)
    expected = score_covariance(truth, beta) / truth.count
    distance, bound = excess(errors, expected)
    assert distance < bound
    if label_scale is not None:
        public = score_covariance(replace(truth, label_scale=None), beta) / truth.count
        assert np.subtract(*excess(errors, public + 1e-12 * np.eye(len(beta)))) > 0


def test_a_wave_along_the_slopes_is_less_uncertain_than_a_normal_of_its_variance():
    """As above with v along beta and little noise, where the fourth cumulant takes most of the variance away: without
    it the same figure is above its bound."""
    rng = np.random.default_rng(21)
    x, y, design, beta = records(rng, 60, 4, intercept=False)
    v = beta[None, :] / np.linalg.norm(beta)
    errors = []
    for _ in range(1000):
        equations = released(rng, x, y, [v], 0.1, 6.0, None, average=False, intercept=False)
        errors.append(equations.covariance @ beta - equations.cross)
    truth = exact_equations(design, y, equations.corrections, None, False)
    expected = score_covariance(truth, beta) / truth.count
    distance, bound = excess(errors, expected)
    assert distance < bound
    cumulant = truth.corrections[0].fourth_cumulant(beta) / SCALE**4 / truth.count
    distance, bound = excess(errors, expected - cumulant)
    assert distance > 2 * bound


@pytest.mark.parametrize(
    "name", ["three directions, intercept", "label privacy, intercept", "several rounds"]
)
def test_the_estimate_has_the_stated_covariance(name):
    """1,500 repetitions for the same 1,000 records at weak noise, where terms of higher order are below 1 %. False
    alarm about 1e-6 each (see `excess`)."""
    m, label_scale, rounds, average, intercept, _ = setting(**CASES[name])
    rng, d = np.random.default_rng(22), 4
    x, y, design, beta = records(rng, 1000, d, intercept=intercept)
    v = [draw_directions(m, d, rng.standard_normal) for _ in range(rounds)]
    errors = []
    for _ in range(1500):
        equations = released(rng, x, y, v, 0.2, 0.4, label_scale, average=average, intercept=intercept)
        errors.append(least_squares(equations) - beta)
    truth = exact_equations(design, y, equations_laws(equations, intercept), label_scale, intercept)
    distance, bound = excess(errors, asymptotic_covariance(truth, beta))
    assert distance < bound


def equations_laws(equations, intercept):
    """Corrections of equations without their padding."""
    return [
        replace(one, directions=one.directions[:, :-1], intercept=False) if intercept else one
        for one in equations.corrections
    ]


def test_one_feature_without_modulation_has_the_closed_form():
    """u = (1/K) sum of n x b/c - n r/c + (n^2 - s^2) b/c^2, n normal: a second-moment exercise."""
    sigma, b, square, residual, count = 0.7, 1.3, 2.0, 0.5, 900
    equations = NormalEquations(
        covariance=np.array([[square]]),
        cross=np.array([square * b]),
        label_square=residual + b * b * square,
        count=count,
        scale=SCALE,
        corrections=(Correction(count, sigma, 0.0, np.zeros((0, 1))),),
        label_scale=None,
        intercept=False,
    )
    noise = sigma**2 / SCALE**2
    expected = (noise * b * b * square + noise * residual + 2 * noise**2 * b * b) / square**2 / count
    assert asymptotic_covariance(equations, [b])[0, 0] == pytest.approx(expected, rel=1e-12)
    private = asymptotic_covariance(replace(equations, label_scale=3.0), [b])[0, 0]
    extra = 9 * noise * (square + noise) / square**2 / count
    assert private == pytest.approx(expected + extra, rel=1e-12)


def test_without_noise_the_population_covariance_is_that_of_ordinary_least_squares():
    _, y, design, beta = records(np.random.default_rng(1), 500, 3)
    equations = exact_equations(design, y, [Correction(500, 0.0, 0.0, np.zeros((0, 3)))], None, True)
    residual = np.mean((y - design @ beta) ** 2)
    ordinary = residual * np.linalg.inv(design.T @ design)
    np.testing.assert_allclose(
        asymptotic_covariance(equations, beta, target="population"), ordinary, rtol=1e-9
    )
    np.testing.assert_allclose(asymptotic_covariance(equations, beta), 0, atol=1e-12 * ordinary.max())
    intervals = confidence_intervals(equations)
    assert intervals.identified
    np.testing.assert_allclose(intervals.estimate, beta, rtol=1e-9)
    np.testing.assert_allclose(intervals.upper, beta, atol=1e-6)


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_population_covariance_is_that_of_repeated_draws_of_the_clients(rounds):
    """1,000 draws of 600 clients with constant residual variance, each sending `rounds` messages: five standard
    errors of the mean whitened variance (false alarm below 1e-6), and 4 % for terms of second order."""
    rng, d, count, repeats, sigma = np.random.default_rng(6), 3, 600, 1000, 0.15
    slopes, v = np.array([0.9, -0.5, 0.3]), draw_directions(1, d, rng.standard_normal)
    errors, covariances = [], []
    for repeat in range(repeats):
        x = rng.standard_normal((count, d))
        y = x @ slopes + 0.8 * rng.standard_normal(count)
        equations = released(rng, x, y, [v] * rounds, sigma, 0.5, None, average=False, intercept=False)
        errors.append(least_squares(equations) - slopes)
        if repeat < 100:
            covariances.append(
                asymptotic_covariance(equations, slopes, target="population", effective_clients=count)
            )
    whitened = np.array(errors) @ np.linalg.inv(np.linalg.cholesky(np.mean(covariances, axis=0))).T
    assert abs(np.mean(whitened**2) - 1) < 5 * math.sqrt(2 / repeats / d) + 0.04


@pytest.mark.parametrize("m", [0, 2])
def test_the_bias_of_least_squares_is_predicted_and_removed_from_the_estimate(m):
    """2,000 repetitions where noise in Sigma_hat is a tenth of its eigenvalues. The mean error less its prediction, in
    the metric of its own covariance, is chi-squared with D = 9 degrees up to terms of third order: bound 45 (false
    alarm 1e-6 without them). Less nothing, the same figure is above three times that."""
    rng, d, count, repeats, sigma, amplitude = np.random.default_rng(9), 8, 900, 2000, 0.6, 1.0
    x, y, _, beta = records(rng, count, d)
    v = draw_directions(m, d, rng.standard_normal)
    errors, predicted = [], []
    for _ in range(repeats):
        equations = released(rng, x, y, [v], sigma, amplitude * (m > 0), None, average=False, intercept=True)
        estimate = least_squares(equations)
        errors.append(estimate - beta)
        predicted.append(least_squares_bias(equations, estimate))
    errors, predicted = np.array(errors), np.array(predicted)

    def distance(values):
        mean = values.mean(axis=0)
        return repeats * mean @ np.linalg.solve(np.cov(values.T), mean)

    assert distance(errors) > 135
    assert distance(errors - predicted) < 45


def simple(rng, count=5000, d=4, sigma=0.3, amplitude=0.5, intercept=True, label_scale=None, change=None):
    """Released equations of records whose columns `change` may alter."""
    x, y, _, _ = records(rng, count, d, intercept=intercept)
    if change is not None:
        x = change(x)
    v = draw_directions(1, d, rng.standard_normal)
    return released(rng, x, y, [v], sigma, amplitude, label_scale, average=False, intercept=intercept)


def test_intervals_are_symmetric_and_widen_with_the_level():
    equations = simple(np.random.default_rng(0))
    narrow, wide = (confidence_intervals(equations, level=level) for level in (0.5, 0.99))
    assert narrow.identified
    np.testing.assert_allclose((narrow.lower + narrow.upper) / 2, narrow.estimate, rtol=1e-9)
    ratio = (wide.upper - wide.estimate) / (narrow.upper - narrow.estimate)
    np.testing.assert_allclose(ratio, 2.5758293035489004 / 0.6744897501960817, rtol=1e-9)
    population = confidence_intervals(equations, target="population")
    assert (population.standard_errors > narrow.standard_errors).all()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 3.0])
def test_intervals_are_refused_below_ten_times_the_noise_in_the_covariance(intercept, sigma):
    equations = simple(np.random.default_rng(4), sigma=sigma, amplitude=0.0, intercept=intercept)
    intervals = confidence_intervals(equations)
    needed = 10 * sigma**2 / SCALE**2 * math.sqrt(4 / 5000)
    covariance = equations.covariance
    if intercept:
        mean = covariance[:-1, -1]
        covariance = covariance[:-1, :-1] - np.outer(mean, mean)
    smallest = np.linalg.eigvalsh(covariance)[0]
    assert intervals.needed == pytest.approx(needed, rel=1e-9)
    assert intervals.smallest_eigenvalue == pytest.approx(smallest, rel=1e-9)
    assert intervals.identified == (smallest > needed)
    for number in (needed, smallest):
        assert f"{number:.3g}" in intervals.statement


def test_modulation_counts_as_noise_when_intervals_are_refused():
    """lambda = 6 beside sigma = 0.1: M is 18.01 along v, and Sigma_hat along it is that much noisier."""
    intervals = confidence_intervals(simple(np.random.default_rng(4), sigma=0.1, amplitude=6.0))
    needed = 10 * (0.1**2 + 6.0**2 / 2) / SCALE**2 * math.sqrt(4 / 5000)
    assert intervals.needed == pytest.approx(needed, rel=1e-9)
    assert not intervals.identified


UNIDENTIFIED = {
    "collinear columns": {"change": lambda x: np.column_stack([x[:, :3], x[:, 0] - x[:, 1]])},
    "a constant column beside the intercept": {
        "change": lambda x: np.column_stack([x[:, :3], 0 * x[:, 0] + 1])
    },
    "more features than messages": {"count": 6, "d": 8, "sigma": 0.2},
    "collinear columns without noise": {
        "change": lambda x: np.column_stack([x[:, :3], x[:, 0] - x[:, 1]]),
        "sigma": 0.0,
        "amplitude": 0.0,
    },
    "more features than messages without noise": {"count": 6, "d": 8, "sigma": 0.0, "amplitude": 0.0},
    "noise that hides the records": {"sigma": 20.0, "label_scale": 2.0},
}


@pytest.mark.parametrize("name", UNIDENTIFIED)
def test_coefficients_that_are_not_identified_get_no_estimate_and_no_interval(name):
    equations = simple(np.random.default_rng(12), **UNIDENTIFIED[name])
    intervals, region = confidence_intervals(equations), confidence_region(equations)
    assert not intervals.identified
    assert intervals.statement.startswith("Not identified")
    assert np.isnan(intervals.estimate).all()
    assert (intervals.lower == -np.inf).all()
    assert (intervals.upper == np.inf).all()
    assert region.is_bounded is False
    assert "unbounded" in region.statement


def test_a_covariance_that_is_not_positive_definite_has_no_asymptotic_covariance():
    equations = simple(np.random.default_rng(12), sigma=20.0)
    assert np.linalg.eigvalsh(equations.covariance)[0] < 0
    for function in (asymptotic_covariance, least_squares_bias):
        with pytest.raises(NotIdentified, match="smallest eigenvalue"):
            function(equations, np.zeros(5))


@given(seed=st.integers(0, 10_000), sigma=st.floats(0.01, 30), length=st.floats(0, 1e3))
@settings(max_examples=50, deadline=None)
def test_the_score_covariance_is_positive_semidefinite_whatever_the_noise_did(seed, sigma, length):
    rng = np.random.default_rng(seed)
    equations = simple(rng, count=40, d=3, sigma=sigma, amplitude=4.0)
    omega = score_covariance(equations, length * rng.standard_normal(4))
    values = np.linalg.eigvalsh(omega)
    assert values[0] >= -1e-9 * values[-1]


@given(seed=st.integers(0, 10_000), sigma=st.floats(0.2, 12))
@settings(max_examples=40, deadline=None)
def test_a_region_called_bounded_ends_in_every_direction_and_one_called_unbounded_does_not(seed, sigma):
    rng = np.random.default_rng(seed)
    equations = simple(rng, count=400, d=3, sigma=sigma, amplitude=2.0)
    region = confidence_region(equations)
    far = 1e7 * rng.standard_normal((200, 4))
    if region.is_bounded:
        weakest = np.linalg.eigh(equations.covariance)[1] * 1e7
        assert not any(region.contains(beta) for beta in (*far, *weakest.T))
    elif region.is_bounded is False:
        assert region.contains(1e9 * region.direction)
        assert region.contains(-1e9 * region.direction)


def test_the_region_holds_the_estimate_and_shrinks_to_it_as_noise_vanishes():
    rng = np.random.default_rng(3)
    noisy, clear = simple(rng, sigma=0.5), simple(rng, sigma=0.0, amplitude=0.0)
    region = confidence_region(noisy)
    estimate = least_squares(noisy)
    assert region.is_bounded
    assert region.statistic(estimate) == pytest.approx(0, abs=1e-9)
    assert region.contains(estimate)
    assert not region.contains(estimate + 1)
    exact = confidence_region(clear)
    assert exact.contains(least_squares(clear))
    assert not exact.contains(least_squares(clear) + 1e-4)


def test_the_region_matches_the_intervals_where_noise_is_weak():
    """On an axis through the estimate the region ends near sqrt(chi2_D) conditional standard errors."""
    equations = simple(np.random.default_rng(3), count=200_000, sigma=0.05)
    region, intervals = confidence_region(equations), confidence_intervals(equations)
    estimate = least_squares(equations)
    precision = np.linalg.inv(asymptotic_covariance(equations, estimate))
    for place in range(len(estimate)):
        reach = math.sqrt(region.threshold / precision[place, place])
        axis = np.eye(len(estimate))[place]
        assert region.contains(estimate + 0.97 * reach * axis)
        assert not region.contains(estimate + 1.03 * reach * axis)
    assert intervals.identified


def test_slopes_of_zero_tell_the_intercept_exactly_when_labels_are_public():
    """Without slopes the label's mean is not noised, so the region holds one intercept only."""
    equations = simple(np.random.default_rng(3), sigma=8.0)
    region = confidence_region(equations)
    mean_label = equations.cross[-1]
    off = np.append(np.zeros(4), mean_label + 0.01)
    assert region.statistic(off) == np.inf
    assert np.isfinite(region.statistic(np.append(np.zeros(4), mean_label)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": 0.0}, "level"),
        ({"level": 95}, "level"),
        ({"target": "client"}, "did you mean 'clients'"),
        ({"target": "population", "effective_clients": 6000}, "effective_clients"),
        ({"target": "population", "effective_clients": 0}, "effective_clients"),
        ({"effective_clients": 10}, "of no use"),
    ],
)
@pytest.mark.parametrize("sigma", [0.1, 9.0])
def test_arguments_outside_their_range_are_refused(change, words, sigma):
    equations = simple(np.random.default_rng(3), sigma=sigma)
    for function in (confidence_intervals, confidence_region):
        with pytest.raises(ValueError, match=words):
            function(equations, **change)


def test_coefficients_of_another_length_are_refused():
    equations = simple(np.random.default_rng(3))
    for function in (asymptotic_covariance, least_squares_bias, confidence_region(equations).contains):
        with pytest.raises(ValueError, match="shape"):
            function(np.zeros(4)) if function.__name__ == "contains" else function(equations, np.zeros(4))
