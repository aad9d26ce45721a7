"""Quantized models without their run: read, checked, loaded into a network; and what `quantize` and `load` refuse."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

import fedveil
from fedveil.artifacts import RunFolder
from fedveil.cli import cli
from fedveil.plugins import resolve
from fedveil.quantization import DamagedFile, decode_quantized, encode_quantized
from fedveil.run.app import BadInput
from fedveil.run.quantized import load_quantized, read_quantized

SOFTMAX = {"model": "softmax", "hidden-units": 64, "shape": [1, 4, 4], "classes": ["low", "mid", "high"]}
NET = """
from torch import nn

def net(input_shape, num_outputs):
    size = 1
    for side in input_shape:
        size *= side
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 5), nn.Tanh(), nn.Linear(5, num_outputs))
"""
HALF = """
from dataclasses import dataclass
from typing import ClassVar
from fedveil.quantization import Sign

@dataclass(frozen=True)
class HalfSign(Sign):
    kind: ClassVar[str] = "half-sign"

    @property
    def base_name(self):
        return "half-sign"

HALF = HalfSign()
"""


def weights(*shapes: tuple[str, tuple[int, ...]], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes}


LINEAR = weights(("1.weight", (3, 16)), ("1.bias", (3,)))


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write a quantized model with a note."""

    def write(arrays: dict[str, Any] = LINEAR, scheme: Any = "int4", model: Any = None) -> Path:
        path = tmp_path / "model.safetensors"
        path.write_bytes(encode_quantized(arrays, scheme, {"model": SOFTMAX if model is None else model}))
        return path

    return write


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def refused(result: Any) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedveil: ")
    return str(line)


# a module


@pytest.mark.parametrize("scheme", ["sign", "ternary-90", "int2", "uint8/channel", "int4/group-5"])
def test_the_module_computes_with_what_the_codes_stand_for(file: Callable[..., Path], scheme: str):
    path = file(scheme=scheme)
    arrays = decode_quantized(path.read_bytes(), path).arrays()
    records = np.random.default_rng(1).random((5, 1, 4, 4)).astype(np.float32)
    module = fedveil.load_quantized(path)
    assert not module.training
    scores = module(torch.from_numpy(records)).detach().numpy()
    np.testing.assert_allclose(
        scores, records.reshape(5, 16) @ arrays["1.weight"].T + arrays["1.bias"], rtol=1e-5, atol=1e-5
    )


def test_a_linear_regression_is_a_layer_of_its_features(file: Callable[..., Path]):
    arrays = weights(("weight", (1, 3)), ("bias", (1,)))
    path = file(arrays, "sign", {"app": "modulated", "features": ["a", "b", "c"]})
    module = load_quantized(str(path))
    scale = np.abs(arrays["weight"]).mean()
    records = np.eye(3, dtype=np.float32)
    expected = records @ (scale * np.sign(arrays["weight"])).T + arrays["bias"]
    np.testing.assert_allclose(module(torch.from_numpy(records)).detach().numpy(), expected, rtol=1e-6)


def test_a_network_of_ones_own_is_built_by_its_name(file: Callable[..., Path], package: Callable[..., Path]):
    package("my-nets", {}, my_nets=NET)
    shapes = (("1.weight", (5, 16)), ("1.bias", (5,)), ("3.weight", (3, 5)), ("3.bias", (3,)))
    path = file(weights(*shapes), model=SOFTMAX | {"model": "my_nets:net"})
    module = load_quantized(path)
    assert module(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    assert [tuple(value.shape) for value in module.parameters()] == [shape for _, shape in shapes]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({}, "does not say which network it is of: build it yourself"),
        ({"model": "softmax"}, "does not say which network it is of: build it yourself"),
        (SOFTMAX | {"model": "no_such_module:net"}, "cannot be imported: No module named 'no_such_module'"),
        (SOFTMAX | {"model": "sofmax"}, "model = 'sofmax' is not installed; did you mean 'softmax'"),
        (SOFTMAX | {"classes": ["a", "b"]}, "has shape"),
        (SOFTMAX | {"model": "mlp"}, "are of the module and not of the file"),
    ],
)
def test_a_file_whose_network_cannot_be_built_is_refused(
    file: Callable[..., Path], model: dict[str, Any], message: str
):
    path = file(model=model)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_quantized(path)
    assert "\n" not in str(error.value)
    assert message in refused(invoke("load", path))


# files that are not what they should be


def test_the_command_shows_what_is_in_a_file(file: Callable[..., Path]):
    path = file(scheme="ternary-90")
    result = invoke("load", path)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[:3] == [
        ["array", "shape", "as"],
        ["1.weight", "(3,", "16)", "ternary-90"],
        ["1.bias", "(3,)", "float32"],
    ]
    assert result.stdout.splitlines()[3].startswith("whole and unchanged; a Sequential: ")


@pytest.mark.parametrize("length", [0, 7, 100, -33, -1])
def test_a_file_that_was_cut_short_is_refused(file: Callable[..., Path], length: int):
    path = file()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedFile, match="truncated or not a safetensors file"):
        load_quantized(path)
    assert f"{path} is truncated" in refused(invoke("load", path))


def test_a_file_that_was_changed_in_any_byte_of_its_codes_is_refused(file: Callable[..., Path]):
    path = file()
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for place in range(start, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DamagedFile, match="was changed after it was written"):
            read_quantized(path)
    assert "was changed after it was written: restore it or quantize again." in refused(invoke("load", path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    path = tmp_path / "plain.safetensors"
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, path)
    assert "holds no quantized model of FedVeil: give a file from the folder quantized/" in refused(
        invoke("load", path)
    )


@pytest.mark.parametrize("path", ["missing.safetensors", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, path: str):
    sentence = refused(invoke("load", tmp_path / path))
    assert re.search(
        r"cannot be read \((No such file|Is a) .*\): give a file of quantized/ in a run's", sentence
    )
    with pytest.raises(BadInput):
        read_quantized(tmp_path / path)


# quantizers of packages


def test_a_packages_quantizer_is_read_where_it_is_installed_and_refused_elsewhere(
    file: Callable[..., Path], package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as installed:
        site = package("halves", {"quantizer": {"half-sign": "halves:HALF"}}, halves=HALF)
        path = file(scheme=resolve("quantizer", "half-sign"))
        assert read_quantized(path).scheme.name == "half-sign"
        assert load_quantized(path)(torch.zeros(1, 1, 4, 4)).shape == (1, 3)
        installed.setattr(sys, "path", [entry for entry in sys.path if entry != str(site)])
        assert "scheme = 'half-sign' is not known" in refused(invoke("load", path))


def test_a_broken_quantizer_of_a_package_does_not_keep_others_from_being_read(
    file: Callable[..., Path], package: Callable[..., Path]
):
    points = {"gone": "no_such_module:X", "half-sign": "halves:HALF", "number": "halves:NUMBER"}
    package("halves", {"quantizer": points}, halves=f"{HALF}\nNUMBER = 3\n")
    assert read_quantized(file()).scheme.name == "int4"
    assert read_quantized(file(scheme=resolve("quantizer", "half-sign"))).scheme.name == ("half-sign")
    path = file()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match="is truncated"):
        read_quantized(path)


# a run's folder


def run_folder(root: Path, app: str = "fedsva", *, finished: bool = True, **config: Any) -> Path:
    folder = RunFolder.create(root, app, config)
    if finished:
        folder.finish(LINEAR, [], (), {"app": app})
    return folder.path


def test_a_folder_that_is_no_runs_is_refused(tmp_path: Path):
    sentence = refused(invoke("quantize", tmp_path))
    assert sentence.endswith(f"{tmp_path} is not the folder of a run: it has no config.toml.")
    assert "is not the folder of a run" in refused(invoke("quantize", tmp_path / "nowhere"))


def test_an_unfinished_run_is_refused(tmp_path: Path):
    path = run_folder(tmp_path, finished=False)
    assert refused(invoke("quantize", path)).endswith(f"the run in {path} is not finished: resume it first.")


def test_a_run_of_an_app_that_is_not_there_is_refused(tmp_path: Path):
    assert "elsewhere" in refused(invoke("quantize", run_folder(tmp_path, "elsewhere")))


def test_a_run_of_an_app_that_cannot_read_finished_runs_is_refused(tmp_path: Path, trap: Path):
    sentence = refused(invoke("quantize", run_folder(tmp_path), "--app", trap))
    assert "app trap does not say how a finished run is read" in sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schemes", "sign,int5"], "scheme 'int5' is not known"),
        (["--schemes", ""], "quantizers is empty"),
        (["--candidates", "1"], "candidates = 1"),
    ],
)
def test_schemes_and_candidates_that_there_are_not_are_refused(
    tmp_path: Path, options: list[str], message: str
):
    assert message in refused(invoke("quantize", run_folder(tmp_path), *options))


def test_a_damaged_model_is_refused(tmp_path: Path):
    path = run_folder(tmp_path)
    model = path / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-2])
    assert f"{model} is truncated" in refused(invoke("quantize", path))
