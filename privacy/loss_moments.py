"""Moments of the differences between candidates' losses: sums over records that add over clients.

The indicator r_Q (THEORY 3, arXiv 2502.06567) depends on the losses L(z) = (l(theta_1,z), ..., l(theta_M,z)) only
through the mean and the second moments of their differences. From n, sum (L - L_ref) and sum (L - L_ref)(L - L_ref)'
it could be computed in exact arithmetic; in floats a reference whose losses are 1e4 times larger than the others
leaves no correct digit of a small variance. So the same information is kept by pairs, as the mean and the centred
sum of squares of l_j - l_k for every j and k: nothing in them cancels, whatever the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import whole
from fedveil.privacy.moments import NotAdditive

_BLOCK = 2**22  # numbers in memory at a time

# Scatter up to this many times the squared rounding of both losses is none: networks lose a few units on the way.
_SLACK = 16.0

_FAR = (
    16.0  # a mean whose square is so many variances costs the variance four bits if taken off after squaring
)


@dataclass(frozen=True, eq=False)
class LossMoments:
    """Moments of the losses of M candidates on n records.

    Parameters
    ----------
    count : int
        n >= 1, number of records.
    gaps : float64 array of shape (M, M)
        Mean over records of l_j - l_k; antisymmetric.
    scatter : float64 array of shape (M, M)
        Sum over records of (l_j - l_k - gap_jk)^2; symmetric, at least 0.
    rounding : float64 array of shape (M,)
        Sum over records of the squared rounding of each candidate's loss, (u l_k)^2, u the unit roundoff of the
        type that the losses came in: a scatter of that size is no difference.
    reference : int
        Candidate from which `total` and `second` are told, 0..M-1.

    Raises
    ------
    ValueError
        When shapes do not fit, a number is not finite, or the gaps or scatter are not of such a form.

    Notes
    -----
    Moments of few records tell those records' losses (n = 1: they ARE the losses). They leave a client only under
    secure aggregation or marked "study only, not private"; `LossRelease` is the private form.
    """

    count: int
    gaps: NDArray[np.float64]
    scatter: NDArray[np.float64]
    rounding: NDArray[np.float64]
    reference: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        object.__setattr__(self, "count", whole("count", self.count, minimum=1))
        rounding = real_array("rounding", self.rounding, shape=(None,))
        m = whole("number of candidates", len(rounding), minimum=1)
        gaps = real_array("gaps", self.gaps, shape=(m, m))
        scatter = real_array("scatter", self.scatter, shape=(m, m))
        if not np.array_equal(gaps, -gaps.T):
            raise ValueError("gaps is not antisymmetric: give the means of l_j - l_k.")
        if not np.array_equal(scatter, scatter.T) or scatter.min() < 0 or scatter.diagonal().any():
            raise ValueError(
                "scatter is not a symmetric array of numbers of at least 0 with diagonal 0: "
                "give the centred sums of squares of l_j - l_k."
            )
        if rounding.min() < 0:
            raise ValueError("rounding has a number below 0: give sums of squares.")
        for field, value in (("gaps", gaps), ("scatter", scatter), ("rounding", rounding)):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "reference", _candidate(self.reference, m))

    @classmethod
    def from_losses(cls, losses: ArrayLike, reference: int = 0) -> LossMoments:
        """Take the moments of losses.

        Parameters
        ----------
        losses : array of shape (n, M)
            Loss of each record (row) under each candidate (column), finite.
        reference : int
            Candidate from which `total` and `second` are told; r_Q does not depend on it.

        Returns
        -------
        LossMoments

        Raises
        ------
        ValueError
            When there is no record or no candidate, or a loss is not finite: the message names the candidate.
        """
        rows, unit = checked_losses(losses)
        step = max(1, _BLOCK // rows.shape[1])
        moments = cls._of(rows[:step], unit, reference)
        for first in range(step, len(rows), step):
            moments = moments + cls._of(rows[first : first + step], unit, reference)
        return moments

    @classmethod
    def _of(cls, rows: NDArray[np.float64], unit: float, reference: int) -> LossMoments:
        columns = np.ascontiguousarray(
            rows.T
        )  # sums along contiguous memory are pairwise: more exact, faster
        m, n = columns.shape
        gaps, scatter = np.zeros((m, m)), np.zeros((m, m))
        room = np.empty_like(columns)
        for j in range(m - 1):
            difference = np.subtract(columns[j + 1 :], columns[j], out=room[j + 1 :])
            mean = difference.sum(axis=1) / n
            around = np.einsum("ij,ij->i", difference, difference) - n * np.square(mean)
            far = n * np.square(mean) > _FAR * around
            if (
                far.any()
            ):  # where the mean outweighs the spread, it is taken off before squaring, or nothing is left
                centred = difference[far] - mean[far, None]
                lost = centred.sum(axis=1) / n  # what the first mean lost in rounding
                mean[far] += lost
                squares = np.einsum("ij,ij->i", centred, centred) - n * np.square(lost)
                around[far] = np.maximum(squares, 0.0)
            gaps[j + 1 :, j], gaps[j, j + 1 :] = mean, -mean
            scatter[j + 1 :, j] = scatter[j, j + 1 :] = around
        with np.errstate(under="ignore"):
            rounding = np.square(unit * columns).sum(axis=1)
        return cls(n, gaps, scatter, rounding, reference)

    def __add__(self, other: object) -> LossMoments:
        """Moments of the records of both.

        Raises
        ------
        NotAdditive
            When they differ in reference or in number of candidates.
        """
        if not isinstance(other, LossMoments):
            return NotImplemented
        for what, mine, theirs in (
            ("number of candidates", self.num_candidates, other.num_candidates),
            ("reference candidate", self.reference, other.reference),
        ):
            if mine != theirs:
                raise NotAdditive(
                    f"Moments with {what} {mine} and {theirs} do not add: evaluate the same candidates, in the "
                    "same order and with the same reference, on every client."
                )
        count = self.count + other.count
        apart = other.gaps - self.gaps
        return LossMoments(
            count,
            self.gaps * (self.count / count) + other.gaps * (other.count / count),
            self.scatter + other.scatter + np.square(apart) * (self.count * (other.count / count)),
            self.rounding + other.rounding,
            self.reference,
        )

    @property
    def num_candidates(self) -> int:
        """M."""
        return len(self.rounding)

    @property
    def total(self) -> NDArray[np.float64]:
        """Sum over records of L - L_ref, shape (M,)."""
        return self.count * self.gaps[:, self.reference]

    @property
    def second(self) -> NDArray[np.float64]:
        """Sum over records of (L - L_ref)(L - L_ref)', shape (M, M)."""
        squares = self.scatter + self.count * np.square(self.gaps)
        own = squares[:, self.reference]
        return (own[:, None] + own[None, :] - squares) / 2

    @property
    def variances(self) -> NDArray[np.float64]:
        """Var(l_j - l_k) with denominator n, shape (M, M); exactly 0 where rounding alone explains it."""
        least = _SLACK * (self.rounding[:, None] + self.rounding[None, :])
        return np.where(self.scatter > least, self.scatter, 0.0) / self.count

    @property
    def alike(self) -> NDArray[np.bool_]:
        """Which candidates have the same loss on every record, within rounding, shape (M, M)."""
        least = _SLACK * (self.rounding[:, None] + self.rounding[None, :])
        return (self.scatter <= least) & (self.count * np.square(self.gaps) <= least)


def checked_losses(losses: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Return losses as a float64 array of shape (n, M), and the unit roundoff of the type they came in.

    Raises
    ------
    ValueError
        As for `LossMoments.from_losses`.
    """
    given = np.asarray(losses)
    unit = float(np.finfo(given.dtype).eps) / 2 if given.dtype.kind == "f" else 2.0**-53
    if given.dtype.kind not in "fiu" or given.ndim != 2 or 0 in given.shape:
        raise ValueError(
            f"losses have shape {given.shape} and type {given.dtype}: give numbers of shape (records, candidates), "
            "at least one of each."
        )
    bad = np.flatnonzero(~np.isfinite(given).all(axis=0))
    if len(bad):
        raise ValueError(
            f"Candidate {bad[0]} has a loss that is not finite ({len(bad)} of {given.shape[1]} candidates do): "
            "leave it out, or clip the losses."
        )
    with np.errstate(over="ignore"):
        rows = given.astype(np.float64)
        if not np.isfinite(np.square(2 * np.abs(rows).max()) * len(rows)):
            raise ValueError(
                f"losses reach {np.abs(rows).max():.3g}, whose squares overflow: clip the losses."
            )
    return rows, max(unit, 2.0**-53)


def _candidate(reference: object, number: int) -> int:
    checked = whole("reference", reference, minimum=0)
    if checked >= number:
        raise ValueError(
            f"reference = {checked} is not a candidate: there are {number}, counted from 0, so give at most "
            f"{number - 1}."
        )
    return checked
