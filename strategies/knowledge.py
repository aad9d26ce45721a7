"""What the server knows of its clients from their own releases: contributions, and the C_p that quantiles have led to.

All of it is post-processing of releases. It goes back to the clients with each request, because a node keeps nothing
between rounds that the result could depend on, and into the checkpoint, so that a resumed run goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedveil.privacy import CONTRIBUTION, QUANTILE, Contribution, Known, Plan, next_attribute_clip_norm
from fedveil.strategies.replies import TrainReply

__all__ = ["Knowledge"]


@dataclass
class Knowledge:
    """Released facts about the clients of a run.

    Parameters
    ----------
    plans : mapping of int to Plan or None
        Each client's plan; says who is to release what.
    private : tuple of int
        The private groups of a contribution.
    first_round : int
        Round from which on clients release their contribution, each once.
    quantile : float
        Share of records that should lie within C_p.
    clip_norm, attribute_clip_norm : float
        C, and the C_p to start from.
    """

    plans: Mapping[int, Plan | None]
    private: tuple[int, ...] = ()
    first_round: int = 1
    quantile: float = 0.5
    clip_norm: float = 1.0
    attribute_clip_norm: float = 1.0
    _vectors: dict[int, tuple[float, ...]] = field(default_factory=dict, init=False)
    _round_of: dict[int, int] = field(default_factory=dict, init=False)
    _moved: bool = field(default=False, init=False)

    def known(self, clients: Iterable[int]) -> dict[int, Known]:
        """What is known of each of these clients."""
        facts = {}
        for client in clients:
            contribution = self.contribution(client)
            plan = self.plans[client]
            norm = self.attribute_clip_norm if self._moved and plan is not None and plan.quantile else None
            facts[client] = Known(None if contribution is None else contribution.rate, norm)
        return facts

    def due(self, server_round: int, clients: Iterable[int]) -> list[int]:
        """Those of these clients that are to release their contribution in this round."""
        if server_round < self.first_round:
            return []
        return [
            client
            for client in clients
            if (plan := self.plans[client]) is not None
            and plan.contribution is not None
            and client not in self._vectors
        ]

    def contribution(self, client: int) -> Contribution | None:
        """The released contribution of a client, read from its noisy vector; None before it is there."""
        plan, vector = self.plans[client], self._vectors.get(client)
        if plan is None or plan.contribution is None or vector is None:
            return None
        return plan.contribution.read(vector, self.private)

    def measured_in(self, client: int) -> int:
        """The round in which a client released its contribution."""
        return self._round_of[client]

    def take(
        self, server_round: int, replies: Sequence[TrainReply], examples: Mapping[int, int]
    ) -> list[int]:
        """Take in what a round's good replies released; returns the clients whose contribution is new."""
        new, shares = [], {}
        for reply in replies:
            for client, values in reply.released.items():
                if CONTRIBUTION in values:
                    self._vectors[client], self._round_of[client] = values[CONTRIBUTION], server_round
                    new.append(client)
                if QUANTILE in values:
                    shares[client] = values[QUANTILE][0]
        if shares:
            # in the order of clients, so that the sum has the same bits however they are grouped on nodes
            clients = sorted(shares)
            self.attribute_clip_norm = next_attribute_clip_norm(
                self.attribute_clip_norm,
                [shares[client] for client in clients],
                [examples[client] for client in clients],
                quantile=self.quantile,
                clip_norm=self.clip_norm,
            )
            self._moved = True
        return sorted(new)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        return {
            "contributions": {str(client): list(vector) for client, vector in self._vectors.items()},
            "rounds": {str(client): server_round for client, server_round in self._round_of.items()},
            "attribute-clip-norm": self.attribute_clip_norm if self._moved else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._vectors = {int(client): tuple(vector) for client, vector in state["contributions"].items()}
        self._round_of = {int(client): int(server_round) for client, server_round in state["rounds"].items()}
        if state["attribute-clip-norm"] is not None:
            self.attribute_clip_norm, self._moved = float(state["attribute-clip-norm"]), True
