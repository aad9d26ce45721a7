"""Ternary quantization: codes -1, 0 and +1, log2(3) = 1.58 bits a weight."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedveil.quantization.packing import Alphabet
from fedveil.quantization.scheme import Grid, Scheme
from fedveil.quantization.sign import absolute_mean

__all__ = ["AbsmeanTernary", "Ternary"]

_CODES = Alphabet(lowest=-1, step=1, size=3, bits=None)


@dataclass(frozen=True)
class Ternary(Scheme):
    """Ternary codes with a fixed share of zeros (arXiv 2502.06567: 33 % and 90 %).

    Of the n weights of a block the round(s n) smallest in magnitude become 0 (half to even, at most n - 1; of equal
    magnitudes the earlier ones), the others their sign. The scale is the mean magnitude of the others. A weight that
    is 0 has code 0 in any case and does not count for the scale.

    Parameters
    ----------
    sparsity : float
        s, in (0, 1).

    Raises
    ------
    ValueError
        If a setting is not allowed.
    """

    kind: ClassVar[str] = "ternary"

    sparsity: float

    def __post_init__(self) -> None:
        """Check the sparsity."""
        super().__post_init__()
        value = self.sparsity
        # a percentage is what names have; sparsity = 33 would else be taken for a number that is merely too large
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1:
            raise ValueError(
                f"sparsity = {value!r} is not allowed: give the share of weights that become 0, above 0 and below 1."
            )
        object.__setattr__(self, "sparsity", float(value))

    @property
    def base_name(self) -> str:
        """``ternary-<percent>``, for example ``ternary-90``."""
        percent = Decimal(repr(self.sparsity)).scaleb(2).normalize()
        return f"ternary-{percent:f}" if percent.adjusted() >= -4 else f"ternary-{percent}".lower()

    @property
    def alphabet(self) -> Alphabet:
        """-1, 0 and +1, five a byte."""
        return _CODES

    def fit(self, blocks: NDArray[np.float64]) -> Grid:
        """Threshold: the smallest magnitude that is kept; scale: mean of those that are kept."""
        magnitudes = np.abs(blocks)
        length = blocks.shape[1]
        # as a person writes the share: 0.575 of 100 is 57.5 and no float below it
        num_zeros = min(round(Decimal(repr(self.sparsity)) * length), length - 1)
        thresholds = np.partition(magnitudes, num_zeros, axis=1)[:, num_zeros]
        at_threshold = magnitudes == thresholds[:, None]
        ties_to_drop = num_zeros - (magnitudes < thresholds[:, None]).sum(axis=1)
        # the first tie that stays is the one before which so many ties lie
        first_kept = np.argmax(np.cumsum(at_threshold, axis=1) == ties_to_drop[:, None] + 1, axis=1)
        kept = _kept(magnitudes, thresholds, first_kept)
        sums, counts = np.where(kept, magnitudes, 0.0).sum(axis=1), kept.sum(axis=1)
        scales = (sums / np.maximum(counts, 1)).astype(np.float32)
        return Grid(scales, thresholds=thresholds, first_kept=first_kept.astype(np.int64))

    def encode(self, blocks: NDArray[np.float64], grid: Grid) -> NDArray[np.int8]:
        """The sign of the weights from the threshold on.

        Raises
        ------
        ValueError
            If the grid has no thresholds: a file keeps none.
        """
        if grid.thresholds is None or grid.first_kept is None:
            raise ValueError(
                "These ternary codes have no thresholds, which a file does not keep: quantize the original arrays "
                "again, and encode with the result."
            )
        kept = _kept(np.abs(blocks), grid.thresholds, grid.first_kept) & (grid.scales[:, None] > 0)
        # arithmetic, not a choice: a processor guesses signs wrong every other time
        signs = (blocks > 0).view(np.int8) - (blocks < 0).view(np.int8)
        return signs * kept.view(np.int8)


@dataclass(frozen=True)
class AbsmeanTernary(Scheme):
    """Ternary codes by rounding: scale the mean of |w|, code round(clip(w/scale, -1, 1)) (as arXiv 2402.17764).

    Halves round to even: w = scale/2 becomes 0. In a block of scale 0 all codes are 0.
    """

    kind: ClassVar[str] = "absmean-ternary"

    @property
    def base_name(self) -> str:
        """``absmean-ternary``."""
        return "absmean-ternary"

    @property
    def alphabet(self) -> Alphabet:
        """-1, 0 and +1, five a byte."""
        return _CODES

    def fit(self, blocks: NDArray[np.float64]) -> Grid:
        """Scale: mean |w|."""
        return Grid(absolute_mean(blocks))

    def encode(self, blocks: NDArray[np.float64], grid: Grid) -> NDArray[np.int8]:
        """round(clip(w/scale, -1, 1))."""
        scales = grid.scales[:, None].astype(np.float64)
        ratios = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
        return np.rint(np.clip(ratios, -1.0, 1.0)).astype(np.int8)


def _kept(
    magnitudes: NDArray[np.float64], thresholds: NDArray[np.float64], first_kept: NDArray[np.int64]
) -> NDArray[np.bool_]:
    positions = np.arange(magnitudes.shape[1])
    tied = (magnitudes == thresholds[:, None]) & (positions >= first_kept[:, None])
    return ((magnitudes > thresholds[:, None]) | tied) & (magnitudes > 0)
