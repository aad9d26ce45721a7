"""One-shot estimates: least squares without noise, never wild with it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    ModulatedMoments,
    Modulation,
    NotIdentified,
    descend,
    draw_directions,
    least_squares,
    modulate,
    one_shot,
    plan_messages,
    regularised,
    regularised_spectrum,
)

BETA = np.array([1.0, -0.5, 0.25, 0.0])
BOUND = 1.5


def records(n=4000, seed=0, centre=0.2):
    rng = np.random.default_rng(seed)
    x = 0.5 * rng.standard_normal((n, 4)) + centre
    x *= np.minimum(1, BOUND / np.linalg.norm(x, axis=1))[:, None]
    return x, x @ BETA + 3 + 0.2 * rng.standard_normal(n)


def noise_free(x, y):
    none = Modulation(alpha=0.0, amplitude=0.0)
    return ModulatedMoments.from_messages(x, y, modulation=none, sigma=0.0)


def private(x, y, epsilon, seed=1, label_scale=None, **constants):
    rng = np.random.default_rng(seed)
    modulation = Modulation(**constants)
    plan = plan_messages(
        epsilon=epsilon, delta=1e-5, bound=BOUND, modulation=modulation, label_privacy=label_scale is not None
    )
    directions = draw_directions(modulation.num_directions, x.shape[1], rng.standard_normal)
    messages = modulate(
        x,
        directions,
        alpha=modulation.alpha,
        amplitude=modulation.amplitude,
        frequency=modulation.frequency,
        rng=rng,
    )
    messages += plan.sigma * rng.standard_normal(x.shape)
    if label_scale is not None:
        y = modulation.scale * y / label_scale + plan.sigma * rng.standard_normal(len(y))
    return ModulatedMoments.from_messages(
        messages, y, modulation=modulation, directions=directions, sigma=plan.sigma, label_scale=label_scale
    )


def padded(x):
    return np.column_stack([x, np.ones(len(x))])


@pytest.mark.parametrize("bound", [None, BOUND])
def test_without_noise_it_is_least_squares(bound):
    x, y = records()
    expected = np.linalg.lstsq(padded(x), y)[0]
    for found in (
        one_shot(noise_free(x, y), bound=bound, intercept=True),
        one_shot(noise_free(x, y).normal_equations(), bound=bound),
    ):
        np.testing.assert_allclose(found.coefficients, expected, rtol=1e-9, atol=1e-12)
        assert (found.usable, found.problem, found.floored) == (True, None, 0)
        assert found.ridge == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(
        least_squares(noise_free(x, y).normal_equations()), expected, rtol=1e-9, atol=1e-12
    )
    without = one_shot(noise_free(x, y), bound=bound)
    np.testing.assert_allclose(without.coefficients, np.linalg.lstsq(x, y)[0], rtol=1e-9, atol=1e-12)


def test_an_explicit_ridge_is_ridge_regression_that_leaves_the_intercept_alone():
    x, y = records()
    found = one_shot(noise_free(x, y), ridge=0.3, floor=0.0, intercept=True)
    centred = x - x.mean(axis=0)
    slopes = np.linalg.solve(
        centred.T @ centred / len(x) + 0.3 * np.eye(4), centred.T @ (y - y.mean()) / len(x)
    )
    np.testing.assert_allclose(found.coefficients[:4], slopes, rtol=1e-9)
    assert found.coefficients[4] == pytest.approx(y.mean() - x.mean(axis=0) @ slopes, rel=1e-9)
    assert found.ridge == pytest.approx(0.3)


def test_an_explicit_floor_raises_the_eigenvalues_below_it_only():
    x, y = records()
    x = x * [1, 1, 0.1, 1]
    plain = one_shot(noise_free(x, y), intercept=True)
    floor = float(plain.eigenvalues[:2].mean())
    found = one_shot(noise_free(x, y), floor=floor, intercept=True)
    assert found.floored == 1
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    cross = vectors.T @ (centred.T @ (y - y.mean()) / len(x))
    np.testing.assert_allclose(
        vectors.T @ found.coefficients[:4], cross / np.maximum(values, floor), rtol=1e-8
    )


def test_the_rule_follows_its_formula():
    x, y = records()
    moments = private(x, y, 2.0, amplitude=3.0, num_directions=2)
    equations = moments.normal_equations()
    found = one_shot(equations, bound=BOUND)
    mean = equations.covariance[:4, 4]
    values, vectors = np.linalg.eigh(equations.covariance[:4, :4] - np.outer(mean, mean))
    cross = equations.cross[:4] - mean * equations.cross[4]
    slopes = np.zeros(4)
    for w, v in zip(values, vectors.T, strict=True):
        m = float(v @ moments.corrections[0].covariance @ v) / 0.49
        level = m * math.sqrt(4 / 4000)
        tau = 0.15 * BOUND**2
        k = tau**2 / (tau**2 + level**2)
        r = math.hypot(k * max(w, 0), math.sqrt(k) * level)
        slopes += v * float(v @ cross) * r / (r**2 + 2 * BOUND**2 * m / 4000)
    np.testing.assert_allclose(found.coefficients[:4], slopes, rtol=1e-9)
    assert found.coefficients[4] == pytest.approx(equations.cross[4] - mean @ slopes, rel=1e-9)


def test_alpha_is_a_unit_of_the_estimate_too():
    """At equal privacy the noise in the record's unit is the same: so are the slopes."""
    x, y = records()
    one, other = (
        one_shot(private(x, y, 4.0, alpha=alpha, amplitude=0.0), bound=BOUND) for alpha in (0.3, -2.0)
    )
    np.testing.assert_allclose(one.coefficients, other.coefficients, rtol=1e-6)


def test_with_little_noise_it_is_near_the_truth_and_better_than_unregularised_with_much():
    """Error of slopes against the clipped records' own, mean of 10 runs: halved at least where noise is large."""
    x, y = records()
    truth = np.linalg.lstsq(padded(x), y)[0][:4]
    assert (
        np.abs(one_shot(private(x, y, 100.0), bound=BOUND, intercept=True).coefficients[:4] - truth).max()
        < 0.1
    )
    errors = {"rule": [], "plain": []}
    for seed in range(10):
        equations = private(x, y, 2.0, seed=seed).normal_equations()
        errors["rule"].append(np.linalg.norm(one_shot(equations, bound=BOUND).coefficients[:4] - truth))
        covariance, cross = equations.slopes_alone()
        errors["plain"].append(np.linalg.norm(np.linalg.solve(covariance, cross) - truth))
    assert np.mean(errors["rule"]) < np.mean(errors["plain"]) / 2
    assert np.mean(errors["rule"]) < np.linalg.norm(truth)


@settings(max_examples=40, deadline=None)
@given(
    epsilon=st.sampled_from([1e-4, 1e-2, 0.1, 1.0]),
    seed=st.integers(0, 1000),
    label_privacy=st.booleans(),
    bound=st.sampled_from([None, BOUND]),
)
def test_slopes_are_never_wild_however_large_the_noise(epsilon, seed, label_privacy, bound):
    """With B, r/(r^2 + t) <= 1/(2 sqrt t): a slope's noise is at most its expected size sd(y)/B, times a normal."""
    x, y = records(n=500)
    y = y - 3
    label_scale = 2.0 if label_privacy else None
    found = one_shot(private(x, y, epsilon, seed, label_scale), bound=bound, intercept=True)
    if not found.usable:
        assert not found.coefficients[:-1].any()
    else:
        size = 2.0 if label_privacy else math.sqrt((y**2).mean())
        assert np.linalg.norm(found.coefficients[:-1]) < 10 * size / BOUND


@pytest.mark.parametrize("intercept", [True, False])
def test_no_positive_eigenvalue_is_a_problem_and_gives_no_slopes(intercept):
    """Messages without any noise, debiased by a large one."""
    x, y = records(n=50)
    modulation = Modulation(alpha=0.0, amplitude=0.0)
    moments = ModulatedMoments.from_messages(x, y, modulation=modulation, sigma=100.0)
    found = one_shot(moments, bound=BOUND, intercept=intercept)
    assert not found.usable
    assert "has no positive eigenvalue" in found.problem
    assert found.eigenvalues.max() < 0
    np.testing.assert_allclose(found.coefficients, [0, 0, 0, 0, y.mean()][: 4 + intercept])
    with pytest.raises(NotIdentified, match="has no positive eigenvalue"):
        regularised(moments.normal_equations(intercept), bound=BOUND)
    with pytest.raises(NotIdentified, match="the coefficients are not identified"):
        least_squares(moments.normal_equations(intercept))


def test_a_floor_and_ridge_that_let_noise_through_are_a_problem():
    """Over 20 seeds some eigenvalue is below its noise in most runs: then 0 is no ridge."""
    x, y = records(n=300)
    problems = 0
    for seed in range(20):
        found = one_shot(private(x, y, 1.0, seed), ridge=0.0, floor=1e-3, intercept=True)
        if not found.usable:
            problems += 1
            assert (
                "give a larger ridge or floor" in found.problem or "no positive eigenvalue" in found.problem
            )
            assert not found.coefficients[:4].any()
    assert problems > 10
    for seed in range(20):  # far more noise than tau: the rule has shrunk, and says so by the count
        found = one_shot(private(x, y, 0.01, seed), bound=BOUND, intercept=True)
        assert found.usable or "no positive eigenvalue" in found.problem
        assert found.floored > 0


def test_records_that_do_not_vary_along_a_direction_have_slope_0_along_it():
    """Collinear columns, a constant one, and more features than records: the shortest solution, as by lstsq."""
    rng = np.random.default_rng(2)
    for x in (
        np.column_stack([v := rng.standard_normal(50), 2 * v, rng.standard_normal(50)]),
        np.column_stack([rng.standard_normal(50), np.full(50, 0.7)]),
        rng.standard_normal((3, 6)),
    ):
        y = rng.standard_normal(len(x))
        found = one_shot(noise_free(x, y), intercept=True)
        centred = x - x.mean(axis=0)
        np.testing.assert_allclose(
            found.coefficients[:-1],
            np.linalg.lstsq(centred, y - y.mean(), rcond=1e-10)[0],
            rtol=1e-6,
            atol=1e-9,
        )
        with pytest.raises(NotIdentified):
            least_squares(noise_free(x, y).normal_equations())


def test_moments_that_know_nothing_can_be_told():
    x, y = records(n=500)
    known = private(x, y, 4.0)
    rows = known.corrections[0]
    bare = ModulatedMoments(
        known.gram, known.cross, known.total, known.label_total, known.label_square, known.count
    )
    told = one_shot(bare, rows.directions, alpha=0.3, amplitude=0.5, sigma=rows.sigma)
    np.testing.assert_array_equal(told.coefficients, one_shot(known).coefficients)
    with pytest.raises(ValueError, match="alpha, amplitude, sigma not given"):
        one_shot(bare)
    with pytest.raises(ValueError, match="leave them out"):
        one_shot(known.normal_equations(), alpha=0.3)


@pytest.mark.parametrize("name", ["ridge", "floor"])
def test_a_negative_ridge_or_floor_is_refused(name):
    x, y = records(n=20)
    for value in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"{name} = "):
            one_shot(noise_free(x, y), **{name: value})
    with pytest.raises(ValueError, match="bound = 0"):
        one_shot(noise_free(x, y), bound=0)


@pytest.mark.parametrize("label_scale", [None, 4.0])
def test_descent_on_the_regularised_equations_ends_at_the_estimate(label_scale):
    x, y = records()
    equations = private(x, y, 2.0, label_scale=label_scale).normal_equations()
    safe = regularised(equations, bound=BOUND)
    values = np.linalg.eigvalsh(safe.covariance)
    assert values[0] > 0
    found = one_shot(equations, bound=BOUND)
    np.testing.assert_allclose(np.linalg.solve(safe.covariance, safe.cross), found.coefficients, rtol=1e-8)
    np.testing.assert_allclose(descend(safe, np.zeros(5), steps=20_000), found.coefficients, rtol=1e-6)


def test_the_noise_level_used_is_the_real_one():
    """Eigenvalues of pure noise of K messages have standard deviation near m sqrt(d/K): within a factor 2."""
    moments = [private(np.zeros((1000, 4)), np.zeros(1000), 1.0, seed) for seed in range(30)]
    spectra = [regularised_spectrum(one.normal_equations(intercept=False)) for one in moments]
    spread = np.concatenate([one.values for one in spectra]).std()
    assert 0.5 < spread / spectra[0].noise.mean() < 2
