"""Membership-inference security (MIS), measured by trying to tell members from other records.

MIS = 1 - TV(law of (model, a member), law of model x law of a record) = 2 (1 - best balanced accuracy): 1 where no
attack beats a guess, 0 where some attack never errs. No attack is the best one for sure, so a trained discriminator
gives an upper estimate. It learns from many training runs, and is judged on runs from which it learned nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from fedveil.privacy.domain import whole

__all__ = ["MembershipSecurity", "measure_membership_security", "membership_total_variation"]

Floats = NDArray[np.float64]
_QUANTILES = 33  # knots at which a feature's distribution is remembered
_BINS = 8  # of which a feature alone may be any step function
_RIDGES = np.logspace(-5, 1, 13)  # per row, for columns of variance 1


@dataclass(frozen=True)
class MembershipSecurity:
    """MIS as a discriminator finds it, an upper estimate.

    Attributes
    ----------
    security : float
        2 (1 - balanced accuracy) on runs held out, cut to [0, 1].
    standard_error : float
        Of the estimate before the cut, over runs: rows of one run are not independent.
    balanced_accuracy : float
        Below 1/2 by chance alone.
    accuracy_by_run : float64 array of shape (runs,)
        In increasing order of the run's number.
    """

    security: float
    standard_error: float
    balanced_accuracy: float
    accuracy_by_run: Floats

    @property
    def num_runs(self) -> int:
        """Training runs that the estimate is over."""
        return len(self.accuracy_by_run)


def measure_membership_security(
    features: ArrayLike, members: ArrayLike, runs: ArrayLike, *, folds: int = 5
) -> MembershipSecurity:
    """Train a discriminator on some training runs, count its errors on the others, and so on through all folds.

    Parameters
    ----------
    features : array of shape (rows, k)
        What the attacker computes from the released model and one record: losses, margins, inner products with
        gradients. Finite; the discriminator is no better than they are.
    members : bool array of shape (rows,)
        Whether the record was trained on. Each run has as many members as others.
    runs : int array of shape (rows,)
        The training run that made the model of this row.
    folds : int
        At least 2, at most the number of runs. Runs are dealt to folds in turn; no run is in both parts.

    Returns
    -------
    MembershipSecurity
        Its expectation is at least the true MIS, for any features and any discriminator.

    Raises
    ------
    ValueError
        If shapes differ, a feature is not finite, a run has other than equally many of both kinds, or there are fewer
        runs than folds.

    Notes
    -----
    The discriminator is a ridge regression of the label on a basis of the features: each one as it is, its normal
    score, steps at its quantiles, and products of the scores of every two. The ridge is chosen by generalised
    cross-validation inside the training part. Source: THEORY.md section 3; arXiv 2502.06567.
    """
    table, inside, number = _checked(features, members, runs)
    found, place = np.unique(number, return_inverse=True)
    folds = whole("folds", folds, minimum=2)
    if len(found) < folds:
        raise ValueError(
            f"{len(found)} training runs cannot be dealt to {folds} folds: train more, or use fewer folds."
        )
    label = np.where(inside, 1.0, -1.0)
    right = np.empty(len(label))
    for fold in range(folds):
        held = place % folds == fold
        basis = _Basis.of(table[~held])
        weights = _ridge(basis.columns(table[~held]), label[~held])
        said = basis.columns(table[held]) @ weights
        right[held] = np.where(said == 0, 0.5, said * label[held] > 0)  # no opinion is a guess
    rows = np.bincount(place)
    by_run = np.bincount(place, weights=right) / rows
    accuracy = float(right.mean())
    spread = float(np.sum((rows * (by_run - accuracy)) ** 2)) * len(found) / (len(found) - 1)
    error = 2 * max(math.sqrt(spread), 0.5) / len(right)  # runs that all agree do not prove certainty
    return MembershipSecurity(min(max(2 * (1 - accuracy), 0.0), 1.0), error, accuracy, by_run)


def membership_total_variation(records: ArrayLike, models: ArrayLike) -> float:
    """1 - MIS where everything can be enumerated: total variation of (model, member) against model x record.

    Parameters
    ----------
    records : array of shape (z,)
        Probability of each possible record.
    models : array of shape (z, k)
        Law of the released model, one of k, given that this record was trained on.

    Returns
    -------
    float
        In [0, 1]. It keeps its relative precision however small it is, if the rare models' probabilities do and the
        most probable model is the same for every record.

    Raises
    ------
    ValueError
        If the arrays are no probabilities.
    """
    law, given = np.asarray(records, dtype=np.float64), np.asarray(models, dtype=np.float64)
    if law.ndim != 1 or given.ndim != 2 or len(law) != len(given):
        raise ValueError(
            f"records have shape {law.shape} and models {given.shape}: give z probabilities and a table of z rows."
        )
    sums = np.concatenate([[law.sum()], given.sum(axis=1)])
    if not ((law >= 0).all() and (given >= 0).all() and np.allclose(sums, 1, rtol=0, atol=1e-9)):
        raise ValueError(
            "records and each row of models must be probabilities that sum to 1: divide by the sum."
        )
    difference = given - law @ given
    # the most probable model's difference is that of all others with the sign turned: 1 - tiny would lose it
    top = int(np.argmax(law @ given))
    difference[:, top] = 0.0
    difference[:, top] = -difference.sum(axis=1)
    return float(law @ np.abs(difference).sum(axis=1) / 2)


@dataclass(frozen=True)
class _Basis:
    """Columns made of features, with all constants taken from the training part."""

    used: NDArray[np.bool_]
    mean: Floats
    deviation: Floats
    knots: Floats

    @classmethod
    def of(cls, table: Floats) -> _Basis:
        used = table.min(axis=0) < table.max(axis=0)
        table = table[:, used]
        knots = np.quantile(table, np.linspace(0, 1, _QUANTILES), axis=0)
        return cls(used, table.mean(axis=0), table.std(axis=0), knots)

    def columns(self, table: Floats) -> Floats:
        """Array of shape (rows, columns), the first of which is constant."""
        table = table[:, self.used]
        if not table.shape[1]:
            return np.ones((len(table), 1))
        plain = np.clip((table - self.mean) / self.deviation, -4, 4)
        levels = np.linspace(0.5 / _QUANTILES, 1 - 0.5 / _QUANTILES, _QUANTILES)
        level = np.stack(
            [np.interp(column, knots, levels) for column, knots in zip(table.T, self.knots.T)], axis=1
        )
        score = ndtri(level)
        steps = np.floor(level * _BINS)[:, :, None] == np.arange(_BINS)
        first, second = np.triu_indices(table.shape[1])
        products = score[:, first] * score[:, second]
        return np.hstack([np.ones((len(table), 1)), plain, score, products, steps.reshape(len(table), -1)])


def _ridge(columns: Floats, label: Floats) -> Floats:
    """Weights of the ridge that generalised cross-validation prefers; columns are scaled to variance 1."""
    scale = columns.std(axis=0)
    used = scale > 1e-9
    centre = columns[:, used].mean(axis=0)
    scaled = (columns[:, used] - centre) / scale[used]
    rows = len(label)
    values, vectors = np.linalg.eigh(scaled.T @ scaled / rows)
    values = np.maximum(values, 0)
    along = vectors.T @ (scaled.T @ label / rows)
    shrunk = values + _RIDGES[:, None]
    freedom = (values / shrunk).sum(axis=1)
    # residual of each ridge, from the same decomposition; the label's own mean square is 1
    residual = 1 - (2 * along**2 / shrunk - values * (along / shrunk) ** 2).sum(axis=1)
    best = int(np.argmin(residual / np.maximum(1 - freedom / rows, 1e-3) ** 2))
    weights = np.zeros(columns.shape[1])
    weights[used] = vectors @ (along / shrunk[best]) / scale[used]
    weights[0] -= centre @ weights[used]
    return weights


def _checked(
    features: ArrayLike, members: ArrayLike, runs: ArrayLike
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64]]:
    table, inside, number = np.asarray(features, dtype=np.float64), np.asarray(members), np.asarray(runs)
    if table.ndim != 2 or 0 in table.shape or inside.shape != table.shape[:1] or number.shape != inside.shape:
        raise ValueError(
            f"features have shape {table.shape}, members {inside.shape} and runs {number.shape}: give one row of "
            "features, one boolean and one run number each."
        )
    if inside.dtype != np.bool_ or number.dtype.kind not in "iu":
        raise ValueError(
            f"members are {inside.dtype} and runs {number.dtype}: give booleans and whole numbers."
        )
    if not np.isfinite(table).all():
        raise ValueError("a feature is not finite: give finite numbers, clipped if need be.")
    _, place = np.unique(number, return_inverse=True)
    if np.bincount(place, weights=np.where(inside, 1, -1)).any():
        raise ValueError(
            "a run has other than equally many members and others: give equal classes in every run."
        )
    return table, inside, number.astype(np.int64)
