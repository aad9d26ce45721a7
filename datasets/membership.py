"""Which records hold a public value: a class of the target, a category, or a number of a column."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import nearest
from fedveil.datasets.group_line import split, unquote
from fedveil.datasets.schema import Records, Schema

__all__ = ["Value", "covers_all", "read_values"]


@dataclass(frozen=True)
class Value:
    """A public value that a record holds or not.

    Parameters
    ----------
    feature : int or None
        Index of a feature; None for the label.
    value : float
        Index of a class, or the feature's value on its public scale, rounded to float32 as in the records.
    """

    feature: int | None
    value: float

    def held_by(self, records: Records) -> NDArray[np.bool_]:
        """Mark the records that hold it: a bool array of shape (n,)."""
        if self.feature is None:
            return records.labels == int(self.value)
        return records.features[:, self.feature] == np.float32(self.value)


def read_values(what: str, schema: Schema) -> tuple[str | None, tuple[Value, ...]]:
    """Read ``class:3,8`` or ``where:column=value,value``.

    Parameters
    ----------
    what : str
        The text; a name that holds a comma or an equals sign is in double quotes.
    schema : Schema
        Public description of a record.

    Returns
    -------
    column : str or None
        The column; None for the target.
    values : tuple of Value
        Classes and categories by name, numbers on the column's public scale.

    Raises
    ------
    ValueError
        If there is no such class, column or category, or a number is outside its public range; the sentence
        has no full stop.
    """
    kind, _, rest = what.partition(":")
    column: str | None = None
    if kind.strip() == "where":
        first, *after = split(rest, "=")
        column, rest = unquote(first), "=".join(after)
    texts = [unquote(text) for text in split(rest, ",")]
    if not all(texts):
        raise ValueError(
            f"{what!r} covers nothing or holds an empty name: write class:3,8 or where:column=value,value"
        )
    if column is None:
        return None, tuple(_class(schema, text) for text in texts)
    return column, tuple(_cell(schema, column, text) for text in texts)


def _class(schema: Schema, name: str) -> Value:
    if name not in schema.classes:
        raise ValueError(
            f"the target {schema.target!r} has no class {name!r}: nearest: {nearest(name, schema.classes)}"
        )
    return Value(None, schema.classes.index(name))


def _cell(schema: Schema, column: str, text: str) -> Value:
    if column == schema.target:
        raise ValueError(f"{column!r} is the target: write class: and names of classes")
    if column == schema.client_column:
        raise ValueError(f"{column!r} is the client column, not a feature: name another column")
    features = _features(schema, column)
    if not features:
        raise ValueError(f"there is no column {column!r}: nearest: {nearest(column, schema.sources)}")
    if _is_choice(schema, column):
        categories = [schema.names[feature].removeprefix(f"{column}=") for feature in features]
        if text not in categories:
            raise ValueError(
                f"the column {column!r} has no category {text!r}: nearest: {nearest(text, categories)}"
            )
        return Value(features[categories.index(text)], 1.0)
    feature = features[0]
    if len(features) > 1:
        channels = [schema.names[channel] for channel in features]
        raise ValueError(f"{column!r} has several channels: name one, {', '.join(channels)}")
    low, high = schema.low[feature], schema.high[feature]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= np.float32(number) <= high:
        raise ValueError(
            f"the column {column!r} has numbers within its public range, {low:g} to {high:g}, not {text!r}:"
            " write one of those"
        )
    row = schema.low.astype(np.float64)
    row[feature] = number
    return Value(feature, float(schema.scale(row)[feature]))


def covers_all(values: Collection[Value], schema: Schema, column: str | None) -> bool:
    """Tell whether every possible record holds one of these values of a column, or of the target (None)."""
    found = {value.feature if column is not None else value.value for value in values}
    if column is None:
        return len(found) == schema.num_classes
    return _is_choice(schema, column) and found == set(_features(schema, column))


def _features(schema: Schema, column: str) -> list[int]:
    """List the features of a column, or the one of this name."""
    named = [feature for feature, source in enumerate(schema.sources) if source == column]
    return named or [feature for feature, name in enumerate(schema.names) if name == column]


def _is_choice(schema: Schema, column: str) -> bool:
    """Tell a column of categories, one feature of 0 or 1 each, from a column of numbers."""
    return all(schema.names[feature].startswith(f"{column}=") for feature in _features(schema, column))
