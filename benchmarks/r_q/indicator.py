"""r_Q of many training runs and quantizers, from their trajectories and records nobody trained on.

Weights of all runs lie one above the other, so one scale a row ("channel") is one scale a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import LossMoments, distinct_candidates, membership_indicator
from fedveil.quantization import dequantize, encode_with, quantize, scheme_of

QUANTIZERS = (
    "sign", "ternary-33", "ternary-50", "ternary-90", "absmean-ternary", "int2", "uint2", "int3", "uint3", "int4",
    "uint4", "int8",
)  # fmt: skip

Arrays = NDArray[np.float32]
Codes = NDArray[np.int8] | NDArray[np.uint8]


@dataclass(frozen=True)
class Reading:
    """What the indicator says of each run.

    Attributes
    ----------
    r_q : float64 array of shape (runs,)
        NaN where undefined.
    distinct : int array of shape (runs,)
        Candidates with different losses.
    warned : bool array of shape (runs,)
        Whether the indicator warns.
    early : bool array of shape (runs,)
        Whether the best candidate is of the first half of the checkpoints: not what training ends at.
    """

    r_q: NDArray[np.float64]
    distinct: NDArray[np.int64]
    warned: NDArray[np.bool_]
    early: NDArray[np.bool_]


def bits_of(quantizer: str) -> float:
    """log2 of the number of levels: what "the number of bits" alone would rank by."""
    return math.log2(scheme_of(quantizer).alphabet.size)


def published(weights: Arrays, quantizer: str) -> tuple[Arrays, Codes]:
    """Quantize models (runs, parameters), each on its own scale; give what they stand for and their codes."""
    quantized = quantize(weights, f"{quantizer}/channel")
    return dequantize(quantized), quantized.codes


def frozen_candidates(trajectory: Arrays, quantizer: str) -> tuple[Arrays, Codes]:
    """All checkpoints (runs, T, parameters) on the scales of the last one; weights and codes of that shape."""
    grid = quantize(trajectory[:, -1], f"{quantizer}/channel")
    codes = [encode_with(trajectory[:, t], grid) for t in range(trajectory.shape[1])]
    weights = [dequantize(replace(grid, codes=one)) for one in codes]
    return np.stack(weights, axis=1), np.stack(codes, axis=1)


def own_candidates(trajectory: Arrays, quantizer: str) -> tuple[Arrays, Codes]:
    """All checkpoints on scales of their own, as codes of every bit of the weights: another scale, another model."""
    weights = np.stack(
        [published(trajectory[:, t], quantizer)[0] for t in range(trajectory.shape[1])], axis=1
    )
    return weights, weights.view(np.int8)


def read(
    weights: Arrays, codes: Codes, losses_of: Callable[[Arrays], NDArray[np.float64]], since: int = 0
) -> Reading:
    """The indicator of each run.

    Parameters
    ----------
    weights, codes : arrays of shape (runs, T, ...)
    losses_of : callable
        Losses (records, candidates) of candidates (candidates, parameters).
    since : int
        The first checkpoint that may be a candidate.
    """
    found, distinct, warned, early = [], [], [], []
    for run in range(len(weights)):
        kept = list(distinct_candidates(list(codes[run, since:])))
        told = membership_indicator(LossMoments.from_losses(losses_of(weights[run, since:][kept])))
        found.append(told.r_q)
        distinct.append(told.num_distinct)
        warned.append(bool(told.warnings))
        early.append(2 * (since + kept[told.best]) < codes.shape[1])
    return Reading(np.array(found), np.array(distinct), np.array(warned), np.array(early))


def entropy_of(codes: Codes) -> float:
    """Bits a weight that its codes carry: entropy of a model's histogram of codes, mean over models."""
    rows = codes.reshape(len(codes), -1)
    levels = np.unique(rows)
    shares = np.stack([(rows == level).mean(axis=1) for level in levels], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(shares > 0, -shares * np.log2(shares), 0.0)
    return float(each.sum(axis=1).mean())
