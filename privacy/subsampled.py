"""Poisson-subsampled Gaussian steps: composed by privacy loss distributions, for fixed schedules only.

Each step draws every record with probability q, sums the clipped gradients, adds noise of standard
deviation z C (z the noise multiplier) and divides by the fixed expected batch size. Neighbours replace one
record, since n is public: the sum then moves by up to 2 C. Only dp-accounting's privacy loss distributions
under REPLACE_ONE account for that factor of two; its RDP accountant does not (upstream issue 378).
"""

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from scipy.optimize import brentq

from fedveil.privacy.domain import positive, probability, rate, whole
from fedveil.privacy.gaussian import compose_mu, gaussian_epsilon, gaussian_mu

_MAX_DISTINCT = 16
_GRID = math.log(1.01)
_TOLERANCE = 2e-4
# The library convolves by floating-point FFT, whose absolute error in delta nothing rounds up: at most
# 1.4e-16 a step against extended precision (multipliers 0.05 to 150, up to 100,000 steps).
_FFT_ERROR_PER_STEP = 1e-15


def subsampled_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` equal Poisson-subsampled Gaussian steps, rounded up; relation: one record replaced.

    Parameters
    ----------
    noise_multiplier : float
        z > 0, standard deviation of the noise on the sum over the clip norm.
    sampling_rate : float
        Probability q in (0, 1] with which each record joins a step.
    steps : int
        Number of steps, at least 1, fixed beforehand.
    delta : float
        Failure probability in (0, 1) of the whole schedule.

    Returns
    -------
    float
        An upper bound that is never above the epsilon of full batches with the same noise.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    return composed_epsilon([(noise_multiplier, sampling_rate, steps)], delta)


def composed_epsilon(schedule: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon of a fixed schedule of Poisson-subsampled Gaussian steps; relation: one record replaced.

    Parameters
    ----------
    schedule : iterable of (noise_multiplier, sampling_rate, steps)
        As for `subsampled_epsilon`. All values must be public and fixed beforehand. With more than 16
        distinct pairs of multiplier and rate the multipliers are rounded down to a grid of ratio 1.01.
    delta : float
        Failure probability in (0, 1) of the whole schedule.

    Returns
    -------
    float
        An upper bound; 0 for an empty schedule. Privacy loss distributions resolve delta down to about
        1e-15 a step; below that the schedule is worth no more than full batches.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    delta = probability("delta", delta)
    counts: Counter[tuple[float, float]] = Counter()
    for noise_multiplier, sampling_rate, steps in schedule:
        pair = positive("noise_multiplier", noise_multiplier), rate("sampling_rate", sampling_rate)
        counts[pair] += whole("steps", steps, minimum=1)
    if len(counts) > _MAX_DISTINCT:
        exact, counts = counts, Counter()
        for (multiplier, q), steps in exact.items():
            below = math.exp(math.floor(math.log(multiplier) / _GRID) * _GRID)
            counts[min(below, multiplier), q] += steps
    return _composed(tuple(sorted((z, q, steps) for (z, q), steps in counts.items())), delta)


def subsampled_noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Noise multiplier with which `steps` subsampled steps stay within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        Total budget of the schedule, in (0, inf) and (0, 1); relation: one record replaced.
    sampling_rate : float
        Probability q in (0, 1] with which each record joins a step.
    steps : int
        Number of steps, at least 1, fixed beforehand.

    Returns
    -------
    float
        z, within a factor of 1.001 of the smallest that `subsampled_epsilon` allows, on the private side.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    return _noise_multiplier(
        positive("epsilon", epsilon),
        probability("delta", delta),
        rate("sampling_rate", sampling_rate),
        whole("steps", steps, minimum=1),
    )


@lru_cache(maxsize=1024)
def _noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    # Full batches reveal more, so their noise is enough; their sum is rounded with room to spare.
    high = math.log(2 * math.sqrt(steps) / gaussian_mu(epsilon, delta)) + 2.0**-40
    if sampling_rate == 1:
        return math.exp(high)

    def excess(log_multiplier: float) -> float:
        reached = _composed(((math.exp(log_multiplier), sampling_rate, steps),), delta)
        return (reached - epsilon) / (reached + epsilon)

    low, width = high - 0.5, 0.5
    while excess(low) <= 0:
        width *= 2
        low, high = low - width, low
    root = float(brentq(excess, low, high, xtol=_TOLERANCE, rtol=1e-12))
    while excess(root) > 0:
        root = min(root + _TOLERANCE, high)
    return math.exp(root)


@lru_cache(maxsize=4096)
def _composed(schedule: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Smaller of two upper bounds: privacy loss distributions, and full batches, which reveal more."""
    if not schedule:
        return 0.0
    full_batch = gaussian_epsilon(compose_mu(2 * math.sqrt(steps) / z for z, _, steps in schedule), delta)
    error = _FFT_ERROR_PER_STEP * sum(steps for _, _, steps in schedule)
    interval = _discretization(schedule)
    if delta <= 2 * error or interval > 1 or all(q == 1 for _, q, _ in schedule):
        return full_batch
    return min(full_batch, _pld_epsilon(schedule, delta - error, interval))


def _pld_epsilon(schedule: tuple[tuple[float, float, int], ...], delta: float, interval: float) -> float:
    # Imported here: the package takes over a second, and full-batch runs never need it.
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    total = pld.identity(value_discretization_interval=interval)
    for noise_multiplier, sampling_rate, steps in schedule:
        step = pld.from_gaussian_mechanism(
            standard_deviation=noise_multiplier,
            value_discretization_interval=interval,
            sampling_prob=sampling_rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
        total = total.compose(step.self_compose(steps))
    return float(total.get_epsilon_for_delta(delta))


def _discretization(schedule: tuple[tuple[float, float, int], ...]) -> float:
    """Spacing of the privacy losses; any spacing gives an upper bound.

    1e-3, but a tenth of one step's spread where that is less (rounding every step to 1e-3 doubles epsilon at
    10,000 weak steps), and coarse enough that one step has 2^17 values and all steps 2^20. Above 1 there is
    too little noise for subsampling to matter.
    """
    steps = sum(count for _, _, count in schedule)
    mus = [(2 / z, q, count) for z, q, count in schedule]
    variance = sum(count * q**2 * math.expm1(min(mu * mu, 50.0)) for mu, q, count in mus)
    widest = max(10 * mu + mu * mu / 2 for mu, _, _ in mus)
    mean = sum(count * q * mu * mu / 2 for mu, q, count in mus)
    return max(min(1e-3, math.sqrt(variance / steps) / 10), widest / 2**17, mean / 2**20)
