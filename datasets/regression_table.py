"""A table with a public description, as a data set for regression: every row is the one record of a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.description import Description
from fedveil.datasets.encoding import Source, Table, encode_table
from fedveil.datasets.fields import OneHot, Quantity, Range
from fedveil.datasets.files import Files
from fedveil.datasets.regression import RegressionData, RegressionRecords, RegressionSchema, rows_of
from fedveil.datasets.split import split_rows

__all__ = ["load_regression_table", "parted"]


def load_regression_table(
    open_source: Callable[[Path], Source],
    files: Files,
    target: str,
    test_fraction: float,
    seed: int,
) -> RegressionData:
    """Load a table for regression, whatever its format; the parameters are those of ``load_table``.

    Returns
    -------
    RegressionData
        Features in the order of the schema file, without the baseline category of a column of categories. Clients are
        the training rows in their order.

    Raises
    ------
    ValueError
        If a file is missing or malformed, a column is missing or not described, the target is no number, or a cell
        cannot be read.
    """
    table = encode_table(open_source(files.records), files.schema, target, None, Description.quantity)
    kept = _kept(table.features)
    schema = _schema(table, kept)
    test = None
    if files.test is not None:
        other = encode_table(
            open_source(files.test), files.schema, target, None, Description.quantity, is_test=True
        )
        test = _records(schema, other, kept)
    scaled = (
        f"public ranges of {files.schema.name}: numbers clipped to their range, less the baseline, divided by half the"
        " width; categories and ranges of 0 to 1 as they are"
    )
    return parted(files.name, schema, _records(schema, table, kept), test, test_fraction, seed, scaled)


def parted(
    name: str,
    schema: RegressionSchema,
    records: RegressionRecords,
    test: RegressionRecords | None,
    test_fraction: float,
    seed: int,
    scaled: str,
) -> RegressionData:
    """Make a data set of records in memory, with a test set of its own or one drawn from the public seed."""
    if test is None:
        train_rows, test_rows = split_rows(len(records), test_fraction, seed)
        records, test = records.take(train_rows), records.take(test_rows)

    def take(first: int, last: int) -> RegressionRecords:
        return records.take(slice(first, last))

    return RegressionData(name, schema, len(records), rows_of(take, len(records)), test, scaled)


def _kept(features: Sequence[Range | OneHot]) -> NDArray[np.bool_]:
    """Mark the features that are left: a column of categories gives up its baseline."""
    return np.array(
        [
            not (isinstance(feature, OneHot) and index == feature.default)
            for feature in features
            for index in range(len(feature.names))
        ]
    )


def _schema(table: Table[Quantity], kept: NDArray[np.bool_]) -> RegressionSchema:
    """Put the features that are left side by side."""
    names = [name for feature in table.features for name in feature.names]
    sources = [feature.column for feature in table.features for _ in feature.names]
    low, high, baseline = (
        np.array([x for feature in table.features for x in getattr(feature, part)])[kept]
        for part in ("low", "high", "baseline")
    )
    return RegressionSchema(
        names=tuple(name for name, stays in zip(names, kept, strict=True) if stays),
        low=low,
        high=high,
        baseline=baseline,
        target=table.label.column,
        target_low=table.label.low,
        target_high=table.label.high,
        sources=tuple(source for source, stays in zip(sources, kept, strict=True) if stays),
        target_baseline=table.label.baseline,
    )


def _records(schema: RegressionSchema, table: Table[Quantity], kept: NDArray[np.bool_]) -> RegressionRecords:
    return RegressionRecords(
        schema.standardise(table.values[:, kept]), np.array(table.labels, dtype=np.float64)
    )
