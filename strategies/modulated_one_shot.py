"""ModulatedOneShot: one round of messages, and the coefficients solved for from their moments."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ArrayRecord

from fedveil.privacy import one_shot
from fedveil.strategies.judging import TooFewReplies
from fedveil.strategies.message_rounds import Collected
from fedveil.strategies.message_strategy import FloatArray
from fedveil.strategies.modulated_strategy import ModulatedStrategy

__all__ = ["ModulatedOneShot"]


@dataclass(kw_only=True, eq=False)
class ModulatedOneShot(ModulatedStrategy):
    """One-shot private regression: every client sends once, the server solves (THEORY 2; arXiv 2605.07233).

    Floor and ridge come from the known noise level, so the estimate is free post-processing of the moments. Where the
    moments say nothing of the slopes they are 0 and the intercept is the mean label, and a line says so. The moments
    are kept, for intervals.

    Parameters
    ----------
    ridge : float, optional
        Ridge >= 0 in the unit of a squared feature; None: from the known noise level, see :func:`one_shot`.
    """

    ridge: float | None = None

    def _begin(self, initial: ArrayRecord, num_rounds: int) -> ArrayRecord:
        if num_rounds != 1:
            raise ValueError(f"num_rounds = {num_rounds} is not allowed: one-shot learning has 1 round.")
        return super()._begin(initial, num_rounds)

    def _skip(self, server_round: int, reason: str) -> None:
        raise TooFewReplies(
            f"round {server_round}: {reason}, and one-shot learning has no other round: raise round-attempts or "
            "round-timeout, or lower min-replies, and start a new run, which is new spending."
        )

    def _learn(self, server_round: int, collected: Collected, directions: FloatArray) -> None:
        self.moments = self._moments_of(collected, directions)
        solved = one_shot(self.moments.normal_equations(), bound=self.bound, ridge=self.ridge)
        self.problem, self.coefficients = solved.problem, solved.coefficients
