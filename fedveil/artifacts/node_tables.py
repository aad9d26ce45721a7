"""The tables of a node's ledger, and how a file of an earlier version gets those it lacks."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fedveil.artifacts.arrays_file import DamagedFile

__all__ = ["make_tables"]

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
_SINCE = {version: _ALL[version:] for version in range(_VERSION)}
"""Tables that a file of each earlier version lacks; 0 is a new one."""


def make_tables(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables that are missing, in an open transaction.

    Raises
    ------
    DamagedFile
        If the file is something else than a node's ledger, or one of a version to come.
    """
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if version == _VERSION:
        return
    if version not in _SINCE or (version == 0 and tables > 0):
        raise DamagedFile(f"{path} is not a node ledger of version {_VERSION}: choose another file.")
    for statements in _SINCE[version]:
        for statement in statements:
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {_VERSION}")
