"""A node's ledger that lives as long as its process: for tests, and for training without local privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import ReplayMismatch, cohort_rows
from fedveil.artifacts.cohort_rows import Sent
from fedveil.privacy import BudgetExceeded, CohortRelease, Relation, Release, squared_mu

__all__ = ["MemoryLedger"]

Send = tuple[int, str, tuple[Release, ...]]


class MemoryLedger:
    """What :class:`fedveil.artifacts.NodeLedger` counts, forgotten with the process.

    Budgets that must outlive the process (every deployment) need the ledger on disk.
    """

    def __init__(self) -> None:
        self._sends: dict[tuple[str, int], list[Send]] = {}
        self._notes: dict[tuple[str, int, int], str] = {}
        self._cohorts: dict[str, list[Sent]] = {}
        self._lock = Lock()

    def record(
        self,
        run: str,
        digests: Mapping[int, str],
        releases: Iterable[Release],
        *,
        replay: bool,
        admit: Callable[[int, MemoryPast], bool] | None = None,
    ) -> None:
        """Add the rows of one round's messages, as :meth:`fedveil.artifacts.NodeLedger.record` does."""
        rows: dict[int, list[Release]] = {}
        for release in releases:
            rows.setdefault(release.client, []).append(release)
        sends = {client: (own[0].round, digests[client], tuple(own)) for client, own in rows.items()}
        new: list[tuple[int, Send]] = []
        with self._lock:
            for client, send in sends.items():
                before = [other for other in self._sends.get((run, client), []) if other[0] == send[0]]
                if replay and send in before:
                    continue
                if replay and before:
                    raise ReplayMismatch(
                        f"client {client} sent something else before in round {send[0]} of run {run!r}, and a seeded "
                        "run must repeat itself to the bit: restore its settings, or start a new run."
                    )
                past = MemoryPast(self._rows(run, client, send[0] if replay else None))
                if admit is not None and not admit(client, past):
                    raise BudgetExceeded(
                        f"client {client} has spent its budget on another request in the meantime: its update for "
                        f"round {send[0]} of run {run!r} does not leave."
                    )
                new.append((client, send))
            for client, send in new:
                self._sends.setdefault((run, client), []).append(send)

    def record_cohort(
        self,
        run: str,
        digests: Mapping[int, bytes],
        cohort: CohortRelease,
        *,
        replay: bool,
        budget: Mapping[Relation, float],
        note: str | None = None,
    ) -> None:
        """Add a cohort's message, as :meth:`fedveil.artifacts.NodeLedger.record_cohort` does."""
        sent = Sent(digests, cohort)
        with self._lock:
            before = self._cohorts.setdefault(run, [])
            if replay:
                sent = cohort_rows.unsent(run, sent, before)
            if sent.cohort.count:
                if not self.affordable(run, sent.cohort, replay=replay, budget=budget).all():
                    raise BudgetExceeded(
                        "a client has spent its budget on another request in the meantime: the messages of round "
                        f"{sent.round} of run {run!r} do not leave."
                    )
                before.append(sent)
            if note is not None:
                self.note(run, int(cohort.clients[0]) if cohort.count else -1, sent.round, note)

    def affordable(
        self, run: str, cohort: CohortRelease, *, replay: bool, budget: Mapping[Relation, float]
    ) -> NDArray[np.bool_]:
        """Which clients of a cohort can make a release and keep every budget."""
        past = cohort.release.round if replay else None
        return cohort_rows.affordable(cohort, budget, cohort_rows.alike_of(self._cohorts.get(run, ()), past))

    def cohort_releases(self, run: str | None = None) -> tuple[CohortRelease, ...]:
        """Releases of cohorts of one run or all runs."""
        runs = self._cohorts if run is None else [run]
        return tuple(sent.cohort for name in runs for sent in self._cohorts.get(name, ()))

    def note(self, run: str, client: int, round: int, note: str) -> None:
        """Keep a text about one client's round."""
        self._notes[run, client, round] = note

    def notes(self, run: str) -> dict[tuple[int, int], str]:
        """The texts of one run, by client and round."""
        return {(client, round): note for (name, client, round), note in self._notes.items() if name == run}

    def spent(self, run: str, client: int, *, except_round: int | None = None) -> dict[Relation, float]:
        """Sum of mu^2 over a client's releases under each relation, rounded up; infinite where unbounded."""
        return MemoryPast(self._rows(run, client, except_round)).spent()

    def count(self, run: str, client: int, *, except_round: int | None = None) -> int:
        """Number of a client's releases, every attempt counted; the rows of one under two relations are one."""
        return MemoryPast(self._rows(run, client, except_round)).count()

    def releases(self, run: str, client: int) -> list[Release]:
        """A client's rows in one run, of single clients."""
        return list(self._rows(run, client, None))

    def _rows(self, run: str, client: int, except_round: int | None) -> tuple[Release, ...]:
        sends = self._sends.get((run, client), [])
        return tuple(row for round, _, rows in sends if round != except_round for row in rows)


@dataclass(frozen=True)
class MemoryPast:
    """What one client has released; see :class:`fedveil.artifacts.Past`."""

    rows: tuple[Release, ...]

    def spent(self) -> dict[Relation, float]:
        """Sums of mu^2."""
        relations: tuple[Relation, ...] = get_args(Relation)
        return {relation: squared_mu(self.rows, relation) for relation in relations} if self.rows else {}

    def count(self) -> int:
        """Number of releases."""
        relations = [row.relation for row in self.rows]
        return max((relations.count(relation) for relation in set(relations)), default=0)
