"""Projected descent: the gradient is the loss's, the end is the constrained optimum, and nothing runs away."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize

from fedveil.privacy import (
    ModulatedMoments,
    Modulation,
    NotIdentified,
    descend,
    draw_directions,
    gradient,
    modulate,
    projected_step,
)

RNG = np.random.default_rng(3)
X = RNG.standard_normal((200, 4)) * [1, 1, 0.5, 2] + [0, 1, 0, 0]
Y = X @ [2.0, -1.0, 0.5, 1.0] + 5 + 0.3 * RNG.standard_normal(200)
NONE = Modulation(alpha=0.0, amplitude=0.0)


def equations(sigma=0.0, intercept=True):
    return ModulatedMoments.from_messages(X, Y, modulation=NONE, sigma=sigma).normal_equations(intercept)


def loss(beta):
    return 0.5 * float(np.mean((X @ beta[:4] + beta[4] - Y) ** 2))


def test_the_gradient_is_that_of_half_the_mean_squared_error():
    for seed in range(5):
        beta = np.random.default_rng(seed).standard_normal(5)
        numeric = approx_fprime(beta, loss, 1e-6)
        np.testing.assert_allclose(gradient(equations(), beta), numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("radius", [None, 0.5, 1.5, 100.0])
def test_descent_ends_at_the_optimum_within_the_radius(radius):
    within = [] if radius is None else [{"type": "ineq", "fun": lambda b: radius**2 - b[:4] @ b[:4]}]
    expected = minimize(
        loss, np.zeros(5), constraints=within, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500}
    )
    found = descend(equations(), np.zeros(5), steps=5000, radius=radius)
    np.testing.assert_allclose(found, expected.x, atol=1e-5)
    if radius is not None:
        assert np.linalg.norm(found[:4]) <= radius * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    point=st.lists(st.floats(-100, 100), min_size=2, max_size=6),
    rate=st.floats(1e-3, 10),
    radius=st.floats(1e-3, 100),
    intercept=st.booleans(),
)
def test_a_step_is_projected_onto_the_nearest_slopes_within_the_radius(point, rate, radius, intercept):
    point = np.array(point)
    slope = np.cos(np.arange(len(point)))
    found = projected_step(point, slope, rate, radius, intercept=intercept)
    moved = point - rate * slope
    k = len(point) - intercept
    norm = np.linalg.norm(moved[:k])
    np.testing.assert_allclose(
        found[:k], moved[:k] * min(1, radius / max(norm, 1e-300)), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_array_equal(found[k:], moved[k:])


def test_steps_of_at_most_one_over_the_largest_eigenvalue_never_raise_the_loss():
    beta, before = np.zeros(5), math.inf
    for _ in range(30):
        assert loss(beta) <= before
        before = loss(beta)
        beta = descend(equations(), beta, steps=1, radius=2.0)


def test_no_step_is_the_start():
    start = np.arange(5.0)
    np.testing.assert_array_equal(descend(equations(), start, steps=0), start)
    np.testing.assert_array_equal(start, np.arange(5.0))


def test_where_noise_makes_the_covariance_indefinite_descent_needs_a_radius():
    """Debiased by more noise than there is."""
    indefinite = equations(sigma=1.5)
    with pytest.raises(NotIdentified, match="along which descent runs away: give a radius"):
        descend(indefinite, np.zeros(5), steps=10)
    found = descend(indefinite, np.zeros(5), steps=2000, radius=2.0)
    assert np.linalg.norm(found[:4]) == pytest.approx(2.0, rel=1e-9)


def test_without_records_that_vary_there_is_nothing_to_step_along():
    flat = ModulatedMoments.from_messages(np.zeros((5, 2)), np.zeros(5), modulation=NONE, sigma=0.0)
    with pytest.raises(NotIdentified, match="give a learning rate"):
        descend(flat.normal_equations(intercept=False), np.zeros(2), steps=1)
    found = descend(flat.normal_equations(intercept=False), np.ones(2), steps=3, learning_rate=0.1)
    np.testing.assert_array_equal(found, np.ones(2))


def test_collinear_columns_without_noise_are_no_obstacle():
    x = np.column_stack([X, X[:, 0] + X[:, 1]])
    twice = ModulatedMoments.from_messages(x, Y, modulation=NONE, sigma=0.0).normal_equations()
    found = descend(twice, np.zeros(6), steps=5000)
    np.testing.assert_allclose(
        np.column_stack([x, np.ones(200)]) @ found,
        X @ descend(equations(), np.zeros(5), steps=5000)[:4]
        + descend(equations(), np.zeros(5), steps=5000)[4],
        atol=1e-6,
    )


def test_without_noise_the_error_shrinks_by_its_own_factor_along_each_eigenvector():
    """By 1 - eta w_i a step, the textbook rate of gradient descent on a quadratic."""
    exact = equations()
    optimum = np.linalg.solve(exact.covariance, exact.cross)
    values, vectors = np.linalg.eigh(exact.covariance)
    start = optimum + RNG.standard_normal(5)
    for steps in (1, 7, 40):
        left = vectors.T @ (descend(exact, start, steps=steps, learning_rate=0.1) - optimum)
        np.testing.assert_allclose(
            left, (1 - 0.1 * values) ** steps * (vectors.T @ (start - optimum)), atol=1e-9
        )


def test_fresh_estimates_with_steps_of_one_over_t_have_the_predicted_variance():
    """Error after T rounds of K messages: covariance Omega/(w^2 K T), so exponent -1 in T and a known constant.

    For records with X'X/K = w I and steps 1/(w t). 60 runs of 4 slopes estimate a variance to 9 % (one standard
    error): 4 standard errors are 36 % for the constant and, over a factor 10 in T, 0.23 for the exponent; false alarm
    2e-4. Omega is that of least squares on the same records (target: the clients), written out here.
    """
    rng = np.random.default_rng(8)
    k, d, w, sigma, rounds = 40, 4, 0.5, 0.3, 200
    modulation = Modulation(alpha=0.3, amplitude=0.4, frequency=2.0)
    c = modulation.scale
    x = np.linalg.qr(rng.standard_normal((k, d)))[0] * math.sqrt(w * k)
    y = x @ [1.0, -0.5, 0.2, 0.0] + rng.standard_normal(k)
    optimum = x.T @ y / (k * w)
    directions = draw_directions(1, d, rng.standard_normal, orthogonal_to=optimum)
    early, late = [], []
    for _ in range(60):
        beta = optimum.copy()
        for t in range(1, rounds + 1):
            messages = modulate(x, directions, alpha=0.3, amplitude=0.4, frequency=2.0, rng=rng)
            messages += sigma * rng.standard_normal(x.shape)
            fresh = ModulatedMoments.from_messages(
                messages, y, modulation=modulation, directions=directions, sigma=sigma
            ).normal_equations(intercept=False)
            beta = projected_step(beta, gradient(fresh, beta), 1 / (w * t), 10.0, intercept=False)
            if t == rounds // 10:
                early.append(beta - optimum)
        late.append(beta - optimum)
    noise = sigma**2 * np.eye(d) + 0.4**2 / 2 * directions.T @ directions
    residual = float(np.mean((y - x @ optimum) ** 2))
    along = float(optimum @ noise @ optimum)  # the direction is orthogonal to the optimum: no fourth cumulant
    omega = (along * w * np.eye(d) + residual * noise) / c**2 + (
        along * noise + noise @ np.outer(optimum, optimum) @ noise
    ) / c**4
    predicted = np.trace(omega) / (w**2 * k * rounds)
    measured = [float((np.array(errors) ** 2).sum(axis=1).mean()) for errors in (early, late)]
    assert measured[1] == pytest.approx(predicted, rel=0.36)
    assert math.log10(measured[0] / measured[1]) == pytest.approx(1.0, abs=0.23)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": np.zeros(4)}, "coefficients have shape"),
        ({"start": [0, 0, 0, 0, math.nan]}, "coefficients hold NaN"),
        ({"steps": -1}, "steps = -1"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"radius": 0.0}, "radius = 0.0"),
        ({"radius": math.inf}, "radius = inf"),
    ],
)
def test_arguments_outside_their_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        descend(**{"equations": equations(), "start": np.zeros(5), "steps": 3, **change})


def test_gradients_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="gradient have shape"):
        projected_step(np.zeros(3), np.zeros(2), 0.1, None)
    with pytest.raises(ValueError, match="coefficients have shape"):
        gradient(equations(), np.zeros(4))
