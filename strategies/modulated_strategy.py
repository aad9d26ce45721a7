"""What one-shot and iterative modulated learning share: directions orthogonal to the model, and moments of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil import wire
from fedveil.moment_sums import SumGrid
from fedveil.privacy import ModulatedMoments, Modulation, draw_directions
from fedveil.strategies.message_moments import message_grid, moments_of
from fedveil.strategies.message_rounds import Collected
from fedveil.strategies.message_strategy import FloatArray, MessageStrategy, State
from fedveil.strategies.moment_state import moments_from_state, moments_to_state, prefixed, without

__all__ = ["ModulatedStrategy"]

_MOMENTS = "moments-"


@dataclass(kw_only=True, eq=False)
class ModulatedStrategy(MessageStrategy):
    """Regression from the moments of modulated messages (arXiv 2605.07233; THEORY 2).

    Parameters
    ----------
    modulation : Modulation
        Public constants; without a plan there is no wave, and only c is used.
    bound : float
        B > 0, the L2 norm to which records are clipped.
    label_scale : float, optional
        s > 0 where labels arrive noised, as c y/s; None where they arrive as they are.
    largest_label : float, optional
        Public bound on the magnitude of labels that arrive as they are, the same as the nodes'; None: 2^20.

    Raises
    ------
    ValueError
        If a number is outside its range, or labels that are noised have a bound.
    """

    modulation: Modulation
    bound: float
    label_scale: float | None = None
    largest_label: float | None = None

    @property
    def sigma(self) -> float:
        """Noise of a message; 0 without a plan."""
        return 0.0 if self.plan is None else self.plan.sigma

    @property
    def _mechanism(self) -> wire.Mechanism:
        return "unnoised" if self.plan is None else "modulated"

    @property
    def _wave(self) -> Modulation:
        return self.modulation if self.plan is not None else replace(self.modulation, amplitude=0.0)

    def _grid(self) -> SumGrid:
        return message_grid(
            self.census.num_clients,
            plan=self.plan,
            modulation=self._wave,
            bound=self.bound,
            label_scale=self.label_scale,
            largest_label=self.largest_label,
        )

    def _directions(self, server_round: int) -> FloatArray:
        # without a wave there is nothing to steer, and nothing to compute on the nodes
        count = self._wave.num_directions if self._wave.amplitude else 0
        normal = self.streams.stream("directions", round=server_round).normal
        return draw_directions(count, self.dimension, normal, orthogonal_to=self.coefficients[:-1])

    def _moments_of(self, collected: Collected, directions: FloatArray) -> ModulatedMoments:
        return moments_of(
            collected,
            self._rounds.grid,
            plan=self.plan,
            modulation=self._wave,
            directions=directions,
            label_scale=self.label_scale,
        )

    def _own_state(self) -> State:
        return {} if self.moments is None else prefixed(_MOMENTS, moments_to_state(self.moments))

    def _take_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        # intervals are told from them, also of a run that was interrupted after its last round
        if saved := without(_MOMENTS, state):
            self.moments = moments_from_state(saved)
