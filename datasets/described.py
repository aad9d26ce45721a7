"""A table with a public description, as a data set: what every file format shares once its cells are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.description import Description
from fedveil.datasets.encoding import Source, encode_table
from fedveil.datasets.fields import Label, OneHot, Range, Thresholds
from fedveil.datasets.files import Files
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.request import TASKS, DataRequest
from fedveil.datasets.schema import Dataset, Records, Schema
from fedveil.datasets.split import split_rows

__all__ = ["load_file", "load_table"]


def load_file(
    request: DataRequest,
    dataset: str,
    loader: Callable[..., Dataset],
    regression: Callable[..., RegressionData],
) -> Dataset | RegressionData:
    """Load the user's file that a configuration names, by the format's function for the task (such as ``load_csv``).

    Raises
    ------
    ValueError
        If the path or the target is not given, or as the loader says.
    """
    request.allow(dataset, "data-path", "target", "data-schema", "client-column", "test-path", tasks=TASKS)
    for key, value in (("data-path", request.path), ("target", request.target)):
        if not value:
            raise ValueError(
                f"dataset {dataset!r} needs {key}: give the file's path and the column to predict."
            )
    shared = request.path, request.target, request.schema_path or None, request.test_fraction, request.seed
    if request.task == "regression":
        return regression(*shared, request.test_path or None)
    return loader(*shared, request.client_column or None, request.test_path or None)


def load_table(
    open_source: Callable[[Path], Source],
    files: Files,
    target: str,
    test_fraction: float,
    seed: int,
    client_column: str | None,
) -> Dataset:
    """Load a table for classification, whatever its format.

    Parameters
    ----------
    open_source : callable
        Opens a file of the format.
    files : Files
        The table, its public description, and perhaps a table that is the whole test set.
    target : str
        The column to predict.
    test_fraction : float
        Share of rows in the public test set, in [0, 1); not used where there is a table of its own for it.
    seed : int
        Public data seed of the split, which depends on the number of rows and this seed only.
    client_column : str, optional
        The column that says whose a record is; it is not a feature.

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
    table = encode_table(open_source(files.records), files.schema, target, client_column, Description.label)
    schema = _schema(table.features, table.label, client_column)
    ids = None if table.owners is None else _client_ids(table.owners)
    records = Records(schema.scale(table.values), np.array(table.labels, dtype=np.int64), ids)
    if files.test is None:
        train, test = split_rows(len(records), test_fraction, seed)
        parts = records.take(train), records.take(test)
    else:
        other = encode_table(
            open_source(files.test), files.schema, target, client_column, Description.label, is_test=True
        )
        parts = records, Records(schema.scale(other.values), np.array(other.labels, dtype=np.int64))
    scaled = f"public ranges of {files.schema.name} mapped to [0, 1], values outside clipped"
    return Dataset(files.name, schema, *parts, scaled=scaled)


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
