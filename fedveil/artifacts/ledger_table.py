"""Releases as a table: the columns of ledger.parquet, and bytes that depend on the rows alone.

pyarrow is imported where a table is made or read: a node that keeps a ledger starts a process for every message, and
has no table.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from fedveil.artifacts.arrays_file import DamagedFile
from fedveil.privacy import Release

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ledger_schema",
    "ledger_table",
    "releases_of",
    "sorted_ledger",
    "table_bytes",
    "table_from_bytes",
]


@cache
def ledger_schema() -> pa.Schema:
    """Columns of the ledger. ``mu`` is null where records were sampled: such a row has no mu of its own.

    ``source`` is "reply" for a row that arrived with a client's reply and "assumed" for one that the server wrote
    because no valid reply came, so that the release may have left the client all the same.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("client", pa.int64()),
            ("round", pa.int64()),
            ("step", pa.int64()),
            ("release", pa.string()),
            ("relation", pa.string()),
            ("sensitivity", pa.float64()),
            ("sigma", pa.float64()),
            ("mu", pa.float64()),
            ("chosen", pa.string()),
            ("sampling_rate", pa.float64()),
            ("source", pa.string()),
        ]
    )


def ledger_table(releases: Iterable[Release], assumed: Iterable[Release] = ()) -> pa.Table:
    """Make the table of releases, those that arrived first, in the order given.

    Parameters
    ----------
    releases : iterable of Release
        Rows that arrived with a reply.
    assumed : iterable of Release
        Rows of clients that gave no valid reply.
    """
    import pyarrow as pa

    sourced = [(row, "reply") for row in releases] + [(row, "assumed") for row in assumed]
    rows = [row for row, _ in sourced]
    columns = {
        "client": [row.client for row in rows],
        "round": [row.round for row in rows],
        "step": [row.step for row in rows],
        "release": [row.name for row in rows],
        "relation": [row.relation for row in rows],
        "sensitivity": [row.sensitivity for row in rows],
        "sigma": [row.sigma for row in rows],
        "mu": [row.mu if row.sampling_rate == 1.0 else None for row in rows],
        "chosen": [row.chosen for row in rows],
        "sampling_rate": [row.sampling_rate for row in rows],
        "source": [source for _, source in sourced],
    }
    return pa.table(columns, schema=ledger_schema())


def sorted_ledger(table: pa.Table) -> pa.Table:
    """Sort rows by round, client, step and the rest: the result does not depend on the order of replies."""
    # every column is a key, so rows that tie are identical
    first = ["round", "client", "step", "release", "relation", "source"]
    keys = first + [name for name in ledger_schema().names if name not in first]
    return table.sort_by([(key, "ascending") for key in keys])


def releases_of(table: pa.Table) -> tuple[tuple[Release, ...], tuple[Release, ...]]:
    """Return the releases of a table: those that arrived with a reply, and those that were assumed.

    Raises
    ------
    DamagedFile
        If the columns are not those of a ledger, or a row is not a valid release.
    """
    names = ledger_schema().names
    if table.schema.names != names:
        raise DamagedFile(
            f"a ledger has the columns {', '.join(names)}, got {', '.join(table.schema.names)}: restore the file or "
            "start anew."
        )
    fields: dict[str, list[Any]] = table.drop_columns(["mu"]).rename_columns({"release": "name"}).to_pydict()
    sources = fields.pop("source")
    parts: dict[str, list[Release]] = {"reply": [], "assumed": []}
    try:
        for source, *values in zip(sources, *fields.values(), strict=True):
            parts[source].append(Release(**dict(zip(fields, values, strict=True))))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(
            f"a row of the ledger is not a release ({error}): restore the file or start anew."
        ) from error
    return tuple(parts["reply"]), tuple(parts["assumed"])


def table_bytes(table: pa.Table) -> bytes:
    """Write a table as a parquet file; equal rows give equal bytes with one version of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1 << 17)
    return bytes(sink.getvalue().to_pybytes())


def table_from_bytes(data: bytes, source: object) -> pa.Table:
    """Read the table of a parquet file.

    Raises
    ------
    DamagedFile
        If the file, called ``source`` in the message, is truncated or not parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # In this thread alone: Arrow's own threads can still be starting when a short process ends, which aborts it.
        with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
            return file.read(use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedFile(
            f"{source} is truncated or not a parquet file ({error}): restore it or start anew."
        ) from error
