"""FedSVA through each of its doors: the same seed gives the same model and ledger to the byte."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import tomli_w

from fedveil.artifacts import NodeLedger
from fedveil.run import run_app

CHECKOUT = Path(__file__).parents[2]
# the digits, since their products are large enough for a second thread to change bits
SETTINGS = {
    "num-server-rounds": 3,
    "num-clients": 8,
    "fraction-train": 0.75,
    "local-steps": 2,
    "learning-rate": 1.0,
    "server-optimizer": "momentum",
    "seed": 7,
}


def results(root: Path) -> tuple[bytes, bytes, list[object]]:
    """Model, ledger and the nodes' own ledger of the only run in this folder."""
    (folder,) = root.glob("*-fedsva-*")
    rows = NodeLedger(folder / "node-ledger.sqlite").releases()
    return (folder / "model.safetensors").read_bytes(), (folder / "ledger.parquet").read_bytes(), rows


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, list[object]]:
    """What the in-process engine makes of these settings, on one node."""
    root = tmp_path_factory.mktemp("in-process")
    assert run_app("fedsva", "in-process", SETTINGS, num_nodes=1, output_dir=str(root)) == 0
    return results(root)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """The settings as a person may keep them in a file."""
    path = tmp_path / "settings.toml"
    path.write_text(tomli_w.dumps(SETTINGS))
    return path


def test_fedveil_run_gives_the_bytes_of_the_in_process_engine(
    launch: Callable, settings_file: Path, expected: tuple, tmp_path: Path
):
    run = launch("fedsva", "-c", settings_file, "--output-dir", tmp_path / "runs")
    assert run.wait() == 0, run.text()
    assert results(tmp_path / "runs") == expected
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"fedveil | run folder: {folder}" in run.text()
    assert run.nothing_left()


@pytest.mark.e2e
def test_fedveil_run_gives_them_on_four_nodes_that_train_side_by_side(
    launch: Callable, settings_file: Path, expected: tuple, tmp_path: Path
):
    options = ["--num-supernodes", "4", "--client-resources-num-cpus", "1"]
    run = launch("fedsva", "-c", settings_file, "--output-dir", tmp_path / "runs", *options)
    assert run.wait() == 0, run.text()
    assert "4 nodes serve 8 clients" in run.text()
    assert results(tmp_path / "runs") == expected


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
    flower_home: dict[str, str], settings_file: Path, expected: tuple, tmp_path: Path
):
    """As any Flower user types it, in the checkout; results go to $FEDVEIL_HOME."""
    command = ["flwr", "run", "flwr_apps/fedsva", "--stream", "--run-config", str(settings_file)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=flower_home, text=True, capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fedveil | run folder: " in done.stdout
    assert results(tmp_path / "fedveil" / "runs") == expected


def _table(folder: Path) -> dict[str, object]:
    """Settings for a small table, whose rounds are short."""
    example = runpy.run_path(str(CHECKOUT / "tests" / "datasets" / "example_table.py"))
    path = example["write_example_table"](folder)
    named = {"target": "income", "client-column": "site", "private-attributes": "age,job"}
    return {"dataset": "csv", "data-path": str(path), **named}


@pytest.mark.e2e
def test_a_run_killed_under_flower_resumes_and_ends_byte_equal(
    launch: Callable, settings_file: Path, tmp_path: Path
):
    # enough budget for clients of 20 records to release their contribution before and after the kill
    release = {"epsilon": 20.0, "contribution-share": 0.5, "contribution-round": 2}
    many = {**SETTINGS, **_table(tmp_path), **release, "num-server-rounds": 60}
    settings_file.write_text(tomli_w.dumps(many))
    root = tmp_path / "runs"
    run = launch("fedsva", "-c", settings_file, "--output-dir", root, "--client-resources-num-cpus", "1")
    assert run.wait_for(lambda: "round  3/60" in run.text() or run.process.poll() is not None)
    run.process.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.text()[-3000:]
    assert run.wait_for(lambda: not run.processes())
    (folder,) = root.glob("*-fedsva-*")
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "ledger.parquet").exists()

    resumed = launch("fedsva", "--resume", folder, "--client-resources-num-cpus", "1")
    assert resumed.wait() == 0, resumed.text()
    assert "resuming after round " in resumed.text()
    assert run_app("fedsva", "in-process", many, output_dir=str(tmp_path / "unbroken")) == 0
    assert results(root) == results(tmp_path / "unbroken")


@pytest.mark.e2e
def test_bad_input_that_only_the_data_show_stops_a_flower_run_with_its_sentence(
    launch: Callable, tmp_path: Path
):
    root = tmp_path / "runs"
    run = launch("fedsva", "-c", 'private-attributes="10:18,10:38"', "--output-dir", root)
    assert run.wait() == 1
    assert "Region '10:18,10:38' is empty or outside the image" in run.last_line()
    assert "node" not in run.last_line()
    assert not root.exists()
    assert run.nothing_left()
