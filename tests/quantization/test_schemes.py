"""Codes and scales of every scheme, against formulas worked by hand and weight-by-weight loops."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from fedveil.quantization import (
    SCHEMES,
    AbsmeanTernary,
    Quantized,
    Scheme,
    Sign,
    Ternary,
    Uniform,
    dequantize,
    encode_with,
    quantize,
    scheme_of,
)

ALL = list(SCHEMES.values())
GRANULAR = [
    replace(scheme, granularity=granularity, group_size=size)
    for scheme in ALL
    for granularity, size in (("tensor", None), ("channel", None), ("group", 3))
]
NAMES = [scheme.name for scheme in GRANULAR]

finite = st.floats(-(2.0**120), 2.0**120, width=32).filter(lambda value: value == 0 or abs(value) > 1e-30)
weights = arrays(np.float32, array_shapes(min_dims=0, max_dims=4, max_side=6), elements=finite)
schemes = st.sampled_from(GRANULAR)


def blocks_of(array: NDArray[np.float32], scheme: Scheme) -> list[list[int]]:
    """Flat positions of the weights of every block, by counting."""
    flat, blocks = list(range(array.size)), []
    rows = array.shape[0] if array.ndim >= 2 and scheme.granularity != "tensor" else 1
    width = array.size // rows
    for row in range(rows):
        positions = flat[row * width : (row + 1) * width]
        size = scheme.group_size or width
        blocks += [positions[start : start + size] for start in range(0, width, size)]
    return blocks


def half_even(value: Fraction) -> int:
    return round(value)


def expected(values: list[float], scheme: Scheme, scale: np.float32) -> tuple[float, list[int], int]:
    """Exact scale, codes on the rounded scale, zero point: one weight at a time, in rational numbers."""
    exact = [Fraction(value) for value in values]
    magnitudes, unit = [abs(value) for value in exact], Fraction(float(scale))
    if isinstance(scheme, Ternary):
        order = sorted(range(len(values)), key=lambda position: (magnitudes[position], position))
        zeros = min(half_even(Fraction(repr(scheme.sparsity)) * len(values)), len(values) - 1)
        kept = [p for p in order[zeros:] if magnitudes[p]]
        mean = sum((magnitudes[p] for p in kept), Fraction(0)) / max(1, len(kept))
        return float(mean), [int(np.sign(values[p])) if p in kept else 0 for p in range(len(values))], 0
    if isinstance(scheme, Sign):
        codes = [-1 if value < 0 else 1 for value in exact]
        return float(sum(magnitudes) / len(values)), codes, 0
    if isinstance(scheme, AbsmeanTernary):
        codes = [half_even(max(min(v / unit, Fraction(1)), Fraction(-1))) if unit else 0 for v in exact]
        return float(sum(magnitudes) / len(values)), codes, 0
    assert isinstance(scheme, Uniform)
    if scheme.symmetric:
        top, low, zero = 2 ** (scheme.bits - 1) - 1, -(2 ** (scheme.bits - 1)) + 1, 0
        span = max(magnitudes)
    else:
        top, low = 2**scheme.bits - 1, 0
        span = max(0, *exact) - min(0, *exact)
        zero = half_even(-min(0, *exact) / unit) if unit else 0
    codes = [max(low, min(top, half_even(value / unit) + zero)) if unit else zero for value in exact]
    return float(span / top), codes, zero


@pytest.mark.parametrize("scheme", GRANULAR, ids=NAMES)
@settings(max_examples=8, deadline=None)
@given(array=weights)
def test_codes_and_scales_are_those_of_a_loop_over_weights(
    scheme: Scheme, array: NDArray[np.float32]
) -> None:
    q = quantize(array, scheme)
    scales, codes = q.scales.reshape(-1), q.codes.reshape(-1)
    blocks = blocks_of(array, scheme)
    assert len(scales) == len(blocks)
    for index, block in enumerate(blocks):
        exact, wanted, zero = expected([float(array.reshape(-1)[p]) for p in block], scheme, scales[index])
        assert float(scales[index]) == pytest.approx(exact, rel=2**-23, abs=1e-45)
        if scales[index] == 0:
            continue
        got = [int(codes[p]) for p in block]
        # a quotient within 1e-15 of a half may fall to either side in float64
        assert all(abs(a - b) <= 1 for a, b in zip(got, wanted))
        if got != wanted:
            halves = [float(array.reshape(-1)[p]) / float(scales[index]) % 1 for p in block]
            assert all(a == b or abs(h - 0.5) < 1e-12 for a, b, h in zip(got, wanted, halves))
        if q.zero_points is not None:
            assert abs(int(q.zero_points.reshape(-1)[index]) - zero) <= 1


# each scheme by hand


def test_sign_keeps_the_mean_magnitude_and_counts_zero_as_positive():
    q = quantize(np.array([-3.0, 0.0, 1.0, 4.0]), Sign())
    assert q.codes.tolist() == [-1, 1, 1, 1]
    assert q.scales.tolist() == [[2.0]]


def test_ternary_drops_the_smallest_share_and_keeps_the_mean_of_the_others():
    q = quantize(np.array([0.1, -5.0, 2.0, -0.2, 3.0, 0.3, 0.4, -0.5, 0.6, 0.7]), Ternary(0.7))
    assert q.codes.tolist() == [0, -1, 1, 0, 1, 0, 0, 0, 0, 0]
    assert q.scales[0, 0] == np.float32(10 / 3)


def test_of_equal_magnitudes_the_earlier_weights_become_zero():
    q = quantize(np.array([1.0, -1.0, 1.0, -1.0]), Ternary(0.5))
    assert q.codes.tolist() == [0, 0, 1, -1]


def test_the_number_of_ternary_zeros_is_the_share_rounded_half_to_even():
    """0.29 * 100 is 28.999999999999996 in floats, 0.575 * 100 is 57.49999999999999."""
    values = np.arange(1.0, 101.0)
    assert (quantize(values, Ternary(0.29)).codes == 0).sum() == 29
    assert (quantize(values, Ternary(0.575)).codes == 0).sum() == 58
    assert (quantize(values[:5], Ternary(0.5)).codes == 0).sum() == 2
    assert (quantize(values[:7], Ternary(0.5)).codes == 0).sum() == 4


def test_ternary_keeps_at_least_one_weight_of_a_block():
    q = quantize(np.array([[0.2, -0.7, 0.1]]), Ternary(0.99))
    assert q.codes.tolist() == [[0, -1, 0]]
    assert q.scales[0, 0] == np.float32(0.7)


def test_a_weight_of_zero_stays_zero_and_does_not_shrink_the_ternary_scale():
    q = quantize(np.array([0.0, 0.0, 0.0, 2.0, -4.0]), Ternary(0.2))
    assert q.codes.tolist() == [0, 0, 0, 1, -1]
    assert q.scales.tolist() == [[3.0]]


def test_absmean_ternary_rounds_to_the_nearest_and_halves_to_zero():
    q = quantize(np.array([0.5, -0.5, 1.0, -2.0, 0.0, 1.5, 0.75, 1.75]), AbsmeanTernary())
    assert q.scales.tolist() == [[1.0]]
    assert q.codes.tolist() == [0, 0, 1, -1, 0, 1, 1, 1]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_codes_reach_as_far_down_as_up_and_spare_one_value(bits: int):
    levels = 2 ** (bits - 1) - 1
    q = quantize(np.linspace(-1, 1, 1001), Uniform(bits))
    assert q.codes.min() == -levels
    assert q.codes.max() == levels
    assert len(np.unique(q.codes)) == 2 * levels + 1
    assert q.zero_points is None
    assert q.scales[0, 0] == np.float32(1 / levels)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_asymmetric_codes_use_every_value_and_keep_zero_exact(bits: int):
    top = 2**bits - 1
    q = quantize(np.linspace(-1.0, top - 1.0, 16 * top + 1), Uniform(bits, symmetric=False))
    assert q.codes.dtype == np.uint8
    assert np.unique(q.codes).tolist() == list(range(top + 1))
    assert q.zero_points is not None
    assert (q.scales.tolist(), q.zero_points.tolist()) == ([[1.0]], [[1]])
    assert dequantize(q)[16] == 0.0


def test_halves_of_a_uniform_step_round_to_even():
    q = quantize(np.array([0.5, 1.5, 2.5, -0.5, -1.5, 7.0]), Uniform(4))
    assert q.codes.tolist() == [0, 2, 2, 0, -2, 7]


@settings(max_examples=60, deadline=None)
@given(array=weights, bits=st.sampled_from([2, 3, 4, 8]), symmetric=st.booleans())
def test_the_error_of_a_uniform_code_is_at_most_half_a_step(
    array: NDArray[np.float32], bits: int, symmetric: bool
) -> None:
    """Up to a step where rounding the zero point moved the range."""
    q = quantize(array, Uniform(bits, symmetric))
    error = np.abs(dequantize(q).astype(float) - array.astype(float)).max(initial=0.0)
    assert error <= float(q.scales[0, 0]) * (0.5 if symmetric else 1.0) * (1 + 1e-5)


# shapes, memory, data types


def test_scales_are_rows_by_blocks_and_the_last_group_may_be_shorter():
    array = np.arange(1.0, 2 * 7 + 1).reshape(2, 7)
    assert quantize(array, "int8").scales.shape == (1, 1)
    assert quantize(array, "int8/channel").scales.shape == (2, 1)
    grouped = quantize(array, "sign/group-3").scales
    np.testing.assert_array_equal(grouped, [[2, 5, 7], [9, 12, 14]])


def test_a_channel_of_a_convolution_is_one_index_of_axis_0():
    array = np.random.default_rng(0).standard_normal((5, 3, 2, 2))
    q = quantize(array, "sign/channel")
    np.testing.assert_allclose(q.scales[:, 0], np.abs(array).mean(axis=(1, 2, 3)), rtol=1e-7)


def test_a_group_larger_than_a_row_is_the_row():
    array = np.random.default_rng(1).standard_normal((4, 6))
    rows, group = quantize(array, "int4/channel"), quantize(array, "int4/group-64")
    np.testing.assert_array_equal(rows.codes, group.codes)
    np.testing.assert_array_equal(rows.scales, group.scales)


def test_a_vector_is_one_row():
    vector = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert quantize(vector, "sign/channel").scales.tolist() == [[3.0]]
    assert quantize(vector, "sign/group-2").scales.tolist() == [[1.5, 3.5, 5.0]]


@pytest.mark.parametrize("scheme", GRANULAR, ids=NAMES)
def test_how_the_memory_lies_changes_nothing(scheme: Scheme):
    array = np.random.default_rng(2).standard_normal((8, 10, 6)).astype(np.float32)
    big_endian = array.astype(">f4")
    for view in (np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2], big_endian):
        other, plain = quantize(view, scheme), quantize(array, scheme)
        np.testing.assert_array_equal(other.codes, plain.codes)
        np.testing.assert_array_equal(other.scales, plain.scales)


@pytest.mark.parametrize("scheme", GRANULAR, ids=NAMES)
def test_float16_and_float64_hold_the_same_weights_as_float32(scheme: Scheme):
    array = np.random.default_rng(3).standard_normal((7, 5)).astype(np.float16)
    wanted = quantize(array.astype(np.float32), scheme)
    for given_as in (array, array.astype(np.float64)):
        q = quantize(given_as, scheme)
        np.testing.assert_array_equal(q.codes, wanted.codes)
        np.testing.assert_array_equal(q.scales, wanted.scales)
        assert dequantize(q).dtype == np.float32


@pytest.mark.parametrize("scheme", GRANULAR, ids=NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3, 5)])
def test_all_zero_arrays_come_back_as_zeros_with_scale_zero(scheme: Scheme, shape: tuple[int, ...]):
    q = quantize(np.zeros(shape), scheme)
    assert not q.scales.any()
    decoded = dequantize(q)
    assert decoded.shape == shape
    assert not decoded.any()
    assert not np.signbit(decoded).any()


@pytest.mark.parametrize("scheme", ALL, ids=list(SCHEMES))
@pytest.mark.parametrize("value", [2.5, -0.375])
def test_constant_arrays_come_back_unless_ternary_drops_weights(scheme: Scheme, value: float):
    decoded = dequantize(quantize(np.full((4, 25), value), scheme))
    kept = np.ones(100, bool)
    if isinstance(scheme, Ternary):
        kept[: round(100 * scheme.sparsity)] = False
    np.testing.assert_allclose(decoded.reshape(-1), np.where(kept, value, 0.0), rtol=1e-6)


@pytest.mark.parametrize("scheme", GRANULAR, ids=NAMES)
@pytest.mark.parametrize("value", [0.3, -7.0])
def test_an_array_of_one_weight_comes_back(scheme: Scheme, value: float):
    assert dequantize(quantize(np.array([[value]]), scheme))[0, 0] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("scheme", GRANULAR, ids=NAMES)
def test_weights_at_the_ends_of_the_range_stay_finite(scheme: Scheme):
    for array in (
        np.array([1e38, -1e38, 1e38]),
        np.array([1e-300, -1e-320, 5e-45]),
        np.array([1e38, -1e-45]),
    ):
        q = quantize(array, scheme)
        assert np.isfinite(dequantize(q)).all()
        np.testing.assert_array_equal(encode_with(array, q), q.codes)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_weights_that_are_no_numbers_are_refused_by_the_name_of_the_array(value: float):
    array = np.zeros((2, 3))
    array[1, 1] = value
    with pytest.raises(ValueError, match=r"layer\.weight holds (NaN or infinite|magnitudes above)"):
        quantize(array, "sign", name="layer.weight")
    with pytest.raises(ValueError, match=r"candidate holds"):
        encode_with(array, quantize(np.ones((2, 3)), "sign"), name="candidate")


@pytest.mark.parametrize(
    "array", [np.ones((2, 2), int), np.ones(3, bool), np.ones(2, complex), np.array(["a"])]
)
def test_other_data_types_are_refused(array: NDArray[np.generic]):
    with pytest.raises(ValueError, match=r"has data type .*: quantize float16, float32 or float64"):
        quantize(array, "sign")


def test_an_empty_array_is_refused():
    with pytest.raises(ValueError, match=r"of shape \(0, 3\) has no weights"):
        quantize(np.zeros((0, 3)), "int4")


# once more, and on a frozen grid


def uses_both_ends(q: Quantized) -> bool:
    top = q.scheme.alphabet.size - 1
    blocks = q.scheme.blocks(q.shape)
    return all({0, top} <= set(row) for piece in blocks.split(q.codes) for row in piece.tolist())


@settings(max_examples=150, deadline=None)
@given(array=weights, scheme=schemes)
def test_quantizing_what_was_quantized_changes_nothing(array: NDArray[np.float32], scheme: Scheme) -> None:
    """Where it can hold: see dequantize; scales of symmetric schemes may move to the neighbouring float."""
    q = quantize(array, scheme)
    again = quantize(dequantize(q), scheme)
    if isinstance(scheme, Uniform) and not scheme.symmetric and not uses_both_ends(q):
        return
    np.testing.assert_array_equal(again.codes, q.codes)
    if isinstance(scheme, Sign | Ternary):
        np.testing.assert_array_equal(again.scales, q.scales)
    elif isinstance(scheme, Uniform):
        np.testing.assert_array_max_ulp(again.scales, q.scales, 1)


@settings(max_examples=150, deadline=None)
@given(array=weights, scheme=schemes)
def test_the_array_itself_has_its_codes_on_its_frozen_grid(
    array: NDArray[np.float32], scheme: Scheme
) -> None:
    q = quantize(array, scheme)
    np.testing.assert_array_equal(encode_with(array, q), q.codes)


def test_on_a_frozen_grid_codes_follow_the_scale_of_the_other_array():
    frozen = quantize(np.array([7.0, -3.0]), "int4")
    assert encode_with(np.array([2.4, -100.0]), frozen).tolist() == [2, -7]
    frozen = quantize(np.array([-1.0, 14.0]), "uint4")
    assert encode_with(np.array([-50.0, 3.2]), frozen).tolist() == [0, 4]


def test_on_a_frozen_grid_ternary_keeps_its_threshold_and_not_its_share():
    frozen = quantize(np.array([1.0, 2.0, 3.0, 4.0]), Ternary(0.5))
    assert encode_with(np.array([2.9, -3.1, 5.0, -9.0]), frozen).tolist() == [0, -1, 1, -1]
    assert encode_with(np.array([0.1, 0.2, 0.3, 0.4]), frozen).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("scheme", ALL, ids=list(SCHEMES))
def test_on_a_grid_of_scale_zero_all_arrays_have_the_same_codes(scheme: Scheme):
    frozen = quantize(np.zeros(6), scheme)
    np.testing.assert_array_equal(encode_with(np.array([1.0, -1, 2, -2, 0, 9]), frozen), frozen.codes)


def test_a_frozen_grid_refuses_arrays_of_another_shape():
    with pytest.raises(ValueError, match=r"has shape \(3,\), but the frozen scales belong to shape \(2,\)"):
        encode_with(np.ones(3), quantize(np.ones(2), "sign"))


def test_codes_that_do_not_fit_their_grid_are_refused():
    q = quantize(np.ones((4, 2)), "uint4/channel")
    for wrong in (
        {"codes": q.codes.reshape(2, 4)},
        {"codes": q.codes.astype(np.int8)},
        {"scheme": scheme_of("int4/channel")},
        {"grid": replace(q.grid, scales=-q.scales)},
        {"grid": replace(q.grid, scales=q.scales[:3])},
        {"grid": replace(q.grid, zero_points=None)},
    ):
        with pytest.raises(ValueError, match=r"^(Codes|Scales|Zero points) of u?int4"):
            replace(q, **wrong)
