"""The ledger table of whole cohorts: one row a client and release, a million of them without a million objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from fedveil.artifacts.ledger_table import ledger_schema, ledger_table
from fedveil.privacy import CohortRelease

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["cohort_table"]


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


def _key(cohort: CohortRelease, source: str) -> tuple[object, ...]:
    row = cohort.release
    return (row.step, row.name, row.relation, source, *astuple(row))
