"""What every quantizer has: a granularity, codes, a rule that fits scales, and a rule that gives codes on them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedveil.quantization.blocks import GRANULARITIES, Blocks, Granularity
from fedveil.quantization.packing import Alphabet

__all__ = ["Grid", "Scheme", "nearest", "read_scheme"]

_MAX_GROUP = 1 << 31


@dataclass(frozen=True, eq=False)
class Grid:
    """What the codes of blocks are measured by; all arrays have one shape, one value for each block.

    Parameters
    ----------
    scales : float32 array
        At least 0. A code stands for ``scale * (code - zero_point)``, so where the scale is 0 every code stands for 0.
    zero_points : uint8 array or None
        The code of 0, where it is not 0.
    thresholds : float64 array or None
        For ternary: the magnitude of the smallest weight that is kept.
    first_kept : int64 array or None
        For ternary: position in its block of that weight; equal magnitudes at earlier positions become 0.
    """

    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8] | None = None
    thresholds: NDArray[np.float64] | None = None
    first_kept: NDArray[np.int64] | None = None

    def parts(self, cut: Callable[[NDArray[Any]], list[NDArray[Any]]]) -> list[Grid]:
        """Cut every array in the same way, into one grid a part."""
        given = {item.name: cut(getattr(self, item.name)) for item in fields(self) if self._has(item.name)}
        count = len(given["scales"])
        return [Grid(**{name: parts[index] for name, parts in given.items()}) for index in range(count)]

    @classmethod
    def joined(cls, grids: list[Grid], join: Callable[[list[NDArray[Any]]], NDArray[Any]]) -> Grid:
        """Join grids array by array."""
        names = [item.name for item in fields(cls) if grids[0]._has(item.name)]
        return cls(**{name: join([getattr(grid, name) for grid in grids]) for name in names})

    def repeated(self, count: int) -> Grid:
        """The grid of so many arrays in the same blocks, one after the other."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if self._has(item.name)}
        return Grid(**{name: np.tile(values, (count, 1)) for name, values in given.items()})

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A quantizer's settings; a quantizer of one's own is a frozen dataclass that inherits from this.

    Parameters
    ----------
    granularity : {"tensor", "channel", "group"}
        Which weights share a scale; see :class:`Blocks`.
    group_size : int, optional
        Weights in a group; given with granularity "group", and only then.

    Raises
    ------
    ValueError
        If a setting is not allowed.
    """

    kind: ClassVar[str]
    """What :meth:`to_json` calls the class; no two classes share one."""

    granularity: Granularity = "tensor"
    group_size: int | None = None

    def __post_init__(self) -> None:
        """Check the granularity."""
        if self.granularity not in GRANULARITIES:
            raise ValueError(
                f"granularity = {self.granularity!r} is not allowed: give {' or '.join(GRANULARITIES)}"
                f"{nearest(self.granularity, GRANULARITIES)}."
            )
        if self.granularity != "group":
            if self.group_size is not None:
                raise ValueError(
                    f"group_size = {self.group_size!r} is not allowed with granularity = {self.granularity!r}: "
                    "leave it out, or set granularity = 'group'."
                )
            return
        size = self.group_size
        if isinstance(size, bool) or not isinstance(size, Integral) or not 1 <= int(size) <= _MAX_GROUP:
            raise ValueError(
                f"group_size = {size!r} is not allowed: granularity = 'group' needs a whole number from 1 to 2^31."
            )
        object.__setattr__(self, "group_size", int(size))

    @property
    @abstractmethod
    def base_name(self) -> str:
        """The quantizer as a user types it, without its granularity."""

    @property
    @abstractmethod
    def alphabet(self) -> Alphabet:
        """The codes it gives, and how they are packed."""

    @property
    def has_zero_points(self) -> bool:
        """Whether every block has a zero point."""
        return False

    @abstractmethod
    def fit(self, blocks: NDArray[np.float64]) -> Grid:
        """Fit the grid of every block.

        Parameters
        ----------
        blocks : float64 array, shape (blocks, weights)
            Finite, at least one weight.

        Returns
        -------
        Grid
            Of shape (blocks,).
        """

    @abstractmethod
    def encode(self, blocks: NDArray[np.float64], grid: Grid) -> NDArray[Any]:
        """Give the codes of weights on a grid, which may be that of other weights.

        Parameters
        ----------
        blocks : float64 array, shape (blocks, weights)
        grid : Grid
            Of shape (blocks,).

        Returns
        -------
        array of the alphabet's data type, shape (blocks, weights)
        """

    @property
    def name(self) -> str:
        """The scheme as a user types it; equal names are equal schemes."""
        if self.granularity == "tensor":
            return self.base_name
        suffix = "channel" if self.granularity == "channel" else f"group-{self.group_size}"
        return f"{self.base_name}/{suffix}"

    def blocks(self, shape: tuple[int, ...]) -> Blocks:
        """The blocks of an array of this shape."""
        return Blocks(shape, self.granularity, self.group_size)

    def to_json(self) -> str:
        """Write the settings as one JSON object, compact and with sorted keys."""
        settings = {item.name: getattr(self, item.name) for item in fields(self)}
        given = {name: value for name, value in settings.items() if value is not None}
        return json.dumps({"scheme": self.kind, **given}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` of this class wrote.

        Raises
        ------
        ValueError
            If it is not JSON, of another class, or a setting is unknown, missing or not allowed.
        """
        return cast(Self, read_scheme(text, (cls,)))


def read_scheme(text: str, classes: Iterable[type[Scheme]]) -> Scheme:
    """Read what :meth:`Scheme.to_json` of one of these classes wrote.

    Raises
    ------
    ValueError
        If it is not JSON, none of these classes, or a setting is unknown, missing or not allowed.
    """
    try:
        settings = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"A scheme is one JSON object, and this is none ({error}): give to_json()'s."
        ) from error
    known = {one.kind: one for one in classes}
    kind = settings.pop("scheme", None) if isinstance(settings, dict) else None
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"scheme = {kind!r} is not known: give {' or '.join(known)}{nearest(kind, known)}; a quantizer of a plugin "
            "needs that plugin."
        )
    found = known[kind]
    allowed = [item.name for item in fields(found)]
    for name in settings:
        if name not in allowed:
            raise ValueError(
                f"scheme {kind!r} has no setting {name!r}: it has {', '.join(allowed)}{nearest(name, allowed)}."
            )
    try:
        return found(**settings)
    except TypeError as error:  # a setting without a default is missing
        raise ValueError(f"scheme {kind!r} cannot be built from {text}: {error}.") from error


def nearest(word: object, words: Iterable[str]) -> str:
    """Name the word that was probably meant, as a clause that follows a list of all; empty if none is near."""
    near = get_close_matches(str(word), list(words), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
