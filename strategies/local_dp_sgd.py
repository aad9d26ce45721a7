"""LocalDPSGD: federated averaging of one noised record gradient a client, the usual way to do it, for comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil import wire
from fedveil.moment_sums import SumGrid
from fedveil.privacy import projected_step
from fedveil.privacy.domain import positive
from fedveil.strategies.message_rounds import Collected
from fedveil.strategies.message_strategy import FloatArray, MessageStrategy

__all__ = ["LocalDPSGD"]


@dataclass(kw_only=True, eq=False)
class LocalDPSGD(MessageStrategy):
    """Local DP-SGD: each client clips the gradient of its record's half squared error, noises it and sends it.

    The gradient is of d slopes and the intercept, (x'beta - y)(x, 1), clipped to C; replacing the record, label and
    all, moves it by 2 C, so rows are under the record relation. With one step a client and round, FedAvg is FedSGD.

    Parameters
    ----------
    clip_norm : float
        C > 0.
    learning_rate : float
        eta > 0, the same in every round.
    radius : float, optional
        L2 norm that the slopes may reach; None for none.

    Raises
    ------
    ValueError
        If a number is outside its range, there is no plan, or replies are not sums.
    """

    clip_norm: float
    learning_rate: float
    radius: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        if self.plan is None:
            raise ValueError(
                "plan = None is not allowed: gradients leave their clients noised only, so plan them."
            )
        if self.radius is not None:
            positive("radius", self.radius)
        if self.reply != "sum":
            raise ValueError(
                f"reply = {self.reply!r} is not allowed: gradients come as sums only, so use 'sum'."
            )

    @property
    def _mechanism(self) -> wire.Mechanism:
        return "gradient"

    def _grid(self) -> SumGrid:
        sigma = 0.0 if self.plan is None else self.plan.sigma
        # gradients hold no label of their own
        return SumGrid.of(self.census.num_clients, bound=positive("clip_norm", self.clip_norm), sigma=sigma)

    def _directions(self, server_round: int) -> FloatArray:
        return np.zeros((0, self.dimension))

    def _learn(self, server_round: int, collected: Collected, directions: FloatArray) -> None:
        total = self._rounds.grid.to_real("gradient", collected.sums["gradient"])
        mean = total / len(collected.took_part)
        self.coefficients = projected_step(self.coefficients, mean, self.learning_rate, self.radius)
        if self.radius is not None:
            norm = float(np.linalg.norm(self.coefficients[:-1]))
            self.projected = norm >= self.radius * (1 - 1e-9)
