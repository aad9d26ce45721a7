"""Files of quantized models: bit-exact, at their true size, and refused in one sentence when they are damaged."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedveil.models import cnn
from fedveil.quantization import (
    SCHEMES,
    DamagedFile,
    Sign,
    decode_quantized,
    encode_model,
    encode_quantized,
    name_of,
    quantize_model,
    theoretical_bits,
)

NAMES = [*SCHEMES, "sign/channel", "ternary-62.5/group-7", "uint3/group-5", "int8/channel"]
Tensors = dict[str, NDArray[Any]]
Header = dict[str, Any]


def some_arrays(seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "z.weight": rng.standard_normal((3, 2, 3, 3)).astype(np.float32),
        "a.bias": rng.standard_normal(3),
        "a.weight": rng.standard_normal((5, 18)).astype(np.float16),
        "scale": np.array(1.5),
        "none": np.zeros((0, 4)),
    }


def refused(data: bytes, others: tuple[type[Sign], ...] = ()) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(DamagedFile) as caught:
        decode_quantized(data, "the/file", others)
    message = str(caught.value)
    assert message.startswith("the/file ")
    assert message.endswith(".")
    assert "\n" not in message
    return message


def taken_apart(data: bytes) -> tuple[Tensors, Header]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return dict(safetensors.numpy.load(data)), json.loads(header["__metadata__"]["fedveil"])


def put_together(tensors: Tensors, header: object) -> bytes:
    """A file with a digest that is right, whatever it says: from whoever writes one on purpose."""
    tensors = {**tensors, "sha256": np.zeros(32, np.uint8)}
    data = safetensors.numpy.save(
        tensors, {"fedveil": header if isinstance(header, str) else json.dumps(header)}
    )
    first = 8 + int.from_bytes(data[:8], "little")
    start, end = (first + offset for offset in json.loads(data[8:first])["sha256"]["data_offsets"])
    return data[:start] + sha256(data[:start] + data[end:]).digest() + data[end:]


# there and back


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_back_every_code_scale_and_float(name: str):
    arrays = some_arrays()
    model = quantize_model(arrays, name, note={"model": "cnn", "shape": [1, 28, 28], "rate": 0.1})
    back = decode_quantized(encode_model(model), "file")
    assert back.scheme == model.scheme
    assert back.note == model.note
    assert list(back.parts) == list(arrays)
    for key, part in model.quantized.items():
        other = back.quantized[key]
        np.testing.assert_array_equal(other.codes, part.codes)
        assert other.codes.dtype == part.codes.dtype
        np.testing.assert_array_equal(other.scales, part.scales)
        if part.zero_points is not None:
            np.testing.assert_array_equal(other.zero_points, part.zero_points)
    for key, array in back.arrays().items():
        np.testing.assert_array_equal(array, model.arrays()[key])
        assert array.dtype == np.float32
        assert array.shape == arrays[key].shape
    assert encode_model(back) == encode_model(model)


def test_any_names_of_arrays_can_be_kept():
    arrays = {
        name: np.ones((2, 2)) for name in ("sha256", "codes/w", "float/w", "__metadata__", 'ü " \\', "")
    }
    arrays["w"] = np.ones(3)
    assert list(decode_quantized(encode_quantized(arrays, "uint2"), "file").arrays()) == list(arrays)


def test_equal_models_give_equal_bytes():
    assert encode_quantized(some_arrays(), "int3") == encode_quantized(some_arrays(), "int3")


def test_a_file_says_to_any_reader_what_it_is():
    tensors, header = taken_apart(encode_quantized(some_arrays(), "uint4/channel", note={"a": 1}))
    assert header["content"] == "quantized model"
    assert header["shapes"] == {"z.weight": [3, 2, 3, 3], "a.weight": [5, 18]}
    assert header["note"] == {"a": 1}
    assert json.loads(header["scheme"])["bits"] == 4
    assert tensors["codes/a.weight"].shape == (45,)
    assert tensors["zero_points/a.weight"].shape == (5, 1)
    assert tensors["float/a.bias"].dtype == np.float32


def test_a_note_that_is_no_json_is_refused():
    with pytest.raises(ValueError, match="The note must be JSON"):
        encode_quantized(some_arrays(), "sign", note={"a": object()})


def test_codes_of_a_ternary_file_have_no_thresholds_and_say_so():
    arrays = some_arrays()
    back = decode_quantized(encode_quantized(arrays, "ternary-90"), "file")
    with pytest.raises(ValueError, match="no thresholds, which a file does not keep"):
        back.encode(arrays)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("ternary")])
def test_other_arrays_can_be_read_on_the_grid_of_a_file(name: str):
    model = quantize_model(some_arrays(), name)
    back, other = decode_quantized(encode_model(model), "file"), some_arrays(1)
    for key, codes in model.encode(other).codes.items():
        np.testing.assert_array_equal(back.encode(other).codes[key], codes)


# size


@pytest.fixture(scope="module")
def cnn_arrays() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    shapes = {name: tuple(value.shape) for name, value in cnn((1, 28, 28), 62).named_parameters()}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("name", "times"), [("sign", 32), ("ternary-90", 20), ("int4", 8), ("uint3/channel", 32 / 3)]
)
def test_the_cnn_takes_its_bits_in_theory_and_so_many_times_less_than_float32(
    cnn_arrays: dict[str, NDArray[np.float32]], name: str, times: float
):
    data = encode_quantized(cnn_arrays, name)
    header = 8 + int.from_bytes(data[:8], "little")
    theory = theoretical_bits(cnn_arrays, name) / 8
    assert theory <= len(data) - header <= 1.02 * theory
    assert len(data) <= 1.02 * theory + header
    assert header < 2000
    tensors, shapes = taken_apart(data)[0], taken_apart(data)[1]["shapes"]
    weights = sum(cnn_arrays[key].nbytes for key in shapes)
    assert weights / sum(tensors[f"codes/{key}"].nbytes for key in shapes) == pytest.approx(times, rel=1e-5)


# damage


@pytest.mark.parametrize("name", ["sign", "ternary-90", "uint3/group-5"])
def test_a_file_cut_short_anywhere_is_refused(name: str):
    data = encode_quantized(some_arrays(), name, note={"a": "text"})
    for length in range(len(data)):
        assert "truncated" in refused(data[:length])


@pytest.mark.parametrize("name", ["sign", "ternary-90", "uint3/group-5"])
def test_a_file_with_any_byte_flipped_is_refused(name: str):
    data = encode_quantized(some_arrays(), name, note={"a": "text"})
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0xFF if position % 2 else 1 << position % 8
        refused(bytes(changed))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_file_with_any_bytes_replaced_is_refused_or_the_same(data: st.DataObject):
    """Blanks of the header, too: the digest covers the file, not what is read from it."""
    whole = encode_quantized(some_arrays(), "int4", note={"a": "text"})
    start = data.draw(st.integers(0, len(whole) - 1))
    piece = data.draw(st.one_of(st.binary(min_size=1, max_size=9), st.sampled_from([b"\t", b"\n", b" "])))
    changed = whole[:start] + piece + whole[start + len(piece) :]
    if changed != whole:
        refused(changed)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes):
    refused(data)
    refused(len(data).to_bytes(8, "little") + data)


@pytest.mark.parametrize(
    "data",
    [
        safetensors.numpy.save({"w": np.ones((2, 2))}),
        safetensors.numpy.save({"w": np.ones((2, 2))}, {"fedveil": '{"note": {}, "order": ["w"]}'}),
        safetensors.numpy.save({"w": np.ones((2, 2))}, {"fedveil": "[" * 5000}),
        safetensors.numpy.save({"w": np.ones((2, 2))}, {"fedveil": "7"}),
        safetensors.numpy.save({}, {"format": "pt"}),
    ],
)
def test_a_safetensors_file_of_something_else_is_refused(data: bytes):
    assert "holds no quantized model of FedVeil" in refused(data)


def test_a_file_of_a_newer_format_names_the_version_that_wrote_it():
    tensors, header = taken_apart(encode_quantized(some_arrays(), "sign"))
    message = refused(put_together(tensors, {**header, "format": 2, "library": "9.1.0"}))
    assert "was written by FedVeil 9.1.0 in format 2" in message
    data = safetensors.numpy.save({}, {"fedveil": json.dumps({**header, "format": 2, "library": "9.1.0"})})
    assert "was written by FedVeil 9.1.0 in format 2" in refused(data)


def test_the_digest_alone_tells_a_changed_value_from_the_one_written():
    tensors, header = taken_apart(encode_quantized(some_arrays(), "sign"))
    tensors["float/a.bias"] = tensors["float/a.bias"] * 2
    data = safetensors.numpy.save(tensors, {"fedveil": json.dumps(header)})
    assert "was changed after it was written" in refused(data)
    assert decode_quantized(put_together(tensors, header), "file").floats["a.bias"].shape == (3,)


@dataclass(frozen=True)
class Softer(Sign):
    kind: ClassVar[str] = "softer"

    @property
    def base_name(self) -> str:
        return "softer"


def test_a_scheme_that_is_not_known_is_named_and_known_with_its_class():
    data = encode_quantized(some_arrays(), Softer())
    assert "scheme = 'softer' is not known" in refused(data)
    assert name_of(decode_quantized(data, "file", (Softer,)).scheme) == "softer"


def set_shape(shape: object) -> Callable[[Tensors, Header], None]:
    return lambda tensors, header: header["shapes"].update({"a.weight": shape})


def set_tensor(name: str, value: NDArray[Any]) -> Callable[[Tensors, Header], None]:
    return lambda tensors, header: tensors.update({name: value})


def drop(name: str) -> Callable[[Tensors, Header], None]:
    return lambda tensors, header: tensors.pop(name)


def set_header(key: str, value: object) -> Callable[[Tensors, Header], None]:
    return lambda tensors, header: header.update({key: value})


WRONG: dict[str, tuple[Callable[[Tensors, Header], object], str]] = {
    "more weights": (set_shape([5, 19]), "'a.weight' of shape .* does not fit its data"),
    "as many weights in other rows": (set_shape([9, 10]), "'a.weight' of shape .* does not fit its data"),
    "a huge shape": (set_shape([10**9, 10**9]), "does not fit its data"),
    "a shape beyond all integers": (set_shape([10**400, 10]), "does not fit its data"),
    "an empty shape of huge sides": (set_shape([0, 10**18]), "sides are at least 1"),
    "negative sides": (set_shape([-5, -18]), "sides are at least 1"),
    "fractions": (set_shape([5.0, 18.0]), "sides are at least 1"),
    "booleans": (set_shape([True, 90]), "sides are at least 1"),
    "too many dimensions": (set_shape([1] * 70), "sides are at least 1"),
    "no list": (set_shape("5x18"), "sides are at least 1"),
    "scales of another shape": (set_tensor("scales/a.weight", np.ones((5, 2), np.float32)), "does not fit"),
    "scales of another type": (set_tensor("scales/a.weight", np.ones((5, 1))), "data type float64"),
    "scales that are no numbers": (
        set_tensor("scales/a.weight", np.full((5, 1), np.nan, np.float32)),
        "does not fit",
    ),
    "negative scales": (set_tensor("scales/a.weight", np.full((5, 1), -1, np.float32)), "does not fit"),
    "zero points of another shape": (
        set_tensor("zero_points/a.weight", np.ones((1, 5), np.uint8)),
        "does not fit",
    ),
    "codes of another type": (set_tensor("codes/a.weight", np.ones(34, np.int8)), "data type int8"),
    "fewer codes": (set_tensor("codes/a.weight", np.ones(33, np.uint8)), "does not fit"),
    "stray bits": (set_tensor("codes/a.weight", np.full(34, 255, np.uint8)), "does not fit"),
    "no codes": (drop("codes/a.weight"), "lacks 'codes/a.weight'"),
    "no scales": (drop("scales/z.weight"), "lacks 'scales/z.weight'"),
    "no zero points": (drop("zero_points/z.weight"), "lacks 'zero_points/z.weight'"),
    "no bias": (drop("float/a.bias"), "lacks 'float/a.bias'"),
    "a tensor too many": (set_tensor("codes/b", np.ones(3, np.uint8)), "belong to no array, codes/b"),
    "an array twice": (set_header("order", ["a.weight"] * 2), "list of names is none"),
    "an array without a place": (set_header("order", ["a.weight"]), "shapes are not those of its names"),
    "an array without a name": (set_header("order", [None]), "list of names is none"),
    "no order": (set_header("order", 3), "list of names is none"),
    "no shapes": (set_header("shapes", None), "shapes are not those of its names"),
    "a note that is none": (set_header("note", 3), "its note is no mapping"),
    "an unknown scheme": (set_header("scheme", '{"scheme": "uinform", "bits": 3}'), "did you mean 'uniform'"),
    "a scheme of unknown bits": (
        set_header("scheme", '{"scheme": "uniform", "bits": 7}'),
        "give 2, 3, 4 or 8",
    ),
    "no scheme": (set_header("scheme", None), "one JSON object"),
    "another scheme": (set_header("scheme", '{"scheme": "sign"}'), "does not fit"),
    "a format that is no number": (set_header("format", "1"), "holds no quantized model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_contradicts_itself_is_refused(case: str):
    change, message = WRONG[case]
    tensors, header = taken_apart(encode_quantized(some_arrays(), "uint3/channel"))
    change(tensors, header)
    assert re.search(message, refused(put_together(tensors, header)))


@pytest.mark.parametrize("key", ["order", "shapes", "scheme", "note", "format", "content"])
def test_a_file_that_lacks_a_description_is_refused(key: str):
    tensors, header = taken_apart(encode_quantized(some_arrays(), "uint3/channel"))
    del header[key]
    assert re.search(f"lacks '{key}'|holds no quantized model", refused(put_together(tensors, header)))


def test_a_refused_file_costs_no_memory():
    tensors, header = taken_apart(encode_quantized(some_arrays(), "uint3/channel"))
    set_shape([2**16, 2**16])(tensors, header)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(put_together(tensors, header))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB; its codes would be 4 GB
