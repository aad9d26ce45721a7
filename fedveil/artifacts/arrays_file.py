"""Named arrays and a note about them as one safetensors file, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedveil.quantization.damaged import DamagedFile

__all__ = ["DamagedFile", "decode_arrays", "encode_arrays", "plain_json"]

Arrays = Mapping[str, NDArray[Any]]

# the only metadata key: safetensors writes several keys in an order that changes from process to process
_KEY = "fedveil"


def encode_arrays(arrays: Arrays, note: Mapping[str, Any] | None = None) -> bytes:
    """Write arrays as safetensors bytes; equal arrays and notes give equal bytes.

    Parameters
    ----------
    arrays : mapping of str to array
        Booleans, integers and floats of at most 64 bits, any shape.
    note : mapping, optional
        JSON values to keep beside them; read back by :func:`decode_arrays` and by any safetensors reader
        (metadata key "fedveil").

    Raises
    ------
    ValueError
        If an array has another data type, or the note is not JSON; it is named.
    """
    tensors = {}
    for name, array in arrays.items():
        # safetensors writes the memory as it lies: a transposed view would come back scrambled
        tensor = np.asarray(array, order="C")
        if tensor.dtype.kind not in "biuf" or tensor.dtype.itemsize > 8:
            raise ValueError(
                f"array {name!r} has data type {tensor.dtype}; only booleans, integers and floats are stored."
            )
        tensors[name] = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
    # safetensors sorts its tensors, and the order of a model's arrays has a meaning: flat vectors follow it
    header = {"note": dict(note or {}), "order": list(tensors), "sha256": _digest(tensors)}
    return bytes(safetensors.numpy.save(tensors, metadata={_KEY: plain_json(header)}))


def decode_arrays(data: bytes, source: object) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays, in the order in which they were given, and the note of :func:`encode_arrays`.

    Parameters
    ----------
    data : bytes
        The whole file.
    source : object
        What to call it in an error, usually its path.

    Raises
    ------
    DamagedFile
        If bytes are missing or differ from those that were written.
    """
    try:
        tensors = safetensors.numpy.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
        note, digest = dict(header["note"]), header["sha256"]
        ordered = {name: tensors[name] for name in header["order"]}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(
            f"{source} is truncated or not a file of FedVeil ({error}): restore it or start anew."
        ) from error
    if digest != _digest(ordered):
        raise DamagedFile(f"{source} was changed after it was written: restore it or start anew.")
    return ordered, note


def plain_json(value: object) -> str:
    """Write compact JSON with sorted keys; NumPy scalars become numbers, and floats keep every bit.

    Raises
    ------
    ValueError
        If something in the value is not JSON.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)
    except TypeError as error:
        raise ValueError(f"only numbers, strings, lists and mappings can be stored: {error}.") from error


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is not JSON")


def _digest(tensors: Arrays) -> str:
    digest = sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name}\0{tensor.dtype.str}\0{tensor.shape}\0".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
