"""A whole model in a quantizer: large arrays as codes, the others as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.quantization.names import scheme_of
from fedveil.quantization.quantize import Quantized, checked_weights, dequantize, encode_all_with, quantize
from fedveil.quantization.scheme import Scheme

__all__ = ["Filter", "QuantizedModel", "is_quantizable", "quantize_model", "theoretical_bits"]

Arrays = Mapping[str, NDArray[Any]]

Filter = Callable[[str, NDArray[Any]], bool]
"""``filter(name, array)``: whether an array is quantized; the others stay float32."""

_FLOAT_BITS = 32
_ZERO_POINT_BITS = 8


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A model's arrays, quantized where they are large.

    Parameters
    ----------
    scheme : Scheme
    parts : dict of str to Quantized or float32 array
        In the model's order: codes with their grid, and float arrays that are not quantized.
    note : dict
        JSON values that are kept with the model, such as what it takes to build its network.
    """

    scheme: Scheme
    parts: dict[str, Quantized | NDArray[np.float32]]
    note: dict[str, Any] = field(default_factory=dict)

    @property
    def quantized(self) -> dict[str, Quantized]:
        """The arrays that have codes."""
        return {name: part for name, part in self.parts.items() if isinstance(part, Quantized)}

    @property
    def floats(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that have none."""
        return {name: part for name, part in self.parts.items() if not isinstance(part, Quantized)}

    @property
    def codes(self) -> dict[str, NDArray[Any]]:
        """The codes of every quantized array."""
        return {name: part.codes for name, part in self.quantized.items()}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """All arrays as float32, in the model's order: what the codes stand for, and copies of the others."""
        return {
            name: dequantize(part) if isinstance(part, Quantized) else part.copy()
            for name, part in self.parts.items()
        }

    def encode(self, arrays: Arrays) -> QuantizedModel:
        """The configuration of other arrays of the same model on this one's grid (THEORY section 3).

        Scales, zero points, thresholds and all float arrays stay those of this model, so two results differ exactly
        where their codes do. Arrays that are not quantized may be left out.

        Raises
        ------
        ValueError
            If an array is missing, has another shape, or holds NaN or infinities; see :func:`encode_with`.
        """
        return self.encode_all([arrays])[0]

    def encode_all(self, models: Sequence[Arrays]) -> list[QuantizedModel]:
        """The configurations of several models, each as of :meth:`encode`, in less time.

        Raises
        ------
        ValueError
            As :meth:`encode`.
        """
        missing = [name for name in self.quantized if any(name not in arrays for arrays in models)]
        if missing:
            raise ValueError(f"Arrays {', '.join(missing)} are missing: pass all that are quantized here.")
        codes = {
            name: encode_all_with([arrays[name] for arrays in models], part, _called(name))
            for name, part in self.quantized.items()
        }
        return [
            replace(
                self,
                parts=self.parts
                | {name: replace(part, codes=codes[name][index]) for name, part in self.quantized.items()},
            )
            for index in range(len(models))
        ]


def quantize_model(
    arrays: Arrays, scheme: Scheme | str, note: Mapping[str, Any] | None = None, filter: Filter | None = None
) -> QuantizedModel:
    """Quantize the arrays of a model.

    Parameters
    ----------
    arrays : mapping of str to float array
        In the model's order.
    scheme : Scheme or str
        A scheme or its name.
    note : mapping, optional
        JSON values to keep with the model.
    filter : callable, optional
        Which arrays are quantized; :func:`is_quantizable` unless given.

    Raises
    ------
    ValueError
        If nothing is to be quantized, or an array holds other than finite floats up to 1e38; it is named.
    """
    scheme = scheme_of(scheme)
    chosen = _chosen(arrays, filter)
    parts: dict[str, Quantized | NDArray[np.float32]] = {
        name: quantize(array, scheme, _called(name)) if name in chosen else _as_float(name, array)
        for name, array in arrays.items()
    }
    return QuantizedModel(scheme, parts, dict(note or {}))


def is_quantizable(name: str, array: NDArray[Any]) -> bool:
    """Whether an array is quantized by default: weights of two or more dimensions.

    Biases and the parameters of normalisations have one, are few, and lose much.
    """
    given = np.asarray(array)
    return given.ndim >= 2 and given.size > 0


def theoretical_bits(arrays: Arrays, scheme: Scheme | str, filter: Filter | None = None) -> float:
    """Bits that a quantized model needs in theory, without names and shapes.

    b bits a weight, 1 for sign, log2(3) = 1.585 for ternary; 32 bits a scale, 8 a zero point, and 32 a weight that is
    not quantized. Nothing is quantized for it.

    Raises
    ------
    ValueError
        If nothing is to be quantized.
    """
    scheme = scheme_of(scheme)
    chosen = _chosen(arrays, filter)
    per_block = _FLOAT_BITS + (_ZERO_POINT_BITS if scheme.has_zero_points else 0)
    bits = 0.0
    for name, array in arrays.items():
        given = np.asarray(array)
        if name in chosen:
            rows, columns = scheme.blocks(given.shape).grid_shape
            bits += given.size * scheme.alphabet.information + rows * columns * per_block
        else:
            bits += given.size * _FLOAT_BITS
    return bits


def _chosen(arrays: Arrays, filter: Filter | None) -> set[str]:
    wanted = is_quantizable if filter is None else filter
    chosen = {name for name, array in arrays.items() if wanted(name, array)}
    if not chosen:
        shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in list(arrays.items())[:5]) or "none"
        rule = (
            "weights of two or more dimensions are" if filter is None else "the given filter chooses what is"
        )
        raise ValueError(
            f"The model has nothing to quantize: {rule}, and its arrays are {shapes}; pass another filter."
        )
    return chosen


def _as_float(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    given = np.asarray(array)
    if given.size == 0 and given.dtype.kind == "f":
        return given.astype(np.float32)
    return checked_weights(given, _called(name)).astype(np.float32)


def _called(name: str) -> str:
    return f"Array {name!r}"
