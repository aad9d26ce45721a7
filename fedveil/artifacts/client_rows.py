"""Rows of single clients in a node's ledger: what each has sent, and what it has spent."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from fedveil.artifacts.node_tables import TERMS, damaged
from fedveil.privacy import Relation, Release, squared_mu

__all__ = ["Past", "ReplayMismatch", "attempts", "earlier", "insert", "messages_of", "round_up"]

_RELEASE = f"client, round, step, name, {TERMS}"


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
        """Sums of mu^2; see :meth:`fedveil.artifacts.NodeLedger.spent`."""
        query = f"""SELECT round, attempt, step, name, {TERMS} FROM releases
                    WHERE run = ?1 AND client = ?2 AND (?3 IS NULL OR round <> ?3)
                    ORDER BY round, attempt, step, name, relation"""
        rows = self.database.execute(query, self._key).fetchall()
        # most releases of a client are alike: the exact arithmetic is done once for each kind
        kinds = Counter(
            tuple(row[4:] for row in event) for _, event in groupby(rows, key=lambda row: row[:4])
        )
        return _total(kinds)

    def count(self) -> int:
        """Number of releases; see :meth:`fedveil.artifacts.NodeLedger.count`."""
        query = """SELECT COUNT(*) FROM (SELECT DISTINCT round, attempt, step, name FROM releases
                   WHERE run = ?1 AND client = ?2 AND (?3 IS NULL OR round <> ?3))"""
        return int(self.database.execute(query, self._key).fetchone()[0])

    @property
    def _key(self) -> tuple[str, int, int | None]:
        return self.run, int(self.client), self.except_round


def messages_of(
    digests: Mapping[int, str], releases: Iterable[Release]
) -> list[tuple[int, int, str, list[Release]]]:
    """Client, round, digest and rows of each message of one round's.

    Raises
    ------
    ValueError
        If a client has no digest, rows of several rounds, or the same row twice.
    """
    clients: dict[int, list[Release]] = {}
    for release in releases:
        clients.setdefault(release.client, []).append(release)
    return [
        (client, _one_round(client, rows), _digest_of(client, digests), rows)
        for client, rows in clients.items()
    ]


def earlier(database: sqlite3.Connection, run: str | None, client: int | None) -> list[Release]:
    """Rows of one run or all runs, one client or all clients, by run, client and round."""
    query = f"""SELECT {_RELEASE} FROM releases
                WHERE (?1 IS NULL OR run = ?1) AND (?2 IS NULL OR client = ?2)
                ORDER BY run, client, round, attempt, step, name, relation"""
    return [_release(row) for row in database.execute(query, (run, client))]


def _one_round(client: int, rows: list[Release]) -> int:
    rounds = {row.round for row in rows}
    if len(rounds) > 1:
        raise ValueError(
            f"client {client} has rows of the rounds {sorted(rounds)} in one message; record each alone."
        )
    if len({(row.step, row.name, row.relation) for row in rows}) < len(rows):
        raise ValueError(
            f"client {client} has two rows of one step, release and relation in round {min(rounds)}: give each a step "
            "of its own."
        )
    return rounds.pop()


def _digest_of(client: int, digests: Mapping[int, str]) -> str:
    if not digests.get(client):
        raise ValueError(f"client {client} has ledger rows but no digest of its message: give one.")
    return digests[client]


def attempts(
    database: sqlite3.Connection, run: str, client: int, round: int
) -> list[tuple[str, set[Release]]]:
    """Digest and rows of every message of one client's round so far."""
    key = (run, client, round)
    sends = database.execute(
        "SELECT attempt, digest FROM sends WHERE run = ? AND client = ? AND round = ? ORDER BY attempt", key
    ).fetchall()
    query = f"SELECT {_RELEASE} FROM releases WHERE run = ? AND client = ? AND round = ? AND attempt = ?"
    return [
        (digest, {_release(row) for row in database.execute(query, (*key, attempt))})
        for attempt, digest in sends
    ]


def insert(
    database: sqlite3.Connection, key: tuple[str, int, int, int], digest: str, rows: list[Release]
) -> None:
    """Add a message under run, client, round and attempt."""
    database.execute("INSERT INTO sends VALUES (?, ?, ?, ?, ?)", (*key, digest))
    for row in rows:
        values = (row.step, row.name, row.relation, row.sensitivity, row.sigma, row.chosen, row.sampling_rate)
        database.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, *values))


def _release(row: tuple[Any, ...]) -> Release:
    try:
        return Release(**dict(zip(_RELEASE.split(", "), row, strict=True)))
    except (TypeError, ValueError) as error:
        raise damaged(error) from error


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
            round_up(sum(Fraction(square) * count for square, count in squares)) if finite else math.inf
        )
    return totals


def round_up(value: Fraction | int) -> float:
    """The smallest float of at least this value."""
    nearest = float(value)
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)
