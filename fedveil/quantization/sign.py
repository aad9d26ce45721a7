"""Sign quantization: one bit a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedveil.quantization.packing import Alphabet
from fedveil.quantization.scheme import Grid, Scheme

__all__ = ["Sign", "absolute_mean"]


@dataclass(frozen=True)
class Sign(Scheme):
    """Codes -1 and +1, scale the mean of |w| over the block (1 bit; arXiv 2502.06567).

    A weight of 0 has code +1. In a block of scale 0 all codes are +1.
    """

    kind: ClassVar[str] = "sign"

    @property
    def base_name(self) -> str:
        """``sign``."""
        return "sign"

    @property
    def alphabet(self) -> Alphabet:
        """-1 and +1, eight a byte."""
        return Alphabet(lowest=-1, step=2, size=2, bits=1)

    def fit(self, blocks: NDArray[np.float64]) -> Grid:
        """Scale: mean |w|."""
        return Grid(absolute_mean(blocks))

    def encode(self, blocks: NDArray[np.float64], grid: Grid) -> NDArray[np.int8]:
        """-1 for negative weights, else +1."""
        negative = (blocks < 0) & (grid.scales[:, None] > 0)
        # arithmetic, not a choice: a processor guesses signs wrong every other time
        return np.int8(1) - np.int8(2) * negative.view(np.int8)


def absolute_mean(blocks: NDArray[np.float64]) -> NDArray[np.float32]:
    """Mean of |w| of every block, summed in float64 and rounded to float32."""
    return np.abs(blocks).mean(axis=1).astype(np.float32)
