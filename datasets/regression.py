"""What a data set is for a regression: one record a client, in memory or made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.regression_schema import RegressionSchema

__all__ = ["RegressionData", "RegressionRecords", "RegressionSchema", "rows_of"]


@dataclass(frozen=True, eq=False)
class RegressionRecords:
    """Records, one of each client.

    Parameters
    ----------
    features : float32 array of shape (n, d)
        Standardised by the schema's public constants.
    targets : float64 array of shape (n,)
        In the target's own units, and not clipped to its range.

    Raises
    ------
    ValueError
        If a shape or a dtype is another, or a number is not finite; rows are counted from 0, and no value is told.
    """

    features: NDArray[np.float32]
    targets: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Refuse arrays of another shape or dtype, and what is not a finite number."""
        if self.features.ndim != 2 or self.features.dtype != np.float32:
            raise ValueError(
                f"Features must be float32 of shape (n, d), got {self.features.dtype} of {self.features.shape}."
            )
        if self.targets.shape != (len(self.features),) or self.targets.dtype != np.float64:
            raise ValueError(
                f"Targets must be {len(self.features)} float64 values, one for each record, got"
                f" {self.targets.dtype} of shape {self.targets.shape}."
            )
        for what, values in (("feature", self.features), ("target", self.targets)):
            finite = np.isfinite(values)
            if not finite.all():
                row = int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))
                raise ValueError(
                    f"Row {row} has a {what} that is NaN or infinite, but every number must be finite: correct it, or"
                    " for a feature take the public baseline."
                )

    def __len__(self) -> int:
        """Count the records."""
        return len(self.targets)

    def take(self, rows: NDArray[np.int64] | slice) -> RegressionRecords:
        """The records at these rows, in this order; those of a slice share their memory."""
        return RegressionRecords(self.features[rows], self.targets[rows])


@dataclass(frozen=True, eq=False)
class RegressionData:
    """A named data set of n clients with one record each, and the server's public test set.

    Parameters
    ----------
    name : str
        Name for people.
    schema : RegressionSchema
        Public description of one record.
    num_records : int
        Number n of clients, public; client i holds record i.
    rows : callable
        ``rows(first, last)`` gives the records of clients first to last - 1, the same however they are asked for.
        What is not held in memory is made or read when it is asked for.
    test : RegressionRecords
        Public records that the server evaluates; empty where it has a test set of its own.
    scaled : str
        How the features were standardised, in words that hold public constants only.
    """

    name: str
    schema: RegressionSchema
    num_records: int
    rows: Callable[[int, int], RegressionRecords]
    test: RegressionRecords
    scaled: str = ""


def rows_of(
    take: Callable[[int, int], RegressionRecords], num_records: int
) -> Callable[[int, int], RegressionRecords]:
    """Refuse a range of rows that is not within 0 to ``num_records`` before ``take`` is asked for it."""

    def rows(first: int, last: int) -> RegressionRecords:
        if not 0 <= first <= last <= num_records:
            raise ValueError(
                f"Rows {first} to {last} are not within 0 to {num_records}: ask for clients that there are."
            )
        return take(first, last)

    return rows
