"""A node's ledger that lives as long as its process: for tests, and for training without local privacy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from fedveil.artifacts import ReplayMismatch
from fedveil.privacy import Relation, Release, squared_mu

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """What :class:`fedveil.artifacts.NodeLedger` counts, forgotten with the process.

    Budgets that must outlive the process (every deployment) need the ledger on disk.
    """

    def __init__(self) -> None:
        self._sends: dict[tuple[str, int], list[tuple[int, str, tuple[Release, ...]]]] = {}

    def record(
        self, run: str, digests: Mapping[int, str], releases: Iterable[Release], *, replay: bool
    ) -> None:
        """Add the rows of one round's messages, as :meth:`fedveil.artifacts.NodeLedger.record` does."""
        rows: dict[int, list[Release]] = {}
        for release in releases:
            rows.setdefault(release.client, []).append(release)
        sends = {client: (own[0].round, digests[client], tuple(own)) for client, own in rows.items()}
        for client, send in sends.items():
            before = [other for other in self._sends.get((run, client), []) if other[0] == send[0]]
            if replay and before and send not in before:
                raise ReplayMismatch(
                    f"client {client} sent something else before in round {send[0]} of run {run!r}, and a seeded "
                    "run must repeat itself to the bit: restore its settings, or start a new run."
                )
        for client, send in sends.items():
            known = self._sends.setdefault((run, client), [])
            if not (replay and send in known):
                known.append(send)

    def spent(self, run: str, client: int, *, before_round: int | None = None) -> dict[Relation, float]:
        """Sum of mu^2 over a client's releases under each relation, rounded up; infinite where unbounded."""
        rows = list(self._rows(run, client, before_round))
        relations: tuple[Relation, ...] = get_args(Relation)
        return {relation: squared_mu(rows, relation) for relation in relations} if rows else {}

    def count(self, run: str, client: int, *, before_round: int | None = None) -> int:
        """Number of a client's releases, every attempt counted; the rows of one under two relations are one."""
        relations = [row.relation for row in self._rows(run, client, before_round)]
        return max((relations.count(relation) for relation in set(relations)), default=0)

    def _rows(self, run: str, client: int, before_round: int | None) -> Iterator[Release]:
        for round, _, rows in self._sends.get((run, client), []):
            if before_round is None or round < before_round:
                yield from rows
