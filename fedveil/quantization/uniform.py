"""Uniform quantization: codes at equal distances, with or without a zero point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedveil.quantization.packing import Alphabet
from fedveil.quantization.scheme import Grid, Scheme

__all__ = ["Uniform"]

_BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Uniform(Scheme):
    """b-bit codes at equal distances.

    Symmetric: codes -L .. L with L = 2^(b-1) - 1, scale max|w|/L; the code of 0 is 0, and one of the 2^b values is
    not used, so 2 bits give the three codes -1, 0 and 1. Asymmetric: codes 0 .. 2^b - 1, scale (high - low)/(2^b - 1)
    over the range of the block's weights and 0, and the integer zero point that is nearest to -low/scale, so 0 stays
    0 exactly. Rounding is half to even, and what is outside gets the nearest code. In a block of scale 0 all codes
    stand for 0.

    Parameters
    ----------
    bits : {2, 3, 4, 8}
        b.
    symmetric : bool
        Whether zero points are left out.

    Raises
    ------
    ValueError
        If a setting is not allowed.
    """

    kind: ClassVar[str] = "uniform"

    bits: int
    symmetric: bool = True

    def __post_init__(self) -> None:
        """Check bits and symmetry."""
        super().__post_init__()
        if isinstance(self.bits, bool) or self.bits not in _BITS:
            raise ValueError(f"bits = {self.bits!r} is not allowed: give 2, 3, 4 or 8.")
        if not isinstance(self.symmetric, bool):
            raise ValueError(f"symmetric = {self.symmetric!r} is not allowed: give True or False.")
        object.__setattr__(self, "bits", int(self.bits))

    @property
    def base_name(self) -> str:
        """``int4`` for symmetric, ``uint4`` for asymmetric codes of 4 bits."""
        return f"{'int' if self.symmetric else 'uint'}{self.bits}"

    @property
    def alphabet(self) -> Alphabet:
        """The codes, each in b bits."""
        lowest = -self._levels if self.symmetric else 0
        return Alphabet(lowest=lowest, step=1, size=self._levels - lowest + 1, bits=self.bits)

    @property
    def has_zero_points(self) -> bool:
        """Whether codes are asymmetric."""
        return not self.symmetric

    @property
    def _levels(self) -> int:
        """The highest code."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    def fit(self, blocks: NDArray[np.float64]) -> Grid:
        """Scale and zero point from the block's range."""
        if self.symmetric:
            return Grid((np.abs(blocks).max(axis=1) / self._levels).astype(np.float32))
        low = np.minimum(blocks.min(axis=1), 0.0)
        high = np.maximum(blocks.max(axis=1), 0.0)
        scales = (np.abs(high - low) / self._levels).astype(np.float32)  # abs: 0 - 0 may be -0
        below = np.divide(-low, scales, out=np.zeros_like(low), where=scales > 0)
        return Grid(scales, zero_points=np.clip(np.rint(below), 0, self._levels).astype(np.uint8))

    def encode(self, blocks: NDArray[np.float64], grid: Grid) -> NDArray[Any]:
        """clip(round(w/scale) + zero point)."""
        scales = grid.scales[:, None].astype(np.float64)
        steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
        np.rint(steps, out=steps)
        if grid.zero_points is not None:
            steps += grid.zero_points[:, None]
        lowest = -self._levels if self.symmetric else 0
        return np.clip(steps, lowest, self._levels, out=steps).astype(self.alphabet.dtype)
