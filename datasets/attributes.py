"""Private attributes: the features a column name or an image rectangle marks, and records without them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

__all__ = ["column_mask", "nearest", "region_mask", "split_columns", "with_baseline"]

_REGION = re.compile(r"\s*(\d+)\s*:\s*(\d+)\s*,\s*(\d+)\s*:\s*(\d+)\s*")


def nearest(name: str, known: Iterable[str]) -> str:
    """Quote the known names nearest to a wrong one, or the first ten of them."""
    known = list(dict.fromkeys(known))
    return ", ".join(map(repr, get_close_matches(name, known, n=3, cutoff=0.5) or known[:10]))


def column_mask(
    columns: str | Iterable[str],
    names: Sequence[str],
    sources: Sequence[str],
    others: Mapping[str, str],
    is_image: bool = False,
) -> NDArray[np.bool_]:
    """Mark the features of the given columns; see :meth:`fedveil.datasets.schema.Schema.columns`.

    ``others`` says of columns that are no features what they are.
    """
    mask = np.zeros(len(names), dtype=np.bool_)
    for column in split_columns(columns) if isinstance(columns, str) else columns:
        if not column:
            raise ValueError(
                f"Private columns {columns!r} hold an empty name: write names with one comma between, as in"
                " 'age,job'."
            )
        chosen = np.array([column in pair for pair in zip(names, sources, strict=True)])
        if not chosen.any() and is_image and column not in others:
            raise ValueError(
                f"Unknown private pixels {column!r}: name a rectangle of the image as rows,columns, as in"
                " '10:18,10:18'."
            )
        if not chosen.any():
            hint = (
                f"it is {others[column]}, not a feature" if column in others else "no feature has this name"
            )
            raise ValueError(
                f"Unknown private column {column!r}: {hint}; nearest: {nearest(column, (*sources, *names))}."
            )
        mask |= chosen
    return mask


def split_columns(columns: str) -> list[str]:
    """Split a line of names at its commas; a name that holds one is in double quotes.

    Raises
    ------
    ValueError
        If a quote is never closed, or there are several lines.
    """
    try:
        return [name.strip() for line in csv.reader([columns], skipinitialspace=True) for name in line]
    except csv.Error:
        raise ValueError(
            f"Private columns {columns!r} cannot be read: write names with one comma between on one line, as in"
            " 'age,job'."
        ) from None


def region_mask(region: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mark the pixels of a rectangle; see :meth:`fedveil.datasets.schema.Schema.region`."""
    if len(shape) < 2:
        raise ValueError(
            f"Region {region!r} was given for a table, which has no pixels: name columns instead."
        )
    rows, columns = shape[-2:]
    match = _REGION.fullmatch(region)
    if match is None:
        raise ValueError(f"Region {region!r} is not understood: write rows,columns as in '10:18,10:18'.")
    top, bottom, left, right = map(int, match.groups())
    if not (top < bottom <= rows and left < right <= columns):
        raise ValueError(
            f"Region {region!r} is empty or outside the image: its rows must lie within 0:{rows} and its"
            f" columns within 0:{columns}."
        )
    mask = np.zeros(shape, dtype=np.bool_)
    mask[..., top:bottom, left:right] = True
    return mask.reshape(-1)


def with_baseline(
    features: NDArray[np.float32], mask: NDArray[np.bool_], baseline: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Copy features with the marked ones at their public baseline.

    Parameters
    ----------
    features : float32 array of shape (n, p)
        Scaled features.
    mask : bool array of shape (p,)
        The private attributes.
    baseline : float32 array of shape (p,)
        ``Schema.baseline``.

    Returns
    -------
    float32 array of shape (n, p)
        A new array that does not depend on the private attributes: two data sets that differ only in the
        private attributes of one record (attribute neighbours) give the same one.

    Raises
    ------
    ValueError
        If mask or baseline has another length than a record.
    """
    if mask.shape != features.shape[1:] or baseline.shape != features.shape[1:]:
        raise ValueError(
            f"A mask of shape {mask.shape} and a baseline of shape {baseline.shape} do not fit records of"
            f" shape {features.shape[1:]}: take both from the records' schema."
        )
    return np.where(mask, baseline, features).astype(np.float32)
