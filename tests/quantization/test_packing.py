"""Packed codes: bit-exact there and back, at the size that the scheme promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.quantization import SCHEMES, pack, scheme_of, unpack

NAMES = list(SCHEMES)
CODES_IN_BYTES = {  # (codes, bytes that hold so many)
    "sign": (8, 1),
    "ternary-33": (5, 1),
    "ternary-90": (5, 1),
    "absmean-ternary": (5, 1),
    **{
        f"{sort}{bits}": pair
        for sort in ("int", "uint")
        for bits, pair in ((2, (4, 1)), (4, (2, 1)), (8, (1, 1)))
    },
    "int3": (8, 3),
    "uint3": (8, 3),
}
LOWEST = {
    "sign": -1,
    "ternary-33": -1,
    "ternary-90": -1,
    "absmean-ternary": -1,
    "int2": -1,
    "int3": -3,
    "int4": -7,
}
HIGHEST = {**dict.fromkeys(LOWEST, 1), "int3": 3, "int4": 7, "int8": 127, "uint2": 3, "uint3": 7, "uint4": 15}


def all_codes(name: str) -> list[int]:
    if name == "sign":
        return [-1, 1]
    lowest = -127 if name == "int8" else LOWEST.get(name, 0)
    return list(range(lowest, HIGHEST.get(name, 255) + 1))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_codes_come_back_bit_for_bit(name: str, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=3)))
    count = math.prod(shape)
    values = data.draw(st.lists(st.sampled_from(all_codes(name)), min_size=count, max_size=count))
    codes = np.array(values, dtype=np.uint8 if name.startswith("uint") else np.int8).reshape(shape)
    packed = pack(codes, name)
    back = unpack(packed, name, shape)
    assert packed.dtype == np.uint8
    assert back.dtype == codes.dtype
    np.testing.assert_array_equal(back, codes)
    per, size = CODES_IN_BYTES[name]
    assert len(packed) == math.ceil(count * size / per)


@pytest.mark.parametrize("name", NAMES)
def test_packing_is_what_the_page_says_bit_by_bit(name: str) -> None:
    """A second packer, on Python integers: the whole as one number in base 2^b, or five digits in base 3 a byte."""
    codes = np.random.default_rng(0).choice(all_codes(name), 1001)
    digits = [all_codes(name).index(code) for code in codes.tolist()]
    if "ternary" in name:
        groups = [digits[start : start + 5] for start in range(0, len(digits), 5)]
        wanted = bytes(sum(digit * 3**place for place, digit in enumerate(group)) for group in groups)
    else:
        bits = 1 if name == "sign" else int(name[-1])
        whole = sum(digit << (bits * place) for place, digit in enumerate(digits))
        wanted = whole.to_bytes(math.ceil(1001 * bits / 8), "little")
    assert pack(codes, name).tobytes() == wanted


@pytest.mark.parametrize("name", NAMES)
def test_no_codes_take_no_bytes(name: str) -> None:
    empty = np.zeros((0, 3), np.int8)
    assert pack(empty, name).shape == (0,)
    assert unpack(pack(empty, name), name, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(9,), (8, 2), (10**9, 10**9), (2**40, 2**40)])
def test_bytes_of_another_shape_are_refused_before_anything_is_allocated(
    name: str, shape: tuple[int, ...]
) -> None:
    if CODES_IN_BYTES[name][0] == 8 and shape == (9,):
        shape = (17,)
    packed = pack(np.ones(40, np.int8), name)
    with pytest.raises(ValueError, match=r"codes take .* bytes"):
        unpack(packed, name, shape)


@pytest.mark.parametrize(
    ("name", "code"),
    [("sign", 0), ("sign", 2), ("ternary-33", 2), ("int2", -2), ("int3", 4), ("uint4", -1), ("int8", -128)],
)
def test_values_that_are_no_codes_are_refused(name: str, code: int) -> None:
    with pytest.raises(ValueError, match="Codes go from"):
        pack(np.array([1, code]), name)


def test_codes_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="whole numbers, got data type float64"):
        pack(np.array([1.0]), "sign")


@pytest.mark.parametrize(
    ("name", "byte", "count"),
    [
        ("ternary-90", 243, 5),  # above 3^5 - 1
        ("ternary-90", 3, 1),  # a digit beyond the last code
        ("int2", 0b11, 4),  # the value that symmetric codes do not use
        ("int4", 0xF0, 2),
        ("int8", 255, 1),
        ("sign", 0b10, 1),  # a bit beyond the last code
        ("uint3", 0b1000, 1),
    ],
)
def test_bytes_that_packing_never_gives_are_refused(name: str, byte: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"at most 242|stands for no code"):
        unpack(np.array([byte], np.uint8), name, (count,))


def test_a_code_needs_its_bits_and_a_ternary_one_log2_of_3() -> None:
    information = {name: scheme_of(name).alphabet.information for name in NAMES}
    assert information["sign"] == 1
    assert information["ternary-90"] == math.log2(3)
    assert [information[f"int{bits}"] for bits in (2, 3, 4, 8)] == [2, 3, 4, 8]
    assert [information[f"uint{bits}"] for bits in (2, 3, 4, 8)] == [2, 3, 4, 8]
