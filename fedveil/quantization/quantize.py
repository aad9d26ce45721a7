"""One array in a quantizer: its codes and the grid that they lie on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.quantization.names import scheme_of
from fedveil.quantization.scheme import Grid, Scheme

__all__ = [
    "Quantized",
    "dequantize",
    "dequantize_all",
    "encode_all_with",
    "encode_with",
    "pack",
    "quantize",
    "unpack",
]

LARGEST = 1e38
"""Largest magnitude of a weight: a third of float32's, so that no code of any scheme stands for infinity."""

_TOGETHER = 1 << 15  # weights that are encoded at a time: temporaries stay in a core's cache


@dataclass(frozen=True, eq=False)
class Quantized:
    """Codes of an array, and what they stand for.

    Parameters
    ----------
    codes : int8 or uint8 array
        In the array's shape; uint8 for asymmetric schemes.
    grid : Grid
        Scales, and zero points or thresholds where the scheme has them, each (rows, blocks in a row): (1, 1) for one
        scale a tensor, (channels, 1) for one a channel.
    scheme : Scheme

    Raises
    ------
    ValueError
        If codes, grid and scheme do not fit together.
    """

    codes: NDArray[Any]
    grid: Grid
    scheme: Scheme

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        if self.codes.size == 0 or self.codes.dtype != self.scheme.alphabet.dtype:
            raise ValueError(
                f"Codes of {self.scheme.name} are {self.scheme.alphabet.dtype} and at least one, got "
                f"{self.codes.dtype} of shape {self.codes.shape}: pass codes of this scheme."
            )
        wanted = self.scheme.blocks(self.codes.shape).grid_shape
        scales, zero_points = self.grid.scales, self.grid.zero_points
        if (
            scales.shape != wanted
            or scales.dtype != np.float32
            or not (np.isfinite(scales) & (scales >= 0)).all()
        ):
            raise ValueError(
                f"Scales of {self.scheme.name} for shape {self.codes.shape} are finite float32 values of at least 0 "
                f"in shape {wanted}, and others were given: pass the grid of this array."
            )
        given = None if zero_points is None else (zero_points.shape, zero_points.dtype.name)
        if given != ((wanted, "uint8") if self.scheme.has_zero_points else None):
            raise ValueError(
                f"Zero points of {self.scheme.name} for shape {self.codes.shape} are "
                f"{f'uint8 of shape {wanted}' if self.scheme.has_zero_points else 'not used'}, and others were given: "
                "pass the grid of this array."
            )

    @property
    def scales(self) -> NDArray[np.float32]:
        """The scale of every block, (rows, blocks in a row)."""
        return self.grid.scales

    @property
    def zero_points(self) -> NDArray[np.uint8] | None:
        """The zero point of every block, for asymmetric schemes."""
        return self.grid.zero_points

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.codes.shape


def quantize(array: NDArray[Any], scheme: Scheme | str, name: str = "array") -> Quantized:
    """Quantize an array: fit scales, then take codes on them.

    Parameters
    ----------
    array : float16, float32 or float64 array
        Any shape with at least one weight; its memory may lie in any way.
    scheme : Scheme or str
        A scheme or its name; see :func:`scheme_of`.
    name : str
        What errors call the array.

    Returns
    -------
    Quantized
        Equal to the bit for equal values, computed in float64; scales are rounded to float32 before codes are taken,
        so ``encode_with(array, quantize(array, scheme))`` gives the same codes again.

    Raises
    ------
    ValueError
        If the array is empty, has another data type, or holds NaN, infinities or magnitudes above 1e38.
    """
    scheme = scheme_of(scheme)
    values = checked_weights(array, name)
    blocks = scheme.blocks(values.shape)
    pieces = blocks.split(values)
    grids = [scheme.fit(piece) for piece in pieces]
    codes = blocks.join([scheme.encode(piece, grid) for piece, grid in zip(pieces, grids)])
    return Quantized(codes, Grid.joined(grids, blocks.join_grid), scheme)


def encode_with(array: NDArray[Any], frozen: Quantized, name: str = "array") -> NDArray[Any]:
    """Take the codes of an array on the frozen scales, zero points and thresholds of another one.

    Parameters
    ----------
    array : float16, float32 or float64 array
        In the shape of ``frozen``.
    frozen : Quantized
        From :func:`quantize`.
    name : str
        What errors call the array.

    Returns
    -------
    int8 or uint8 array
        Codes, to be read on the same grid: ``dataclasses.replace(frozen, codes=...)``.

    Raises
    ------
    ValueError
        As :func:`quantize`, if shapes differ, or if ternary codes were read from a file, which keeps no thresholds.
    """
    return encode_all_with([array], frozen, name)[0]


def encode_all_with(arrays: Sequence[NDArray[Any]], frozen: Quantized, name: str = "array") -> NDArray[Any]:
    """The codes of several arrays at once, one above the other (M, ...), each as of :func:`encode_with`.

    Raises
    ------
    ValueError
        As :func:`encode_with`.
    """
    shape, size = frozen.shape, frozen.codes.size
    for array in arrays:
        if np.shape(array) != shape:
            raise ValueError(
                f"{name} has shape {np.shape(array)}, but the frozen scales belong to shape {shape}: pass arrays of "
                "the same model."
            )
    codes = np.empty((len(arrays), *shape), frozen.codes.dtype)
    step = max(1, _TOGETHER // size)
    for start in range(0, len(arrays), step):
        values = checked_weights(np.stack(arrays[start : start + step]), name)
        count = len(values)
        blocks, grid = frozen.scheme.blocks(shape).repeated(count), frozen.grid.repeated(count)
        pairs = zip(blocks.split(values), grid.parts(blocks.split_grid))
        encoded = blocks.join([frozen.scheme.encode(piece, part) for piece, part in pairs])
        codes[start : start + step] = encoded.reshape(values.shape)
    return codes


def dequantize(quantized: Quantized) -> NDArray[np.float32]:
    """The weights that codes stand for: ``scale * (code - zero_point)``, rounded once to float32.

    Quantizing the result again gives the same codes, and the same scales: exactly for sign and ternary with a sparsity,
    to the last bit or its neighbour for uniform schemes. Two exceptions: the scale of absmean ternary shrinks by the
    share of codes that are not 0, and an asymmetric block in which not both the lowest and the highest code occur
    has a smaller range.
    """
    return dequantize_all(quantized.codes[None], quantized)[0]


def dequantize_all(codes: NDArray[Any], frozen: Quantized) -> NDArray[np.float32]:
    """The weights that several arrays' codes on one grid stand for, one above the other (M, ...)."""
    count = len(codes)
    blocks, grid = frozen.scheme.blocks(frozen.shape).repeated(count), frozen.grid.repeated(count)
    pairs = zip(blocks.split(codes), grid.parts(blocks.split_grid))
    return blocks.join([_weights(piece, part) for piece, part in pairs]).reshape(codes.shape)


def pack(codes: NDArray[Any], scheme: Scheme | str) -> NDArray[np.uint8]:
    """Pack codes into bytes, in C order: sign eight a byte, ternary five, b bits densely; see :class:`Alphabet`.

    Raises
    ------
    ValueError
        If a value is not one of the scheme's codes.
    """
    return scheme_of(scheme).alphabet.pack(codes)


def unpack(packed: NDArray[np.uint8], scheme: Scheme | str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Unpack the codes of an array of this shape, bit for bit what :func:`pack` was given.

    Raises
    ------
    ValueError
        If the number of bytes is not that of the shape, or a byte is none that :func:`pack` gives.
    """
    return scheme_of(scheme).alphabet.unpack(packed, tuple(shape))


def checked_weights(array: NDArray[Any], name: str) -> NDArray[np.float64]:
    """Weights in float64 and C order, or an error that names the array.

    Raises
    ------
    ValueError
        If the array is empty, has another data type, or holds NaN, infinities or magnitudes above 1e38.
    """
    given = np.asarray(array)
    if given.dtype.kind != "f" or given.dtype.itemsize > 8:
        raise ValueError(f"{name} has data type {given.dtype}: quantize float16, float32 or float64.")
    if given.size == 0:
        raise ValueError(f"{name} of shape {given.shape} has no weights: leave it out.")
    values = given.astype(np.float64, order="C")
    largest = max(float(values.max()), -float(values.min()))
    if not largest <= LARGEST:  # also when it is NaN
        what = f"magnitudes above {LARGEST:g}" if np.isfinite(values).all() else "NaN or infinite weights"
        raise ValueError(f"{name} holds {what}: quantize a model whose training did not diverge.")
    return values


def _weights(codes: NDArray[Any], grid: Grid) -> NDArray[np.float32]:
    values = codes.astype(np.float32)
    if grid.zero_points is not None:
        values -= grid.zero_points[:, None]
    values *= grid.scales[:, None]
    return values
