"""A table's cells as features, targets and clients, by the public description of its columns.

What every file format shares. A reader gives the cells as text, some rows at a time; every row becomes one
record, in the file's order: no cell decides whether its row is used, so the number of records is public. A
missing cell becomes its column's public baseline, a number outside the public range is clipped to it, and
nothing is computed from the records to scale them. Errors name file, place and column, never a cell's content,
since a client's error may travel to the server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.description import FIRST_LINE, Description, read_description
from fedveil.datasets.fields import Field, Label, OneHot, Owner, Quantity, Range, Thresholds
from fedveil.datasets.rows import check_header

__all__ = ["Block", "Source", "Table", "encode_table"]

T = TypeVar("T")
L = TypeVar("L", bound=Label | Thresholds | Quantity)


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive rows of a table.

    Parameters
    ----------
    cells : mapping of str to sequence
        Each column's cells as text, in the order of the rows; None where a cell has no value.
    numbers : sequence of int
        Where the rows stand in the file, as an error counts them.
    """

    cells: Mapping[str, Sequence[str | None]]
    numbers: Sequence[int]


def _unchanged(text: str) -> str:
    return text


@dataclass(frozen=True, eq=False)
class Source:
    """An opened table: the names of its columns, and its cells when asked.

    Parameters
    ----------
    path : Path
        The file, for errors.
    header : sequence of str
        Names of the columns.
    blocks : callable
        Given the names of the columns that are used, yields the rows in order.
    counted : str
        What the rows are counted in: ``"line"`` or ``"row"``.
    named_by : str
        How the file names its columns, in words for an error.
    restate : callable
        Writes a text of the schema file's ``missing`` as the reader would write that value.
    """

    path: Path
    header: Sequence[str]
    blocks: Callable[[Collection[str]], Iterator[Block]]
    counted: str = "line"
    named_by: str = FIRST_LINE
    restate: Callable[[str], str] = _unchanged


@dataclass(frozen=True, eq=False)
class Table(Generic[L]):
    """A table's columns, in their own units.

    Parameters
    ----------
    features : sequence
        What describes the features, in the order of the schema file.
    label : Label, Thresholds or Quantity
        What describes the target.
    values : float64 array of shape (n, p)
        The features.
    labels : list of n
        The target of each record: the index of its class, or a number.
    owners : list of str, optional
        The client column's cells.
    """

    features: Sequence[Range | OneHot]
    label: L
    values: NDArray[np.float64]
    labels: list[Any]
    owners: list[str] | None


def encode_table(
    source: Source,
    described: Path,
    target: str,
    client_column: str | None,
    describe: Callable[[Description, str], L],
    is_test: bool = False,
) -> Table[L]:
    """Read a table by its description.

    Parameters
    ----------
    source : Source
        The opened table.
    described : Path
        The schema file.
    target, client_column : str
        The column to predict, and the one that says whose a record is, where there is one.
    describe : callable
        Given the description and the target, says how the target is read: ``Description.label`` or
        ``Description.quantity``.
    is_test : bool
        A test table needs no client column, and its records have no client.

    Raises
    ------
    ValueError
        If a column is missing or not described, or a cell cannot be read.
    """
    description = read_description(described, target, source.path) if described.exists() else None
    known = () if description is None else (*description.tables, *description.ignore)
    roles = {"target": target, "client": None if is_test else client_column}
    check_header(source.header, source.path, roles, known, source.named_by)
    if client_column == target:
        raise ValueError(f"The column {target!r} cannot be both target and client column: choose another.")
    if description is None:
        description = read_description(described, target, source.path)  # says what to write
    skip = [target] if client_column is None else [target, client_column]
    features = description.features(source.header, skip, source.path, source.named_by)
    label = describe(description, target)
    owner = None if client_column is None or is_test else Owner(client_column)
    missing = description.missing | {source.restate(text) for text in description.missing}
    used = [field.column for field in (*features, label, *([owner] if owner else []))]
    values: list[NDArray[np.float64]] = []
    labels: list[Any] = []
    owners: list[str] = []
    for block in source.blocks(used):
        columns = [_column(source, block, feature, missing) for feature in features]
        values.append(np.hstack([np.array(column, dtype=np.float64) for column in columns]))
        labels += _column(source, block, label, missing)
        owners += [] if owner is None else _column(source, block, owner, missing)
    if not labels:
        raise ValueError(f"{source.path} has columns but no rows: bring at least one record.")
    return Table(features, label, np.concatenate(values), labels, None if owner is None else owners)


def _column(source: Source, block: Block, field: Field[T], missing: Collection[str]) -> list[T]:
    """Encode one column; equal cells are read once."""
    cells = block.cells[field.column]
    known: dict[str | None, T] = {}
    for number, cell in zip(block.numbers, cells, strict=True):
        if cell not in known:
            where = f"{source.path}, {source.counted} {number}, column {field.column!r}"
            known[cell] = _cell(where, field, cell, missing)
    return [known[cell] for cell in cells]


def _cell(where: str, field: Field[T], cell: str | None, missing: Collection[str]) -> T:
    text = "" if cell is None else cell.strip()
    if cell is None or (text in missing and text not in field.listed):
        if field.baseline is None:
            raise ValueError(
                f"{where} is missing, but must be {field.allowed}: fill the cell, or for a target write the"
                " baseline of a missing one into the schema file."
            )
        return field.baseline
    try:
        return field.encode(text)
    except ValueError:
        raise ValueError(
            f"{where} is not {field.allowed}: correct the cell, or list its text under missing in the schema"
            " file to read it as the column's baseline."
        ) from None  # the cause would print the cell
