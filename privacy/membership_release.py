"""The release of loss differences, from which r_Q is read: what one client sends, how it is noised, what it costs.

Losses on private records leave a client only as a release (THEORY 3). Of each of n records take the differences
l = (l(theta_k) - l(theta_ref)) of q leading candidates with a reference, all chosen on public data, clip l to norm
Lambda, and release

    ( sum l , sum l l'/Lambda ) + noise

l l' is symmetric: only its upper triangle is sent, off-diagonal numbers times sqrt 2, which keeps the norm. Each number
has noise of standard deviation sigma, so an off-diagonal second moment has sigma Lambda/sqrt 2: that of a full matrix
of noise made symmetric.

Sensitivity (derived; a test maximises numerically). Let one record's l be a in place of b, in units of Lambda, with
s = |a|, t = |b|, both at most 1, and c the cosine of their angle. The squared change is

    |a - b|^2 + |aa' - bb'|^2 = s^2 + t^2 - 2stc + s^4 + t^4 - 2 s^2 t^2 c^2

Where c >= 0 it is convex in s^2. Where c < 0 it grows with s, since with u = t|c| half its derivative is
s + u + 2s^3 - 2su^2, and 2su^2 <= 2su <= s^2 + u^2 <= s + u. So it is largest at s = 1 (or s = 0, where it is at most
2), likewise at t = 1, and there it is 4 - 2c - 2c^2: at most 9/2, at c = -1/2. The joint sensitivity is
(3/sqrt 2) Lambda. With q = 1 only c = +-1 is possible: 2 Lambda.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import one_of, positive, rate, whole
from fedveil.privacy.loss_moments import checked_losses
from fedveil.privacy.membership_released import ReleasedMoments
from fedveil.privacy.release import Chosen, Relation, Release

_ROUNDING = 2.0**-40  # relative: clipping and squaring one record's differences in float64
_HUGE = 1e100  # a difference beyond it is cut there, so that its square is finite


LOSS_DIFFERENCES = "loss-differences"
"""Name of the release, in the ledger and in a reply."""

LEAST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-100, 1e100
"""Bounds of Lambda: beyond them floating-point numbers no longer do what real ones do."""


@dataclass(frozen=True, slots=True)
class LossRelease:
    """The planned Gaussian release of one client's loss differences.

    Parameters
    ----------
    num_records : int
        n >= 1, public.
    num_pairs : int
        q >= 1, leading candidates compared with the reference.
    clip_norm : float
        Lambda > 0, public: L2 bound on a record's q differences, in units of the loss.
    sigma : float
        Standard deviation > 0 of the noise on each number of the vector.
    chosen : {"fixed", "released", "data-dependent"}
        What candidates, reference, Lambda and sigma were computed from; see `Release`.

    Raises
    ------
    ValueError
        When a field is outside its range.
    """

    num_records: int
    num_pairs: int
    clip_norm: float
    sigma: float
    chosen: Chosen = "released"

    def __post_init__(self) -> None:
        """Check every field."""
        whole("num_records", self.num_records, minimum=1)
        whole("num_pairs", self.num_pairs, minimum=1)
        if not LEAST_CLIP_NORM <= positive("clip_norm", self.clip_norm) <= LARGEST_CLIP_NORM:
            raise ValueError(
                f"clip_norm = {self.clip_norm!r} is not allowed: give {LEAST_CLIP_NORM:g} to {LARGEST_CLIP_NORM:g}, "
                "where squares and steps are numbers."
            )
        positive("sigma", self.sigma)
        one_of("chosen", self.chosen, get_args(Chosen))

    @classmethod
    def planned(
        cls,
        num_records: int,
        num_pairs: int,
        clip_norm: float,
        mus: Mapping[Relation, float],
        *,
        chosen: Chosen = "released",
    ) -> "LossRelease":
        """The least noise with which the release costs no more than mu under every relation given.

        Parameters
        ----------
        num_records, num_pairs, clip_norm, chosen
            As for the class. Candidates are checkpoints, made from earlier releases: ``released``.
        mus : mapping of relation to float
            What it may cost, under ``record`` or ``attribute``; at least one.

        Returns
        -------
        LossRelease
            sigma is a hair, 2^-50, above sensitivity/mu.
        """
        if not mus:
            raise ValueError("mus is empty: give the mu of the release under 'record' or 'attribute'.")
        for relation in mus:
            one_of("relation", relation, ("attribute", "record"))
        mu = min(positive("mu", value) for value in mus.values())
        unit = cls(num_records, num_pairs, clip_norm, 1.0, chosen)
        return cls(num_records, num_pairs, clip_norm, unit.sensitivity * (1 + 2.0**-50) / mu, chosen)

    @property
    def size(self) -> int:
        """Number of numbers released: q and q (q + 1)/2."""
        return self.num_pairs + self.num_pairs * (self.num_pairs + 1) // 2

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity under the record relation, and what rounding can add; it does not depend on n.

        Sums are rounded once: two neighbours' sums of at most n Lambda err by 2^-52 n Lambda each at most, in every
        number.
        """
        change = 2.0 if self.num_pairs == 1 else 3 / math.sqrt(2)
        sums = 2.0**-51 * self.num_records * math.sqrt(self.size)
        return self.clip_norm * (change * (1 + _ROUNDING) + sums)

    def releases(self, client: int, round: int) -> tuple[Release, ...]:
        """Ledger row of the release, under the record relation, which bounds the attribute relation."""
        row = Release(
            client, round, -1, LOSS_DIFFERENCES, "record", self.sensitivity, self.sigma, self.chosen
        )
        return (row,)

    def vector(self, losses: ArrayLike) -> NDArray[np.float64]:
        """What is released, before its noise: private until N(0, sigma^2) is added to each number.

        Parameters
        ----------
        losses : array of shape (n, q + 1)
            Of the client's records: the reference in the first column, then the q candidates. A record with a loss
            that is not finite counts as no difference, since refusing it would tell that it is there.

        Returns
        -------
        float64 array of shape (size,)

        Raises
        ------
        ValueError
            When the shape is another.
        """
        rows = np.asarray(losses)
        if rows.shape != (self.num_records, self.num_pairs + 1) or rows.dtype.kind not in "fiu":
            raise ValueError(
                f"losses have shape {rows.shape} and type {rows.dtype}: this release was planned for numbers of "
                f"shape ({self.num_records}, {self.num_pairs + 1}), reference first."
            )
        l = _clipped(rows.astype(np.float64), self.clip_norm)[:, 1:]  # noqa: E741  (its name in THEORY 3)
        j, k = np.triu_indices(self.num_pairs)
        products = l[:, j] * (l[:, k] / self.clip_norm)
        sums = [math.fsum(column) for column in np.concatenate([l, products], axis=1).T]
        return np.array(sums) * np.concatenate([np.ones(self.num_pairs), np.where(j == k, 1.0, math.sqrt(2))])

    def read(self, vector: ArrayLike) -> ReleasedMoments:
        """Read what was released: post-processing, at no cost.

        Parameters
        ----------
        vector : array of shape (size,)
            With its noise.

        Returns
        -------
        ReleasedMoments
            They add over clients.
        """
        numbers = real_array("vector", vector, shape=(self.size,))
        q = self.num_pairs
        j, k = np.triu_indices(q)
        second = np.zeros((q, q))
        second[j, k] = second[k, j] = numbers[q:] * np.where(j == k, 1.0, math.sqrt(0.5)) * self.clip_norm
        return ReleasedMoments(self.num_records, numbers[:q], second, self.clip_norm, self.sigma**2)


def clipped_differences(losses: ArrayLike, clip_norm: float) -> NDArray[np.float64]:
    """Differences with the first column, clipped to norm Lambda, as `LossRelease` takes them.

    `membership_indicator` of their moments, on public records, tells what clipping alone does to r_Q.

    Parameters
    ----------
    losses : array of shape (n, q + 1)
        Finite; the reference in the first column.
    clip_norm : float
        Lambda > 0.

    Returns
    -------
    float64 array of shape (n, q + 1)
        The first column is 0.
    """
    rows, _ = checked_losses(losses)
    return _clipped(rows, positive("clip_norm", clip_norm))


def public_clip_norm(losses: ArrayLike, quantile: float = 0.99) -> float:
    """Lambda such that a share of PUBLIC records has differences within it.

    Parameters
    ----------
    losses : array of shape (n, q + 1)
        Of public records; the reference in the first column.
    quantile : float
        In (0, 1]. Noise grows with Lambda, and clipping changes r_Q where Lambda is small.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        When an argument is outside its range, or no loss differs from the reference's.
    """
    rows, _ = checked_losses(losses)
    norms = np.linalg.norm(rows[:, 1:] - rows[:, :1], axis=1)
    found = float(np.quantile(norms, rate("quantile", quantile)))
    if found <= 0:
        raise ValueError(
            f"The losses of {len(rows)} public records hardly differ from the reference's: their quantile "
            f"{quantile:g} is 0, so give a larger quantile or a clip norm."
        )
    return found


def _clipped(rows: NDArray[np.float64], clip_norm: float) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        differences = rows - rows[:, :1]
    differences[~np.isfinite(differences).all(axis=1)] = 0.0
    differences = np.clip(differences, -_HUGE, _HUGE)
    # in units of each row's largest: squares of small differences would vanish, and pass any clip norm
    largest = np.abs(differences).max(axis=1, keepdims=True)
    shares = np.divide(differences, largest, out=np.zeros_like(differences), where=largest > 0)
    norms = largest * np.linalg.norm(shares, axis=1, keepdims=True)
    return differences * (clip_norm / np.maximum(norms, clip_norm))
