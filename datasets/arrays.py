"""The public description of an NPZ file's arrays: a small TOML file beside it.

It says which array holds what, the range of a feature, and the classes of each array that may be a target. What
a shape or a type says by itself need not be written. ``docs/images.md`` shows one.
"""

from __future__ import annotations

import json
import math
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import nearest
from fedveil.datasets.description import is_finite
from fedveil.datasets.fields import Choice
from fedveil.datasets.images import image_schema
from fedveil.datasets.schema import Schema

__all__ = ["ArrayDescription", "column_names", "read_array_description"]

_ROLES = ("features", "target", "client")
_BOUNDS = ("low", "high", "baseline")
_LAYOUTS = ("channels-first", "channels-last")
_MOST_CLASSES = 1_000_000  # a slip of the finger must not fill the memory
_KEYS = (*_ROLES, "layout", *_BOUNDS, "classes", "targets")
_KNOWN = {"uint8": (0.0, 255.0, 0.0), "bool": (0.0, 1.0, 0.0)}  # the range of types that have one


def _example(target: str = "y") -> str:
    name = json.dumps(target, ensure_ascii=False)
    return (
        'features = "x"       # images (n, rows, columns), with channels first or last, or numbers (n, p)\n'
        f"target = {name}         # the labels\n"
        "low = 0              # public range of a feature\n"
        "high = 255\n"
        "baseline = 0         # public value of a private feature\n\n"
        f'[classes]            # 10 for whole numbers 0 to 9, or a list of every value, as in ["cat", "dog"]\n'
        f"{name} = 10\n\n"
        f"[targets.{name}]         # or, where numbers are predicted, their public range\n"
        "low = 0\nhigh = 100\n"
    )


@dataclass(frozen=True)
class ArrayDescription:
    """What a schema file says of an NPZ file; nothing where there is no such file.

    Parameters
    ----------
    path : Path
        The schema file, which need not exist.
    roles : mapping
        Names of arrays by what they are for: ``features``, ``target``, ``client``.
    layout : str
        ``"channels-first"`` or ``"channels-last"``; empty where the shape tells.
    bounds : mapping
        ``low``, ``high`` and ``baseline``: a number, or a list of one for each of p features.
    classes : mapping
        Classes of each array that may be the target: a list, or a number n for 0 to n - 1.
    targets : mapping
        Public range of each array that may be predicted as a number, and its baseline or None.
    """

    path: Path
    roles: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""
    bounds: Mapping[str, Any] = field(default_factory=dict)
    classes: Mapping[str, Any] = field(default_factory=dict)
    targets: Mapping[str, tuple[float, float, float | None]] = field(default_factory=dict)

    def choice(self, target: str) -> Choice:
        """Give the classes of a target.

        Raises
        ------
        ValueError
            If the file does not say them, with what to write.
        """
        if target not in self.classes:
            silent = "does not say" if self.path.is_file() else "is not there to say"
            raise ValueError(
                f"{self.path} {silent} which classes the target {target!r} has: they are public, so write them"
                f" there, for example:\n\n{_example(target)}"
            )
        values = self.classes[target]
        if type(values) is int and 2 <= values <= _MOST_CLASSES:
            return Choice(range(values))
        is_list = isinstance(values, list) and all(type(value) in (str, int, float) for value in values)
        if not is_list or len(values) < 2 or len({str(value) for value in values}) < len(values):
            raise ValueError(
                f"{self.path} needs as classes of {target!r} a number from 2 to {_MOST_CLASSES}, or a list of two or"
                ' more different values, as in ["no", "yes"].'
            )
        return Choice(values)

    def arrange(self, values: NDArray[Any], where: str) -> NDArray[Any]:
        """View images as (n, channels, rows, columns); numbers (n, p) stay as they are.

        Parameters
        ----------
        values : array
            The features as the file has them.
        where : str
            File and array, for errors.

        Raises
        ------
        ValueError
            If the shape is none of those, or could be read in two ways.
        """
        if values.ndim not in (2, 3, 4) or 0 in values.shape[1:]:
            raise ValueError(
                f"{where} has shape {values.shape}: write images as (n, rows, columns), (n, channels, rows,"
                " columns) or (n, rows, columns, channels), or numbers as (n, p)."
            )
        if values.ndim < 4 and self.layout:
            raise ValueError(
                f"{self.path}: layout is for arrays of four dimensions, {where} has {values.ndim}."
            )
        if values.ndim == 3:
            return values[:, np.newaxis]
        if values.ndim == 2:
            return values
        is_first, is_last = values.shape[1] in (1, 3), values.shape[3] in (1, 3)
        if not self.layout and is_first == is_last:
            raise ValueError(
                f"{where} has shape {values.shape}, which does not tell where the channels are: write layout ="
                f' "channels-first" or "channels-last" into {self.path}.'
            )
        is_last = self.layout == "channels-last" if self.layout else is_last
        return np.moveaxis(values, -1, 1) if is_last else values

    def schema(
        self, name: str, values: NDArray[Any], target: str, classes: tuple[str, ...], client: str | None
    ) -> Schema:
        """Describe records of these features, which are arranged; only their shape and type are looked at.

        Raises
        ------
        ValueError
            If the range is not known, or the baseline is outside it.
        """
        shape = values.shape[1:]
        low, high, baseline = self.bounds_of(name, values, target)
        if len(shape) == 3:
            bounds = float(low[0]), float(high[0]), float(baseline[0])
            return image_schema(shape, target, classes, *bounds, client_column=client)
        scaled = ((baseline - low) / (high - low)).astype(np.float32)
        edges = low.astype(np.float32), high.astype(np.float32)
        return Schema(
            column_names(name, shape[0]), shape, *edges, scaled, target, classes, client_column=client
        )

    def bounds_of(
        self, name: str, values: NDArray[Any], target: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Give low, high and baseline of every feature, in its own units; only shape and type are looked at.

        Raises
        ------
        ValueError
            If the range is not known, or the baseline is outside it.
        """
        shape, count = values.shape[1:], math.prod(values.shape[1:])
        known = dict(zip(_BOUNDS, _KNOWN.get(values.dtype.name, ()))) | dict(self.bounds)
        absent = [key for key in _BOUNDS if key not in known]
        if absent:
            raise ValueError(
                f"{self.path} does not say {', '.join(absent)} of the features {name!r}, numbers of type"
                f" {values.dtype}: write their public range and baseline there, for example:\n\n{_example(target)}"
            )
        low, high, baseline = (self._bound(key, known[key], count, shape) for key in _BOUNDS)
        if not ((low <= baseline) & (baseline <= high) & (low < high)).all():
            raise ValueError(f"{self.path} needs low < high and a baseline between them for {name!r}.")
        return low, high, baseline

    def _bound(self, key: str, value: Any, count: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Spread a number over all features."""
        numbers = value if isinstance(value, list) else [value]
        if not all(map(is_finite, numbers)):
            raise ValueError(f"{self.path} needs a finite number as {key}, got {reprlib.repr(value)}.")
        if isinstance(value, list) and (len(shape) != 1 or len(numbers) != count):
            raise ValueError(
                f"{self.path} has a list of {len(numbers)} as {key}: write one number for images, and one or"
                f" {count} for {count} features."
            )
        return np.broadcast_to(np.array(numbers, dtype=np.float64), count)


def column_names(name: str, count: int) -> tuple[str, ...]:
    """Name the features of an array of numbers (n, count)."""
    return tuple(f"{name}{index}" for index in range(count))


def read_array_description(path: Path, is_needed: bool) -> ArrayDescription:
    """Read a schema file.

    Parameters
    ----------
    path : Path
        The TOML file.
    is_needed : bool
        Whether a missing file is an error; else it says nothing.

    Raises
    ------
    ValueError
        If the file is missing, is not TOML, or holds something unknown.
    """
    if not path.is_file():
        if is_needed or path.exists():
            raise ValueError(f"There is no schema file {path}: write one, for example:\n\n{_example()}")
        return ArrayDescription(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not valid TOML, since it is not UTF-8: save it as UTF-8.") from None
    except ValueError as error:  # whole numbers of thousands of digits are no TOMLDecodeError
        raise ValueError(f"{path} is not valid TOML: {error}.") from error
    for key in content:
        if key not in _KEYS:
            raise ValueError(f"{path} has the unknown key {key!r}; nearest: {nearest(key, _KEYS)}.")
    roles = {role: content[role] for role in _ROLES if role in content}
    for role, name in roles.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f'{path} needs the name of an array as {role}, as in {role} = "x".')
    layout, classes = content.get("layout", ""), content.get("classes", {})
    if layout not in ("", *_LAYOUTS):
        raise ValueError(f"{path} needs one of {', '.join(_LAYOUTS)} as layout, got {layout!r}.")
    if not isinstance(classes, dict):
        raise ValueError(f"{path} needs the classes by array, as in\n\n{_example()}")
    bounds = {key: content[key] for key in _BOUNDS if key in content}
    return ArrayDescription(path, roles, layout, bounds, classes, _targets(path, content.get("targets", {})))


def _targets(path: Path, tables: Any) -> dict[str, tuple[float, float, float | None]]:
    """Check the public ranges of targets."""
    if not isinstance(tables, dict):
        raise ValueError(f"{path} needs the targets' ranges by array, as in\n\n{_example()}")
    ranges = {}
    for name, table in tables.items():
        keys = table.keys() if isinstance(table, dict) else set()
        if not {"low", "high"} <= keys <= set(_BOUNDS) or not all(map(is_finite, table.values())):
            raise ValueError(
                f"{path} needs finite numbers, low, high and perhaps baseline, as the range of the target {name!r}."
            )
        low, high = float(table["low"]), float(table["high"])
        baseline = float(table["baseline"]) if "baseline" in keys else None
        if not low < high or not (baseline is None or low <= baseline <= high):
            raise ValueError(f"{path} needs low < high, and a baseline between, for the target {name!r}.")
        ranges[name] = low, high, baseline
    return ranges
