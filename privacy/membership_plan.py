"""What one client releases of its losses for several quantizers at once, and how its budget is split over them.

Each quantizer that is asked for has candidates and a clip norm of its own, hence a release and a ledger row of its own,
and the costs add: mu^2 = sum mu_k^2. The split is even. r_Q has no unit, so its error follows from sigma_k/Lambda_k =
(3/sqrt 2)/mu_k alone: an even split gives every quantizer the same noise, relative to what its losses differ by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import real_array
from fedveil.privacy.membership_release import LossRelease
from fedveil.privacy.membership_released import ReleasedMoments
from fedveil.privacy.plan import split_budget
from fedveil.privacy.release import Relation, Release

_GRID = 24  # bits of sigma that stay below it: rounding adds 1e-15 of the noise's variance


@dataclass(frozen=True)
class LossReleases:
    """The planned releases of one client's loss differences, one a quantizer, sent as one vector.

    Parameters
    ----------
    parts : tuple of LossRelease
        At least one, all of the same number of records.

    Raises
    ------
    ValueError
        When there is none, or they differ in their number of records.
    """

    parts: tuple[LossRelease, ...]

    def __post_init__(self) -> None:
        """Check the parts."""
        object.__setattr__(self, "parts", tuple(self.parts))
        if len({part.num_records for part in self.parts}) != 1:
            raise ValueError(
                f"{len(self.parts)} releases are not of one number of records: give at least one, all of one client."
            )

    @classmethod
    def planned(
        cls,
        num_records: int,
        num_pairs: Sequence[int],
        clip_norms: Sequence[float],
        mus: Mapping[Relation, float],
    ) -> LossReleases:
        """Split a budget evenly over quantizers.

        Parameters
        ----------
        num_records : int
            n >= 1, public.
        num_pairs : sequence of int
            q >= 1 of each quantizer.
        clip_norms : sequence of float
            Lambda > 0 of each quantizer, as many.
        mus : mapping of relation to float
            What all together may cost, under ``record`` or ``attribute``; at least one.

        Returns
        -------
        LossReleases
            Its rows together cost a hair less than mu under every relation given.
        """
        if not num_pairs or len(num_pairs) != len(clip_norms):
            raise ValueError(
                f"{len(num_pairs)} numbers of pairs and {len(clip_norms)} clip norms: give one of each a quantizer, "
                "for at least one."
            )
        each = split_budget(mus, 1 / len(num_pairs))
        return cls(
            tuple(
                LossRelease.planned(num_records, pairs, norm, each)
                for pairs, norm in zip(num_pairs, clip_norms, strict=True)
            )
        )

    @property
    def size(self) -> int:
        """Number of numbers released."""
        return sum(part.size for part in self.parts)

    def releases(self, client: int, round: int) -> tuple[Release, ...]:
        """Ledger rows, one a quantizer, told apart by their step; see :meth:`LossRelease.releases`."""
        return tuple(
            replace(row, step=step)
            for step, part in enumerate(self.parts)
            for row in part.releases(client, round)
        )

    def release(self, losses: ArrayLike, normals: ArrayLike) -> NDArray[np.float64]:
        """What leaves the client: the vectors of all quantizers with their noise, on a grid.

        The low bits of a noised double would tell what was below the noise (Mironov 2012), so each number is rounded to
        a multiple of a power of 2, about 2^-24 sigma: free, as post-processing.

        Parameters
        ----------
        losses : array of shape (n, sum (q + 1))
            The reference and then the candidates of the first quantizer, those of the next, and so on.
        normals : array of shape (size,)
            Independent standard normal draws that nobody else knows.

        Raises
        ------
        ValueError
            When a shape is another.
        """
        rows, draws = np.asarray(losses), real_array("normals", normals, shape=(self.size,))
        wanted = sum(part.num_pairs + 1 for part in self.parts)
        if rows.ndim != 2 or rows.shape[1] != wanted:
            raise ValueError(f"losses have shape {rows.shape}: these releases are of {wanted} candidates.")
        sent, column, place = [], 0, 0
        for part in self.parts:
            exact = part.vector(rows[:, column : column + part.num_pairs + 1])
            step = 2.0 ** (math.frexp(part.sigma)[1] - _GRID)
            noised = exact + part.sigma * draws[place : place + part.size]
            sent.append(np.rint(noised / step) * step)
            column, place = column + part.num_pairs + 1, place + part.size
        return np.concatenate(sent)

    def read(self, vector: ArrayLike) -> tuple[ReleasedMoments, ...]:
        """Read what was released, one a quantizer: post-processing, at no cost."""
        numbers = real_array("vector", vector, shape=(self.size,))
        ends = np.cumsum([part.size for part in self.parts])[:-1]
        return tuple(part.read(own) for part, own in zip(self.parts, np.split(numbers, ends), strict=True))
