"""The public description of a regression's record: features standardised by public constants, and a number to predict.

Everything in a schema is public and the same for every client, as in :mod:`fedveil.datasets.schema`: no feature of a
record depends on another record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["RegressionSchema"]

_BLOCK = 1 << 22  # values standardised at a time, in float64


@dataclass(frozen=True, eq=False)
class RegressionSchema:
    """The public description of one record: its features, their ranges, and the number to predict.

    Parameters
    ----------
    names : tuple of str
        Names of the d features, all different. A category column is one feature of 0 or 1, ``column=category``, for
        each category but its baseline: with all of them and an intercept no coefficient would be identified.
    low, high, baseline : float64 arrays of shape (d,)
        Public range, and public value of a missing cell, in each feature's own units.
    target : str
        Name of the column to predict; it is not a feature.
    target_low, target_high : float, optional
        Public range of the target in its own units; None where the description has none.
    sources : tuple of str, optional
        The column each feature comes from; the names themselves when not given.
    target_baseline : float, optional
        Public value of a missing target in its own units; None where the description has none.

    Raises
    ------
    ValueError
        If the parts do not fit together.
    """

    names: tuple[str, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    baseline: NDArray[np.float64]
    target: str
    target_low: float | None = None
    target_high: float | None = None
    sources: tuple[str, ...] = ()
    target_baseline: float | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        if not self.sources:
            object.__setattr__(self, "sources", self.names)
        count = len(self.names)
        if count == 0 or len(self.sources) != count:
            raise ValueError("A schema needs at least one feature, and one source column for each.")
        if len(set(self.names)) < count:
            double = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(
                f"Two features are named {double!r}, a column and a category: rename the column."
            )
        for part in ("low", "high", "baseline"):
            value = getattr(self, part)
            if value.shape != (count,) or value.dtype != np.float64 or not np.all(np.isfinite(value)):
                raise ValueError(
                    f"A schema's {part} must be {count} finite float64 values, one for each feature."
                )
        fits = (self.low <= self.baseline) & (self.baseline <= self.high) & (self.low < self.high)
        if not fits.all():
            name = self.names[int(np.argmin(fits))]
            raise ValueError(f"The public range of {name!r} needs low < high and a baseline between them.")
        with np.errstate(over="ignore", under="ignore"):
            usable = np.isfinite(self.high - self.low) & (self.half_range > 0)
        if not usable.all():
            raise ValueError(
                f"The public range of {self.names[int(np.argmin(usable))]!r} is too wide or too narrow to divide by:"
                " write the column in other units."
            )
        self._check_target()

    def _check_target(self) -> None:
        """Refuse a range of the target that is none."""
        low, high, baseline = self.target_low, self.target_high, self.target_baseline
        given = [value for value in (low, high, baseline) if value is not None]
        is_empty = low is not None and high is not None and low >= high
        if (low is None) != (high is None) or is_empty or not np.isfinite(given).all():
            raise ValueError(
                f"The target {self.target!r} needs both ends of a finite public range with low < high, or none."
            )
        if baseline is not None and low is not None and high is not None and not low <= baseline <= high:
            raise ValueError(
                f"The baseline of the target {self.target!r} is outside its public range: choose one within."
            )

    @property
    def num_features(self) -> int:
        """Number d of features of one record, without the intercept."""
        return len(self.names)

    @property
    def num_columns(self) -> int:
        """Number of columns that the features come from: a column of categories counts once."""
        return len(set(self.sources))

    @property
    def center(self) -> NDArray[np.float64]:
        """What standardising takes away, of shape (d,): the baseline, or 0 for a feature of range 0 to 1."""
        return np.where(self._is_unit, 0.0, self.baseline)

    @property
    def half_range(self) -> NDArray[np.float64]:
        """What standardising divides by, of shape (d,): half the width of the range, or 1 for a range of 0 to 1."""
        return np.where(self._is_unit, 1.0, self.high / 2 - self.low / 2)

    @property
    def _is_unit(self) -> NDArray[np.bool_]:
        return (self.low == 0.0) & (self.high == 1.0)

    def standardise(self, values: ArrayLike) -> NDArray[np.float32]:
        """Clip values to their public ranges, then ``(value - center) / half_range``.

        Parameters
        ----------
        values : array of shape (n, d)
            Features in their own units. NaN stays NaN, which records of a regression refuse.

        Returns
        -------
        float32 array of shape (n, d)
            In [-2, 2]. Each value depends on that value and on public constants only.
        """
        values = np.asarray(values)
        if values.ndim != 2 or values.shape[1] != self.num_features:
            raise ValueError(
                f"Records of shape {values.shape} do not hold {self.num_features} features each: give (n,"
                f" {self.num_features})."
            )
        scaled = np.empty(values.shape, dtype=np.float32)
        center, half_range = self.center, self.half_range
        step = max(1, _BLOCK // self.num_features)
        for start in range(0, len(values), step):
            part = np.clip(values[start : start + step].astype(np.float64), self.low, self.high)
            scaled[start : start + step] = (part - center) / half_range
        return scaled

    def in_own_units(self, coefficients: ArrayLike) -> NDArray[np.float64]:
        """Tell the coefficients of standardised features as those of the columns in their own units.

        Parameters
        ----------
        coefficients : array of shape (d + 1,)
            Slopes, then the intercept.

        Returns
        -------
        float64 array of shape (d + 1,)
            Change of the target for a feature's change by one unit, then the target where every feature is 0: the
            same predictions for features within their ranges.
        """
        given = np.asarray(coefficients, dtype=np.float64)
        if given.shape != (self.num_features + 1,):
            raise ValueError(
                f"Coefficients of shape {given.shape} are not {self.num_features} slopes and an intercept: give one for"
                " each feature, and the intercept last."
            )
        slopes = given[:-1] / self.half_range
        return np.append(slopes, given[-1] - slopes @ self.center)

    def target_range(self) -> tuple[float, float]:
        """The public range of the target, which the privacy of labels needs.

        Raises
        ------
        ValueError
            If the description has none, with what to write.
        """
        if self.target_low is None or self.target_high is None:
            raise ValueError(
                f"The target {self.target!r} has no public range, so the noise that hides one record's value is not"
                " known: write its low and high, which anybody may know, into the public description of the data, or"
                " leave the privacy of labels off."
            )
        return self.target_low, self.target_high

    @property
    def target_center(self) -> float:
        """What a private target is told from, in its own units: its baseline, or the middle of its public range.

        An error as in :meth:`target_range`.
        """
        low, high = self.target_range()
        return low / 2 + high / 2 if self.target_baseline is None else self.target_baseline

    @property
    def target_half_range(self) -> float:
        """Half the width of the target's public range, in its own units; an error as in :meth:`target_range`."""
        low, high = self.target_range()
        return high / 2 - low / 2
