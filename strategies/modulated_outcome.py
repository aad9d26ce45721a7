"""What one round of messages did: what progress, metrics and checkpoints are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import CohortRelease

__all__ = ["ModulatedOutcome"]


@dataclass(frozen=True, eq=False)
class ModulatedOutcome:
    """What one round of messages did, for progress, metrics and checkpoints.

    Attributes
    ----------
    coefficients : float64 array (d + 1,)
        The model after the round, the intercept last.
    evaluation : mapping of str to float
        Figures of the server's public test set.
    directions : float64 array (m, d) or None
        Those of the round; None for round 0, the initial model.
    releases : tuple of CohortRelease
        The messages that arrived in this round, each with the clients that sent it.
    assumed : tuple of CohortRelease
        Messages that are in no sum and count as spent: those of clients whose reply is missing or bad, which may have
        left, once for each attempt, and those of a round that was skipped for want of replies.
    num_clients : int
        Clients that took part.
    out_of_budget : int
        Clients known to have stopped, in this round or before.
    failures : tuple of str
        One sentence for every reply that was missing or refused.
    problem : str or None
        A sentence when the moments say nothing of the slopes; the slopes are then 0, or stay as they were.
    projected : bool
        Whether a step left the ball of allowed slopes and was cut back to it.
    """

    server_round: int
    coefficients: NDArray[np.float64]
    evaluation: Mapping[str, float]
    seconds: float
    directions: NDArray[np.float64] | None = None
    releases: tuple[CohortRelease, ...] = ()
    assumed: tuple[CohortRelease, ...] = ()
    num_clients: int = 0
    out_of_budget: int = 0
    failures: tuple[str, ...] = ()
    problem: str | None = None
    projected: bool = False
