"""Subsampled steps: against closed forms, numerical integration and simulation, on the private side."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from fedveil.privacy import (
    compose_mu,
    composed_epsilon,
    gaussian_epsilon,
    subsampled,
    subsampled_epsilon,
    subsampled_noise_multiplier,
)

DELTA = 1e-5


def one_step_delta(epsilon, z, q):
    """Second implementation for one step: neighbours put their record at +1 and -1, drawn with probability q.

    The likelihood ratio of P = (1-q) N(0, z^2) + q N(1, z^2) to Q = (1-q) N(0, z^2) + q N(-1, z^2) grows with x, so the
    hockey-stick divergence is P - e^epsilon Q over the half line where the ratio passes e^epsilon.
    """

    def log_ratio(x):
        p = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
        return p - np.logaddexp(math.log1p(-q), math.log(q) + (-2 * x - 1) / (2 * z * z))

    x = brentq(lambda x: log_ratio(x) - epsilon, -200 * z - 200, 200 * z + 200 * (1 + epsilon * z * z))
    tails = {shift: ndtr((shift - x) / z) for shift in (-1, 0, 1)}
    return (1 - q) * tails[0] + q * tails[1] - math.exp(epsilon) * ((1 - q) * tails[0] + q * tails[-1])


@pytest.mark.parametrize("z", [0.6, 2.0, 10.0])
@pytest.mark.parametrize("q", [0.9, 0.1, 0.01])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_one_step_matches_its_integral_from_the_private_side(z, q, delta):
    epsilon = subsampled_epsilon(z, q, 1, delta)
    assert one_step_delta(epsilon, z, q) <= delta
    smaller = epsilon - 1e-3 * epsilon - 1e-4
    assert smaller <= 0 or one_step_delta(smaller, z, q) > delta


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 10, 300])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_privacy_loss_distributions_at_rate_one_give_the_exact_gaussian(mu, steps, delta):
    """Checks the convention (replace-one doubles the sensitivity) and the discretization of the inner routine.

    The public function does not discretize full batches at all.
    """
    schedule = ((2 / mu * math.sqrt(steps), 1.0, steps),)
    inner = subsampled._pld_epsilon(schedule, delta, subsampled._discretization(schedule))
    exact = gaussian_epsilon(mu, delta)
    assert exact * (1 - 1e-6) <= inner <= exact * 1.01
    assert subsampled_epsilon(*schedule[0], delta) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("z", "q", "steps"), [(1.0, 0.1, 20), (3.0, 0.5, 30), (0.8, 0.02, 40)])
def test_many_steps_match_a_simulation_of_their_privacy_loss(z, q, steps):
    """Estimate delta(epsilon) = E max(0, 1 - e^(epsilon - loss)) from 400,000 simulated runs.

    The estimate is off by more than six standard errors with probability below 1e-8.
    """
    delta, runs = 0.02, 400_000
    epsilon = subsampled_epsilon(z, q, steps, delta)
    rng = np.random.default_rng(2)
    loss = np.zeros(runs)
    for _ in range(steps):
        x = (rng.random(runs) < q) + z * rng.normal(size=runs)
        loss += np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
        loss -= np.log1p(q * np.expm1((-2 * x - 1) / (2 * z * z)))
    revealed = np.maximum(0, -np.expm1(epsilon - loss))
    error = 6 * revealed.std() / math.sqrt(runs)
    assert revealed.mean() - error <= delta <= (revealed.mean() + error) * 1.01


def test_public_record_counts_cost_more_than_add_or_remove_would_say():
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = pld.from_gaussian_mechanism(standard_deviation=4.0, sampling_prob=0.1)
    understated = step.self_compose(100).get_epsilon_for_delta(DELTA)
    assert 1.6 < subsampled_epsilon(4.0, 0.1, 100, DELTA) / understated < 2.2


@pytest.mark.parametrize("delta", [0.5, 1e-5, 1e-12, 1e-20, 1e-300])
def test_subsampling_never_costs_more_than_full_batches_at_any_delta(delta):
    full_batch = gaussian_epsilon(compose_mu([0.5] * 30), delta)
    epsilon = subsampled_epsilon(4.0, 0.1, 30, delta)
    assert math.isfinite(epsilon)
    assert epsilon <= full_batch
    assert epsilon < 0.6 * full_batch or delta < 1e-12


@pytest.mark.parametrize(("z", "steps"), [(1e-6, 1000), (0.01, 10**6), (1e150, 1000), (1e6, 10**6)])
def test_absurd_noise_gives_a_number_all_the_same(z, steps):
    epsilon = subsampled_epsilon(z, 0.1, steps, DELTA)
    assert 0 <= epsilon <= gaussian_epsilon(2 * math.sqrt(steps) / z, DELTA)


@pytest.mark.parametrize(
    ("epsilon", "q", "steps"),
    [(0.1, 0.1, 40), (1.0, 0.1, 400), (8.0, 0.02, 300), (1.0, 0.001, 20_000), (3.0, 1.0, 9)],
)
def test_a_calibrated_multiplier_is_private_and_hardly_larger_than_needed(epsilon, q, steps):
    z = subsampled_noise_multiplier(epsilon, DELTA, q, steps)
    assert subsampled_epsilon(z, q, steps, DELTA) <= epsilon
    assert subsampled_epsilon(z / 1.001, q, steps, DELTA) > epsilon


def test_a_calibrated_multiplier_is_monotone_in_every_argument():
    base = subsampled_noise_multiplier(1.0, DELTA, 0.1, 100)
    assert subsampled_noise_multiplier(1.1, DELTA, 0.1, 100) < base
    assert subsampled_noise_multiplier(1.0, 1e-6, 0.1, 100) > base
    assert subsampled_noise_multiplier(1.0, DELTA, 0.12, 100) > base
    assert subsampled_noise_multiplier(1.0, DELTA, 0.1, 120) > base
    assert subsampled_noise_multiplier(1.0, DELTA, 1.0, 100) > base


def test_a_delta_that_covers_all_sampling_still_ends():
    # Drawing the record at all has probability 1e-5: almost no noise is needed.
    assert 0 < subsampled_noise_multiplier(8.0, DELTA, 1e-6, 10) < 0.02


def test_a_schedule_composes_whatever_its_order_and_grouping():
    parts = [(4.0, 0.1, 10), (2.0, 0.05, 20), (4.0, 0.1, 5)]
    epsilon = composed_epsilon(parts, DELTA)
    assert (
        epsilon
        == composed_epsilon(reversed(parts), DELTA)
        == composed_epsilon([parts[1], (4.0, 0.1, 15)], DELTA)
    )
    assert epsilon > subsampled_epsilon(4.0, 0.1, 15, DELTA)
    assert composed_epsilon([], DELTA) == 0


def test_many_distinct_multipliers_are_rounded_towards_less_noise():
    multipliers = np.sort(np.random.default_rng(4).uniform(4.0, 5.0, 60))
    epsilon = composed_epsilon([(z, 0.1, 1) for z in multipliers], DELTA)
    most, least = (subsampled_epsilon(z, 0.1, 60, DELTA) for z in (multipliers[0] / 1.01, multipliers[-1]))
    assert least < epsilon < most
    # Fifteen distinct multipliers, each the smallest of four, are composed as they are.
    fewer = composed_epsilon([(z, 0.1, 4) for z in multipliers[::4]], DELTA)
    assert epsilon == pytest.approx(fewer, rel=0.02)


def test_the_slow_accountant_is_imported_only_when_a_step_is_subsampled():
    code = "import sys, fedveil.privacy; sys.exit('dp_accounting' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
