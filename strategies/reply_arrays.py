"""Reading one array of a reply: only the bytes that numpy writes for an array of the expected shape and dtype."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

__all__ = ["BadReply", "read_array"]


class BadReply(ValueError):
    """A reply that must not reach the model; the message says why."""


def read_array(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The values of an array from the wire, in the given shape and dtype.

    Raises
    ------
    BadReply
        If its label or its bytes say something else, or a value is not finite.
    """
    if (array.stype, array.dtype, tuple(array.shape)) != ("numpy.ndarray", str(dtype), shape):
        raise BadReply(
            f"{name} is {array.stype} {array.dtype}{tuple(array.shape)}, expected numpy.ndarray {dtype}{shape}"
        )
    # only the bytes that numpy writes for such an array: parsing a foreign header may fail in any way, and
    # the header may declare more memory than there is
    header, size = _header(dtype, shape), math.prod(shape) * dtype.itemsize
    if len(array.data) != len(header) + size or not array.data.startswith(header):
        raise BadReply(f"{name} does not hold the {dtype}{shape} that its label says")
    values: NDArray[Any] = np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape)
    if not np.all(np.isfinite(values)):
        raise BadReply(f"{name} is not finite")
    return values


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands before the values of a C-ordered array in numpy's file format."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return buffer.getvalue()
