"""How large an honest update can be: what clipping and the planned noise allow in each coordinate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedveil.privacy.domain import positive

__all__ = ["LARGEST_DRAW", "UpdateBound"]

LARGEST_DRAW = 10.0
"""Standard deviations that no noise of a client reaches.

FedVeil's own draws (:func:`fedveil.streams.normals_from`) end at 9.2, so an honest reply is never beyond the bound. An
exact normal is, in one coordinate of one step, with probability 1.6e-23: over a million coordinates, a thousand steps
and a thousand clients still 2e-11.
"""
_ROUNDING = 1 + 1e-6  # of sums in float64, and of noise that was computed on another kind of machine


@dataclass(frozen=True)
class UpdateBound:
    """Bound on the update of a client whose local steps are gradient descent on clipped records.

    A step adds -eta (m + z), eta the learning rate. m is the mean over n records, or the sum over the k <= n records of
    a Poisson sample divided by q n, of gradients of norm C at most: its norm is at most C/q, at the attribute level
    too, where a record contributes (1 - t) g0 + t g. z has the standard deviation sigma_t in each coordinate. So each
    coordinate of the update of T steps is at most

        eta (T C/q + 10 sum_t sigma_t)

    in magnitude. With another local step than gradient descent, or without clipping, there is no such bound.

    Parameters
    ----------
    learning_rate : float
        eta > 0.
    clip_norm : float
        C > 0.
    """

    learning_rate: float
    clip_norm: float

    def __post_init__(self) -> None:
        """Check both numbers."""
        positive("learning_rate", self.learning_rate)
        positive("clip_norm", self.clip_norm)

    def of(self, steps: int, sigmas: Sequence[float] = (), sampling_rate: float = 1.0) -> float:
        """Largest magnitude of a coordinate of one client's update.

        Parameters
        ----------
        steps : int
            T.
        sigmas : sequence of float
            sigma_t of each noised step; none without noise.
        sampling_rate : float
            q in (0, 1].
        """
        steepest = steps * self.clip_norm / sampling_rate + LARGEST_DRAW * math.fsum(sigmas)
        return self.learning_rate * steepest * _ROUNDING
