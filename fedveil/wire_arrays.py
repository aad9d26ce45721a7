"""Reading one array from the wire: only the bytes that numpy writes for an array of the expected type and shape."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from fedveil.wire import MalformedReply

__all__ = ["read_as_labelled", "read_exactly"]


def read_exactly(
    name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...], *, finite: bool = True
) -> NDArray[Any]:
    """The values of an array from the wire, read-only, in the given shape and dtype.

    No header from the wire is parsed: that may fail in any way, and a header may declare more memory than there is.

    Parameters
    ----------
    name : str
        What it is called in the error.
    array : Array
        Label and bytes, neither to be believed.
    dtype, shape
        What it must be.
    finite : bool
        Whether a value that is not finite is refused.

    Raises
    ------
    MalformedReply
        If its label or its bytes say something else, or a value is not finite.
    """
    if (array.stype, array.dtype, tuple(array.shape)) != ("numpy.ndarray", str(dtype), shape):
        raise MalformedReply(
            f"{name} is {array.stype} {array.dtype}{tuple(array.shape)}, expected numpy.ndarray {dtype}{shape}"
        )
    header, size = _header(dtype, shape), math.prod(shape) * dtype.itemsize
    if len(array.data) != len(header) + size or not array.data.startswith(header):
        raise MalformedReply(f"{name} does not hold the {dtype}{shape} that its label says")
    values: NDArray[Any] = np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape)
    if finite and not np.all(np.isfinite(values)):
        raise MalformedReply(f"{name} is not finite")
    return values


def read_as_labelled(name: str, array: Array, dtype: np.dtype[Any], *, finite: bool = True) -> NDArray[Any]:
    """The same where the reader learns the shape from the label; the bytes that came must be as many.

    Raises
    ------
    MalformedReply
        As :func:`read_exactly`; or if the label's shape is none.
    """
    shape = tuple(array.shape)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise MalformedReply(f"{name} has the label {shape}, which is no shape")
    return read_exactly(name, array, dtype, shape, finite=finite)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands before the values of a C-ordered array in numpy's file format."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return buffer.getvalue()
