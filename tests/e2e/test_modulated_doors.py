"""Modulated learning through each of its doors: the same seed gives the same model and ledger to the byte."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from fedveil.artifacts import NodeLedger, cohort_table
from fedveil.run import run_app

CHECKOUT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"dataset": "fair", "comparators": "dp-sgd,no-privacy", "seed": 7}
ITERATIVE: dict[str, Any] = {
    "dataset": "synthetic-regression",
    "options": "dataset = {records = 4000, features = 5}",
    "strategy": "modulated-iterative",
    "participation": "sampled",
    "fraction-train": 0.1,
    "num-server-rounds": 40,
    "standardization": "estimated",
    "comparators": "none",
    "seed": 7,
}

pytestmark = pytest.mark.e2e


def results(root: Path) -> tuple[bytes, bytes, dict[str, Any], pa.Table]:
    """Model, ledger, estimate and the rows of the nodes' own ledger of the only run in this folder."""
    (folder,) = root.glob("*-modulated-*")
    own = NodeLedger(folder / "node-ledger.sqlite").cohort_releases(folder.name)
    estimate = json.loads((folder / "estimate.json").read_text())
    files = [(folder / name).read_bytes() for name in ("model.safetensors", "ledger.parquet")]
    assert cohort_table(own).equals(pq.read_table(folder / "ledger.parquet"))
    return files[0], files[1], estimate, cohort_table(own)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """What the in-process engine makes of these settings, on one node."""
    root = tmp_path_factory.mktemp("in-process")
    assert run_app("modulated", "in-process", SETTINGS, num_nodes=1, output_dir=str(root)) == 0
    return results(root)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """The settings as a person may keep them in a file."""
    path = tmp_path / "settings.toml"
    path.write_text(tomli_w.dumps(SETTINGS))
    return path


def test_fedveil_run_gives_the_bytes_of_the_in_process_engine_on_four_nodes(
    launch: Callable[..., Any], settings_file: Path, expected: tuple[Any, ...], tmp_path: Path
):
    options = ["--num-supernodes", "4", "--client-resources-num-cpus", "1"]
    run = launch("modulated", "-c", settings_file, "--output-dir", tmp_path / "runs", *options)
    assert run.wait() == 0, run.text()
    assert "4 nodes serve 5093 clients of one record each" in run.text()
    assert "study only" in run.text()
    assert results(tmp_path / "runs") == expected
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"fedveil | run folder: {folder}" in run.text()
    assert run.nothing_left()


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a Flower home and a port of its own; the SuperLink that Flower leaves is ended."""
    home = tmp_path / "flower"
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield {
        **os.environ,
        "FEDVEIL_HOME": str(tmp_path / "fedveil"),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join(process.cmdline()):
                for each in [*process.children(recursive=True), process]:
                    each.send_signal(signal.SIGKILL)
        except psutil.Error:  # ended meanwhile
            continue


def test_plain_flwr_run_gives_them_too(
    flower_home: dict[str, str], settings_file: Path, expected: tuple[Any, ...], tmp_path: Path
):
    """As any Flower user types it, in the checkout; results go to $FEDVEIL_HOME."""
    command = ["flwr", "run", "flwr_apps/modulated", "--stream", "--run-config", str(settings_file)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=flower_home, text=True, capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fedveil | run folder: " in done.stdout
    assert results(tmp_path / "fedveil" / "runs") == expected


def test_a_run_killed_under_flower_resumes_and_ends_byte_equal(launch: Callable[..., Any], tmp_path: Path):
    settings_file = tmp_path / "settings.toml"
    settings_file.write_text(tomli_w.dumps(ITERATIVE))
    root = tmp_path / "runs"
    run = launch("modulated", "-c", settings_file, "--output-dir", root, "--client-resources-num-cpus", "1")
    assert run.wait_for(lambda: "round  3/40" in run.text() or run.process.poll() is not None)
    run.process.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.text()[-3000:]
    assert run.wait_for(lambda: not run.processes())
    (folder,) = root.glob("*-modulated-*")
    assert not (folder / "model.safetensors").exists()

    resumed = launch("modulated", "--resume", folder, "--client-resources-num-cpus", "1")
    assert resumed.wait() == 0, resumed.text()
    assert "resuming after round " in resumed.text()
    assert run_app("modulated", "in-process", ITERATIVE, output_dir=str(tmp_path / "unbroken")) == 0
    assert results(root) == results(tmp_path / "unbroken")


def test_bad_input_that_only_the_data_show_stops_a_flower_run_with_its_sentence(
    launch: Callable[..., Any], tmp_path: Path
):
    root = tmp_path / "runs"
    run = launch("modulated", "-c", "num-directions=16", "--output-dir", root)
    assert run.wait() == 1
    assert "num-directions = 16 must be below the number of features, 16 in fair" in run.last_line()
    assert not root.exists()
    assert run.nothing_left()
