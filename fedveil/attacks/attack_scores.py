"""What an attack achieved, told from the scores it gave to members and to others.

Scores are larger where the attack believes in membership. The area under the ROC curve says how often a member is
ranked above a non-member; the true-positive rate at a small false-positive rate says how many members are named with
few false accusations, which is what harms a person.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri
from scipy.stats import rankdata

from fedveil.attacks.likelihood_ratio import clopper_pearson_upper
from fedveil.privacy.domain import probability, whole

__all__ = ["AttackSuccess", "RateAtFalsePositives", "attack_success", "clopper_pearson", "finite_scores"]


@dataclass(frozen=True)
class RateAtFalsePositives:
    """Share of members named while at most a stated share of the others is.

    Attributes
    ----------
    false_positive_rate : float
        What was asked for.
    rate : float
        True-positive rate at ``threshold``.
    low, high : float
        Clopper-Pearson interval of ``rate`` at that threshold; exact for independent members.
    threshold : float
        Scores above it are called members: the smallest with few enough false positives, set by the others alone.
    attained, attained_high : float
        False-positive rate at the threshold, and its upper Clopper-Pearson limit.
    enough : bool
        Whether there were at least ``1/false_positive_rate`` non-members. Without them no false positive is allowed
        at all, and the figure is of a stricter threshold than asked for.
    """

    false_positive_rate: float
    rate: float
    low: float
    high: float
    threshold: float
    attained: float
    attained_high: float
    enough: bool

    def __str__(self) -> str:
        """The rate with its interval, and a warning where non-members are too few."""
        told = f"{self.rate:.2%} [{self.low:.2%}, {self.high:.2%}]"
        return told if self.enough else f"{told} (too few non-members for {self.false_positive_rate:g})"


@dataclass(frozen=True)
class AttackSuccess:
    """How well scores tell members from others.

    Attributes
    ----------
    auc : float
        Probability that a member scores above a non-member, ties counted half.
    auc_error : float
        Its standard error by DeLong, for independent scores; at least that of one half of a pair.
    rates : tuple of RateAtFalsePositives
    num_members, num_others : int
    confidence : float
        Of every interval.
    """

    auc: float
    auc_error: float
    rates: tuple[RateAtFalsePositives, ...]
    num_members: int
    num_others: int
    confidence: float

    @property
    def auc_interval(self) -> tuple[float, float]:
        """Normal interval of the AUC, cut to [0, 1]."""
        reach = float(ndtri((1 + self.confidence) / 2)) * self.auc_error
        return max(self.auc - reach, 0.0), min(self.auc + reach, 1.0)


def attack_success(
    members: ArrayLike,
    others: ArrayLike,
    *,
    false_positive_rates: Iterable[float] = (0.01, 0.001),
    confidence: float = 0.95,
) -> AttackSuccess:
    """Count what a threshold on these scores achieves.

    Parameters
    ----------
    members, others : arrays of shape (m,) and (k,)
        Scores of records that were trained on and that were not, larger for "member"; infinities are allowed.
    false_positive_rates : floats in (0, 1)
    confidence : float
        In (0, 1), of the two-sided intervals.

    Returns
    -------
    AttackSuccess

    Raises
    ------
    ValueError
        If a score is NaN, there are fewer than 2 of a kind, or a rate is out of range.

    Notes
    -----
    Intervals hold for independent scores. Scores of many records under one model, or of one record under many
    models, are not: resample the models then, and read these intervals as too narrow.
    Sources: Hanley & McNeil 1982 and DeLong et al. 1988 (AUC), Carlini et al. 2022 (rates at few false positives).
    """
    inside, outside = finite_scores("members", members), finite_scores("others", others)
    probability("confidence", confidence)
    area, error = _area(inside, outside)
    ordered = np.sort(outside)
    rates = tuple(
        _rate(inside, ordered, probability("false-positive rate", rate), confidence)
        for rate in false_positive_rates
    )
    return AttackSuccess(area, error, rates, len(inside), len(outside), confidence)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial probability: each side fails with probability (1 - confidence)/2.

    Parameters
    ----------
    successes : int
        From 0 to ``trials``.
    trials : int
        At least 1.
    confidence : float
        In (0, 1).

    Returns
    -------
    tuple of float
        Lower and upper limit; 0 and 1 are reached where no or every trial succeeded.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    trials = whole("trials", trials, minimum=1)
    successes = whole("successes", successes, minimum=0)
    if successes > trials:
        raise ValueError(f"successes = {successes} is above trials = {trials}: give at most as many.")
    risk = (1 - probability("confidence", confidence)) / 2
    low = float(betaincinv(successes, trials - successes + 1, risk)) if successes else 0.0
    return low, float(clopper_pearson_upper(successes, trials, risk))


def finite_scores(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    """Return one kind's scores as a float64 array of at least 2; refuse NaN and other shapes."""
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2:
        raise ValueError(
            f"{name} have shape {array.shape}: give the scores of at least 2 records as one row of numbers."
        )
    if np.isnan(array).any():
        raise ValueError(f"{int(np.isnan(array).sum())} of the {name}' scores are NaN: give every score.")
    return array


def _area(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> tuple[float, float]:
    """AUC and its standard error from placements, through ranks: no table of all pairs."""
    m, k = len(inside), len(outside)
    ranks = rankdata(np.concatenate([inside, outside]))
    above = (ranks[:m] - rankdata(inside)) / k  # share of the others below each member
    below = 1 - (ranks[m:] - rankdata(outside)) / m  # share of the members above each other
    variance = float(above.var(ddof=1)) / m + float(below.var(ddof=1)) / k
    # perfect separation has empirical variance 0, which no finite sample supports
    return float(above.mean()), max(math.sqrt(variance), 0.5 / (m * k))


def _rate(
    inside: NDArray[np.float64], ordered: NDArray[np.float64], wanted: float, confidence: float
) -> RateAtFalsePositives:
    allowed = math.floor(wanted * len(ordered) * (1 + 1e-12))  # 0.001 * 3000 must be 3
    threshold = float(ordered[-1 - allowed])
    false_positives = int((ordered > threshold).sum())
    named = int((inside > threshold).sum())
    low, high = clopper_pearson(named, len(inside), confidence)
    return RateAtFalsePositives(
        false_positive_rate=wanted,
        rate=named / len(inside),
        low=low,
        high=high,
        threshold=threshold,
        attained=false_positives / len(ordered),
        attained_high=clopper_pearson(false_positives, len(ordered), confidence)[1],
        enough=allowed >= 1,
    )
