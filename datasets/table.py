"""A user's own CSV file, plain or gzipped, read by a public description of its columns.

Errors never repeat a cell, nor the first line, which is a record where a file has no header.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from fedveil.datasets.described import load_file, load_table
from fedveil.datasets.encoding import Block, Source
from fedveil.datasets.files import Files
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.regression_table import load_regression_table
from fedveil.datasets.request import DataRequest
from fedveil.datasets.rows import read_rows
from fedveil.datasets.schema import Dataset

__all__ = ["load", "load_csv", "load_csv_regression", "open_csv"]

_CHUNK = 1 << 14  # rows held as text at a time


def load(request: DataRequest) -> Dataset | RegressionData:
    """Load a CSV file for a configuration; see :func:`load_csv` and :func:`load_csv_regression`."""
    return load_file(request, "csv", load_csv, load_csv_regression)


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
    files = Files.of(path, schema_path, test_path, ".gz", ".csv")
    return load_table(open_csv, files, target, test_fraction, seed, client_column)


def load_csv_regression(
    path: str | Path,
    target: str,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    test_path: str | Path | None = None,
) -> RegressionData:
    """Load a CSV file for regression, each row a client's one record.

    Parameters
    ----------
    path, schema_path, test_fraction, seed, test_path
        As for :func:`load_csv`.
    target : str
        The column to predict, of numbers; its public range is its ``low`` and ``high`` in the schema file, where the
        privacy of labels needs one.

    Returns
    -------
    RegressionData
        Features in the order of the schema file, without the baseline category of a column of categories.

    Raises
    ------
    ValueError
        As for :func:`load_csv`, and if the target is no number.
    """
    files = Files.of(path, schema_path, test_path, ".gz", ".csv")
    return load_regression_table(open_csv, files, target, test_fraction, seed)


def open_csv(path: Path, delimiter: str = ",") -> Source:
    """Open a CSV file and read its first line, the names of the columns.

    Raises
    ------
    ValueError
        If there is no such file, or its beginning is not CSV in UTF-8; the same later, while it is read.
    """
    rows = read_rows(path, delimiter)
    header = next(rows, (0, []))[1]

    def blocks(used: Collection[str]) -> Iterator[Block]:
        at = {column: header.index(column) for column in used}
        while chunk := list(islice(rows, _CHUNK)):
            for line, row in chunk:
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}, line {line} has {len(row)} cells, but the header has {len(header)}: put cells"
                        " that hold commas in double quotes."
                    )
            cells = {column: [row[index] for _, row in chunk] for column, index in at.items()}
            yield Block(cells, [line for line, _ in chunk])

    return Source(path, header, blocks)
