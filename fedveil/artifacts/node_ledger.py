"""A node's own ledger: every release of its clients, on disk before the message that carries it leaves."""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

from fedveil.artifacts.arrays_file import DamagedFile
from fedveil.artifacts.atomic import sync_folder, write_failures_named
from fedveil.artifacts.sqlite_file import connected, transaction
from fedveil.privacy import BudgetExceeded, Relation, Release, squared_mu

__all__ = ["NodeLedger", "Past", "ReplayMismatch"]

_VERSION = 2
_NOTES = """CREATE TABLE notes (
    run TEXT NOT NULL, client INTEGER NOT NULL, round INTEGER NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (run, client, round)
) WITHOUT ROWID"""
_TABLES = (
    """CREATE TABLE sends (
        run TEXT NOT NULL, client INTEGER NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
        digest TEXT NOT NULL,
        PRIMARY KEY (run, client, round, attempt)
    ) WITHOUT ROWID""",
    """CREATE TABLE releases (
        run TEXT NOT NULL, client INTEGER NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
        step INTEGER NOT NULL, name TEXT NOT NULL, relation TEXT NOT NULL,
        sensitivity REAL NOT NULL, sigma REAL NOT NULL, chosen TEXT NOT NULL, sampling_rate REAL NOT NULL,
        PRIMARY KEY (run, client, round, attempt, step, name, relation)
    ) WITHOUT ROWID""",
    _NOTES,
    f"PRAGMA user_version = {_VERSION}",
)
_FROM_VERSION_1 = (_NOTES, f"PRAGMA user_version = {_VERSION}")
_TERMS = "relation, sensitivity, sigma, chosen, sampling_rate"
_RELEASE = f"client, round, step, name, {_TERMS}"


class ReplayMismatch(ValueError):
    """A seeded run, which repeats itself to the bit, sends something else than before for the same round."""


@dataclass(frozen=True)
class Past:
    """What one client has released in one run, as one transaction sees it; a round may be left out."""

    database: sqlite3.Connection
    run: str
    client: int
    except_round: int | None

    def spent(self) -> dict[Relation, float]:
        """Sums of mu^2; see :meth:`NodeLedger.spent`."""
        query = f"""SELECT round, attempt, step, name, {_TERMS} FROM releases
                    WHERE run = ?1 AND client = ?2 AND (?3 IS NULL OR round <> ?3)
                    ORDER BY round, attempt, step, name, relation"""
        rows = self.database.execute(query, self._key).fetchall()
        # most releases of a client are alike: the exact arithmetic is done once for each kind
        kinds = Counter(
            tuple(row[4:] for row in event) for _, event in groupby(rows, key=lambda row: row[:4])
        )
        return _total(kinds)

    def count(self) -> int:
        """Number of releases; see :meth:`NodeLedger.count`."""
        query = """SELECT COUNT(*) FROM (SELECT DISTINCT round, attempt, step, name FROM releases
                   WHERE run = ?1 AND client = ?2 AND (?3 IS NULL OR round <> ?3))"""
        return int(self.database.execute(query, self._key).fetchone()[0])

    @property
    def _key(self) -> tuple[str, int, int | None]:
        return self.run, int(self.client), self.except_round


class NodeLedger:
    """Releases of the clients that one node hosts, in one SQLite file that survives the node.

    Rows are only ever added. Several processes may write at once; a node may be killed at any instant. The
    file at rest is one file (no write-ahead log beside it), readable by its owner alone.

    Parameters
    ----------
    path : Path or str
        The file; made with its folder if missing.

    Raises
    ------
    DamagedFile
        If the file is something else than a node's ledger.
    WriteFailed
        If the system refuses.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        with write_failures_named(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # never open and close one that exists: that drops the locks which SQLite holds in this process
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            sync_folder(self.path.parent)
        with transaction(self.path) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            tables = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
            if version == 1 or (version == 0 and tables == 0):
                for statement in _FROM_VERSION_1 if version == 1 else _TABLES:
                    database.execute(statement)
            elif version != _VERSION:
                raise DamagedFile(
                    f"{self.path} is not a node ledger of version {_VERSION}: choose another file."
                )

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
            If ``admit`` says no; nothing is added, and the messages must not leave.
        ValueError
            If a client has no digest, rows of several rounds, or the same row twice.
        WriteFailed
            If the system refuses; nothing is added, and the messages must not leave.
        """
        if not run:
            raise ValueError("a run must have a name, got ''.")
        messages = [
            (client, _one_round(client, rows), _digest_of(client, digests), rows)
            for client, rows in _by_client(releases).items()
        ]
        with transaction(self.path) as database:
            for client, round, digest, rows in messages:
                attempts = _attempts(database, run, client, round)
                if not (replay and attempts):
                    past = Past(database, run, client, round if replay else None)
                    if admit is not None and not admit(client, past):
                        raise BudgetExceeded(
                            f"client {client} has spent its budget on another request in the meantime: its update for "
                            f"round {round} of run {run!r} does not leave."
                        )
                    _insert(database, (run, client, round, len(attempts)), digest, rows)
                elif (digest, set(rows)) not in attempts:
                    raise ReplayMismatch(
                        f"client {client} sent something else before in round {round} of run {run!r}, and a "
                        "seeded run must repeat itself to the bit: restore its settings, data and library "
                        "versions, or start a new run."
                    )

    def note(self, run: str, client: int, round: int, note: str) -> None:
        """Keep a text about one client's round, in place of an earlier one; it is as private as the records.

        Raises
        ------
        WriteFailed
            If the system refuses.
        """
        with transaction(self.path) as database:
            database.execute(
                "INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)", (run, int(client), int(round), note)
            )

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
        """Return the rows of one run or all runs, one client or all clients, by run, client and round."""
        query = f"""SELECT {_RELEASE} FROM releases
                    WHERE (?1 IS NULL OR run = ?1) AND (?2 IS NULL OR client = ?2)
                    ORDER BY run, client, round, attempt, step, name, relation"""
        with connected(self.path) as database:
            return [_release(row) for row in database.execute(query, (run, client))]


def _by_client(releases: Iterable[Release]) -> dict[int, list[Release]]:
    clients: dict[int, list[Release]] = {}
    for release in releases:
        clients.setdefault(release.client, []).append(release)
    return clients


def _one_round(client: int, rows: list[Release]) -> int:
    rounds = {row.round for row in rows}
    if len(rounds) > 1:
        raise ValueError(
            f"client {client} has rows of the rounds {sorted(rounds)} in one message; record each alone."
        )
    if len({(row.step, row.name, row.relation) for row in rows}) < len(rows):
        raise ValueError(
            f"client {client} has two rows of one step, release and relation in round {min(rounds)}."
        )
    return rounds.pop()


def _digest_of(client: int, digests: Mapping[int, str]) -> str:
    if not digests.get(client):
        raise ValueError(f"client {client} has ledger rows but no digest of its message.")
    return digests[client]


def _attempts(
    database: sqlite3.Connection, run: str, client: int, round: int
) -> list[tuple[str, set[Release]]]:
    key = (run, client, round)
    sends = database.execute(
        "SELECT attempt, digest FROM sends WHERE run = ? AND client = ? AND round = ? ORDER BY attempt", key
    ).fetchall()
    query = f"SELECT {_RELEASE} FROM releases WHERE run = ? AND client = ? AND round = ? AND attempt = ?"
    return [
        (digest, {_release(row) for row in database.execute(query, (*key, attempt))})
        for attempt, digest in sends
    ]


def _insert(
    database: sqlite3.Connection, key: tuple[str, int, int, int], digest: str, rows: list[Release]
) -> None:
    database.execute("INSERT INTO sends VALUES (?, ?, ?, ?, ?)", (*key, digest))
    for row in rows:
        values = (row.step, row.name, row.relation, row.sensitivity, row.sigma, row.chosen, row.sampling_rate)
        database.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, *values))


def _release(row: tuple[Any, ...]) -> Release:
    return Release(**dict(zip(_RELEASE.split(", "), row, strict=True)))


def _total(kinds: Mapping[tuple[tuple[Any, ...], ...], int]) -> dict[Relation, float]:
    """Sum of mu^2 over releases, given as their rows' terms and how many there are of the kind."""
    events = [
        ([_release((0, 0, 0, "any", *terms)) for terms in kind], count) for kind, count in kinds.items()
    ]
    found = {row.relation for rows, _ in events for row in rows}
    if found & {"record", "attribute"}:
        found |= {"record", "attribute"}
    totals: dict[Relation, float] = {}
    for relation in sorted(found):
        squares = [(squared_mu(rows, relation), count) for rows, count in events]
        finite = all(math.isfinite(square) for square, _ in squares)
        totals[relation] = (
            _up(sum(Fraction(square) * count for square, count in squares)) if finite else math.inf
        )
    return totals


def _up(value: Fraction | int) -> float:
    nearest = float(value)
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)
