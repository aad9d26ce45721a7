"""The line of each round of messages: figures, time, noise, and what the worst-off of all clients has spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import CohortRelease, Relation, gaussian_epsilon, rounded_up
from fedveil.strategies.modulated_outcome import ModulatedOutcome
from fedveil.strategies.time_left import time_left

__all__ = ["MessageProgress"]


@dataclass
class MessageProgress:
    """Prints a line a round and keeps the running figures behind it, in one array over all clients.

    The epsilon in a line is the largest of all clients under one relation, over the messages so far, from the exact
    composition of Gaussian releases.

    Parameters
    ----------
    num_rounds, num_clients : int
    delta : float
    relation : {"attribute", "record"}
        What the messages hide of a record: its features, or its label too.
    epsilon : float, optional
        Each client's total, enforced by its own filter; None: the messages are not noised, and nothing is hidden.
    say : callable
        Prints one line.
    """

    num_rounds: int
    num_clients: int
    delta: float
    relation: Relation
    epsilon: float | None
    say: Callable[[str], None] = print
    _squares: NDArray[np.float64] = field(init=False)
    _seconds: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Nobody has spent anything yet."""
        self._squares = np.zeros(self.num_clients)

    def restore(self, releases: Iterable[CohortRelease]) -> None:
        """Take in messages: of a round, or of all rounds before a resumed one, or those of the ranges."""
        for sent in releases:
            self._squares[sent.clients] += sent.mu**2

    def spent(self) -> float:
        """Largest epsilon spent by a client; inf without noise.

        Never above the budget: messages that were assumed for lost replies can pass it, and the client cannot.
        """
        if self.epsilon is None:
            return math.inf
        mu = math.sqrt(float(self._squares.max(initial=0.0)))
        return min(gaussian_epsilon(mu, self.delta), self.epsilon) if mu else 0.0

    def round(self, outcome: ModulatedOutcome) -> dict[str, float]:
        """Print the round's line and return its row for ``metrics.parquet``."""
        self.restore(outcome.releases + outcome.assumed)
        self._seconds.append(outcome.seconds)
        sigmas = [sent.release.sigma for sent in outcome.releases]
        spent = self.spent()
        row: dict[str, float] = {
            "round": outcome.server_round,
            **outcome.evaluation,
            "seconds": outcome.seconds,
            "sigma": max(sigmas, default=math.nan),
            f"epsilon-{self.relation}": spent,
            "clients": outcome.num_clients,
            "out-of-budget": outcome.out_of_budget,
            "failures": len(outcome.failures),
            "projected": float(outcome.projected),
        }
        parts = [f"round {outcome.server_round:>{len(str(self.num_rounds))}}/{self.num_rounds}"]
        parts += [
            f"{key} {'undefined' if math.isnan(value) else f'{value:.4f}'}"
            for key, value in outcome.evaluation.items()
        ]
        left = time_left(self._seconds, self.num_rounds - outcome.server_round)
        parts.append(f"{outcome.seconds:.2f} s, {left} left")
        if sigmas:
            parts.append(f"sigma {max(sigmas):.4g}")
        if self.epsilon is None:
            parts.append("no noise, no privacy")
        else:
            parts.append(f"eps({self.relation}) {rounded_up(spent)} of {rounded_up(self.epsilon)}")
        parts.append(f"clients {outcome.num_clients}")
        parts.append(f"out of budget {outcome.out_of_budget}")
        if outcome.projected:
            parts.append("step cut at the radius")
        if outcome.failures:
            parts.append(f"failed replies {len(outcome.failures)}")
        self.say(" · ".join(parts))
        return row
