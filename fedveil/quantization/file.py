"""A quantized model as one safetensors file at its true size, checked when it is read."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedveil import __version__
from fedveil.quantization.damaged import DamagedFile
from fedveil.quantization.model import Arrays, Filter, QuantizedModel, quantize_model
from fedveil.quantization.names import scheme_from_json
from fedveil.quantization.quantize import Quantized
from fedveil.quantization.scheme import Grid, Scheme

__all__ = ["decode_quantized", "encode_model", "encode_quantized"]

# the only metadata key: safetensors writes several keys in an order that changes from process to process
_KEY = "fedveil"
_CONTENT = "quantized model"
_FORMAT = 1
_DIGEST = "sha256"  # without a slash, so no array of a model has this name
_AGAIN = "restore it or quantize again"
_MAX_DIMENSIONS = 64  # numpy's own limit

Tensors = Mapping[str, NDArray[Any]]


def encode_quantized(
    arrays: Arrays, scheme: Scheme | str, note: Mapping[str, Any] | None = None, filter: Filter | None = None
) -> bytes:
    """Quantize a model and write it as the bytes of a file; see :func:`quantize_model` and :func:`encode_model`."""
    return encode_model(quantize_model(arrays, scheme, note, filter))


def encode_model(model: QuantizedModel) -> bytes:
    """Write a quantized model as safetensors bytes; equal models give equal bytes.

    Tensors are ``codes/<name>`` (packed, uint8), ``scales/<name>`` (float32), ``zero_points/<name>`` (uint8) and
    ``float/<name>``; ``sha256`` covers every other byte of the file. Thresholds of ternary codes are not kept.

    Raises
    ------
    ValueError
        If the note is not JSON.
    """
    tensors: dict[str, NDArray[Any]] = {_DIGEST: np.zeros(32, np.uint8)}
    for name, part in model.parts.items():
        if not isinstance(part, Quantized):
            # safetensors writes the memory as it lies: a transposed view would come back scrambled
            tensors[f"float/{name}"] = np.asarray(part, dtype="<f4", order="C")
            continue
        tensors[f"codes/{name}"] = part.scheme.alphabet.pack(part.codes)
        tensors[f"scales/{name}"] = np.asarray(part.scales, dtype="<f4", order="C")
        if part.zero_points is not None:
            tensors[f"zero_points/{name}"] = np.asarray(part.zero_points, order="C")
    header = {
        "content": _CONTENT,
        "format": _FORMAT,
        "library": __version__,
        "note": model.note,
        "order": list(model.parts),
        "scheme": model.scheme.to_json(),
        "shapes": {name: list(part.shape) for name, part in model.quantized.items()},
    }
    try:
        metadata = json.dumps(header, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The note must be JSON ({error}): use numbers, strings, lists and mappings."
        ) from error
    data = bytes(safetensors.numpy.save(tensors, metadata={_KEY: metadata}))
    start, end = _digest_place(data)
    return data[:start] + _digest(data, start, end) + data[end:]


def decode_quantized(data: bytes, source: object, others: tuple[type[Scheme], ...] = ()) -> QuantizedModel:
    """Read the model of :func:`encode_model`.

    Parameters
    ----------
    data : bytes
        The whole file.
    source : object
        What to call it in an error, usually its path.
    others : tuple of Scheme classes, optional
        Classes of plugins' quantizers.

    Returns
    -------
    QuantizedModel
        Its codes and scales are bit for bit those that were written. Ternary codes have no thresholds.

    Raises
    ------
    DamagedFile
        If bytes are missing or differ from those that were written, or the file is of another kind, a newer format,
        or a scheme that is not known. Nothing is allocated before a shape is known to fit the bytes that are there.
    """
    try:
        tensors = safetensors.numpy.load(data)
        header = _json_header(data).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{source} is truncated or not a safetensors file ({error}): {_AGAIN}.") from error
    described = _description(header.get(_KEY), source)
    if described["format"] != _FORMAT:
        raise DamagedFile(
            f"{source} was written by FedVeil {described.get('library')} in format {described['format']}, and FedVeil "
            f"{__version__} reads format {_FORMAT}: install the version that wrote it."
        )
    try:
        start, end = _digest_place(data)
        intact = _digest(data, start, end) == data[start:end]
    except (KeyError, TypeError, ValueError):
        intact = False
    if not intact:
        raise DamagedFile(f"{source} was changed after it was written: {_AGAIN}.")
    try:
        scheme = scheme_from_json(described["scheme"], others)
        parts = dict(_parts(described, scheme, tensors))
        note = described["note"]
        if not isinstance(note, dict):
            raise ValueError("its note is no mapping")
    except (KeyError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise DamagedFile(f"{source} cannot be read ({reason}): {_AGAIN}.") from error
    return QuantizedModel(scheme, parts, note)


def _description(text: object, source: object) -> dict[str, Any]:
    try:
        described = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        described = {}
    ours = isinstance(described, dict) and described.get("content") == _CONTENT
    if not ours or not isinstance(described.get("format"), int):
        raise DamagedFile(
            f"{source} holds no quantized model of FedVeil: give a file from the folder quantized/ of a run."
        )
    return dict(described)


def _parts(
    described: Mapping[str, Any], scheme: Scheme, tensors: Tensors
) -> Iterator[tuple[str, Quantized | NDArray[np.float32]]]:
    order, shapes = described["order"], described["shapes"]
    are_names = isinstance(order, list) and all(isinstance(name, str) for name in order)
    if not are_names or len(set(order)) < len(order):
        raise ValueError("its list of names is none")
    if not isinstance(shapes, dict) or not shapes.keys() <= set(order):
        raise ValueError("its shapes are not those of its names")
    expected = {_DIGEST}
    for name in order:
        if name not in shapes:
            expected.add(f"float/{name}")
            yield name, _tensor(tensors, f"float/{name}", np.float32).copy()
            continue
        expected |= {f"codes/{name}", f"scales/{name}"}
        shape = _shape(name, shapes[name])
        packed = _tensor(tensors, f"codes/{name}", np.uint8)
        zero_points = None
        if scheme.has_zero_points:
            expected.add(f"zero_points/{name}")
            zero_points = _tensor(tensors, f"zero_points/{name}", np.uint8)
        grid = Grid(_tensor(tensors, f"scales/{name}", np.float32), zero_points)
        try:
            quantized = Quantized(scheme.alphabet.unpack(packed, shape), grid, scheme)
        except ValueError as error:
            raise ValueError(
                f"array {name!r} of shape {reprlib.repr(shape)} does not fit its data"
            ) from error
        yield name, quantized
    if tensors.keys() != expected:
        odd = sorted(tensors.keys() ^ expected)
        raise ValueError(f"it has tensors that belong to no array, {', '.join(odd[:3])}")


def _tensor(tensors: Tensors, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    tensor = tensors[name]
    if tensor.dtype != dtype:
        raise ValueError(f"tensor {name!r} has data type {tensor.dtype}, not {np.dtype(dtype)}")
    return tensor


def _shape(name: str, given: object) -> tuple[int, ...]:
    sides = given if isinstance(given, list) else [None]
    if len(sides) > _MAX_DIMENSIONS or not all(type(side) is int and side >= 1 for side in sides):
        raise ValueError(f"array {name!r} has shape {reprlib.repr(given)}, and sides are at least 1")
    return tuple(sides)


def _json_header(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + length]))


def _digest_place(data: bytes) -> tuple[int, int]:
    """Where in the file the digest lies."""
    start, end = _json_header(data)[_DIGEST]["data_offsets"]
    first = 8 + int.from_bytes(data[:8], "little")
    return first + start, first + end


def _digest(data: bytes, start: int, end: int) -> bytes:
    digest = sha256(memoryview(data)[:start])
    digest.update(memoryview(data)[end:])
    return digest.digest()
