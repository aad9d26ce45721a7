"""The leading candidates of one quantizer, ranked on public records: what clients' losses are asked about.

Choosing candidates by private losses would be a release for every one of them; on public records it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import (
    LossMoments,
    clipped_differences,
    leading_candidates,
    membership_indicator,
    public_clip_norm,
    release_deviation,
)
from fedveil.quantization import Scheme, name_of, quantize_model
from fedveil.strategies.hooks.configurations import distinct_configurations, stacked

__all__ = ["LeadingPairs"]

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class LeadingPairs:
    """A reference and the competitors that come nearest to it, of one quantizer.

    Attributes
    ----------
    name : str
        The quantizer.
    rounds : tuple of int
        The first round at which each of them occurred, the reference's first.
    candidates : mapping of str to float32 array (q + 1, ...)
        What their codes stand for, the reference first.
    clip_norm : float
        Lambda: the 0.99 quantile of the public records' differences.
    public_rate : float
        r of the closest pair, on public records, of clipped differences.
    gap, deviation : float
        Of that pair.
    """

    name: str
    rounds: tuple[int, ...]
    candidates: Arrays
    clip_norm: float
    public_rate: float
    gap: float
    deviation: float

    @classmethod
    def of(
        cls,
        scheme: Scheme,
        arrays: Arrays,
        trajectory: Iterable[tuple[int, Arrays]],
        losses: Callable[[Arrays], NDArray[np.float64]],
        *,
        last: int,
        most: int,
        pairs: int,
    ) -> LeadingPairs:
        """Rank the configurations of a run.

        Parameters
        ----------
        scheme : Scheme
            The quantizer.
        arrays : mapping of str to float32 array
            The final model.
        trajectory : iterable of (int, mapping)
            Rounds and the models after them.
        losses : callable
            ``losses(candidates)``: loss of stacked models on every PUBLIC record, float64 (n, M).
        last : int
            The round of the final model.
        most : int
            Candidates that are compared, those of least mean loss.
        pairs : int
            q, at most.

        Raises
        ------
        ValueError
            If the model cannot be quantized, or no pair of candidates is told apart by the public records.
        """
        found = distinct_configurations(quantize_model(arrays, scheme), last, trajectory)
        public = losses(stacked([model for _, model in found]))
        kept = np.argsort(public.mean(axis=0), kind="stable")[:most]
        chosen = [kept[k] for k in leading_candidates(LossMoments.from_losses(public[:, kept]), pairs)]
        rows = public[:, chosen]
        norm = public_clip_norm(rows)
        clipped = LossMoments.from_losses(clipped_differences(rows, norm))
        indicator = membership_indicator(clipped)
        gaps, variances = clipped.gaps[1:, 0], clipped.variances[1:, 0]
        told = variances > 0
        if not told.any():
            raise ValueError(f"no pair of candidates differs on the public records: {indicator.statement}")
        rates = np.where(told, np.square(gaps) / np.where(told, 2 * variances, 1.0), np.inf)
        nearest = int(np.argmin(rates))
        return cls(
            name_of(scheme),
            tuple(found[k][0] for k in chosen),
            stacked([found[k][1] for k in chosen]),
            norm,
            float(rates[nearest]),
            abs(float(gaps[nearest])),
            float(np.sqrt(variances[nearest])),
        )

    @property
    def num_pairs(self) -> int:
        """Number of competitors of the reference."""
        return len(self.rounds) - 1

    def predicted_error(self, num_records: int, noise: float) -> float:
        """Standard deviation that noise gives r_Q; see :func:`fedveil.privacy.release_deviation`."""
        return release_deviation(
            self.gap, self.deviation, num_records=num_records, clip_norm=self.clip_norm, noise=noise
        )
