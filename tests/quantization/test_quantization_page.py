"""The examples of docs/quantization.md: they run, and do what the page says."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedveil.quantization import SCHEMES, decode_quantized, dequantize, encode_quantized, name_of, quantize

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "quantization.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """All Python of the page as one module."""
    file = tmp_path_factory.mktemp("page") / "examples.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), encoding="utf-8")
    spec = spec_from_file_location("quantization_examples", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_example_gives_back_ternary_weights_and_the_bias(examples: ModuleType):
    assert (examples.weights["weight"] == 0).mean() == 0.9
    np.testing.assert_array_equal(examples.weights["bias"], np.zeros(10))
    assert examples.model.note == {"model": "softmax"}


def test_the_example_of_groups_has_the_shapes_that_the_page_says(examples: ModuleType):
    assert examples.quantized.scales.shape == (10, 13)
    assert examples.quantized.codes.dtype == np.uint8
    assert examples.change.max() < examples.quantized.scales.max()


def test_smaller_weights_are_more_often_zero_on_a_frozen_threshold(examples: ModuleType):
    assert examples.changed > 0
    assert (examples.earlier.codes["weight"] == 0).mean() > 0.9


def test_the_loader_of_the_page_gives_a_module_that_computes(examples: ModuleType, tmp_path: Path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(encode_quantized(examples.arrays, "int8"))
    weights = dequantize(quantize(examples.arrays["weight"], "int8"))
    records = np.random.default_rng(1).standard_normal((3, 784)).astype(np.float32)
    scores = examples.load_softmax(file)(torch.from_numpy(records)).detach().numpy()
    np.testing.assert_allclose(scores, records @ weights.T, rtol=1e-4, atol=1e-3)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="is truncated"):
        examples.load_softmax(file)


def test_a_quantizer_of_ones_own_has_files_names_and_granularities(examples: ModuleType):
    scheme = examples.HalfScale(granularity="channel")
    assert name_of(scheme) == "half-sign/channel"
    data = encode_quantized(examples.arrays, scheme)
    model = decode_quantized(data, "file", others=(examples.HalfScale,))
    signs = quantize(examples.arrays["weight"], "sign/channel")
    np.testing.assert_array_equal(2 * model.arrays()["weight"], dequantize(signs))


def test_every_scheme_stands_on_the_page():
    for name in SCHEMES:
        assert f"`{name}`" in PAGE
