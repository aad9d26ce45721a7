"""The estimates are right on average: 2,000 repetitions of the real code against the clipped records' own moments."""

import math

import numpy as np
import pytest

from fedveil.privacy import (
    ModulatedMoments,
    Modulation,
    averaged,
    draw_directions,
    gradient,
    modulate,
    plan_messages,
)

REPETITIONS = 2_000
K, D, BOUND, LABEL_SCALE = 12, 5, 1.5, 4.0


def records(label_privacy):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((K, D)) + 0.3
    y = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) + 0.7 + rng.standard_normal(K)
    z = np.column_stack([x, y / LABEL_SCALE]) if label_privacy else x
    z *= np.minimum(1, BOUND / np.linalg.norm(z, axis=1))[:, None]
    return z[:, :D], LABEL_SCALE * z[:, D] if label_privacy else y


def send(x, y, directions, modulation, plan, label_privacy, rng):
    messages = modulate(
        x,
        directions,
        alpha=modulation.alpha,
        amplitude=modulation.amplitude,
        frequency=modulation.frequency,
        rng=rng,
    )
    messages += plan.sigma * rng.standard_normal(messages.shape)
    if label_privacy:
        y = modulation.scale * y / LABEL_SCALE + plan.sigma * rng.standard_normal(len(y))
    return messages, y


def assert_unbiased(draws, truth):
    """Within 4 standard errors for each number: false alarm 6.3e-5 each, so 1 % for all tests of this module."""
    error = draws.std(axis=0, ddof=1) / math.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - truth) <= 4 * error + 1e-12).all()


@pytest.mark.parametrize("label_privacy", [False, True])
@pytest.mark.parametrize("m", [1, 3])
def test_covariance_cross_moments_and_gradient_are_unbiased(m, label_privacy):
    rng = np.random.default_rng(100 * m + label_privacy)
    x, y = records(label_privacy)
    modulation = Modulation(alpha=0.3 if m == 1 else 1.6, amplitude=2.0, frequency=1.5, num_directions=m)
    plan = plan_messages(
        epsilon=8, delta=1e-5, bound=BOUND, modulation=modulation, label_privacy=label_privacy
    )
    beta = np.array([0.5, -1.0, 0.2, 0.3, 0.0, 0.4])
    directions = draw_directions(m, D, rng.standard_normal, orthogonal_to=beta[:D])
    label_scale = LABEL_SCALE if label_privacy else None
    upper = np.triu_indices(D + 1)
    covariances, crosses, gradients, squares = [], [], [], []
    for _ in range(REPETITIONS):
        messages, labels = send(x, y, directions, modulation, plan, label_privacy, rng)
        moments = ModulatedMoments.from_messages(
            messages,
            labels,
            modulation=modulation,
            directions=directions,
            sigma=plan.sigma,
            label_scale=label_scale,
        )
        equations = moments.normal_equations()
        covariances.append(equations.covariance[upper])
        crosses.append(equations.cross)
        gradients.append(gradient(equations, beta))
        squares.append([equations.label_square])
    padded = np.column_stack([x, np.ones(K)])
    covariance, cross = padded.T @ padded / K, padded.T @ y / K
    assert_unbiased(np.array(covariances), covariance[upper])
    assert_unbiased(np.array(crosses), cross)
    assert_unbiased(np.array(gradients), covariance @ beta - cross)
    assert_unbiased(np.array(squares), y @ y / K)


@pytest.mark.parametrize("label_privacy", [False, True])
def test_averages_of_messages_of_several_rounds_are_unbiased_too(label_privacy):
    rng = np.random.default_rng(7 + label_privacy)
    x, y = records(label_privacy)
    modulation = Modulation(alpha=-0.5, amplitude=3.0, frequency=1.5, num_directions=2)
    plan = plan_messages(
        epsilon=8, delta=1e-5, bound=BOUND, modulation=modulation, label_privacy=label_privacy, num_releases=3
    )
    rounds = [draw_directions(2, D, rng.standard_normal) for _ in range(3)]
    upper = np.triu_indices(D)
    covariances, crosses, squares = [], [], []
    for _ in range(REPETITIONS):
        sent = [send(x, y, directions, modulation, plan, label_privacy, rng) for directions in rounds]
        each = [
            ModulatedMoments.from_messages(
                *one, modulation=modulation, directions=directions, sigma=plan.sigma
            )
            for one, directions in zip(sent, rounds, strict=True)
        ]
        moments = ModulatedMoments.from_messages(
            sum(messages for messages, _ in sent) / 3,
            sum(labels for _, labels in sent) / 3,
            modulation=modulation,
            corrections=[averaged([one.corrections[0] for one in each], K)],
            label_scale=LABEL_SCALE if label_privacy else None,
        )
        equations = moments.normal_equations(intercept=False)
        covariances.append(equations.covariance[upper])
        crosses.append(equations.cross)
        squares.append([equations.label_square])
    assert_unbiased(np.array(covariances), (x.T @ x / K)[upper])
    assert_unbiased(np.array(crosses), x.T @ y / K)
    assert_unbiased(np.array(squares), y @ y / K)
