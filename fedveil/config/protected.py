"""Which of a policy's private attributes a run protects, whatever way both are written in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import split_columns
from fedveil.datasets.regression_schema import RegressionSchema
from fedveil.datasets.schema import Schema

__all__ = ["covered_entries", "feature_names", "protected_columns", "protected_of_tables"]


def protected_columns(names: Sequence[str], sources: Sequence[str], private: NDArray[np.bool_]) -> set[str]:
    """Names of the private features, and of the columns of which every feature is private.

    Parameters
    ----------
    names, sources : sequence of str
        The p features and the column of each.
    private : bool array of shape (p,)
        What the run protects.
    """
    pairs = list(zip(names, sources, private.tolist(), strict=True))
    in_the_open = {column for _, column, is_private in pairs if not is_private}
    hidden = {column for _, column, is_private in pairs if is_private}
    return {name for name, _, is_private in pairs if is_private} | (hidden - in_the_open)


def protected_of_tables(line: str, tables: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The same for the line ``private-attributes`` of a run, from the description of a table alone.

    Raises
    ------
    ValueError
        If the line cannot be read.
    """
    asked = set(split_columns(line))
    features = [(name, column) for column, table in tables.items() for name in feature_names(column, table)]
    names, sources = [name for name, _ in features], [column for _, column in features]
    return protected_columns(
        names, sources, np.array([not asked.isdisjoint(pair) for pair in features], bool)
    )


def feature_names(column: str, table: Mapping[str, Any]) -> list[str]:
    """Names of the features of a described column."""
    listed = table.get("categories")
    return [f"{column}={category}" for category in listed] if isinstance(listed, list) else [column]


def covered_entries(
    entries: Iterable[str], schema: Schema | RegressionSchema, protected: Iterable[str]
) -> set[str]:
    """What a run protects, with those entries of a policy that mean nothing else: regions, and parts of columns.

    Parameters
    ----------
    entries : iterable of str
        A policy's private attributes.
    protected : iterable of str
        Features and columns that the run protects.
    """
    covered = set(protected)
    taken = {*schema.names, *schema.sources, schema.target}
    covered |= {name for name, column in zip(schema.names, schema.sources, strict=True) if column in covered}
    for entry in set(entries) - taken:
        # of a column that is protected as a whole; the baseline's part is no feature of a regression
        is_part = any(entry.startswith(f"{column}=") for column in covered.intersection(schema.sources))
        if is_part or (isinstance(schema, Schema) and _pixels(entry, schema) <= covered):
            covered.add(entry)
    return covered


def _pixels(entry: str, schema: Schema) -> set[str]:
    """Names of the pixels of a region; the entry itself, which is then no pixel's name, where it is none."""
    try:
        masks = [schema.region(region) for region in entry.split("+")]
    except ValueError:  # no region of these records, so that nothing stands for it
        return {entry}
    return {schema.names[pixel] for pixel in np.flatnonzero(np.logical_or.reduce(masks))}
