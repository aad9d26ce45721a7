"""The file of a node's ledger: its name, its tables, and how one of an earlier version gets those it lacks."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fedveil.artifacts.arrays_file import DamagedFile

__all__ = ["NODE_LEDGER", "TERMS", "damaged", "make_tables", "upgrade_tables"]

NODE_LEDGER = "node-ledger.sqlite"
"""Name of the file of a node, or of all nodes of a simulated run."""

TERMS = "relation, sensitivity, sigma, chosen, sampling_rate"
"""Columns that say what a release costs, of single clients and of cohorts."""

_VERSION = 4
_RELEASES = (
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
)
_NOTES = (
    """CREATE TABLE notes (
        run TEXT NOT NULL, client INTEGER NOT NULL, round INTEGER NOT NULL, note TEXT NOT NULL,
        PRIMARY KEY (run, client, round)
    ) WITHOUT ROWID""",
)
_COHORTS = (
    """CREATE TABLE cohorts (
        run TEXT NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, digests BLOB NOT NULL,
        step INTEGER NOT NULL, name TEXT NOT NULL, relation TEXT NOT NULL,
        sensitivity REAL NOT NULL, sigma REAL NOT NULL, chosen TEXT NOT NULL, sampling_rate REAL NOT NULL,
        clients BLOB NOT NULL,
        PRIMARY KEY (run, round, attempt)
    )""",
)
_BOOKINGS = (
    """CREATE TABLE bookings (
        run TEXT NOT NULL, relation TEXT NOT NULL, mu REAL NOT NULL,
        PRIMARY KEY (run, relation)
    ) WITHOUT ROWID""",
    """CREATE TABLE bindings (
        run TEXT NOT NULL, what TEXT NOT NULL, digest TEXT NOT NULL,
        PRIMARY KEY (run, what)
    ) WITHOUT ROWID""",
)
_ALL = (_RELEASES, _NOTES, _COHORTS, _BOOKINGS)
"""What each version added, the first one first."""


def make_tables(database: sqlite3.Connection) -> None:
    """Make the tables of a new ledger, in an open transaction."""
    _make(database, _ALL)


def upgrade_tables(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables that a ledger of an earlier version lacks, in an open transaction.

    Raises
    ------
    DamagedFile
        If the file is something else than a node's ledger, or one of a version to come.
    """
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == _VERSION:
        return
    if not 0 < version < _VERSION:
        raise DamagedFile(f"{path} is not a node ledger of version {_VERSION}: choose another file.")
    _make(database, _ALL[version:])


def damaged(what: object) -> DamagedFile:
    """The error of a ledger with a row that cannot be one."""
    return DamagedFile(
        f"this node's ledger, {NODE_LEDGER}, holds what FedVeil never writes ({what}): restore its last good copy."
    )


def _make(database: sqlite3.Connection, tables: tuple[tuple[str, ...], ...]) -> None:
    for statements in tables:
        for statement in statements:
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {_VERSION}")
