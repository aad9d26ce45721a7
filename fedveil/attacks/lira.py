"""LiRA, the likelihood-ratio attack: how a record's confidence is distributed over models with it and without it.

Shadow runs are trainings on random parts of a pool of records. For each record two normal distributions are fitted to
its logit-scaled confidence, over the runs that had it and over those that had not; a run under attack is scored by
how much better the first explains what it shows (online), or by how far it lies above the second (offline, for an
attacker who cannot train on the record).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.domain import one_of, positive

__all__ = ["lira_scores", "lira_scores_each", "logit_confidence"]

Floats = NDArray[np.float64]
MODES = ("online", "offline")
VARIANCES = ("record", "pooled")
_LEAST_LOSS = 2.0**-53  # a probability of 1 in float64 is one of at least 1 - 2^-53


def logit_confidence(losses: ArrayLike) -> Floats:
    """Logit log(p/(1 - p)) of the probability p = exp(-loss) that a classifier gives to the true class.

    Parameters
    ----------
    losses : array
        Cross-entropies, at least 0; any shape.

    Returns
    -------
    float64 array of the same shape
        From about -loss (large losses) to 36.7, where p rounds to 1.

    Raises
    ------
    ValueError
        If a loss is negative or NaN.

    Notes
    -----
    Over runs the logit is nearly normal, which neither p nor the loss is (Carlini et al. 2022, section 5).
    """
    array = np.asarray(losses, dtype=np.float64)
    if not (array >= 0).all():
        raise ValueError(
            f"{int((~(array >= 0)).sum())} losses are negative or NaN, which no cross-entropy is: give losses of at "
            "least 0."
        )
    array = np.maximum(array, _LEAST_LOSS)
    logits: Floats = -array - np.log(-np.expm1(-array))
    return logits


def lira_scores(
    statistics: ArrayLike,
    members: ArrayLike,
    target: ArrayLike,
    *,
    mode: str = "online",
    variance: str = "pooled",
    least_deviation: float = 1e-6,
) -> Floats:
    """Score every record of a pool under one model, given shadow runs.

    Parameters
    ----------
    statistics : array of shape (runs, records)
        Of the shadow runs, for example :func:`logit_confidence` of their losses; finite.
    members : bool array of shape (runs, records)
        Whether a record was in a run's training set.
    target : array of shape (records,)
        The same statistic of the model under attack, which is none of the runs.
    mode : "online" or "offline"
        Offline uses only runs without the record.
    variance : "pooled" or "record"
        One deviation for all records (in and out apart), or one for each. Below about 64 runs a record's own is too
        noisy to pay.
    least_deviation : float
        Positive: below it a deviation is raised to it. A quantized model that never changes has deviation 0.

    Returns
    -------
    float64 array of shape (records,)
        Larger for "member": the log of the ratio of densities, or offline the number of deviations above the mean of
        runs without the record (a monotone function of the one-sided test of the publication).

    Raises
    ------
    ValueError
        If shapes differ, a statistic is not finite, or some record has fewer than 2 runs without it (and, online,
        with it).

    Notes
    -----
    Source: Carlini et al. 2022, algorithm 1 and its offline form.
    """
    values, inside = _checked(statistics, members, mode, variance, least_deviation)
    wanted = np.asarray(target, dtype=np.float64)
    if wanted.shape != values.shape[1:] or not np.isfinite(wanted).all():
        raise ValueError(
            f"target has shape {wanted.shape} or a value that is not finite: give one finite statistic for each of "
            f"the {values.shape[1]} records."
        )
    least = 2  # a deviation needs two values
    sides = {"out": _Side.of(values, ~inside)}
    if mode == "online":
        sides["in"] = _Side.of(values, inside)
    for name, side in sides.items():
        _need(side.count.min(), least, name)
    return _scores(wanted, sides, variance, least_deviation)


def lira_scores_each(
    statistics: ArrayLike,
    members: ArrayLike,
    *,
    mode: str = "online",
    variance: str = "pooled",
    least_deviation: float = 1e-6,
) -> Floats:
    """Attack every run in turn, all the others being its shadow runs.

    Parameters and errors are those of :func:`lira_scores`, with 3 runs of each kind where that needs 2.

    Returns
    -------
    float64 array of shape (runs, records)
        Row i equals ``lira_scores`` on the other runs with run i as its target; the cost is that of one pass.
    """
    values, inside = _checked(statistics, members, mode, variance, least_deviation)
    names = ("out", "in") if mode == "online" else ("out",)
    masks = {"out": ~inside, "in": inside}
    whole = {name: _Side.of(values, masks[name]) for name in names}
    for name, side in whole.items():
        _need(side.count.min(), 3, name)
    scores = np.empty_like(values)
    for run, row in enumerate(values):
        others = {name: side.without(row, masks[name][run]) for name, side in whole.items()}
        scores[run] = _scores(row, others, variance, least_deviation)
    return scores


@dataclass(frozen=True)
class _Side:
    """Sums over the runs of one kind, by record; values are centred first, so that no digits are lost."""

    count: Floats
    centre: Floats
    first: Floats
    second: Floats

    @classmethod
    def of(cls, values: Floats, mask: NDArray[np.bool_]) -> _Side:
        count = mask.sum(axis=0).astype(np.float64)
        centre = np.where(mask, values, 0).sum(axis=0) / np.maximum(count, 1)
        apart = np.where(mask, values - centre, 0)
        return cls(count, centre, apart.sum(axis=0), (apart**2).sum(axis=0))

    def without(self, row: Floats, mask: NDArray[np.bool_]) -> _Side:
        apart = np.where(mask, row - self.centre, 0)
        return _Side(self.count - mask, self.centre, self.first - apart, self.second - apart**2)

    def fit(self, variance: str, least_deviation: float) -> tuple[Floats, Floats]:
        """Mean and deviation by record; a pooled deviation has the degrees of freedom of all records."""
        squares = np.maximum(self.second - self.first**2 / self.count, 0)
        free = self.count - 1
        if variance == "pooled":
            squares, free = np.full_like(squares, squares.sum()), np.full_like(free, free.sum())
        return self.centre + self.first / self.count, np.maximum(np.sqrt(squares / free), least_deviation)


def _scores(target: Floats, sides: dict[str, _Side], variance: str, least_deviation: float) -> Floats:
    mean_out, deviation_out = sides["out"].fit(variance, least_deviation)
    apart_out = (target - mean_out) / deviation_out
    if "in" not in sides:
        return apart_out
    mean_in, deviation_in = sides["in"].fit(variance, least_deviation)
    apart_in = (target - mean_in) / deviation_in
    ratio: Floats = np.log(deviation_out / deviation_in) + (apart_out**2 - apart_in**2) / 2
    return ratio


def _need(found: float, least: int, name: str) -> None:
    if found < least:
        kind = {"in": "with", "out": "without"}[name]
        raise ValueError(
            f"a record has {int(found)} shadow runs {kind} it, and this attack needs {least}: train more runs on "
            "random parts of the pool."
        )


def _checked(
    statistics: ArrayLike, members: ArrayLike, mode: str, variance: str, least_deviation: float
) -> tuple[Floats, NDArray[np.bool_]]:
    one_of("mode", mode, MODES)
    one_of("variance", variance, VARIANCES)
    positive("least_deviation", least_deviation)
    values, inside = np.asarray(statistics, dtype=np.float64), np.asarray(members)
    if values.ndim != 2 or values.shape != inside.shape or inside.dtype != np.bool_:
        raise ValueError(
            f"statistics have shape {values.shape} and members {inside.shape} of {inside.dtype}: give a table of runs "
            "by records and a table of booleans of the same shape."
        )
    if not math.isfinite(float(np.abs(values).max(initial=0.0))):
        raise ValueError("a statistic is not finite: give a finite number for each run and record.")
    return values, inside
