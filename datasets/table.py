"""A user's own CSV file, plain or gzipped, read by a public description of its columns.

Every row becomes one record, in the file's order: no cell decides whether its row is used, so the number of
records is public. A missing cell becomes its column's public baseline, a number outside the public range is
clipped to it, and nothing is computed from the records to scale them. Errors name file, line and column,
never a cell's content, since a client's error may travel to the server; nor the first line, which is a record
where a file has no header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.description import read_description
from fedveil.datasets.fields import Field, Label, OneHot, Owner, Range, Thresholds
from fedveil.datasets.rows import check_header, read_rows
from fedveil.datasets.schema import Dataset, Records, Schema
from fedveil.datasets.split import split_rows

__all__ = ["load_csv"]

T = TypeVar("T")
_CHUNK = 1 << 14  # rows held as text at a time


def load_csv(
    path: str | Path,
    target: str,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    client_column: str | None = None,
    test_path: str | Path | None = None,
) -> Dataset:
    """Load a CSV file for classification.

    Parameters
    ----------
    path : str or Path
        A ``.csv`` or ``.csv.gz`` file in UTF-8 (with or without byte order mark), with a header.
    target : str
        The column to predict.
    schema_path : str or Path, optional
        The public description of the columns; ``<path>.schema.toml`` when not given.
    test_fraction : float
        Share of rows in the public test set, in [0, 1); not used where ``test_path`` is given.
    seed : int
        Public data seed of the split, which depends on the number of rows and this seed only.
    client_column : str, optional
        The column that says whose a record is; it is not a feature.
    test_path : str or Path, optional
        Another file of the same columns (it needs no client column) that is the whole test set.

    Returns
    -------
    Dataset
        Features in the order of the schema file. ``client_ids`` are 0, 1, ... in the order of the client
        column's different values, numbers by size and texts alphabetically.

    Raises
    ------
    ValueError
        If a file is missing or malformed, a column is missing or not described, or a cell cannot be read.
    """
    source = Path(path).absolute()
    described = Path(f"{source}.schema.toml") if schema_path is None else Path(schema_path).absolute()
    table = _read(source, described, target, client_column)
    schema = _schema(table.features, table.label, client_column)
    ids = None if table.owners is None else _client_ids(table.owners)
    records = Records(schema.scale(table.values), table.labels, ids)
    if test_path is None:
        train, test = split_rows(len(records), test_fraction, seed)
        parts = records.take(train), records.take(test)
    else:
        other = _read(Path(test_path).absolute(), described, target, client_column, is_test=True)
        parts = records, Records(schema.scale(other.values), other.labels)
    scaled = f"public ranges of {described.name} mapped to [0, 1], values outside clipped"
    return Dataset(source.name.removesuffix(".gz").removesuffix(".csv"), schema, *parts, scaled=scaled)


@dataclass(frozen=True, eq=False)
class _Table:
    """A file's columns as arrays, in their own units."""

    features: Sequence[Range | OneHot]
    label: Label | Thresholds
    values: NDArray[np.float64]
    labels: NDArray[np.int64]
    owners: list[str] | None


def _read(
    source: Path, described: Path, target: str, client_column: str | None, is_test: bool = False
) -> _Table:
    """Read a file by its description; a test file needs no client column, and its records have no client."""
    rows = read_rows(source)
    header = next(rows, (0, []))[1]
    description = read_description(described, target, source) if described.exists() else None
    known = () if description is None else (*description.tables, *description.ignore)
    roles = {"target": target, "client": None if is_test else client_column}
    check_header(header, source, roles, known)
    if client_column == target:
        raise ValueError(f"The column {target!r} cannot be both target and client column: choose another.")
    if description is None:
        description = read_description(described, target, source)  # says what to write
    skip = [target] if client_column is None else [target, client_column]
    features, label = description.features(header, skip, source), description.label(target)
    owner = None if client_column is None or is_test else Owner(client_column)
    values: list[NDArray[np.float64]] = []
    labels: list[int] = []
    owners: list[str] = []
    while chunk := list(islice(rows, _CHUNK)):
        for line, row in chunk:
            if len(row) != len(header):
                raise ValueError(
                    f"{source}, line {line} has {len(row)} cells, but the header has {len(header)}: put cells"
                    " that hold commas in double quotes."
                )
        part = _Chunk(source, header, chunk, description.missing)
        values.append(np.hstack([np.array(part.column(feature), dtype=np.float64) for feature in features]))
        labels += part.column(label)
        owners += [] if owner is None else part.column(owner)
    if not labels:
        raise ValueError(f"{source} has a header but no rows: bring at least one record.")
    table = np.concatenate(values), np.array(labels, dtype=np.int64)
    return _Table(features, label, *table, None if owner is None else owners)


@dataclass(frozen=True)
class _Chunk:
    """Some rows of a file as text, each with its line number."""

    source: Path
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    missing: frozenset[str]

    def column(self, field: Field[T]) -> list[T]:
        """Encode one column; equal cells are read once."""
        at = self.header.index(field.column)
        known: dict[str, T] = {}
        for line, row in self.rows:
            if row[at] not in known:
                known[row[at]] = self._cell(field, row[at].strip(), line)
        return [known[row[at]] for _, row in self.rows]

    def _cell(self, field: Field[T], cell: str, line: int) -> T:
        where = f"{self.source}, line {line}, column {field.column!r}"
        if cell in self.missing and cell not in field.listed:
            if field.baseline is None:
                raise ValueError(
                    f"{where} is missing, but must be {field.allowed}: fill the cell, or for a target write"
                    " the baseline of a missing one into the schema file."
                )
            return field.baseline
        try:
            return field.encode(cell)
        except ValueError:
            raise ValueError(
                f"{where} is not {field.allowed}: correct the cell, or list its text under missing in the"
                " schema file to read it as the column's baseline."
            ) from None  # the cause would print the cell


def _schema(
    features: Sequence[Range | OneHot], label: Label | Thresholds, client_column: str | None
) -> Schema:
    """Put the features side by side."""
    names = tuple(name for feature in features for name in feature.names)
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"Two features are named {double!r}, a column and a category: rename the column.")
    low = np.array([x for feature in features for x in feature.low], dtype=np.float32)
    high = np.array([x for feature in features for x in feature.high], dtype=np.float32)
    baseline = np.array([x for feature in features for x in feature.baseline])
    scaled = (baseline - low) / (high.astype(np.float64) - low)
    sources = tuple(feature.column for feature in features for _ in feature.names)
    return Schema(
        names,
        (len(names),),
        low,
        high,
        np.clip(scaled, 0.0, 1.0).astype(np.float32),
        label.column,
        label.classes,
        sources,
        client_column,
    )


def _client_ids(owners: Sequence[str]) -> NDArray[np.int64]:
    """Number the clients 0, 1, ... in an order that does not depend on where their rows stand."""
    names = set(owners)
    try:
        order = sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        order = sorted(names)
    rank = {name: index for index, name in enumerate(order)}
    return np.array([rank[name] for name in owners], dtype=np.int64)
