"""A simultaneous interval for r_Q: a jackknife for each pair of candidates, and one t quantile for all of them.

r_Q = 1/2 min_k z_k^2 with z_k = gap_k/sd_k, and se_k is the jackknife standard error of z_k. With level 1 - a and t the
quantile at 1 - a/(2 (M - 1)), the interval (THEORY 3) is

    [ 1/2 min_k max(0, |z_k| - t se_k)^2 , 1/2 min_k (|z_k| + t se_k)^2 ]

A jackknife of the minimum itself covers as little as 48 %. All z_k lie within t se_k at once with probability 1 - a,
and then the minimum lies in the interval; also where the candidate taken for the best is not: it beat the true one by
chance, so that their pair has |z| <= t se, the lower end is 0, and so is r_Q within t se of 0.

Units of the jackknife are clients of n_i records: delete one, se^2 = (m-1)/m sum_i (z_(i) - z)^2. It holds whether
records or clients differ; the form with pseudo-values weighted for unequal groups (Busing, Meijer & van der Leeden
1999) supposes equal laws, and covers as little as 73 % where clients differ and one has most records. The price of
unequal sizes is few degrees of freedom: m units are worth m' = (sum n_i)^2/sum n_i^2 equal ones, and t has m' - 1
(with m - 1 it covers as little as 85 %). Derived; coverage is tested.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from fedveil.privacy.domain import probability
from fedveil.privacy.loss_moments import LossMoments, checked_losses
from fedveil.privacy.membership import best_and_competitors

LEAST_CLIENTS = 5
LEAST_RECORDS = 30
_LEAST_EFFECTIVE = 2.0  # below, t has less than one degree of freedom: its quantiles say nothing

Unit = Literal["clients", "records"]


@dataclass(frozen=True, slots=True)
class MembershipInterval:
    """An interval for r_Q, or the reason why there is none.

    Parameters
    ----------
    low, high : float
        Ends, 0 <= low <= high <= inf; NaN without an interval.
    level : float
        Probability that it holds r_Q, at least and nearly.
    num_units : int
        Clients, or records.
    unit : {"clients", "records"}
        What was left out in turn; taken to be drawn independently.
    reason : str or None
        Why there is no interval: one sentence.
    """

    low: float
    high: float
    level: float
    num_units: int
    unit: Unit
    reason: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is an interval."""
        return self.reason is None

    @property
    def statement(self) -> str:
        """One sentence to print."""
        if self.reason is not None:
            return f"No interval for r_Q: {self.reason}"
        basis = f"{self.num_units} {self.unit}"
        return f"{100 * self.level:g} % interval for r_Q: {self.low:.3g} to {self.high:.3g} ({basis})."


def membership_interval(clients: Sequence[LossMoments], *, level: float = 0.95) -> MembershipInterval:
    """Interval for r_Q from moments of several clients, or of other groups of records.

    Parameters
    ----------
    clients : sequence of LossMoments
        One a client, same candidates and reference; sizes may differ.
    level : float
        In (0, 1).

    Returns
    -------
    MembershipInterval
        None is given for fewer than 5 clients, for sizes so uneven that they are worth fewer than 2 equal clients,
        and where r_Q is undefined or infinite. Its target is r_Q of the law that clients were drawn from.

    Raises
    ------
    ValueError
        When there is no client or level is outside its range.
    NotAdditive
        When clients differ in candidates or reference.
    """
    level = probability("level", level)
    if not clients:
        raise ValueError("There are no clients: give the moments of at least one.")
    pooled = clients[0]
    for one in clients[1:]:
        pooled = pooled + one
    counts = np.array([one.count for one in clients], dtype=np.float64)
    effective = counts.sum() ** 2 / np.square(counts).sum()
    best, distinct = best_and_competitors(pooled)
    competitors = distinct[pooled.variances[distinct, best] > 0]
    reason = _undefined(pooled, best, len(competitors))
    if len(clients) < LEAST_CLIENTS:
        reason = f"{len(clients)} clients are fewer than {LEAST_CLIENTS}."
    elif effective < _LEAST_EFFECTIVE:
        reason = (
            f"one client has so many of the {pooled.count} records that all are worth {effective:.2g} equal clients, "
            f"fewer than {_LEAST_EFFECTIVE:g}."
        )
    if reason is not None:
        return MembershipInterval(math.nan, math.nan, level, len(clients), "clients", reason)
    return _interval(
        counts,
        np.array([one.gaps[competitors, best] for one in clients]),
        np.array([one.scatter[competitors, best] for one in clients]),
        freedom=effective - 1,
        num_pairs=len(distinct),
        level=level,
        unit="clients",
    )


def record_interval(
    losses: ArrayLike, *, level: float = 0.95, moments: LossMoments | None = None
) -> MembershipInterval:
    """Interval for r_Q from the losses of single records, as on the server's public records.

    Parameters
    ----------
    losses : array of shape (n, M)
        As for `LossMoments.from_losses`; records drawn independently of one another. Where several are of one
        person or place, take moments of each such group, and `membership_interval`.
    level : float
        In (0, 1).
    moments : LossMoments, optional
        Of these losses, where they are at hand: half the work.

    Returns
    -------
    MembershipInterval
        None is given for fewer than 30 records and where r_Q is undefined or infinite.

    Raises
    ------
    ValueError
        When losses or level are outside their range, or the moments are of other losses.
    """
    level = probability("level", level)
    rows, _ = checked_losses(losses)
    if moments is None:
        moments = LossMoments.from_losses(losses)
    elif (moments.count, moments.num_candidates) != rows.shape:
        raise ValueError(
            f"moments are of {moments.count} records and {moments.num_candidates} candidates, and the losses have "
            f"shape {rows.shape}: give moments of these losses, or none."
        )
    best, distinct = best_and_competitors(moments)
    competitors = distinct[moments.variances[distinct, best] > 0]
    reason = _undefined(moments, best, len(competitors))
    if len(rows) < LEAST_RECORDS:
        reason = f"{len(rows)} records are fewer than {LEAST_RECORDS}."
    if reason is not None:
        return MembershipInterval(math.nan, math.nan, level, len(rows), "records", reason)
    gaps = rows[:, competitors] - rows[:, [best]]
    return _interval(
        np.ones(len(rows)),
        gaps,
        np.zeros_like(gaps),
        freedom=len(rows) - 1,
        num_pairs=len(distinct),
        level=level,
        unit="records",
    )


def _undefined(pooled: LossMoments, best: int, finite: int) -> str | None:
    if finite:
        return None
    others = (~pooled.alike[best]).any()
    return "r_Q is infinite." if others and pooled.count > 1 else "r_Q is undefined."


def _interval(
    counts: NDArray[np.float64],
    gaps: NDArray[np.float64],
    scatter: NDArray[np.float64],
    *,
    freedom: float,
    num_pairs: int,
    level: float,
    unit: Unit,
) -> MembershipInterval:
    """The interval from each unit's records, mean differences and scatter, (m,), (m, K) and (m, K)."""
    m, total, column = len(counts), counts.sum(), counts[:, None]
    gap = (column * gaps).sum(axis=0) / total
    apart = gaps - gap
    squares = (scatter + column * np.square(apart)).sum(axis=0)
    ratio = gap / np.sqrt(squares / total)
    rest = total - column
    # what is left without the unit; rounding may leave a hair below nothing
    left = np.maximum(squares - scatter - (total * column / rest) * np.square(apart), 0.0)
    without = gap - column * apart / rest
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = without / np.sqrt(left / rest)
        error = np.sqrt((m - 1) / m * np.square(ratios - ratio).sum(axis=0))
    # a unit without which a pair has no variance: nothing is known of that pair
    error = np.where(np.isfinite(error), error, math.inf)
    margin = float(stdtrit(freedom, 1 - (1 - level) / (2 * num_pairs))) * error
    low = np.maximum(0.0, np.abs(ratio) - margin).min()
    high = (np.abs(ratio) + margin).min()
    return MembershipInterval(float(low**2 / 2), float(high**2 / 2), level, m, unit)
