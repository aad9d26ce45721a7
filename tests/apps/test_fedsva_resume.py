"""A run that died goes on from its folder and ends as if nothing had happened."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.privacy import Release, gaussian_mu

KILLED_RUNS = Path(__file__).with_name("killed_runs.py")
ROUNDS = 5
SAVED, REPLIED = "the round was saved", "every node replied, nothing saved"
RELEASED, UNFINISHED = "the first node's releases are in its ledger", "the ledger is written, the model not"
ADAM = {"server-optimizer": "adam", "server-learning-rate": 0.1, "fraction-train": 0.7}
CONTRIBUTION = {
    "attribute-clip-rule": "contribution",
    "epsilon": 20.0,
    "contribution-share": 0.6,
    "contribution-round": 3,
}
DEATHS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "plain": (SAVED, 3, {"local-steps": 2}),
    "momentum": (REPLIED, 4, {"server-optimizer": "momentum"}),
    "adam": (RELEASED, 4, ADAM),
    "adam, early": (SAVED, 3, ADAM),
    "sampled records": (REPLIED, 4, {"calibration": "uniform", "sampling-rate": 0.5, "epsilon": 4.0}),
    "central": (
        REPLIED,
        4,
        {"privacy": "central", "fraction-train": 0.5, "server-optimizer": "momentum", "epsilon": 8.0},
    ),
    "before the contributions": (SAVED, 2, CONTRIBUTION),
    "with half the contributions": (RELEASED, 3, CONTRIBUTION),
    "after the contributions": (SAVED, 3, {**CONTRIBUTION, "aggregation-weights": "noise-aware"}),
    "quantile": (REPLIED, 3, {"attribute-clip-rule": "quantile", "epsilon": 8.0}),
    "before the first round": (SAVED, 0, {}),
    "at the very end": (UNFINISHED, 0, {"server-optimizer": "momentum"}),
    "unseeded, at the very end": (UNFINISHED, 0, {"seed": ""}),
    "unseeded": (REPLIED, 4, {"seed": ""}),
    "unseeded, half a round": (RELEASED, 4, {"seed": ""}),
    "unseeded, half the contributions": (RELEASED, 3, {**CONTRIBUTION, "seed": ""}),
}


@pytest.fixture(scope="module")
def killed(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that the killed runs left, by name."""
    root = tmp_path_factory.mktemp("killed")
    cases = [
        {
            "settings": {**small, "num-server-rounds": ROUNDS, **settings, "output-dir": str(root / name)},
            "at": at,
            "round": number,
        }
        for name, (at, number, settings) in DEATHS.items()
    ]
    done = subprocess.run(
        [sys.executable, str(KILLED_RUNS)],
        input=json.dumps(cases),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: next((root / name).glob("*-fedsva-*")) for name in DEATHS}


@pytest.fixture
def dead_run(killed: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A killed run's folder of one's own."""
    return lambda name: Path(shutil.copytree(killed[name], tmp_path / "dead" / killed[name].name))


@pytest.mark.parametrize("name", [name for name in DEATHS if "unseeded" not in name])
def test_a_killed_run_resumes_and_ends_byte_equal_to_an_unbroken_one(
    dead_run: Callable[[str], Path], fedsva: Callable[..., Any], fedveil_run: Callable[..., Any], name: str
):
    folder = dead_run(name)
    at, number, settings = DEATHS[name]
    assert not RunFolder(folder).is_finished
    # a folder that may be handed around as finished in the next instant no longer holds the seed
    result = fedveil_run({"seed": 7} if at == UNFINISHED else {}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    unbroken = fedsva({"num-server-rounds": ROUNDS, **settings})
    done = {SAVED: number, UNFINISHED: ROUNDS}.get(at, number - 1)
    assert f"resuming after round {done} in {folder}" in result.stdout
    files = ["model.safetensors", "ledger.parquet"]
    files += ["contributions.json"] if "contribution-round" in settings else []
    for file in files:
        assert (folder / file).read_bytes() == (unbroken.folder / file).read_bytes(), file
    own = folder / "node-ledger.sqlite"
    if settings.get("privacy") != "central":
        assert NodeLedger(own).releases() == unbroken.node_rows
    rows = type(unbroken)(folder, "", [], []).metrics
    assert [_without_times(row) for row in rows] == [_without_times(row) for row in unbroken.metrics]


def test_a_round_that_the_server_has_noised_is_never_noised_again_once_it_is_on_disk(
    small: dict[str, Any], fedveil_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    central = {**small, "privacy": "central", "epsilon": 8.0, "seed": "", "num-server-rounds": 3}
    whole = RunFolder.save_trajectory

    def dies(folder: RunFolder, round: int, arrays: Any, *, keep: int) -> None:
        if round == 2:
            raise KeyboardInterrupt
        whole(folder, round, arrays, keep=keep)

    monkeypatch.setattr(RunFolder, "save_trajectory", dies)
    fedveil_run({**central, "output-dir": str(tmp_path)})
    monkeypatch.undo()
    (folder,) = tmp_path.glob("*-fedsva-*")
    checkpoint = RunFolder(folder).load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 2
    assert fedveil_run({}, "--resume", folder).exit_code == 0
    trajectory = dict(RunFolder(folder).load_trajectory())
    assert sorted(trajectory) == [0, 1, 2, 3]
    for name, array in checkpoint.arrays.items():
        assert trajectory[2][name].tobytes() == array.tobytes()


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("name", ["with half the contributions", "after the contributions"])
def test_contributions_have_the_same_bits_when_a_run_goes_on_with_another_number_of_nodes(
    dead_run: Callable[[str], Path],
    fedsva: Callable[..., Any],
    fedveil_run: Callable[..., Any],
    name: str,
    nodes: int,
):
    folder = dead_run(name)
    result = fedveil_run({}, "--resume", folder, "--num-supernodes", str(nodes))
    assert result.exit_code == 0, result.stderr
    unbroken = fedsva({"num-server-rounds": ROUNDS, **DEATHS[name][2]}, nodes=2)
    for file in ("model.safetensors", "ledger.parquet", "contributions.json"):
        assert (folder / file).read_bytes() == (unbroken.folder / file).read_bytes(), file


def test_an_unseeded_resumed_run_asks_again_for_contributions_that_were_lost_and_counts_both(
    dead_run: Callable[[str], Path], fedsva: Callable[..., Any], fedveil_run: Callable[..., Any]
):
    folder = dead_run("unseeded, half the contributions")
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    run = type(fedsva({"num-server-rounds": 1}))(folder, result.stdout, [], [])
    assumed = [row for row in run.rows if row["source"] == "assumed"]
    assert {(row["client"], row["round"], row["release"]) for row in assumed} == {
        (client, 3, release) for client in range(8) for release in ("gradient", "contribution")
    }
    budget = gaussian_mu(20.0, 1e-5) ** 2
    measured = {row.client for row in run.node_rows if row.name == "contribution" and row.round == 3}
    assert measured == set(range(8))
    for client in range(8):
        own = [row for row in run.node_rows if (row.client, row.relation) == (client, "attribute")]
        assert math.fsum(row.mu**2 for row in own) <= budget * (1 + 1e-12)
        told = [row for row in run.rows if row["client"] == client]
        assert len(told) >= len([row for row in run.node_rows if row.client == client])


@pytest.mark.parametrize("name", ["unseeded", "unseeded, half a round"])
def test_an_unseeded_resumed_run_counts_the_interrupted_round_as_spent(
    dead_run: Callable[[str], Path], fedsva: Callable[..., Any], fedveil_run: Callable[..., Any], name: str
):
    folder = dead_run(name)
    spent_before = NodeLedger(folder / "node-ledger.sqlite").releases()
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    run = type(fedsva({"num-server-rounds": 1}))(folder, result.stdout, [], [])
    assumed = [row for row in run.rows if row["source"] == "assumed"]
    assert {(row["client"], row["round"], row["relation"]) for row in assumed} == {
        (client, 4, relation) for client in range(8) for relation in ("attribute", "record")
    }
    released = len([row for row in spent_before if row.round == 4])
    assert released == (16 if name == "unseeded" else 8)
    _nobody_passes_the_budget(run)
    # whose release left before the kill has spent its budget one round earlier
    stopped = {row.client for row in spent_before if row.round == 4}
    last = {row["client"] for row in run.rows if row["round"] == ROUNDS}
    assert last == set(range(8)) - stopped
    assert f"out of budget {len(stopped)}" in result.stdout


def test_a_seed_that_is_no_longer_written_down_must_be_given_again(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any]
):
    folder = dead_run("at the very end")
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code != 0
    assert f"seed of the run in {folder} is not written down: give it again" in result.stderr
    assert not RunFolder(folder).is_finished


def test_an_unseeded_run_that_died_after_its_last_round_counts_nothing_more(
    dead_run: Callable[[str], Path], fedsva: Callable[..., Any], fedveil_run: Callable[..., Any]
):
    folder = dead_run("unseeded, at the very end")
    assert fedveil_run({}, "--resume", folder).exit_code == 0
    assert (folder / "ledger.parquet").read_bytes() == fedsva({"num-server-rounds": ROUNDS}).results[1]


def test_a_run_that_dies_twice_in_one_round_counts_both_attempts(
    dead_run: Callable[[str], Path],
    fedsva: Callable[..., Any],
    fedveil_run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
):
    folder = dead_run("unseeded")
    save = RunFolder.save_checkpoint

    def fail(self: RunFolder, checkpoint: Any) -> None:
        if checkpoint.round == 4:
            raise OSError("the machine goes down")
        save(self, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", fail)
        assert fedveil_run({}, "--resume", folder).exit_code == 1
    assert fedveil_run({}, "--resume", folder).exit_code == 0
    run = type(fedsva({"num-server-rounds": 1}))(folder, "", [], [])
    for client in range(8):
        told = sum(row["client"] == client for row in run.rows)
        assert told >= len([row for row in run.node_rows if row.client == client])
    _nobody_passes_the_budget(run)


def test_a_run_resumes_wherever_its_folder_lies_now_and_keeps_its_own_ledger(
    dead_run: Callable[[str], Path],
    fedveil_run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path / "home"))
    folder = dead_run("unseeded")
    before = NodeLedger(folder / "node-ledger.sqlite").releases()
    assert fedveil_run({}, "--resume", folder).exit_code == 0
    assert not (tmp_path / "home").exists()
    assert len(NodeLedger(folder / "node-ledger.sqlite").releases()) >= len(before)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"epsilon": 2.0}, "epsilon was 1.0 and is now 2.0"),
        ({"num-server-rounds": 6}, "num-server-rounds was 5 and is now 6"),
        ({"server-momentum": 0.8}, "server-momentum was 0.9 and is now 0.8"),
        ({"seed": 8}, "seed"),
    ],
)
def test_a_resumed_run_with_another_setting_is_refused_naming_it(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any], changed: dict[str, Any], named: str
):
    folder = dead_run("momentum")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = fedveil_run(changed, "--resume", folder)
    assert result.exit_code != 0
    (line,) = result.stderr.splitlines()
    assert named in line
    assert "Restore them or start a new run." in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["momentum", "before the first round", "unseeded"])
@pytest.mark.parametrize(("key", "edited"), [("epsilon", 20.0), ("num-server-rounds", 50), ("delta", 0.01)])
def test_a_run_whose_settings_were_edited_in_its_folder_is_not_resumed(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any], name: str, key: str, edited: float
):
    folder = dead_run(name)
    file = folder / "config.toml"
    text = file.read_text()
    changed = re.sub(rf"(?m)^{key} = .*$", f"{key} = {edited}", text)
    assert changed != text
    file.write_text(changed)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert f"{file} is not what the run was started with: restore it, or start a new run" in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    file.write_text(text)
    assert fedveil_run({}, "--resume", folder).exit_code == 0


def test_a_seed_cannot_be_given_to_an_unseeded_run(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any]
):
    result = fedveil_run({"seed": 7}, "--resume", dead_run("unseeded"))
    assert result.exit_code != 0
    assert "seed was '' and is now " in result.stderr


def test_resuming_a_finished_run_is_refused(fedsva: Callable[..., Any], fedveil_run: Callable[..., Any]):
    for seed in (7, ""):
        run = fedsva({"seed": seed})
        before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
        result = fedveil_run({}, "--resume", run.folder)
        assert result.exit_code != 0
        assert f"the run in {run.folder} is finished" in result.stderr
        assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def _without_times(row: dict[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in row.items() if key != "seconds"}  # NaN equals NaN as a text


def _nobody_passes_the_budget(run: Any) -> None:
    """The nodes' ledger, which counts every attempt, stays within mu_B of epsilon 1 and delta 1e-5."""
    budget = gaussian_mu(1.0, 1e-5) ** 2
    for client in range(8):
        squares = [row.mu**2 for row in run.node_rows if row.client == client and row.relation == "attribute"]
        assert math.fsum(squares) <= budget * (1 + 1e-12)


def test_a_run_whose_node_ledger_is_lost_is_not_resumed(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any]
):
    """With it went what the clients have spent: every budget would be whole again."""
    folder = dead_run("plain")
    (folder / "node-ledger.sqlite").unlink()
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert "node-ledger.sqlite is lost" in result.stderr
    assert not RunFolder(folder).is_finished


def test_what_may_have_left_before_the_first_round_was_saved_needs_its_ledger_too(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any]
):
    folder = dead_run("before the first round")
    held = RunFolder.open(folder)
    checkpoint = held.load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 0
    sent = Release(0, 1, 0, "gradient", "attribute", 0.1, 0.7)
    held.save_checkpoint(replace(checkpoint, assumed=(sent,)))
    (folder / "node-ledger.sqlite").unlink(missing_ok=True)
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert "node-ledger.sqlite is lost" in result.stderr


def test_a_run_whose_checkpoint_is_lost_is_not_begun_again_under_its_name(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any]
):
    """Its ledger would begin again too, and lack what its clients have released."""
    folder = dead_run("plain")
    (folder / "checkpoint/last.safetensors").unlink()
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert "holds no checkpoint: restore it if it was lost, or start a new run" in result.stderr
    assert not RunFolder(folder).is_finished


@pytest.mark.parametrize("fact", ["code", "data"])
def test_a_run_whose_code_or_data_changed_is_not_resumed(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any], fact: str
):
    folder = dead_run("plain")
    checkpoint = RunFolder(folder).load_checkpoint()
    assert checkpoint is not None
    checkpoint.extra["facts"][fact] = "another"
    RunFolder(folder).save_checkpoint(checkpoint)
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert f"the {fact} is not what it was" in result.stderr


def test_a_model_that_is_not_finite_is_no_success(
    small: dict[str, Any], fedveil_run: Callable[..., Any], tmp_path: Path
):
    settings = {**small, "server-learning-rate": 1e300, "output-dir": str(tmp_path)}
    result = fedveil_run(settings)
    assert result.exit_code == 1
    assert "not finite after round 1" in result.stderr
    assert not list(tmp_path.glob("*/model.safetensors"))
