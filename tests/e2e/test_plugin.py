"""The example plugin, installed from its own folder beside the wheel, into a new environment outside the checkout."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedveil.run import run_app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "plugin-example"

pytestmark = pytest.mark.e2e

BROKEN = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "broken-plugin"
version = "0.3"
[project.entry-points."fedveil.calibrations"]
broken = "broken_plugin:SIGMA"
[project.entry-points."fedveil.models"]
broken = "broken_plugin:net"
[tool.setuptools]
py-modules = ["broken_plugin"]
"""
PLUGINS = 'strategy="decaying-steps" calibration="zcdp"'
SETTINGS = f"{PLUGINS} num-server-rounds=2 num-clients=3 epsilon=2 clip-norm=0.5 seed=1"


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder outside the checkout to work in."""

    folder: Path
    home: Path

    def run(self, *command: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in an empty folder, with nothing of the checkout in sight."""
        here = self.home / "empty"
        here.mkdir(exist_ok=True)
        variables = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))
        }
        variables |= {
            "FEDVEIL_HOME": str(self.home),
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        }
        program, *arguments = command
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=here,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def train(self, engine: str, settings: str = SETTINGS) -> Path:
        """The folder of a small run."""
        done = self.run("fedveil", "run", "fedsva", "--engine", engine, "-c", settings)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return Path(done.stdout.strip().splitlines()[-1].partition("run folder: ")[2])


def link_torch(environment: Path) -> None:
    """Let a new environment share PyTorch and CUDA, 5.5 of 6.2 GB, with the one of the tests; all else is its own."""
    here = Path(sysconfig.get_path("purelib"))
    (there,) = environment.glob("lib/python*/site-packages")
    shared = [
        d for d in distributions(path=[str(here)]) if re.match(r"(torch|triton|nvidia|cuda)", d.name.lower())
    ]
    names = {file.parts[0] for distribution in shared for file in distribution.files or ()}
    for name in sorted(names - {"..", "__pycache__"}):
        (there / name).symlink_to(here / name)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """FedVeil's wheel with all it depends on, the example, and a plugin that cannot be imported."""
    home = tmp_path_factory.mktemp("plugin")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(home / "dist"), str(ROOT)], check=True, timeout=300
    )
    (wheel,) = (home / "dist").glob("*.whl")
    leave = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*")
    shutil.copytree(EXAMPLE, home / "example", ignore=leave)  # pip builds in the folder it is given
    (home / "broken").mkdir()
    (home / "broken" / "pyproject.toml").write_text(BROKEN)
    (home / "broken" / "broken_plugin.py").write_text("import nowhere_to_be_found\n")

    made = Environment(home / "env", home)
    subprocess.run([sys.executable, "-m", "venv", str(made.folder)], check=True)
    link_torch(made.folder)
    # no byte code: what is imported gets its own, and that is a small part
    install = ("python", "-m", "pip", "install", "--quiet", "--no-compile")
    for what in ([f"{wheel}[simulation,data]", "pytest"], [str(home / "example")], [str(home / "broken")]):
        done = made.run(*install, *what, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
    yield made
    shutil.rmtree(made.folder)


def test_it_is_the_wheel_that_runs(environment: Environment):
    where = environment.run(
        "python", "-c", "import fedveil, fedveil_example as e; print(fedveil.__file__, e.__file__)"
    )
    assert where.returncode == 0, where.stderr
    assert all(Path(path).is_relative_to(environment.folder) for path in where.stdout.split())


def test_the_list_shows_it_beside_fedveils_own_names_and_names_the_broken_one(environment: Environment):
    done = environment.run("fedveil", "list")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = {
        (kind, name): rest for kind, name, *rest in (line.split() for line in lines if "broken:" not in line)
    }
    example = ["fedveil-example", "0.1.0"]
    assert rows["strategy", "decaying-steps"] == [
        *example,
        "fedveil_example.decaying_steps:DecayingSteps",
        "ok",
    ]
    assert rows["calibration", "zcdp"] == [*example, "fedveil_example.zcdp:ZCDP", "ok"]
    for own in (
        ("strategy", "private-averaging"),
        ("calibration", "attribute"),
        ("dataset", "mnist-5k"),
        ("model", "softmax"),
    ):
        assert rows[own][0] == "fedveil"
    states = {key: rest[-1] for key, rest in rows.items() if key[0] != "kind"}
    assert {key for key, state in states.items() if state != "ok"} == {
        ("calibration", "broken"),
        ("model", "broken"),
    }
    reason = "of broken-plugin 0.3 cannot be imported from broken_plugin"
    missing = "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert lines[-2:] == [
        f"broken: calibration 'broken' {reason}:SIGMA: {missing}",
        f"broken: model 'broken' {reason}:net: {missing}",
    ]


def test_a_run_that_names_the_broken_one_stops_with_its_sentence(environment: Environment):
    done = environment.run(
        "fedveil", "run", "fedsva", "--engine", "in-process", "-c", "calibration='broken' num-server-rounds=1"
    )
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fedveil: ")
    assert "calibration 'broken' of broken-plugin 0.3 cannot be imported" in last
    assert "round 0" not in done.stdout


def test_its_own_tests_pass_there(environment: Environment):
    done = environment.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(environment.home / "example")
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.fixture(scope="module")
def in_process(environment: Environment) -> Path:
    """The folder of a run without Flower's SuperLink and Ray."""
    return environment.train("in-process")


def test_a_run_has_its_noise_and_its_ledger(in_process: Path):
    """Noise by the closed form of zCDP at the client's total epsilon 2 and delta 1e-5, for two steps."""
    config = tomllib.loads((in_process / "config.toml").read_text())
    assert (config["strategy"], config["calibration"]) == ("decaying-steps", "zcdp")
    rows = pq.read_table(in_process / "ledger.parquet").to_pylist()
    made = sorted((row["client"], row["round"], row["relation"]) for row in rows)
    assert made == [(client, server_round, "record") for client in range(3) for server_round in (1, 2)]
    log = math.log(1e5)
    rho = (math.sqrt(log + 2) - math.sqrt(log)) ** 2
    counts = {0: 1334, 1: 1333, 2: 1333}  # 4,000 digits over three clients
    for row in rows:
        sensitivity = 2 * 0.5 / counts[row["client"]]
        assert row["sensitivity"] == pytest.approx(sensitivity, rel=1e-9)
        assert row["sigma"] == pytest.approx(sensitivity * math.sqrt(2 / (2 * rho)), rel=1e-9)
        assert row["source"] == "reply"


def test_the_strategy_goes_its_share_of_the_way(environment: Environment, tmp_path: Path):
    """Without noise, and so without chance: the whole first step, and 1/sqrt(2) of the second."""

    def averaged(rounds: int) -> dict[str, NDArray[Any]]:
        output = tmp_path / str(rounds)
        settings = {"privacy": "none", "num-clients": 3, "num-server-rounds": rounds, "seed": 1}
        assert run_app("fedsva", "in-process", settings, output_dir=str(output)) == 0
        (folder,) = output.iterdir()
        return load_file(folder / "model.safetensors")

    first, second = averaged(1), averaged(2)
    settings = 'strategy="decaying-steps" privacy="none" num-clients=3 num-server-rounds=2 seed=1'
    decayed = load_file(environment.train("in-process", settings) / "model.safetensors")
    for name, array in decayed.items():
        expected = first[name] + (second[name] - first[name]) / math.sqrt(2)
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6)
        assert np.max(np.abs(array - second[name])) > 1e-3


def test_a_run_through_flower_gives_the_same_bytes(environment: Environment, in_process: Path):
    """Plugins are found in the server's process and in Ray's workers."""
    flower = environment.train("flower")
    for name in ("model.safetensors", "ledger.parquet"):
        assert (flower / name).read_bytes() == (in_process / name).read_bytes()
