"""An interval over clients for r_Q from noised moments: a jackknife for each pair, as for exact ones (THEORY 3).

z = gap/sd of a pair is taken from the pooled releases, with the noise's variance subtracted from sd^2; leaving one
client out in turn shows what clients differ by AND what their noise does, since every client's noise is its own. With
its standard error se and the t quantile of :mod:`fedveil.privacy.membership_interval`,

    [ 1/2 min_k max(0, |z_k| - t se_k)^2 , 1/2 min_k (|z_k| + t se_k)^2 ]

A pair whose variance the noise hides, with all clients or without one of them, has an unbounded se: it takes the lower
end to 0, and bounds nothing above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from fedveil.privacy.domain import probability
from fedveil.privacy.membership_interval import LEAST_CLIENTS, MembershipInterval
from fedveil.privacy.membership_released import ReleasedMoments

_LEAST_EFFECTIVE = 2.0  # below, t has less than one degree of freedom


def released_interval(clients: Sequence[ReleasedMoments], *, level: float = 0.95) -> MembershipInterval:
    """Interval for r_Q of clipped differences from the releases of several clients.

    Parameters
    ----------
    clients : sequence of ReleasedMoments
        One a client, of the same candidates and clip norm; sizes may differ.
    level : float
        In (0, 1).

    Returns
    -------
    MembershipInterval
        None is given for fewer than 5 clients, for sizes so uneven that they are worth fewer than 2 equal clients, and
        where no pair is identified.

    Raises
    ------
    ValueError
        When there is no client or level is outside its range.
    NotAdditive
        When clients differ in candidates or clip norm.
    """
    level = probability("level", level)
    if not clients:
        raise ValueError("There are no clients: give the releases of at least one.")
    pooled = clients[0]
    for one in clients[1:]:
        pooled = pooled + one
    found = pooled.indicator(level=level)
    counts = np.array([one.count for one in clients], dtype=np.float64)
    effective = counts.sum() ** 2 / np.square(counts).sum()
    reason = None
    if len(clients) < LEAST_CLIENTS:
        reason = f"{len(clients)} clients are fewer than {LEAST_CLIENTS}."
    elif effective < _LEAST_EFFECTIVE:
        reason = (
            f"one client has so many of the {pooled.count} records that all are worth {effective:.2g} equal clients, "
            f"fewer than {_LEAST_EFFECTIVE:g}."
        )
    elif math.isnan(found.r_q):
        reason = "the noise of the releases hides every variance."
    if reason is not None:
        return MembershipInterval(math.nan, math.nan, level, len(clients), "clients", reason)
    ratio = _ratios(pooled.count, pooled.total, pooled.second, pooled.noise, found.best)
    ratio[~np.delete(found.identified, found.best)] = math.nan
    without = np.array(
        [
            _ratios(
                pooled.count - one.count,
                pooled.total - one.total,
                pooled.second - one.second,
                pooled.noise - one.noise,
                found.best,
            )
            for one in clients
        ]
    )
    m, num_candidates = len(clients), len(pooled.total) + 1
    error = np.sqrt((m - 1) / m * np.square(without - ratio).sum(axis=0))
    error = np.where(np.isfinite(error), error, math.inf)
    margin = float(stdtrit(effective - 1, 1 - (1 - level) / (2 * num_candidates))) * error
    size = np.abs(np.nan_to_num(ratio))
    low, high = np.maximum(0.0, size - margin).min(), (size + margin).min()
    return MembershipInterval(float(low**2 / 2), float(high**2 / 2), level, m, "clients")


def _ratios(
    n: int, total: NDArray[np.float64], second: NDArray[np.float64], noise: float, best: int
) -> NDArray[np.float64]:
    """gap/sd of every candidate but the best with the best, NaN where the variance comes out at 0 or below."""
    means = np.concatenate([[0.0], total]) / n
    squares = np.zeros((len(means), len(means)))
    squares[1:, 1:] = second / n
    others = np.delete(np.arange(len(means)), best)
    gap = means[others] - means[best]
    square = squares[others, others] + squares[best, best] - 2 * squares[others, best]
    # the reference has no sums of its own, hence no noise
    own = (others > 0).astype(np.float64) + (best > 0)
    variance = square - (np.square(gap) - own * noise / n**2)
    return np.where(variance > 0, gap / np.sqrt(np.where(variance > 0, variance, 1.0)), math.nan)
