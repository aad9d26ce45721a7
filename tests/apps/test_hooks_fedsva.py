"""The end of a FedSVA run: quantized files, their figures and r_Q; other hooks; and what fails there loses nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray
from typer.testing import CliRunner

import fedveil
from fedveil.artifacts import RunFolder
from fedveil.artifacts.arrays_file import decode_arrays, encode_arrays
from fedveil.cli import cli
from fedveil.config import FedSVAConfig, assembly
from fedveil.models import evaluate
from fedveil.quantization import decode_quantized, quantize_model
from fedveil.strategies.hooks.quantize import DEFAULT_SCHEMES

KILLED_RUNS = Path(__file__).with_name("killed_runs.py")
ROUNDS = 12
NETS = """
import torch
from torch import nn

def net(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 4), nn.Tanh(), nn.Linear(4, num_outputs))

class Scales(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(size))

    def forward(self, records):
        moved = (records * self.scale).sum(dim=1, keepdim=True)
        return torch.cat([moved, -moved], dim=1)

def scales(input_shape, num_outputs):
    return Scales(input_shape[0])
"""
HOOKS = """
def note(run):
    first = next(iter(run.figures(run.arrays).items()))
    rounds = [number for number, _ in run.trajectory]
    settings = f"{run.config['num-clients']} {run.config['seed']}"
    told = f"{run.app} {settings} {first[0]} {first[1]:.4f} {rounds} {run.num_records}"
    run.folder.add("mine/note.txt", told.encode())
    run.say(f"noted with the nodes {'there' if run.grid is not None else 'gone'}")

def bad(run):
    raise RuntimeError("out of luck")
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


def evaluation(folder: Path) -> Callable[[Mapping[str, NDArray[np.float32]]], Any]:
    """The run's own evaluation, put together anew from the settings in its folder."""
    config = FedSVAConfig.from_run_config(RunFolder(folder).config | {"seed": ""})
    problem = assembly.load_problem(config)
    test, module = problem.dataset.test, assembly.learner(config, problem.dataset).module
    return lambda arrays: evaluate(module, arrays, test.features, test.labels, problem.dataset.schema.shape)


def report_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "rq.json").read_text())
    return found


def bytes_of(folder: Path, *places: str) -> dict[str, bytes]:
    """Files in these places, by name."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for place in places
        for file in sorted(folder.glob(place))
        if file.is_file()
    }


def hooked(folder: Path) -> dict[str, bytes]:
    """What the hook leaves, and what it reads."""
    return bytes_of(folder, "quantized/*", "rq.json", "trajectory/*", "model.safetensors")


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.fixture(scope="module")
def finished(fedsva_of_module: Callable[..., Any]) -> Any:
    """A run with the hook as it is by default."""
    return fedsva_of_module({"num-server-rounds": ROUNDS})


@pytest.fixture
def copied(finished: Any, tmp_path: Path) -> Path:
    """A copy of that run's folder."""
    return Path(shutil.copytree(finished.folder, tmp_path / finished.folder.name))


# what is there at the end


def test_every_quantizer_has_its_file_size_and_the_figures_of_what_its_codes_stand_for(finished: Any):
    report, figures = report_of(finished.folder), evaluation(finished.folder)
    assert list(report["quantizers"]) == DEFAULT_SCHEMES.split(",")
    for name, one in report["quantizers"].items():
        data = (finished.folder / "quantized" / f"{name}.safetensors").read_bytes()
        assert one["bytes"] == len(data)
        found = figures(decode_quantized(data, name).arrays())
        assert (one["accuracy"], one["loss"]) == (found.accuracy, found.loss)
    arrays, note = RunFolder(finished.folder).load_model()
    plain = figures(arrays)
    assert report["float32"] == {
        "bytes": sum(array.nbytes for array in arrays.values()),
        "accuracy": plain.accuracy,
        "loss": plain.loss,
    }
    assert plain.accuracy == note["accuracy"]


def test_biases_are_the_final_models_to_the_bit(finished: Any):
    arrays, _ = RunFolder(finished.folder).load_model()
    for file in (finished.folder / "quantized").iterdir():
        model = decode_quantized(file.read_bytes(), file)
        assert model.floats
        for name, array in model.floats.items():
            np.testing.assert_array_equal(array, arrays[name])


def test_the_loaded_module_has_the_figures_that_the_report_tells(finished: Any):
    figures = evaluation(finished.folder)
    for name, one in report_of(finished.folder)["quantizers"].items():
        module = fedveil.load_quantized(finished.folder / "quantized" / f"{name}.safetensors")
        found = figures({key: value.detach().numpy() for key, value in module.named_parameters()})
        assert (found.accuracy, found.loss) == (one["accuracy"], one["loss"])


def test_the_pair_that_sets_the_minimum_is_two_models_of_the_trajectory_with_that_difference_in_loss(
    finished: Any,
):
    folder, figures = RunFolder(finished.folder), evaluation(finished.folder)
    trajectory, (final, _) = dict(folder.load_trajectory()), folder.load_model()
    assert sorted(trajectory) == list(range(ROUNDS + 1))
    for name, one in report_of(finished.folder)["quantizers"].items():
        frozen = quantize_model(final, name)
        best, other = (
            figures(frozen.encode(trajectory[one["pair"][key]]).arrays()).loss
            for key in ("best-round", "runner-up-round")
        )
        assert one["pair"]["gap"] == pytest.approx(other - best, rel=1e-4, abs=1e-7)
        assert one["r_q"] == pytest.approx(one["pair"]["gap"] ** 2 / one["pair"]["deviation"] ** 2 / 2)
        assert one["low"] <= one["r_q"] <= one["high"]
        assert 2 <= one["candidates"] <= one["distinct"] <= ROUNDS + 1


def test_sizes_figures_intervals_and_ranking_are_printed_before_the_folder(finished: Any):
    report = report_of(finished.folder)
    lines = [line.removeprefix("fedveil | ") for line in finished.output.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith("quantizer "))
    assert lines[start - 1].startswith("accuracy ")
    assert lines[-1] == f"run folder: {finished.folder}"
    rows = [line.split() for line in lines[start + 2 : start + 8]]
    assert [row[0] for row in rows] == report["ranking"]
    for row in rows:
        one = report["quantizers"][row[0]]
        assert (row[1], row[4]) == (str(one["bytes"]), f"{one['accuracy']:.4f}")
        assert row[3] == f"{one['code-entropy-bits']:.2f}"
    assert " > ".join(report["ranking"]) in lines[start + 8]
    assert report["records"] == 40
    for warning in report["quantizers"]["ternary-90"]["warnings"]:
        assert any(line.startswith("warning, ") and line.endswith(warning) for line in lines)


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_number_of_nodes_changes_no_byte(finished: Any, fedsva: Callable[..., Any], nodes: int):
    other = fedsva({"num-server-rounds": ROUNDS}, nodes=nodes)
    assert hooked(other.folder) == hooked(finished.folder)


# later


def test_a_run_without_hooks_is_quantized_later_to_the_same_bytes(finished: Any, fedsva: Callable[..., Any]):
    run = fedsva({"num-server-rounds": ROUNDS, "hooks": "none"})
    assert not bytes_of(run.folder, "quantized/*", "rq.json")
    assert "quantizer" not in run.output
    result = invoke("quantize", run.folder)
    assert result.exit_code == 0, result.stderr
    assert hooked(run.folder) == hooked(finished.folder)
    printed = [line.removeprefix("fedveil | ") for line in finished.output.splitlines()]
    assert [line for line in result.stdout.splitlines() if line not in printed] == []


def test_other_quantizers_and_fewer_candidates_can_be_asked_for_later(copied: Path):
    result = invoke("quantize", copied, "--schemes", "uint4/channel", "--candidates", "4")
    assert result.exit_code == 0, result.stderr
    report = report_of(copied)
    assert list(report["quantizers"]) == ["uint4/channel"]
    assert report["quantizers"]["uint4/channel"]["candidates"] == 4
    assert invoke("load", copied / "quantized" / "uint4-channel.safetensors").exit_code == 0
    result = invoke("quantize", copied, "--schemes", "int3", "--candidates", "4")
    assert list(report_of(copied)["quantizers"]) == ["uint4/channel", "int3"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("no trajectory", "holds no trajectory"),
        ("a damaged checkpoint", "round-000003.safetensors is truncated"),
        ("no data", "people.csv"),
        ("NaN weights", "holds NaN or infinite weights"),
    ],
)
def test_a_folder_that_lacks_something_is_refused_in_a_sentence_and_keeps_the_rest(
    copied: Path, tmp_path: Path, harm: str, message: str
):
    if harm == "no trajectory":
        shutil.rmtree(copied / "trajectory")
    elif harm == "a damaged checkpoint":
        file = copied / "trajectory" / "round-000003.safetensors"
        file.write_bytes(file.read_bytes()[:-9])
    elif harm == "no data":
        settings = (copied / "config.toml").read_text()
        path = str(RunFolder(copied).config["data-path"])
        (copied / "config.toml").write_text(settings.replace(path, str(tmp_path / "gone" / "people.csv")))
    else:
        poison(copied / "model.safetensors")
    before = bytes_of(copied, "**/*")
    result = invoke("quantize", copied, "--schemes", "int3")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line
    assert bytes_of(copied, "**/*") == before


def poison(model: Path) -> None:
    """Put a NaN among the weights of a run's model."""
    arrays, note = decode_arrays(model.read_bytes(), model)
    weights = {name: array.copy() for name, array in arrays.items()}
    next(array for array in weights.values() if array.ndim == 2)[0, 0] = np.nan
    model.write_bytes(encode_arrays(weights, note))


# settings


def test_a_short_trajectory_keeps_the_last_rounds_only(fedsva: Callable[..., Any]):
    run = fedsva({"num-server-rounds": 5, "trajectory": 2})
    assert [number for number, _ in RunFolder(run.folder).load_trajectory()] == [4, 5]
    assert report_of(run.folder)["quantizers"]["int8"]["distinct"] == 2


def test_without_a_trajectory_the_hook_says_so_and_the_run_is_there(
    small: dict[str, Any], fedveil_run: Callable[..., Result], tmp_path: Path
):
    result = fedveil_run({**small, "trajectory": 0, "output-dir": str(tmp_path / "runs")})
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "hook" in line]
    assert line.startswith("fedveil | hook 'quantize' failed, the run's other results stay: ")
    assert line.endswith("holds no trajectory, so that no competitor of the final model is known: run again with "
                         "trajectory above 0.")  # fmt: skip
    (folder,) = (tmp_path / "runs").glob("*")
    assert RunFolder(folder).is_finished
    assert not bytes_of(folder, "trajectory/*", "quantized/*", "rq.json")


def test_hooks_change_nothing_of_model_and_ledger(finished: Any, fedsva: Callable[..., Any]):
    plain = fedsva({"num-server-rounds": ROUNDS, "hooks": "none", "trajectory": 0})
    assert plain.results == finished.results


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantizers": "sign,int5"}, "scheme 'int5' is not known"),
        ({"quantizers": ""}, "quantizers is empty"),
        ({"hooks": "quantise"}, "hook = 'quantise' is not installed; did you mean 'quantize'"),
        ({"candidates": 1}, "candidates = 1"),
        ({"trajectory": -1}, "trajectory = -1"),
    ],
)
def test_a_hook_or_quantizer_that_there_is_not_stops_the_run_before_it_begins(
    small: dict[str, Any],
    fedveil_run: Callable[..., Result],
    tmp_path: Path,
    settings: dict[str, Any],
    message: str,
):
    result = fedveil_run({**small, **settings, "output-dir": str(tmp_path / "runs")})
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line
    assert not (tmp_path / "runs").exists()


def test_quantizers_of_a_hook_that_does_not_run_are_not_looked_at(fedsva: Callable[..., Any]):
    assert fedsva({"num-server-rounds": 1, "hooks": "none", "quantizers": "int5"}).results


# few candidates, other models


def test_a_model_that_hardly_moves_is_one_candidate_and_r_q_undefined(fedsva: Callable[..., Any]):
    run = fedsva({"num-server-rounds": 2, "learning-rate": 1e-9, "model": "mlp", "quantizers": "sign,int2"})
    for one in report_of(run.folder)["quantizers"].values():
        assert (one["distinct"], one["r_q"]) == (1, None)
        assert one["statement"] == "r_Q is undefined: there is one candidate."
    assert "sign, int2: r_Q is undefined: there is one candidate." in run.output
    assert "most secure" not in run.output


def test_a_network_of_ones_own_is_quantized_and_loaded(
    fedsva: Callable[..., Any], package: Callable[..., Path]
):
    package("my-nets", {}, my_nets=NETS)
    run = fedsva({"model": "my_nets:net", "quantizers": "int4"})
    one, figures = report_of(run.folder)["quantizers"]["int4"], evaluation(run.folder)
    module = fedveil.load_quantized(run.folder / "quantized" / "int4.safetensors")
    found = figures({name: value.detach().numpy() for name, value in module.named_parameters()})
    assert (found.accuracy, found.loss) == (one["accuracy"], one["loss"])


def test_a_model_with_nothing_to_quantize_is_told_and_the_run_is_there(
    fedsva: Callable[..., Any], package: Callable[..., Path]
):
    package("my-nets", {}, my_nets=NETS)
    run = fedsva({"model": "my_nets:scales"})
    assert "hook 'quantize' failed, the run's other results stay: The model has nothing to quantize" in (
        run.output
    )
    assert RunFolder(run.folder).is_finished
    assert not bytes_of(run.folder, "quantized/*", "rq.json")


# hooks and quantizers of packages


def test_a_packages_hook_sees_the_finished_run_and_adds_its_file(
    fedsva: Callable[..., Any], package: Callable[..., Path]
):
    package("my-hooks", {"hook": {"note": "my_hooks:note"}}, my_hooks=HOOKS)
    run = fedsva({"hooks": "note"})
    accuracy = RunFolder(run.folder).load_model()[1]["accuracy"]
    assert (run.folder / "mine" / "note.txt").read_text() == (
        f"fedsva 8 secret accuracy {accuracy:.4f} [0, 1, 2, 3] 40"
    )
    assert "noted with the nodes there" in run.output
    assert not bytes_of(run.folder, "rq.json")


def test_a_hook_that_fails_stops_neither_the_next_one_nor_the_run(
    small: dict[str, Any], fedveil_run: Callable[..., Result], package: Callable[..., Path], tmp_path: Path
):
    package("my-hooks", {"hook": {"bad": "my_hooks:bad"}}, my_hooks=HOOKS)
    result = fedveil_run({**small, "hooks": "bad,quantize", "output-dir": str(tmp_path / "runs")})
    assert result.exit_code == 0, result.stderr
    assert "hook 'bad' failed, the run's other results stay: RuntimeError: out of luck" in result.stdout
    (folder,) = (tmp_path / "runs").glob("*")
    assert RunFolder(folder).is_finished
    assert list(report_of(folder)["quantizers"]) == DEFAULT_SCHEMES.split(",")


def test_a_packages_quantizer_stands_among_the_others(
    fedsva: Callable[..., Any], package: Callable[..., Path]
):
    package("halves", {"quantizer": {"half-sign": "halves:HALF"}}, halves=HALF)
    run = fedsva({"quantizers": "sign,half-sign/channel"})
    one = report_of(run.folder)["quantizers"]["half-sign/channel"]
    file = run.folder / "quantized" / "half-sign-channel.safetensors"
    module = fedveil.load_quantized(file)
    found = evaluation(run.folder)({key: value.detach().numpy() for key, value in module.named_parameters()})
    assert (found.accuracy, found.loss) == (one["accuracy"], one["loss"])


# resuming


def test_resumed_runs_keep_their_trajectory_and_end_with_the_same_bytes(
    small: dict[str, Any],
    fedsva: Callable[..., Any],
    fedveil_run: Callable[..., Result],
    tmp_path: Path,
):
    settings = {**small, "num-server-rounds": 5}
    cases = {
        "the round was saved": 3,
        "every node replied, nothing saved": 4,
        "the ledger is written, the model not": 0,
    }
    folders = [tmp_path / f"dead-{index}" for index in range(len(cases))]
    told = [
        {"settings": {**settings, "output-dir": str(folder)}, "at": at, "round": number}
        for folder, (at, number) in zip(folders, cases.items(), strict=True)
    ]
    done = subprocess.run(
        [sys.executable, str(KILLED_RUNS)],
        input=json.dumps(told),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    unbroken = fedsva({"num-server-rounds": 5})
    for folder in folders:
        (dead,) = folder.glob("*-fedsva-*")
        assert not bytes_of(dead, "quantized/*", "rq.json")
        result = fedveil_run({"seed": 7}, "--resume", dead)
        assert result.exit_code == 0, result.stderr
        assert hooked(dead) == hooked(unbroken.folder)
