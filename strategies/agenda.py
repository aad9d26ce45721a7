"""The agenda of one round: what its clients are told and asked for, what that costs them, and what they owe for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedveil import wire
from fedveil.privacy import CONTRIBUTION, NOTHING, QUANTILE, Known, Plan, Release
from fedveil.strategies.knowledge import Knowledge

__all__ = ["Agenda"]


@dataclass(frozen=True)
class Agenda:
    """What the sampled clients of one round are to do.

    Parameters
    ----------
    server_round : int
        The round.
    steps : int
        Local steps of every client.
    plans : mapping of int to Plan or None
        Each client's planned releases.
    known : mapping of int to Known
        What each of them has released before; what they do follows from it.
    measuring : frozenset of int
        Those that are to release their contribution.
    """

    server_round: int
    steps: int
    plans: Mapping[int, Plan | None]
    known: Mapping[int, Known] = field(default_factory=dict)
    measuring: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        server_round: int,
        clients: Iterable[int],
        *,
        steps: int,
        plans: Mapping[int, Plan | None],
        knowledge: Knowledge | None,
    ) -> Agenda:
        """The agenda of these clients, from what is known when the round begins."""
        if knowledge is None:
            return cls(server_round, steps, plans)
        clients = list(clients)
        due = frozenset(knowledge.due(server_round, clients))
        return cls(server_round, steps, plans, knowledge.known(clients), due)

    def told(self, clients: Iterable[int]) -> dict[str, bytes | list[int]]:
        """What a request to the node of these clients holds beside the model and their numbers."""
        if not self.known:
            return {}
        clients = list(clients)
        known = {client: self.known.get(client, NOTHING) for client in clients}
        return {
            wire.KNOWN: wire.encode_known({k: value for k, value in known.items() if value != NOTHING}),
            wire.MEASURE: [client for client in clients if client in self.measuring],
        }

    def rows(self, client: int) -> tuple[Release, ...]:
        """The ledger rows that the round costs a client, and that a reply owes; none where the server may not know."""
        plan = self.plans[client]
        if plan is None or plan.is_data_dependent:
            return ()
        known, measure = self.known.get(client, NOTHING), client in self.measuring
        return plan.rows(client, self.server_round, self.steps, known, measure=measure)

    def owed_values(self, client: int) -> dict[str, int]:
        """Names and lengths of what a client that took part releases beside its update."""
        plan = self.plans[client]
        sizes = {}
        if plan is not None and plan.contribution is not None and client in self.measuring:
            sizes[CONTRIBUTION] = plan.contribution.size
        if plan is not None and plan.quantile is not None:
            sizes[QUANTILE] = 1
        return sizes

    def sigmas(self, client: int) -> dict[str, float]:
        """Names and planned noise of the same."""
        plan = self.plans[client]
        if plan is None:
            return {}
        planned = {CONTRIBUTION: plan.contribution, QUANTILE: plan.quantile}
        return {name: release.sigma for name, release in planned.items() if release is not None}
