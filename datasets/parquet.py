"""A user's own Parquet file, read by the same public description of its columns as a CSV file.

A cell is read as the text it would have in a CSV file, numbers in their shortest form (``-99``, ``0.1``), booleans
as ``true`` and ``false``; a null is a missing cell. Errors never repeat a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedveil.datasets.described import load_file, load_table
from fedveil.datasets.encoding import Block, Source
from fedveil.datasets.files import Files
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.regression_table import load_regression_table
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset

__all__ = ["load", "load_parquet", "load_parquet_regression", "open_parquet"]

_CHUNK = 1 << 14  # rows held as text at a time
_NAMED_BY = "a Parquet file holds its columns' names"
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # their texts may hold bytes of the file
_IS_READ: tuple[Callable[[Any], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_null,
)


def load(request: DataRequest) -> Dataset | RegressionData:
    """Load a Parquet file for a configuration; see :func:`load_parquet` and :func:`load_parquet_regression`."""
    return load_file(request, "parquet", load_parquet, load_parquet_regression)


def load_parquet(
    path: str | Path,
    target: str,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    client_column: str | None = None,
    test_path: str | Path | None = None,
) -> Dataset:
    """Load a Parquet file for classification.

    Parameters
    ----------
    path : str or Path
        A ``.parquet`` file whose used columns hold integers, floats, decimals, booleans or texts, as they are
        or dictionary-encoded.
    target, test_fraction, seed, client_column
        As for :func:`fedveil.datasets.table.load_csv`.
    schema_path : str or Path, optional
        The public description of the columns; ``<path>.schema.toml`` when not given. Its ``missing`` finds numbers
        by value, and an explicit NaN, which is an error otherwise, as ``nan``.
    test_path : str or Path, optional
        Another Parquet file of the same columns (it needs no client column) that is the whole test set.

    Returns
    -------
    Dataset
        The one that :func:`~fedveil.datasets.table.load_csv` gives for the same cells in a CSV file.

    Raises
    ------
    ValueError
        If a file is missing, damaged or no Parquet file, a column is missing, not described or of another type,
        or a cell cannot be read.
    """
    files = Files.of(path, schema_path, test_path, ".parquet")
    return load_table(open_parquet, files, target, test_fraction, seed, client_column)


def load_parquet_regression(
    path: str | Path,
    target: str,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    test_path: str | Path | None = None,
) -> RegressionData:
    """Load a Parquet file for regression, each row a client's one record.

    Parameters
    ----------
    path, schema_path, test_fraction, seed, test_path
        As for :func:`load_parquet`.
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
        As for :func:`load_parquet`, and if the target is no number.
    """
    files = Files.of(path, schema_path, test_path, ".parquet")
    return load_regression_table(open_parquet, files, target, test_fraction, seed)


def open_parquet(path: Path) -> Source:
    """Open a Parquet file and read the names of its columns.

    Raises
    ------
    ValueError
        If there is no such file, or it is damaged or no Parquet file; the same later, while it is read.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the path of one Parquet file.")
    if not path.is_file():
        raise ValueError(f"There is no data file {path}: correct its path.")
    try:
        columns = pq.read_schema(path)
        header = list(columns.names)
    except _DAMAGE:
        raise ValueError(_not_whole(path)) from None

    def blocks(used: Collection[str]) -> Iterator[Block]:
        for column in used:
            _check_type(path, column, columns.field(column).type)
        first = 1
        try:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                named = list(dict.fromkeys(used))
                for batch in file.iter_batches(_CHUNK, columns=named, use_threads=False):
                    cells = {column: _texts(batch.column(column)) for column in used}
                    yield Block(cells, range(first, first + batch.num_rows))
                    first += batch.num_rows
        except _DAMAGE:
            raise ValueError(_not_whole(path)) from None

    return Source(path, header, blocks, "row", _NAMED_BY, _restate)


def _not_whole(path: Path) -> str:
    return (
        f"{path} is not a whole Parquet file: write or copy it again, or for a text file use dataset 'csv'."
    )


def _check_type(path: Path, column: str, kind: Any) -> None:
    """Refuse a column whose cells have no text of their own."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(is_read(value) for is_read in _IS_READ):
        what = "nested" if pa.types.is_nested(value) else str(value)
        raise ValueError(
            f"{path}, column {column!r} is {what}: a column must hold integers, floats, decimals, booleans or"
            " texts; write it as one of these, or list it under ignore in the schema file."
        )


def _texts(column: Any) -> list[str | None]:
    """Write cells as text, None for a null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    texts = column.cast(pa.large_string())
    texts.validate(full=True)  # a text that is not UTF-8 becomes ArrowInvalid, which does not quote it
    written: list[str | None] = texts.to_pylist()
    return written


def _restate(text: str) -> str:
    """Write a number of the schema file as a cell of that value is written."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(pa.scalar(number).cast(pa.large_string()).as_py())
