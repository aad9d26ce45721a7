"""Connections to one SQLite file: commits reach the disk, writers wait for each other, errors name it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedveil.artifacts.arrays_file import DamagedFile
from fedveil.artifacts.atomic import WriteFailed

__all__ = ["connected", "refuse_cut_short", "transaction"]

_PATIENCE = 60.0  # seconds to wait for other processes that write


@contextmanager
def connected(path: Path, *, named: Path | None = None) -> Iterator[sqlite3.Connection]:
    """A new connection to a file that is there, closed at the end of the block.

    A new one each time: a connection must cross neither a fork nor a thread, and opening one costs less than
    one sync. The journal is a file that exists during a transaction only, so that the database at rest is one
    file.

    Parameters
    ----------
    path : Path
        Absolute.
    named : Path, optional
        What errors call the file, where its path says nothing to a person.

    Raises
    ------
    DamagedFile
        If the file is not SQLite's, or is damaged.
    WriteFailed
        If the disk is full, the file cannot be opened or written, or another process keeps it locked.
    """
    place = f"{path.as_uri()}?mode=rw"  # SQLite would make an empty file where there is none
    path = named or path
    try:
        with closing(sqlite3.connect(place, timeout=_PATIENCE, isolation_level=None, uri=True)) as database:
            # EXTRA: with FULL a power cut can bring the deleted journal back, and undo the transaction
            database.execute("PRAGMA synchronous = EXTRA")
            yield database
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            raise DamagedFile(f"{path} is not a node ledger or is damaged ({error}): restore it.") from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            failure = f"{path} was locked by another process for {_PATIENCE:.0f} s: end that process."
        else:
            failure = f"{path} could not be used ({error}): make room or choose another file."
        raise WriteFailed(failure) from error


@contextmanager
def transaction(path: Path, *, named: Path | None = None) -> Iterator[sqlite3.Connection]:
    """A connection in a transaction that is on disk after the block; after an error nothing of it is.

    Parameters
    ----------
    path, named
        As for :func:`connected`.

    Raises
    ------
    DamagedFile, WriteFailed
        As :func:`connected` does.
    """
    with connected(path, named=named) as database:
        database.execute("BEGIN IMMEDIATE")  # the lock comes before the first look: no writer in between
        yield database
        database.execute("COMMIT")  # an error on the way here closes the connection, which rolls back


def refuse_cut_short(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that has fewer bytes than its pages take, in an open transaction.

    SQLite itself takes what a last page lacks for zeros, and the rows that were there for none.

    Raises
    ------
    DamagedFile
        If the end of the file is missing.
    """
    (pages,), (size,) = (
        database.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "page_size")
    )
    if os.stat(path).st_size < pages * size:
        raise DamagedFile(
            f"{path} lacks its end, as a copy that was cut short does: restore its last good copy."
        )
