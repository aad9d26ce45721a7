"""The arrays of an NPZ file by what they are for, none pickled; errors quote no value, and no name that nobody gave."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.arrays import ArrayDescription

__all__ = ["check_finite", "check_length", "check_like", "choose_arrays", "read_array", "read_features"]

_BLOCK = 1 << 22  # values looked at at a time


def choose_arrays(
    source: Path, description: ArrayDescription, target: str | None, client: str | None
) -> tuple[str, str, str | None]:
    """Choose the arrays of features, labels and clients; the configuration wins over the schema file."""
    with _opened(source) as file:
        found = list(file)
    target, client = target or description.roles.get("target"), client or description.roles.get("client")
    if target is None:
        raise ValueError(
            f"Which array of {source} holds the labels is not said: set target, or write target = into"
            f" {description.path}, one of the {len(found)} arrays that numpy.load({source.name!r}).files lists."
        )
    _check_there(source, target, "target", found)
    _check_there(source, client, "client", found)
    others = [name for name in found if name not in (target, client)]
    features = description.roles.get("features") or (others[0] if len(others) == 1 else None)
    if features is None:
        raise ValueError(
            f'Which array of {source} holds the features is not said: write features = "x" into'
            f" {description.path}, one of the {len(found)} arrays that numpy.load({source.name!r}).files lists."
        )
    if len({features, target, client}) < 3:
        raise ValueError(
            f"{source}: features {features!r}, target {target!r} and client {client!r} must be different arrays."
        )
    return features, target, client


def _opened(source: Path) -> Any:
    """Open an NPZ file; its arrays are read when they are asked for."""
    if not source.is_file():
        what = f"{source} is a folder" if source.is_dir() else f"There is no data file {source}"
        raise ValueError(f"{what}: give the path of an NPZ file.")
    with source.open("rb") as file:  # is_zipfile takes a file that cannot be read for one that is no archive
        is_whole = zipfile.is_zipfile(file)
    if not is_whole:
        raise ValueError(
            f"{source} is not a whole NPZ file: write it with numpy.savez, or copy it again if it was one."
        )
    try:
        return np.load(source, allow_pickle=False)
    except (ValueError, NotImplementedError, zipfile.BadZipFile):
        raise ValueError(
            f"{source} has a damaged list of its arrays and cannot be read: copy it again, or write it again with"
            " numpy.savez."
        ) from None


def _check_there(source: Path, name: str | None, role: str, found: Sequence[str]) -> None:
    if name is not None and name not in found:
        raise ValueError(
            f"{source} has no array {name!r} for the {role}: correct the name, or save the array under it."
        )


def read_array(source: Path, name: str, role: str, kinds: str, allowed: str) -> NDArray[Any]:
    """Read one array, of these kinds of type only."""
    with _opened(source) as file:
        _check_there(source, name, role, file.files)
        try:
            values = np.asarray(file[name])
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            raise ValueError(
                f"{source}, array {name!r} is damaged or holds pickled objects, which are not read: save it again"
                f" as {allowed}."
            ) from None
        except (MemoryError, OverflowError, RuntimeError, tokenize.TokenError):
            raise ValueError(
                f"{source}, array {name!r} cannot be read, being encrypted, compressed in an unknown way, of a type"
                f" with too many parts or larger than the memory: save it again as {allowed}."
            ) from None
    if values.dtype.kind not in kinds:
        raise ValueError(f"{source}, array {name!r} is of type {values.dtype}: save it as {allowed}.")
    return values


def read_features(source: Path, description: ArrayDescription, name: str) -> NDArray[Any]:
    """Read the array of features, arranged and finite, with at least one row."""
    where = f"{source}, array {name!r}"
    values = read_array(source, name, "features", "biuf", "numbers")
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"{where} has no rows: bring at least one record.")
    values = description.arrange(values, where)
    check_finite(values, where, "write the public baseline where a value is missing")
    return values


def check_finite(values: NDArray[Any], where: str, cure: str) -> None:
    """Refuse NaN and infinite numbers, some rows at a time."""
    if values.dtype.kind != "f":
        return
    step = max(1, _BLOCK // math.prod(values.shape[1:]))
    for start in range(0, len(values), step):
        part = values[start : start + step]
        finite = np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"{where}, row {start + int(np.argmin(finite))} holds NaN or an infinite number: {cure}."
            )


def check_length(source: Path, name: str, column: NDArray[Any], features: str, count: int) -> None:
    """Refuse a column that has not one value for each record."""
    if column.shape != (count,):
        raise ValueError(
            f"{source}, array {name!r} has shape {column.shape}, but {features!r} has {count} rows: write one value for"
            " each."
        )


def check_like(other: Path, test: NDArray[Any], source: Path, train: NDArray[Any], name: str) -> None:
    """Refuse test records of another shape or type than the others."""
    shapes = test.shape[1:], train.shape[1:]
    if shapes[0] != shapes[1] or test.dtype != train.dtype:
        raise ValueError(
            f"{other}, array {name!r} has records of shape {shapes[0]} and type {test.dtype}, but {source} has"
            f" {shapes[1]} and {train.dtype}: bring test records like the others."
        )
