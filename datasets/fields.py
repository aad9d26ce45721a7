"""What the cells of one column become: features, a label, or the name of a client."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

__all__ = ["Choice", "Field", "Label", "OneHot", "Owner", "Quantity", "Range", "Thresholds"]

T_co = TypeVar("T_co", covariant=True)


class Field(Protocol[T_co]):
    """A column of the file, read one cell at a time."""

    @property
    def column(self) -> str:
        """Name of the column."""

    @property
    def allowed(self) -> str:
        """What a cell may hold, in words for an error."""

    @property
    def listed(self) -> Collection[str]:
        """Texts that are values even where the description counts them as missing."""

    @property
    def baseline(self) -> T_co | None:
        """What a missing cell becomes; None where a missing cell is an error."""

    def encode(self, cell: str) -> T_co:
        """Read a cell that is not missing; ValueError if it holds something that is not allowed."""


def _number(cell: str) -> float:
    """Read a finite number; Python alone would also take "1_000", "nan" and "inf"."""
    value = float(cell)
    if "_" in cell or not math.isfinite(value):
        raise ValueError
    return value


class Choice:
    """A public list of values, found by text or, for numbers, by value ("1" is "1.0").

    Parameters
    ----------
    values : sequence of str, int or float
        All different.
    """

    def __init__(self, values: Sequence[str | int | float]) -> None:
        self.names = tuple(str(value) for value in values)
        self._by_text = {name: index for index, name in enumerate(self.names)}
        self._by_number = {float(v): i for i, v in enumerate(values) if not isinstance(v, str)}

    def index(self, cell: str) -> int:
        """Position of the cell's value in the list; ValueError if it is not there."""
        found = self._by_text.get(cell)
        if found is None and self._by_number:
            found = self._by_number.get(float(cell))
        if found is None:
            raise ValueError
        return found

    def __str__(self) -> str:
        """List the values for an error."""
        return ", ".join(self.names)


@dataclass(frozen=True)
class Range:
    """A number with a public range: one feature; low, high and baseline are in the column's units."""

    column: str
    low: tuple[float]
    high: tuple[float]
    baseline: tuple[float]
    listed: tuple[str, ...] = ()
    allowed: str = "a finite number"

    @property
    def names(self) -> tuple[str]:
        """Name of the one feature."""
        return (self.column,)

    def encode(self, cell: str) -> tuple[float]:
        """Read a finite number; clipping to the range comes with scaling."""
        return (_number(cell),)


@dataclass(frozen=True)
class OneHot:
    """A text or number out of a public list: one feature of 0 or 1 for each, as a row of the unit matrix."""

    column: str
    choice: Choice
    default: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(f"{self.column}={name}" for name in self.choice.names)

    @property
    def low(self) -> tuple[float, ...]:
        """Zeros."""
        return (0.0,) * len(self.choice.names)

    @property
    def high(self) -> tuple[float, ...]:
        """Ones."""
        return (1.0,) * len(self.choice.names)

    @property
    def baseline(self) -> tuple[float, ...]:
        """The default category's row."""
        return self._row(self.default)

    @property
    def listed(self) -> tuple[str, ...]:
        """The categories' texts."""
        return self.choice.names

    @property
    def allowed(self) -> str:
        """The categories, for an error."""
        return f"one of the categories {self.choice}"

    def encode(self, cell: str) -> tuple[float, ...]:
        """Read one of the categories."""
        return self._row(self.choice.index(cell))

    def _row(self, chosen: int) -> tuple[float, ...]:
        return tuple(float(index == chosen) for index in range(len(self.choice.names)))


@dataclass(frozen=True)
class Label:
    """The target as a text or number out of a public list of classes."""

    column: str
    choice: Choice
    baseline: int | None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.choice.names

    @property
    def listed(self) -> tuple[str, ...]:
        """The classes' texts."""
        return self.choice.names

    @property
    def allowed(self) -> str:
        """The classes, for an error."""
        return f"one of the classes {self.choice}"

    def encode(self, cell: str) -> int:
        """Read one of the classes."""
        return self.choice.index(cell)


@dataclass(frozen=True)
class Thresholds:
    """The target as a number cut into classes at public thresholds; each begins the class above it."""

    column: str
    cuts: tuple[float, ...]
    baseline: int | None
    listed: tuple[str, ...] = ()
    allowed: str = "a finite number"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        between = [f"{low:g} to {high:g}" for low, high in pairwise(self.cuts)]
        return (f"below {self.cuts[0]:g}", *between, f"{self.cuts[-1]:g} and above")

    def encode(self, cell: str) -> int:
        """Read a finite number."""
        return self.classify(_number(cell))

    def classify(self, value: float) -> int:
        """Count the thresholds at or below a number."""
        return int(np.searchsorted(self.cuts, value, side="right"))


@dataclass(frozen=True)
class Quantity:
    """The target as the number that it is; its public range is None where the description has none."""

    column: str
    low: float | None
    high: float | None
    baseline: float | None
    listed: tuple[str, ...] = ()
    allowed: str = "a finite number"

    def encode(self, cell: str) -> float:
        """Read a finite number, which is not clipped."""
        return _number(cell)


@dataclass(frozen=True)
class Owner:
    """The client column: whose record a row is. A missing one is an error."""

    column: str
    baseline: None = None
    listed: tuple[str, ...] = ()
    allowed: str = "the name of a client"

    def encode(self, cell: str) -> str:
        """Take the cell as it is."""
        return cell
