"""The ledger table of whole cohorts: one row a client and release, a million of them without a million objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts.ledger_table import ledger_schema, ledger_table, releases_of
from fedveil.privacy import CohortRelease

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["cohort_table", "cohorts_of"]


def cohort_table(cohorts: Iterable[CohortRelease], assumed: Iterable[CohortRelease] = ()) -> pa.Table:
    """Make the table of cohorts' releases, sorted as :func:`fedveil.artifacts.sorted_ledger` sorts.

    Parameters
    ----------
    cohorts : iterable of CohortRelease
        Releases that arrived with a reply.
    assumed : iterable of CohortRelease
        Those of clients that gave no valid reply.

    Returns
    -------
    pyarrow Table
        The columns and the rows of :func:`fedveil.artifacts.ledger_table`, whatever order the cohorts are in.
    """
    import pyarrow as pa

    sourced = [
        (cohort, source) for source, given in (("reply", cohorts), ("assumed", assumed)) for cohort in given
    ]
    # what decides between rows of one round and client, in the order of the keys of sorted_ledger
    sourced.sort(key=lambda item: _key(item[0], item[1]))
    kinds = ledger_table([])
    if sourced:
        rows = [
            ledger_table(*([cohort.release], []) if source == "reply" else ([], [cohort.release]))
            for cohort, source in sourced
        ]
        kinds = pa.concat_tables(rows).combine_chunks()
    counts = [cohort.count for cohort, _ in sourced]
    kind = np.repeat(np.arange(len(sourced)), counts)
    clients = np.concatenate([np.zeros(0, dtype=np.int64), *(cohort.clients for cohort, _ in sourced)])
    rounds = np.repeat(np.array([cohort.release.round for cohort, _ in sourced], dtype=np.int64), counts)
    order = np.lexsort((kind, clients, rounds))
    table = kinds.take(pa.array(kind[order]))
    return table.set_column(0, ledger_schema().field("client"), pa.array(clients[order])).combine_chunks()


def cohorts_of(table: pa.Table) -> tuple[tuple[CohortRelease, ...], tuple[CohortRelease, ...]]:
    """Return the cohorts of a table: those that arrived with a reply, and those that were assumed.

    Rows that differ in the client only are one cohort; where a client has the same row twice, as after a repeated
    send, the second is in a further cohort.

    Raises
    ------
    DamagedFile
        If the columns are not those of a ledger, or a row is not a valid release.
    """
    if table.num_rows == 0 or table.schema.names != ledger_schema().names:
        releases_of(table)  # says what is wrong
        return (), ()
    kind = np.zeros(table.num_rows, dtype=np.int64)
    for name in ledger_schema().names[1:]:
        codes = (
            table[name]
            .combine_chunks()
            .dictionary_encode()
            .indices.fill_null(-1)
            .to_numpy(zero_copy_only=False)
        )
        kind = np.unique(kind * (int(codes.max()) + 2) + codes + 1, return_inverse=True)[1]
    clients = table["client"].to_numpy()
    order = np.lexsort((clients, kind))
    kind, clients = kind[order], clients[order]
    found: dict[str, list[CohortRelease]] = {"reply": [], "assumed": []}
    for part in np.split(np.arange(kind.size), np.flatnonzero(np.diff(kind)) + 1):
        arrived, assumed = releases_of(table.slice(int(order[part[0]]), 1))
        template = replace((*arrived, *assumed)[0], client=-1)
        for members in _each_once(clients[part]):
            found["reply" if arrived else "assumed"].append(CohortRelease(template, members))
    return tuple(found["reply"]), tuple(found["assumed"])


def _key(cohort: CohortRelease, source: str) -> tuple[object, ...]:
    row = cohort.release
    return (row.step, row.name, row.relation, source, *astuple(row))


def _each_once(clients: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """A sorted row of clients as rows in which each is once: the first time of each, the second, and so on."""
    starts = np.flatnonzero(np.diff(clients, prepend=clients[0] - 1))
    repetition = np.arange(clients.size) - np.repeat(starts, np.diff(np.append(starts, clients.size)))
    return [clients[repetition == time] for time in range(int(repetition.max()) + 1)]
