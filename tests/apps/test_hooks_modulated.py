"""The end of a run of modulated learning: its coefficients in each quantizer, with R^2, RMSE and r_Q."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from numpy.typing import NDArray
from typer.testing import CliRunner

import fedveil
from fedveil.artifacts import RunFolder
from fedveil.cli import cli
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import load_regression
from fedveil.quantization import decode_quantized
from fedveil.strategies.hooks.quantize import DEFAULT_SCHEMES

KILLED_RUNS = Path(__file__).with_name("killed_runs.py")
ITERATIVE = {"strategy": "modulated-iterative", "num-server-rounds": 8}
RANGES = {"standardization": "estimated", "range-share": 0.3}


def report_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "rq.json").read_text())
    return found


def hooked(folder: Path) -> dict[str, bytes]:
    """What the hook leaves, and what it reads."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for place in ("quantized/*", "rq.json", "trajectory/*", "model.safetensors")
        for file in sorted(folder.glob(place))
    }


def public_records(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float64], float]:
    """The public test set as the model takes it: standardised and clipped features, targets, and the target's unit."""
    saved = RunFolder(folder)
    problem = load_regression(ModulatedConfig.from_run_config(saved.config | {"seed": ""}))
    arrays, note = saved.load_model()
    features, targets = problem.test
    own_unit = features.astype(np.float64) * problem.data.schema.half_range + problem.data.schema.center
    scaled = (own_unit - arrays["center"]) / arrays["half-range"]
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    clipped = scaled * np.minimum(1.0, note["bound"] / norms)
    return clipped.astype(np.float32), targets, problem.target_half_range


@pytest.fixture(scope="module", params=["one-shot", "iterative", "estimated ranges"])
def finished(modulated_of_module: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    """Runs with the hook as it is by default."""
    settings = {"one-shot": {}, "iterative": ITERATIVE, "estimated ranges": RANGES}[request.param]
    return modulated_of_module(settings)


def test_figures_are_those_of_a_layer_with_the_dequantized_coefficients(finished: Any):
    report = report_of(finished.folder)
    features, targets, unit = public_records(finished.folder)
    assert list(report["quantizers"]) == DEFAULT_SCHEMES.split(",")
    assert report["records"] == len(targets)
    for name, one in report["quantizers"].items():
        file = finished.folder / "quantized" / f"{name}.safetensors"
        assert one["bytes"] == file.stat().st_size
        arrays = decode_quantized(file.read_bytes(), name).arrays()
        layer = features @ arrays["weight"][0] + arrays["bias"][0]
        loaded = fedveil.load_quantized(file)(torch.from_numpy(features)).detach().numpy()[:, 0]
        np.testing.assert_allclose(loaded, layer, rtol=1e-5, atol=1e-6)
        errors = targets - loaded
        r2 = 1 - np.sum(errors**2) / np.sum((targets - targets.mean()) ** 2)
        assert one["r2"] == pytest.approx(r2, abs=1e-5)
        assert one["rmse"] == pytest.approx(unit * np.sqrt(np.mean(errors**2)), rel=1e-5)


def test_the_model_itself_has_the_figures_that_the_run_told(finished: Any):
    held_out, plain = finished.estimate["held-out"], report_of(finished.folder)["float32"]
    assert plain["r2"] == pytest.approx(held_out["r2"], abs=1e-5)
    assert plain["rmse"] == pytest.approx(held_out["rmse"], rel=1e-5)
    assert plain["bytes"] == 4 * len(finished.coefficients)


def test_slopes_have_codes_and_the_intercept_stays(finished: Any):
    for file in (finished.folder / "quantized").iterdir():
        model = decode_quantized(file.read_bytes(), file)
        assert list(model.codes) == ["weight"]
        assert model.codes["weight"].shape == (1, 3)
        np.testing.assert_array_equal(model.floats["bias"], finished.coefficients[-1:].astype(np.float32))


def test_r_q_is_that_of_half_squared_errors_on_the_public_records(finished: Any):
    """Two or more sets of signs on the final scale, compared in a loop."""
    features, targets, _ = public_records(finished.folder)
    final = finished.coefficients.astype(np.float32)
    scale = np.float32(np.abs(final[:-1].astype(np.float64)).mean())
    found = {}
    kept = RunFolder(finished.folder).load_trajectory()
    for _, arrays in kept[-max(8, -(-len(kept) // 2)) :]:  # the late half, and eight at least
        signs = np.where(arrays["coefficients"][:-1].astype(np.float32) < 0, -1.0, 1.0)
        errors = targets - (features.astype(np.float64) @ (scale * signs) + np.float64(final[-1]))
        found.setdefault(signs.tobytes(), errors**2 / 2)
    losses = sorted(found.values(), key=np.mean)
    rates = [np.mean(other - losses[0]) ** 2 / np.var(other - losses[0]) / 2 for other in losses[1:]]
    one = report_of(finished.folder)["quantizers"]["sign"]
    assert one["candidates"] == len(losses) >= 2
    assert one["r_q"] == pytest.approx(min(rates), rel=1e-4)


def test_the_ranking_is_printed_before_the_folder(finished: Any):
    ranking = report_of(finished.folder)["ranking"]
    lines = [line.removeprefix("fedveil | ") for line in finished.output.splitlines()]
    assert lines[-1] == f"run folder: {finished.folder}"
    start = next(index for index, line in enumerate(lines) if line.startswith("quantizer "))
    assert lines[start].split()[3:5] == ["code-bits", "r2"]
    assert [line.split()[0] for line in lines[start + 2 : start + 8]] == ranking


def test_one_round_gives_two_candidates_and_a_warning(modulated: Callable[..., Any]):
    run = modulated({"quantizers": "int4"})
    (number, start), (last, _) = RunFolder(run.folder).load_trajectory()
    assert (number, last) == (0, 1)
    assert not start["coefficients"].any()
    assert "warning, int4: Only 2 distinct candidates (fewer than 8)" in run.output


def test_a_run_without_hooks_is_quantized_later_to_the_same_bytes(modulated: Callable[..., Any]):
    run, plain = modulated(ITERATIVE), modulated({**ITERATIVE, "hooks": "none"})
    assert not (plain.folder / "rq.json").exists()
    result = CliRunner().invoke(cli, ["quantize", str(plain.folder)])
    assert result.exit_code == 0, result.stderr
    assert hooked(plain.folder) == hooked(run.folder)
    assert plain.results == run.results


def test_without_a_trajectory_the_hook_says_so_and_the_run_is_there(modulated: Callable[..., Any]):
    run = modulated({"trajectory": 0})
    assert "hook 'quantize' failed, the run's other results stay: " in run.output
    assert "holds no trajectory" in run.output
    assert RunFolder(run.folder).is_finished
    assert not (run.folder / "quantized").exists()


def test_an_unknown_quantizer_stops_the_run_before_it_begins(
    town: dict[str, Any], modulated_run: Callable[..., Result], tmp_path: Path
):
    result = modulated_run({**town, "quantizers": "int5", "output-dir": str(tmp_path / "runs")})
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "scheme 'int5' is not known" in line
    assert not (tmp_path / "runs").exists()


def test_a_resumed_run_keeps_its_trajectory_and_ends_with_the_same_bytes(
    town: dict[str, Any],
    modulated: Callable[..., Any],
    modulated_run: Callable[..., Result],
    tmp_path: Path,
):
    settings = {**town, **ITERATIVE, "output-dir": str(tmp_path / "dead")}
    case = {
        "app": "modulated",
        "settings": settings,
        "at": "every node replied, nothing saved",
        "round": 5,
    }
    done = subprocess.run(
        [sys.executable, str(KILLED_RUNS)],
        input=json.dumps([case]),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (dead,) = (tmp_path / "dead").glob("*-modulated-*")
    result = modulated_run({"seed": 7}, "--resume", dead)
    assert result.exit_code == 0, result.stderr
    assert hooked(dead) == hooked(modulated(ITERATIVE).folder)
