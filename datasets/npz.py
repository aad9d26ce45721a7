"""A user's own NPZ file: images or numbers, their labels, and whose they are, each an array of one file.

Every row is one record, in the file's order; nothing is computed from the records to scale them. What is
pickled is not read. Errors name file, array and row, never a value, since a client's error may travel to the
server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.arrays import ArrayDescription, read_array_description
from fedveil.datasets.files import Files
from fedveil.datasets.images import scale_rows
from fedveil.datasets.npz_arrays import check_length, check_like, choose_arrays, read_array, read_features
from fedveil.datasets.npz_regression import load_npz_regression
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.request import TASKS, DataRequest
from fedveil.datasets.schema import Dataset, Records
from fedveil.datasets.split import split_rows

__all__ = ["load", "load_npz"]


def load(request: DataRequest) -> Dataset | RegressionData:
    """Load an NPZ file as a configuration asks for it; see :func:`load_npz` and :func:`load_npz_regression`."""
    request.allow("npz", "data-path", "data-schema", "test-path", "target", "client-column", tasks=TASKS)
    if not request.path:
        raise ValueError("dataset = 'npz' needs data-path: the file with the arrays.")
    shared = (
        request.path,
        request.target or None,
        request.schema_path or None,
        request.test_fraction,
        request.seed,
    )
    if request.task == "regression":
        return load_npz_regression(*shared, request.test_path or None)
    return load_npz(*shared, request.client_column or None, request.test_path or None)


def load_npz(
    path: str | Path,
    target: str | None = None,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    client_column: str | None = None,
    test_path: str | Path | None = None,
) -> Dataset:
    """Load an NPZ file for classification.

    Parameters
    ----------
    path : str or Path
        A file of :func:`numpy.savez` or :func:`numpy.savez_compressed`, without pickled objects.
    target : str, optional
        The array of labels; what the schema file says when not given.
    schema_path : str or Path, optional
        The public description; ``<path>.schema.toml`` when not given, which may be missing where nothing in it
        is needed.
    test_fraction : float
        Share of rows in the public test set, in [0, 1); not used where ``test_path`` is given.
    seed : int
        Public data seed of the split, which depends on the number of rows and this seed only.
    client_column : str, optional
        The array that says whose a record is; what the schema file says when not given, else there is none.
    test_path : str or Path, optional
        Another file of the same arrays (it needs no client) that is the whole test set.

    Returns
    -------
    Dataset
        Images of shape (channels, rows, columns), or p numbers named ``<array><index>``, scaled to [0, 1].
        ``client_ids`` are 0, 1, ... in the order of the different names, numbers by size and texts
        alphabetically.

    Raises
    ------
    ValueError
        If a file is missing or damaged, an array is missing, pickled or of another length, a feature is not a
        finite number, or a label is none of the public classes.
    """
    files = Files.of(path, schema_path, test_path)
    source = files.records
    description = read_array_description(files.schema, is_needed=schema_path is not None)
    names = choose_arrays(source, description, target, client_column)
    train = _read(source, description, *names)
    schema = description.schema(names[0], train.features, names[1], train.classes, names[2])
    records = Records(scale_rows(schema, train.features), train.labels, train.owners)
    if files.test is None:
        rows, test_rows = split_rows(len(records), test_fraction, seed)
        parts = records.take(rows), records.take(test_rows)
    else:
        test = _read(files.test, description, *names[:2], None)
        check_like(files.test, test.features, source, train.features, names[0])
        parts = records, Records(scale_rows(schema, test.features), test.labels)
    low, high = float(schema.low.min()), float(schema.high.max())
    scaled = f"public range {low:g} to {high:g} mapped to [0, 1], values outside clipped"
    return Dataset(source.stem, schema, *parts, scaled=scaled)


@dataclass(frozen=True, eq=False)
class _Arrays:
    """The arrays of one file: features arranged, in their own units."""

    features: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    owners: NDArray[np.int64] | None


def _read(
    source: Path, description: ArrayDescription, features: str, target: str, client: str | None
) -> _Arrays:
    """Read the arrays of one file by their names."""
    values = read_features(source, description, features)
    labels = read_array(source, target, "target", "biufUS", "whole numbers or texts")
    owners = None
    check_length(source, target, labels, features, len(values))
    if client is not None:
        owners = read_array(source, client, "client", "biuUS", "whole numbers or texts")
        check_length(source, client, owners, features, len(values))
    choice = description.choice(target)
    where = f"{source}, array {target!r}"
    names, index = np.unique(labels, return_inverse=True)
    codes = np.full(len(names), -1, dtype=np.int64)
    for at, text in enumerate(_texts(names, where)):
        try:
            codes[at] = choice.index(text)
        except ValueError:
            row = int(np.argmax(index == at))
            raise ValueError(
                f"{where}, row {row} is not one of the {len(choice.names)} classes: correct it, or the classes in"
                f" {description.path}."
            ) from None
    ids = None if owners is None else _client_ids(owners, f"{source}, array {client!r}")
    return _Arrays(values, codes[index], choice.names, ids)


def _texts(names: NDArray[Any], where: str) -> list[str]:
    """Write values as texts, numbers as Python does; bytes are UTF-8."""
    if names.dtype.kind == "b":
        return [str(int(name)) for name in names]
    if names.dtype.kind == "S":
        try:
            return [bytes(name).decode() for name in names]
        except UnicodeDecodeError:
            raise ValueError(f"{where} holds texts that are not UTF-8: save it as texts of NumPy.") from None
    return [str(name) for name in names.tolist()]


def _client_ids(owners: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Number the clients 0, 1, ... in an order that does not depend on where their rows stand."""
    names, index = np.unique(owners, return_inverse=True)
    texts = _texts(names, where)
    if not all(text.strip() for text in texts):
        blank = [not text.strip() for text in texts].index(True)
        raise ValueError(
            f"{where}, row {int(np.argmax(index == blank))} is empty: write whose the record is."
        )
    rank = np.empty(len(texts), dtype=np.int64)
    rank[_order(texts)] = np.arange(len(texts))
    return rank[index]


def _order(texts: Iterable[str]) -> list[int]:
    """Order numbers by size, texts alphabetically."""
    named = list(enumerate(texts))
    try:
        ranked = sorted((float(text), text, at) for at, text in named)
        return [at for _, _, at in ranked]
    except ValueError:
        return [at for _, at in sorted((text, at) for at, text in named)]
