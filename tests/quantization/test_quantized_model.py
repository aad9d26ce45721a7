"""Whole models in a quantizer: what is quantized, what stays, and how large it is in theory."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedveil.quantization import (
    SCHEMES,
    DamagedFile,
    dequantize,
    is_quantizable,
    quantize,
    quantize_model,
    theoretical_bits,
    to_module,
)

Arrays = dict[str, NDArray[np.float32]]


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 3))


def arrays_of(module: nn.Module) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(tuple(value.shape)).astype(np.float32)
        for name, value in module.named_parameters()
    }


@pytest.fixture
def arrays() -> Arrays:
    return arrays_of(network())


def test_weights_are_quantized_and_biases_and_norms_stay_as_they_are(arrays: Arrays):
    model = quantize_model(arrays, "sign")
    assert list(model.codes) == ["0.weight", "3.weight"]
    assert list(model.floats) == ["0.bias", "1.weight", "1.bias", "3.bias"]
    decoded = model.arrays()
    assert list(decoded) == list(arrays)
    for name, array in decoded.items():
        wanted = dequantize(quantize(arrays[name], "sign")) if arrays[name].ndim > 1 else arrays[name]
        np.testing.assert_array_equal(array, wanted)
        assert array.dtype == np.float32


def test_arrays_that_are_given_back_can_be_written_to(arrays: Arrays):
    model = quantize_model(arrays, "int4")
    for array in model.arrays().values():
        array[...] = 9.0
    np.testing.assert_array_equal(model.arrays()["0.bias"], arrays["0.bias"])


def test_a_filter_chooses_what_is_quantized(arrays: Arrays):
    model = quantize_model(arrays, "int8", filter=lambda name, array: name.startswith("3."))
    assert list(model.codes) == ["3.weight", "3.bias"]


def test_only_weights_of_two_or_more_dimensions_are_quantized_by_default():
    shapes = [(), (5,), (5, 1), (2, 3, 4), (0, 4)]
    assert [is_quantizable("w", np.zeros(shape)) for shape in shapes] == [False, False, True, True, False]


@pytest.mark.parametrize("arrays", [{}, {"bias": np.zeros(10), "scale": np.ones(3)}])
def test_a_model_with_nothing_to_quantize_is_refused_with_its_arrays(arrays: Arrays):
    shown = r"bias \(10,\), scale \(3,\)" if arrays else "none"
    for call in (quantize_model, theoretical_bits):
        with pytest.raises(ValueError, match=rf"nothing to quantize: .*its arrays are {shown}"):
            call(arrays, "sign")


@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_model_is_refused_by_the_name_of_the_array(arrays: Arrays, name: str, value: float):
    arrays[name].reshape(-1)[1] = value
    with pytest.raises(ValueError, match=f"Array '{name}' holds NaN or infinite weights"):
        quantize_model(arrays, "ternary-90")


def test_an_unknown_scheme_is_refused_with_the_nearest(arrays: Arrays):
    with pytest.raises(ValueError, match="did you mean 'ternary-90'"):
        quantize_model(arrays, "tenary-90")


# other arrays on the model's grid


@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_arrays_are_read_on_the_frozen_grid_and_only_their_codes_differ(arrays: Arrays, scheme: str):
    model = quantize_model(arrays, scheme)
    other = model.encode({name: array + 0.3 for name, array in arrays.items()})
    assert other.floats == model.floats
    for name, part in other.quantized.items():
        assert part.grid is model.quantized[name].grid
    assert any((other.codes[name] != codes).any() for name, codes in model.codes.items())
    np.testing.assert_array_equal(other.arrays()["0.bias"], arrays["0.bias"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_has_its_own_codes_on_its_own_grid(arrays: Arrays, scheme: str):
    model = quantize_model(arrays, scheme)
    again = model.encode({name: arrays[name] for name in model.codes})
    for name, codes in model.codes.items():
        np.testing.assert_array_equal(again.codes[name], codes)


def test_a_missing_array_is_named(arrays: Arrays):
    with pytest.raises(ValueError, match=r"Arrays 3\.weight are missing"):
        quantize_model(arrays, "sign").encode({"0.weight": arrays["0.weight"]})


# size


def test_bits_in_theory_count_codes_scales_zero_points_and_floats():
    arrays = {"w": np.zeros((10, 70)), "b": np.zeros(10)}
    floats = 10 * 32
    assert theoretical_bits(arrays, "sign") == 700 + 32 + floats
    assert theoretical_bits(arrays, "ternary-90") == pytest.approx(
        700 * math.log2(3) + 32 + floats, rel=1e-15
    )
    assert theoretical_bits(arrays, "int3/channel") == 2100 + 10 * 32 + floats
    assert theoretical_bits(arrays, "uint4/group-64") == 2800 + 20 * (32 + 8) + floats
    assert theoretical_bits(arrays, "int8", filter=lambda name, array: True) == 8 * 710 + 2 * 32


# torch


def test_a_module_computes_with_what_the_codes_stand_for(arrays: Arrays):
    model = quantize_model(arrays, "int4/channel")
    module = to_module(model, network())
    records = torch.randn(5, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    values = {name: torch.from_numpy(array) for name, array in model.arrays().items()}
    wanted = torch.func.functional_call(network(), values, (records,))
    torch.testing.assert_close(module(records), wanted, rtol=0, atol=0)


def test_a_module_keeps_its_data_type_and_its_frozen_parameters(arrays: Arrays):
    module = network().double()
    module[1].requires_grad_(False)
    before = module[1].weight.clone()
    trained = {name: array for name, array in arrays.items() if not name.startswith("1.")}
    model = quantize_model(trained, "sign")
    to_module(model, module)
    assert module[3].weight.dtype == torch.float64
    np.testing.assert_array_equal(module[3].weight.detach().numpy(), model.arrays()["3.weight"])
    assert torch.equal(module[1].weight, before)


def test_a_module_of_another_architecture_is_refused_and_not_changed(arrays: Arrays):
    model = quantize_model(arrays, "sign")
    smaller = nn.Sequential(nn.Conv2d(1, 4, 3))
    wider = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 5))
    larger = nn.Sequential(*network(), nn.Linear(3, 3))
    for module, message in (
        (smaller, r"Arrays 1\.weight, 1\.bias, 3\.weight, 3\.bias are of the file and not of the module"),
        (larger, r"Arrays 4\.weight, 4\.bias are of the module and not of the file"),
        (wider, r"Array '3\.weight' has shape \(3, 4\), but the module needs \(5, 4\)"),
    ):
        before = {name: value.clone() for name, value in module.named_parameters()}
        with pytest.raises(ValueError, match=message):
            to_module(model, module)
        assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())


def test_quantizing_needs_no_torch():
    code = (
        "import sys, fedveil.quantization as q, numpy as np\n"
        "q.decode_quantized(q.encode_quantized({'w': np.ones((2, 2))}, 'sign'), 'file').arrays()\n"
        "print(sorted({'torch', 'flwr', 'ray', 'scipy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_damaged_file_is_a_value_error():
    assert issubclass(DamagedFile, ValueError)


@pytest.mark.parametrize(
    "scheme", ["sign", "ternary-33", "ternary-90/group-7", "absmean-ternary/channel", "int4", "uint3/group-4"]
)
def test_several_models_have_the_codes_on_a_frozen_grid_that_each_has_by_itself(scheme: str):
    """Arrays of 9,000 weights, of which a few are encoded at a time, and small ones, of which all are."""
    rng = np.random.default_rng(3)
    shapes = {"large": (90, 100), "odd": (5, 3, 3), "bias": (5,)}
    models = [
        {name: rng.integers(-4, 5, shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(11)
    ]  # of few values, so that ternary thresholds are met
    final = quantize_model(models[-1], scheme)
    together = final.encode_all(models)
    for model, encoded in zip(models, together, strict=True):
        for name, codes in encoded.codes.items():
            np.testing.assert_array_equal(codes, final.encode(model).codes[name])
        np.testing.assert_array_equal(encoded.floats["bias"], models[-1]["bias"])
    for name, codes in together[-1].codes.items():
        np.testing.assert_array_equal(codes, final.codes[name])


def test_several_models_are_refused_where_one_is_of_another_shape_or_lacks_an_array(arrays: Arrays):
    final = quantize_model(arrays, "int4")
    assert final.encode_all([]) == []
    with pytest.raises(ValueError, match=r"Arrays 3\.weight are missing"):
        final.encode_all([arrays, {"0.weight": arrays["0.weight"]}])
    with pytest.raises(ValueError, match=r"'3\.weight' has shape .* the frozen scales belong to shape"):
        final.encode_all([arrays, arrays | {"3.weight": arrays["3.weight"].T}])
