"""What one round did: what progress, metrics and checkpoints are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import Release

__all__ = ["RoundOutcome"]


@dataclass(frozen=True)
class RoundOutcome:
    """What one round did, for progress, metrics and checkpoints.

    Attributes
    ----------
    seconds : float
        How long it took; NaN where the guarantee rests on nobody knowing who was sampled.
    releases : tuple of Release
        The ledger rows that arrived in this round.
    assumed : tuple of Release
        Rows of clients whose reply is missing or bad: their release may have left them, so it counts as spent.
    num_clients : int or None
        Clients that took part; None where the guarantee rests on nobody knowing how many were sampled.
    out_of_budget : tuple of int
        Clients known to have stopped, in this round or before.
    failures : tuple of str
        One sentence for every reply that was missing or refused; none where nobody may know who was sampled.
    contributions : tuple of int
        Clients that have released their contribution in this round.
    """

    server_round: int
    arrays: Mapping[str, NDArray[np.float32]]
    evaluation: Mapping[str, float]
    seconds: float
    releases: tuple[Release, ...] = ()
    assumed: tuple[Release, ...] = ()
    num_clients: int | None = 0
    out_of_budget: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()
    contributions: tuple[int, ...] = ()
