"""Codes as bytes at their true size: b bits a code, or five ternary codes a byte."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alphabet"]

_FIVE = 5  # 3^5 = 243 values fit a byte: 1.6 bits a code, 0.9 % above log2(3)
_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_DIGITS = (np.arange(3**_FIVE)[:, None] // _POWERS % 3).astype(np.uint8)


@dataclass(frozen=True)
class Alphabet:
    """The codes that a quantizer can give, and how they lie in bytes.

    Code ``lowest + step * d`` is stored as its digit d = 0 .. size - 1.

    Parameters
    ----------
    lowest : int
        The lowest code.
    step : int
        Distance between codes: 2 for sign, whose codes are -1 and +1, else 1.
    size : int
        Number of codes, 2 to 256.
    bits : int or None
        Bits of a digit, 1 to 8, or None for three codes of which five share a byte.

    Notes
    -----
    With bits, bit j of digit i is bit ``i * bits + j`` of the whole, and bit p of the whole is bit ``p % 8``, counted
    from the least significant, of byte ``p // 8``: no bit is left out between codes. Without, byte k is
    ``sum_j 3^j d_{5k+j}``, at most 242. Digits and bits beyond the last code are 0.
    """

    lowest: int
    step: int
    size: int
    bits: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the codes: int8, or uint8 when none is negative."""
        return np.dtype(np.int8 if self.lowest < 0 else np.uint8)

    @property
    def information(self) -> float:
        """Bits that a code needs in theory: its bits, or log2(3) = 1.585 where five share a byte."""
        return math.log2(self.size) if self.bits is None else float(self.bits)

    def num_bytes(self, count: int) -> int:
        """Bytes of so many packed codes."""
        return -(-count // _FIVE) if self.bits is None else -(-count * self.bits // 8)

    def pack(self, codes: NDArray[Any]) -> NDArray[np.uint8]:
        """Pack codes, in C order.

        Parameters
        ----------
        codes : integer array, any shape

        Returns
        -------
        uint8 array, shape (num_bytes,)

        Raises
        ------
        ValueError
            If a value is not one of the codes.
        """
        flat = np.asarray(codes).reshape(-1)
        if flat.dtype.kind not in "iu":
            raise ValueError(
                f"Codes are whole numbers, got data type {flat.dtype}: pass codes of quantize()."
            )
        highest = self.lowest + self.step * (self.size - 1)
        if flat.size and not (self.lowest <= flat.min() and flat.max() <= highest):
            raise ValueError(
                f"Codes go from {self.lowest} to {highest}, got {flat.min()} to {flat.max()}: pass codes of this "
                "scheme."
            )
        digits = (flat.astype(np.int16) - self.lowest).astype(np.uint8)
        if self.step != 1:
            digits, rest = np.divmod(digits, np.uint8(self.step))
            if rest.any():
                raise ValueError(
                    f"Codes go from {self.lowest} to {highest} in steps of {self.step}, and others were given: "
                    "pass codes of this scheme."
                )
        if self.bits is None:
            padded = np.zeros(self.num_bytes(digits.size) * _FIVE, np.uint8)
            padded[: digits.size] = digits
            return padded.reshape(-1, _FIVE) @ _POWERS
        if self.bits == 8:
            return digits
        spread = (digits[:, None] >> np.arange(self.bits, dtype=np.uint8)) & np.uint8(1)
        return np.packbits(spread.reshape(-1), bitorder="little")

    def unpack(self, packed: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """Unpack as many codes as an array of this shape has; undoes :meth:`pack`.

        Parameters
        ----------
        packed : uint8 array, shape (num_bytes,)
        shape : tuple of int

        Returns
        -------
        array of :attr:`dtype`

        Raises
        ------
        ValueError
            If the number of bytes is not that of the shape, or a byte is none that :meth:`pack` gives. Nothing is
            allocated before the number is known to be right.
        """
        count = math.prod(shape)
        if packed.dtype != np.uint8 or packed.shape != (self.num_bytes(count),):
            raise ValueError(
                f"{count} codes take {self.num_bytes(count)} bytes, got {packed.dtype} of shape {packed.shape}: "
                "pass the packed codes of this shape."
            )
        if self.bits is None:
            if packed.size and packed.max() >= len(_DIGITS):
                raise ValueError(
                    f"A byte of ternary codes is at most 242, got {packed.max()}: pass packed codes."
                )
            digits = _DIGITS[packed].reshape(-1)
            digits, padding = digits[:count], digits[count:]
        elif self.bits == 8:
            digits, padding = packed, packed[:0]
        else:
            places = np.unpackbits(packed, bitorder="little")
            places, padding = places[: count * self.bits], places[count * self.bits :]
            digits = places.reshape(count, self.bits) @ (1 << np.arange(self.bits)).astype(np.uint8)
        if padding.any() or (count and digits.max() >= self.size):
            raise ValueError("Packed codes hold a value that stands for no code: pass what pack() gave.")
        codes = digits.astype(np.int16) * self.step + self.lowest
        return codes.astype(self.dtype).reshape(shape)
