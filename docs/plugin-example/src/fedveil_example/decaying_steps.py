"""DecayingSteps: federated averaging whose steps shrink, so that it comes to rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedveil.strategies import PrivateAveraging, to_record

__all__ = ["DecayingSteps"]


@dataclass
class DecayingSteps(PrivateAveraging):
    """PrivateAveraging that goes t^-power of the way in round t.

    With steps of one size, noised training ends up wandering around an optimum; steps that shrink let it settle
    (Robbins & Monro 1951). The factor depends on the number of the round only: this is post-processing of what the
    clients released, so privacy and ledger are those of PrivateAveraging. It keeps nothing from one round to the
    next, so a run that was killed resumes as with PrivateAveraging.

    Parameters
    ----------
    power : float
        In [0, 1]; 0 is PrivateAveraging. Set it with ``options='strategy = {power = 0.7}'``.
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        """Refuse a power out of range."""
        if not 0 <= self.power <= 1:
            raise ValueError(f"power = {self.power!r} must lie in [0, 1]")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """As PrivateAveraging's; remembers the model that is sent."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The model that was sent, and t^-power of the step from it that PrivateAveraging would take."""
        stepped, metrics = super().aggregate_train(server_round, replies)
        if stepped is None:  # every sampled client has spent its budget
            return None, metrics
        share = server_round**-self.power
        arrays = {}
        for name, array in self._sent.items():
            before = array.numpy()
            after = before + share * (stepped[name].numpy().astype(np.float64) - before)
            arrays[name] = after.astype(np.float32)
        return to_record(arrays), metrics
