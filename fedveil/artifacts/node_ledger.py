"""A node's own ledger: every release of its clients, on disk before the message that carries it leaves."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import client_rows, cohort_rows, lifetime
from fedveil.artifacts.arrays_file import DamagedFile
from fedveil.artifacts.atomic import create, remove_drafts, sync_folder, write_failures_named
from fedveil.artifacts.client_rows import Past, ReplayMismatch
from fedveil.artifacts.cohort_rows import Sent
from fedveil.artifacts.lifetime import LifetimeExceeded, Square
from fedveil.artifacts.node_tables import make_tables, upgrade_tables
from fedveil.artifacts.sqlite_file import connected, refuse_cut_short, transaction
from fedveil.privacy import BudgetExceeded, CohortRelease, Relation, Release
from fedveil.privacy.domain import positive

__all__ = ["BindingMismatch", "LifetimeExceeded", "NodeLedger", "Past", "ReplayMismatch"]


class BindingMismatch(ValueError):
    """What a run's clients are is not what it was when the run was first asked for."""


class NodeLedger:
    """Releases of the clients that one node hosts, in one SQLite file that survives the node.

    Rows are only ever added: one by one for clients that train, or for whole cohorts of clients of one record each, but
    never both in one run. Several processes may write at once; a node may be killed at any instant. The file at rest
    is one file (no write-ahead log beside it), readable by its owner alone.

    Parameters
    ----------
    path : Path or str
        The file; made with its folder if missing.
    limits : mapping of Relation to float
        mu_B that the releases of ALL runs together keep for every record, under each relation that the node's owner
        limits; see :mod:`fedveil.artifacts.lifetime`. It is asked for inside every transaction that adds rows.

    Raises
    ------
    DamagedFile
        If the file is something else than a node's ledger, or empty, as a copy that was cut short may be: taken for a
        new one, every budget would be whole again.
    WriteFailed
        If the system refuses.
    """

    def __init__(self, path: Path | str, *, limits: Mapping[Relation, float] | None = None) -> None:
        self.path = Path(path).absolute()
        self.limits = {relation: positive("limit mu", mu) for relation, mu in (limits or {}).items()}
        with write_failures_named(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # never open and close one that exists: that drops the locks which SQLite holds in this process
            is_new = not os.path.lexists(self.path)
            if is_new:
                create(self.path, self._fill)
            found = os.stat(self.path)
            if is_new or found.st_nlink > 1:
                remove_drafts(self.path)
            sync_folder(self.path.parent)
        if found.st_size == 0:
            raise DamagedFile(
                f"{self.path} is empty, and FedVeil never leaves a node's ledger empty: restore its last good copy, or "
                "delete it if this node has never released anything."
            )
        with transaction(self.path) as database:
            refuse_cut_short(database, self.path)
            upgrade_tables(database, self.path)

    def record(
        self,
        run: str,
        digests: Mapping[int, str],
        releases: Iterable[Release],
        *,
        replay: bool,
        admit: Callable[[int, Past], bool] | None = None,
    ) -> None:
        """Add the rows of one round's messages; they are on disk when this returns, all of them or none.

        Parameters
        ----------
        run : str
            Name of the run.
        digests : mapping of int to str
            For each client, a digest of what it is about to send. A client without rows is left out.
        releases : iterable of Release
            Rows of these clients; those of one client are of one round.
        replay : bool
            True for a seeded run, which repeats itself to the bit: a message that was recorded before with
            the same digest is the same release and counts once. False where noise is fresh each time: a
            second message for a round counts again.
        admit : callable, optional
            ``admit(client, past)`` says whether a client's new rows stay within its budget. It is asked inside the
            transaction that adds them, so that requests served at the same time cannot each take the last of it.

        Raises
        ------
        ReplayMismatch
            If ``replay`` and a client's round was recorded with another digest or other rows; nothing is
            added.
        BudgetExceeded
            If ``admit`` says no, or all runs together pass a limit of this node (:class:`LifetimeExceeded`); nothing is
            added, and the messages must not leave.
        ValueError
            If a client has no digest, rows of several rounds, or the same row twice; or the run has cohorts' rows.
        WriteFailed
            If the system refuses; nothing is added, and the messages must not leave.
        """
        _check_name(run)
        messages = client_rows.messages_of(digests, releases)
        with transaction(self.path) as database:
            _refuse_mixture(database, run, "cohorts")
            for client, round, digest, rows in messages:
                attempts = client_rows.attempts(database, run, client, round)
                if not (replay and attempts):
                    past = Past(database, run, client, round if replay else None)
                    if admit is not None and not admit(client, past):
                        raise BudgetExceeded(
                            f"client {client} has spent its budget on another request in the meantime: its update for "
                            f"round {round} of run {run!r} does not leave."
                        )
                    client_rows.insert(database, (run, client, round, len(attempts)), digest, rows)
                elif (digest, set(rows)) not in attempts:
                    raise ReplayMismatch(
                        f"client {client} sent something else before in round {round} of run {run!r}, and a "
                        "seeded run must repeat itself to the bit: restore its settings, data and library "
                        "versions, or start a new run."
                    )
            if messages:
                lifetime.refuse_excess(database, self.limits, f"this message of run {run!r}")

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
        """Add the rows of one message of a cohort; they are on disk when this returns, all of them or none.

        Parameters
        ----------
        run : str
            Name of the run.
        digests : mapping of int to bytes
            For each part of what is about to be sent, by its first client, 16 bytes that tell of who is in it and what
            they send. A part reaches to the next, and does not depend on how clients are split over nodes.
        cohort : CohortRelease
            The row that all its clients have, and who they are. With nobody in it only the note is kept.
        replay : bool
            True for a seeded run: as in :meth:`record`, a part that was recorded before counts once.
        budget : mapping of Relation to float
            mu_B of each client's total over the run under each relation that is limited. It is asked for inside the
            transaction, so that requests served at the same time cannot each take the last of it.
        note : str, optional
            See :meth:`note`; kept under the cohort's first client (-1 without any) and the round.

        Raises
        ------
        ReplayMismatch
            If ``replay`` and one of the clients sent something else in that round; nothing is added.
        BudgetExceeded
            If a client cannot pay, or all runs together pass a limit of this node (:class:`LifetimeExceeded`); nothing
            is added, and the message must not leave.
        ValueError
            If a run has no name or a client no digest, or the run has rows of single clients.
        WriteFailed
            If the system refuses; nothing is added, and the message must not leave.
        """
        _check_name(run)
        sent = Sent(digests, cohort)
        with transaction(self.path) as database:
            _refuse_mixture(database, run, "sends")
            if replay:
                sent = cohort_rows.unsent(run, sent, cohort_rows.earlier(database, run, sent.round))
            if sent.cohort.count:
                before = cohort_rows.alike(database, run, sent.round if replay else None)
                allowed = cohort_rows.affordable(sent.cohort, budget, before)
                if not allowed.all():
                    client = sent.cohort.clients[~allowed][0]
                    raise BudgetExceeded(
                        f"client {client} has spent its budget on another request in the meantime: the messages of "
                        f"round {sent.round} of run {run!r} do not leave."
                    )
                cohort_rows.add(database, run, sent)
                lifetime.refuse_excess(database, self.limits, f"this message of run {run!r}")
            if note is not None:
                first = int(cohort.clients[0]) if cohort.count else -1
                _note(database, run, first, sent.round, note)

    def affordable(
        self, run: str, cohort: CohortRelease, *, replay: bool, budget: Mapping[Relation, float]
    ) -> NDArray[np.bool_]:
        """Say which clients of a cohort can make a release and keep every budget; nothing is added.

        Parameters
        ----------
        run, cohort, replay, budget
            As for :meth:`record_cohort`.

        Returns
        -------
        bool array (k,)
            In the order of the cohort's clients; a function of public facts and earlier rows.
        """
        with connected(self.path) as database:
            before = cohort_rows.alike(database, run, cohort.release.round if replay else None)
            return cohort_rows.affordable(cohort, budget, before)

    def cohort_releases(self, run: str | None = None) -> tuple[CohortRelease, ...]:
        """Return the releases of cohorts of one run or all runs, every attempt, by run and round."""
        with connected(self.path) as database:
            return tuple(sent.cohort for sent in cohort_rows.earlier(database, run))

    def book(self, run: str, costs: Mapping[Relation, float]) -> None:
        """Keep what a whole run costs that no rows of this node tell: without noise, or with the server's.

        Parameters
        ----------
        run : str
            Name of the run; booked again, it counts once, at the larger cost.
        costs : mapping of Relation to float
            mu of the run's total; under a relation that is left out the run counts as infinite.

        Raises
        ------
        LifetimeExceeded
            If all runs together pass a limit of this node; nothing is kept, and nothing may leave.
        WriteFailed
            If the system refuses; nothing may leave.
        """
        _check_name(run)
        with transaction(self.path) as database:
            lifetime.book(database, run, costs)
            lifetime.refuse_excess(database, self.limits, f"run {run!r}")

    def spent_by_run(self, relation: Relation) -> dict[str, Square]:
        """Sum of mu^2 of the worst-off client of each run, exact or infinite, by name of the run; bookings too."""
        with connected(self.path) as database:
            return lifetime.spent_by_run(database, relation)

    def bind(self, run: str, what: str, digest: str, *, called: str | None = None) -> None:
        """Keep what a run's clients are when it is first asked for, and refuse the run once they are something else.

        Rows are filed by a client's number in its run. Under other settings (another public seed or partition), or at
        another place of the node in the run, the number is of other records, whose budget would be whole.

        Parameters
        ----------
        run : str
            Name of the run.
        what : str
            What must stay.
        digest : str
            Of that, as it is now.
        called : str, optional
            How the error names it, where ``what`` is nobody's business but this node's.

        Raises
        ------
        BindingMismatch
            If it was something else before.
        WriteFailed
            If the system refuses.
        """
        _check_name(run)
        with transaction(self.path) as database:
            database.execute("INSERT OR IGNORE INTO bindings VALUES (?, ?, ?)", (run, what, digest))
            query = "SELECT digest FROM bindings WHERE run = ? AND what = ?"
            if database.execute(query, (run, what)).fetchone() != (digest,):
                raise BindingMismatch(
                    f"{called or what} of run {run!r} was another before, so that its clients may be other records: "
                    "restore it, or start a new run."
                )

    def note(self, run: str, client: int, round: int, note: str) -> None:
        """Keep a text about one client's round, in place of an earlier one; it is as private as the records.

        Raises
        ------
        WriteFailed
            If the system refuses.
        """
        with transaction(self.path) as database:
            _note(database, run, client, round, note)

    def notes(self, run: str) -> dict[tuple[int, int], str]:
        """Return the texts of one run, by client and round."""
        with connected(self.path) as database:
            rows = database.execute("SELECT client, round, note FROM notes WHERE run = ?", (run,)).fetchall()
        return {(client, round): note for client, round, note in rows}

    def spent(self, run: str, client: int, *, except_round: int | None = None) -> dict[Relation, float]:
        """Sum mu^2 over a client's releases, for each relation that they bound; rounded up.

        Parameters
        ----------
        run : str
            Name of the run.
        client : int
            The client.
        except_round : int, optional
            Leave this round out: in a seeded run that replays a round, its own rows are no past.

        Returns
        -------
        dict of Relation to float
            What a privacy filter has to count: every attempt, whether its message arrived or not. With any
            record or attribute rows both relations are there; infinite where some release bounds nothing.

        Raises
        ------
        ValueError
            If records were sampled for a release: no filter is valid then, and :meth:`count` watches the
            schedule.
        """
        with connected(self.path) as database:
            return Past(database, run, client, except_round).spent()

    def count(self, run: str, client: int, *, except_round: int | None = None) -> int:
        """Count a client's releases, every attempt; the rows of one release under two relations are one."""
        with connected(self.path) as database:
            return Past(database, run, client, except_round).count()

    def releases(self, run: str | None = None, client: int | None = None) -> list[Release]:
        """Return the rows of one run or all runs, one client or all clients, by run, client and round.

        Those of cohorts are in :meth:`cohort_releases`.
        """
        with connected(self.path) as database:
            return client_rows.earlier(database, run, client)

    def _fill(self, draft: Path) -> None:
        with transaction(draft, named=self.path) as database:
            make_tables(database)


def _check_name(run: str) -> None:
    if not run:
        raise ValueError("a run must have a name, got ''.")


def _refuse_mixture(database: sqlite3.Connection, run: str, table: str) -> None:
    """Refuse a second kind of rows in one run: neither kind's budget would see what the other has spent."""
    if database.execute(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE run = ?)", (run,)).fetchone()[0]:
        raise ValueError(
            f"run {run!r} has rows of {'cohorts' if table == 'cohorts' else 'single clients'}, whose budgets are kept "
            "apart: give this run a name of its own."
        )


def _note(database: sqlite3.Connection, run: str, client: int, round: int, note: str) -> None:
    database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)", (run, int(client), int(round), note))
