"""What a run says its nodes released, against what each node's own ledger says: nothing lost, nothing twice."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedveil.artifacts import RunFolder
from fedveil.artifacts.ledger_table import ledger_table
from fedveil.client_mask import unpack_clients

_TERMS = ("step", "release", "relation", "sensitivity", "sigma", "chosen", "sampling_rate")
_COLUMNS = ", ".join("name" if term == "release" else term for term in _TERMS)

Release = tuple[Any, ...]
"""One release: client, round, then the terms of its noise."""


@dataclass(frozen=True)
class Accounts:
    """The releases of one run without a seed: told by replies, assumed by the server, recorded by the nodes.

    Attributes
    ----------
    replied, assumed : Counter of Release
        Rows of the run's folder.
    left : Counter of Release
        Rows of all nodes' ledgers; a release made twice, with fresh noise each time, counts twice.
    """

    replied: Counter[Release]
    assumed: Counter[Release]
    left: Counter[Release]

    def check(self) -> Accounts:
        """These accounts; an error unless ledger totals equal the releases that left.

        Every row that a reply brought is in its node's ledger (nothing left without a row), no release came in twice,
        and every row of a node is in the run's ledger, as ``reply`` or as ``assumed`` (nothing was lost on the way).
        """
        assert max(self.replied.values(), default=1) == 1, self.replied
        assert not self.replied - self.left, "a reply brought a release that its node's ledger lacks"
        assert not self.left - (self.replied + self.assumed), "a node's release is not in the run's ledger"
        return self

    def of(self, client: int, round: int) -> tuple[int, int, int]:
        """How often a client made its releases of a round: by replies, assumed, by its node's ledger."""
        return tuple(  # type: ignore[return-value]
            max((count for row, count in part.items() if row[:2] == (client, round)), default=0)
            for part in (self.replied, self.assumed, self.left)
        )


def accounts(folder: Path, ledgers: Mapping[int, Path], sizes: Sequence[int] | None = None) -> Accounts:
    """The accounts of the run in a folder, finished or not.

    Parameters
    ----------
    folder : Path
        Of the run; an unfinished one is told by its checkpoint.
    ledgers : mapping of int to Path
        By partition, from 0.
    sizes : sequence of int, optional
        Modulated learning: how many clients each site has. Nodes file them by their own numbers, from 0.
    """
    table = _run_table(folder, whole=sizes is not None)
    parts: dict[str, Counter[Release]] = {"reply": Counter(), "assumed": Counter()}
    for row in table.to_pylist():
        parts[row["source"]][(row["client"], row["round"], *(row[term] for term in _TERMS))] += 1
    left: Counter[Release] = Counter()
    for partition, path in ledgers.items():
        first = 0 if sizes is None else sum(sizes[:partition])
        left += Counter(
            (client + first, *row) for client, *row in node_rows(path, folder.name, cohorts=sizes is not None)
        )
    return Accounts(parts["reply"], parts["assumed"], left)


def node_rows(path: Path, run: str, *, cohorts: bool = False) -> list[Release]:
    """The releases of a run that a node's ledger holds, every attempt; none where there is no ledger."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'releases'").fetchone():
            return []
        if not cohorts:
            query = f"SELECT client, round, {_COLUMNS} FROM releases WHERE run = ?"
            return list(database.execute(query, (run,)))
        query = f"SELECT clients, round, {_COLUMNS} FROM cohorts WHERE run = ?"
        return [
            (client, *row)
            for packed, *row in database.execute(query, (run,))
            for client in unpack_clients(packed, 2**40).tolist()
        ]


def _run_table(folder: Path, *, whole: bool) -> Any:
    assert folder.is_dir(), f"no run in {folder}"
    if (folder / "ledger.parquet").exists():
        return pq.read_table(folder / "ledger.parquet")
    assert not whole, "the checkpoint of modulated learning holds cohorts: look when the run has ended"
    checkpoint = RunFolder(folder).load_checkpoint()
    return ledger_table(checkpoint.releases, checkpoint.assumed) if checkpoint else ledger_table(())
