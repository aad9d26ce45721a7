"""A run of modulated learning that died goes on from its folder and ends as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.config import modulated_data
from fedveil.privacy import gaussian_mu

KILLED_RUNS = Path(__file__).with_name("killed_runs.py")
BUDGET = gaussian_mu(8.0, 1e-5)
SAVED, REPLIED = "the round was saved", "every node replied, nothing saved"
RELEASED = "the first node's messages are in its ledger"
COMPARED = "a comparator's first messages are in its ledger"
UNFINISHED = "the ledger is written, the model not"
COHORTS = {"strategy": "modulated-iterative", "num-server-rounds": 4}
ALL = {**COHORTS, "participation": "all"}
SAMPLED = {**COHORTS, "participation": "sampled", "fraction-train": 0.5}
RANGES = {"standardization": "estimated", "range-share": 0.3}
UNSEEDED = {"seed": ""}
DEATHS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one-shot": (REPLIED, 1, {}),
    "one-shot, half the messages": (RELEASED, 1, {"label-privacy": True}),
    "one-shot, all saved": (SAVED, 1, {"epsilon": 60.0, "interval-target": "population"}),
    "one-shot, before the round": (SAVED, 0, {}),
    "in the ranges": (RELEASED, 0, RANGES),
    "after the ranges": (SAVED, 0, {**COHORTS, **RANGES}),
    "cohorts, pooled": (REPLIED, 3, {**COHORTS, **RANGES}),
    "cohorts, fresh": (RELEASED, 3, {**COHORTS, "estimate": "fresh"}),
    "all, fresh": (SAVED, 2, {**ALL, "estimate": "fresh", "num-directions": 2}),
    "all, averaged": (REPLIED, 3, {**ALL, "estimate": "averaged", "reply": "each"}),
    "all, averaged, all saved": (SAVED, 4, {**ALL, "estimate": "averaged", "reply": "each"}),
    "sampled, pooled": (SAVED, 2, SAMPLED),
    "sampled, averaged": (RELEASED, 3, {**SAMPLED, "estimate": "averaged", "reply": "each"}),
    "in a comparator": (COMPARED, 0, {"comparators": "lambda-0,dp-sgd,no-privacy"}),
    "at the very end": (UNFINISHED, 0, COHORTS),
    "unseeded, one-shot, half the messages": (RELEASED, 1, UNSEEDED),
    "unseeded, one-shot, no message arrived": (REPLIED, 1, UNSEEDED),
    "unseeded, in the ranges": (RELEASED, 0, {**UNSEEDED, **RANGES}),
    "unseeded, cohorts, in the ranges": (REPLIED, 0, {**COHORTS, **UNSEEDED, **RANGES}),
    "unseeded, cohorts": (REPLIED, 3, {**COHORTS, **UNSEEDED}),
    "unseeded, first cohort": (RELEASED, 1, {**COHORTS, **UNSEEDED}),
    "unseeded, all": (REPLIED, 3, {**ALL, **UNSEEDED}),
    "unseeded, sampled": (REPLIED, 2, {**SAMPLED, **UNSEEDED}),
    "unseeded, in a comparator": (COMPARED, 0, {"comparators": "lambda-0,dp-sgd", **UNSEEDED}),
    "unseeded, at the very end": (UNFINISHED, 0, {**COHORTS, **UNSEEDED}),
}


@pytest.fixture(scope="module")
def killed(town: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that the killed runs left, by name."""
    root = tmp_path_factory.mktemp("killed")
    cases = [
        {
            "app": "modulated",
            "settings": {**town, **settings, "output-dir": str(root / name)},
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
    return {name: next((root / name).glob("*-modulated-*")) for name in DEATHS}


@pytest.fixture
def dead_run(killed: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A killed run's folder of one's own."""
    return lambda name: Path(shutil.copytree(killed[name], tmp_path / "dead" / killed[name].name))


@pytest.fixture
def seen(modulated: Callable[..., Any]) -> Callable[[Path, str], Any]:
    """A folder that was finished, looked at as a run."""
    kind = type(modulated())
    return lambda folder, output="": kind(folder, output, [], [])


@pytest.mark.parametrize("name", [name for name in DEATHS if "unseeded" not in name])
def test_a_killed_run_resumes_and_ends_byte_equal_to_an_unbroken_one(
    dead_run: Callable[[str], Path],
    modulated: Callable[..., Any],
    modulated_run: Callable[..., Any],
    seen: Callable[..., Any],
    name: str,
):
    folder = dead_run(name)
    at, number, settings = DEATHS[name]
    assert not RunFolder(folder).is_finished
    # a folder that may be handed around as finished in the next instant no longer holds the seed
    result = modulated_run({"seed": 7} if at == UNFINISHED else {}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    resumed, unbroken = seen(folder), modulated(settings)
    assert resumed.results == unbroken.results
    assert resumed.estimate == unbroken.estimate
    assert [_without_times(row) for row in resumed.metrics] == [
        _without_times(row) for row in unbroken.metrics
    ]
    assert [(sent.release, sent.clients.tolist()) for sent in resumed.node_cohorts] == [
        (sent.release, sent.clients.tolist()) for sent in unbroken.node_cohorts
    ]
    if name != "in the ranges":  # nothing was on disk then
        done = {SAVED: number, REPLIED: number - 1, RELEASED: number - 1}.get(
            at, settings.get("num-server-rounds", 1)
        )
        assert f"resuming after round {done} in {folder}" in result.stdout
    # what is told at the end is told again
    last = [line.partition(": ")[2] for line in unbroken.output.splitlines()[-4:-1]]
    assert [line.partition(": ")[2] for line in result.stdout.splitlines()[-4:-1]] == last


def _without_times(row: dict[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in row.items() if key != "seconds"}  # NaN equals NaN as a text


@pytest.mark.parametrize("nodes", [1, 16])
@pytest.mark.parametrize("name", ["all, fresh", "sampled, pooled", "after the ranges"])
def test_a_run_may_go_on_with_another_number_of_nodes(
    dead_run: Callable[[str], Path],
    modulated: Callable[..., Any],
    modulated_run: Callable[..., Any],
    seen: Callable[..., Any],
    name: str,
    nodes: int,
):
    folder = dead_run(name)
    result = modulated_run({}, "--resume", folder, "--num-supernodes", str(nodes))
    assert result.exit_code == 0, result.stderr
    assert seen(folder).results == modulated(DEATHS[name][2]).results


def test_what_speaks_against_a_model_is_still_known_after_an_interruption(
    modulated_run: Callable[..., Any],
    seen: Callable[..., Any],
    town: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """One message does not vary about its mean, so it has no covariance with a positive eigenvalue."""
    alone = {
        **town,
        "options": "dataset = {records = 1, features = 3}",
        "output-dir": str(tmp_path / "alone"),
    }

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the machine goes down")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", fail)
        assert modulated_run(alone, "--num-supernodes", "1").exit_code == 1
    (folder,) = (tmp_path / "alone").iterdir()
    result = modulated_run({}, "--resume", folder, "--num-supernodes", "1")
    assert result.exit_code == 0, result.stderr
    assert "no positive eigenvalue" in seen(folder).estimate["problem"]
    assert f"warning: {seen(folder).estimate['problem']}" in result.stdout


# unseeded: what was interrupted counts as spent


def spent_on_the_node(folder: Path) -> np.ndarray:
    """What each client has spent, every attempt counted."""
    spent = np.zeros(400)
    for sent in NodeLedger(folder / "node-ledger.sqlite").cohort_releases(folder.name):
        spent[sent.clients] += sent.release.mu**2
    return spent


def ranges_sent(folder: Path) -> list[Any]:
    """Messages about ranges in the nodes' own ledger, with their clients."""
    sent = NodeLedger(folder / "node-ledger.sqlite").cohort_releases(folder.name)
    return [(one.release, one.clients.tolist()) for one in sent if one.release.name == "range-message"]


def covered(run: Any, folder: Path) -> None:
    """The server's ledger has every message that is in the nodes' own, and no node let a client pass its budget."""
    assert spent_on_the_node(folder).max() <= BUDGET**2 * (1 + 1e-12)
    told = np.zeros(400)
    for row in run.rows:
        told[row["client"]] += row["mu"] ** 2
    assert np.all(told >= spent_on_the_node(folder) * (1 - 1e-12))
    assert run.guarantees["attribute"]["epsilon"] <= 8.0
    assert run.guarantees["attribute"]["kind"] == "proven"


@pytest.mark.parametrize("name", [name for name in DEATHS if "unseeded" in name and "no message" not in name])
def test_an_unseeded_run_that_goes_on_tells_every_message_that_may_have_left(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], seen: Callable[..., Any], name: str
):
    folder = dead_run(name)
    assert spent_on_the_node(folder).max() > 0
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    covered(seen(folder), folder)


@pytest.mark.parametrize(
    "name", ["unseeded, cohorts", "unseeded, first cohort", "unseeded, all", "unseeded, sampled"]
)
def test_an_unseeded_resumed_run_assumes_the_releases_of_the_interrupted_round(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], seen: Callable[..., Any], name: str
):
    folder = dead_run(name)
    number = DEATHS[name][1]
    sent = [
        cohort
        for cohort in NodeLedger(folder / "node-ledger.sqlite").cohort_releases(folder.name)
        if cohort.release.round == number
    ]
    left = {client for cohort in sent for client in cohort.clients.tolist()}
    assert modulated_run({}, "--resume", folder).exit_code == 0
    assumed = {(row["client"], row["round"]) for row in seen(folder).rows if row["source"] == "assumed"}
    assert {round for _, round in assumed} == {number}
    assert left <= {client for client, _ in assumed}
    if name == "unseeded, cohorts":
        assert left == {client for client, _ in assumed}
        last = [row["clients"] for row in seen(folder).metrics]
        assert last == [0, 100, 100, 0, 100]  # whose messages were lost sends no second one
    if name == "unseeded, first cohort":
        assert len(assumed) == 100


def test_a_one_shot_run_that_died_half_way_goes_on_with_those_that_have_not_sent(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], seen: Callable[..., Any]
):
    """Only the nodes know who has; their own filter refuses them."""
    folder = dead_run("unseeded, one-shot, half the messages")
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    run = seen(folder)
    assert run.metrics[-1]["clients"] == 200
    assert run.metrics[-1]["out-of-budget"] == 200
    assert "the modulation of 200 messages of 3 features" in run.estimate["identification"]
    assert sum(row["source"] == "assumed" for row in run.rows) == 400
    assert "200 of 400 clients took part" in result.stdout
    assert "400 rows of the ledger are assumed" in result.stdout


def test_a_run_in_which_no_message_arrived_has_no_result_and_fails(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any]
):
    """All had sent their one message when it died, and none was on disk."""
    folder = dead_run("unseeded, one-shot, no message arrived")
    spent = spent_on_the_node(folder)
    assert spent.min() > 0
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "no client has sent a message: all had spent their budget before" in line
    assert "start a new run" in line
    assert "coefficients" not in result.stdout
    assert not RunFolder(folder).is_finished
    assert not (folder / "estimate.json").exists()
    assert np.array_equal(spent_on_the_node(folder), spent)  # the folder keeps what was spent


@pytest.mark.parametrize("name", ["unseeded, in the ranges", "unseeded, cohorts, in the ranges"])
def test_an_unseeded_run_that_died_in_its_ranges_goes_on_with_public_ones_and_counts_them_as_paid(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], seen: Callable[..., Any], name: str
):
    folder = dead_run(name)
    before = ranges_sent(folder)
    assert before
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    assert "are not asked for again: public ones serve" in result.stdout
    assert "the intercept at the features' public centres" in result.stdout
    assert ranges_sent(folder) == before
    run = seen(folder)
    rows = Counter((row["release"], row["round"] > 0, row["source"]) for row in run.rows)
    assert rows == {("range-message", False, "assumed"): 400, ("modulated-message", True, "reply"): 400}
    arrays = RunFolder(folder).load_model()[0]
    assert np.array_equal(arrays["center"], np.zeros(3))  # made-up features are within -1 and 1
    assert np.array_equal(arrays["half-range"], np.ones(3))
    assert run.estimate["guarantees"][0]["epsilon"] <= 8.0


def test_ranges_that_were_assumed_once_are_not_assumed_again_when_the_run_dies_again(
    dead_run: Callable[[str], Path],
    modulated_run: Callable[..., Any],
    seen: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
):
    folder = dead_run("unseeded, cohorts, in the ranges")
    save = RunFolder.save_checkpoint

    def fail(self: RunFolder, checkpoint: Any) -> None:
        save(self, checkpoint)
        if checkpoint.round == 2:
            raise OSError("the machine goes down")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", fail)
        assert modulated_run({}, "--resume", folder).exit_code == 1
    assert modulated_run({}, "--resume", folder).exit_code == 0
    rows = Counter(row["client"] for row in seen(folder).rows if row["release"] == "range-message")
    assert set(rows.values()) == {1}
    covered(seen(folder), folder)


def test_an_unseeded_comparator_that_was_interrupted_is_not_told_as_if_it_had_run(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], seen: Callable[..., Any]
):
    folder = dead_run("unseeded, in a comparator")
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    told = {entry["method"]: entry for entry in seen(folder).estimate["comparators"]}
    assert set(told) <= {"lambda-0", "dp-sgd"}
    assert told["lambda-0"]["r2"] > 0.1
    assert "dp-sgd" not in told
    assert "dp-sgd was interrupted" in result.stdout


# what is refused


def test_a_run_whose_checkpoint_is_lost_is_not_begun_again_under_its_name(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any]
):
    """Its ledger would begin again too, and lack what its clients have released."""
    folder = dead_run("cohorts, pooled")
    (folder / "checkpoint/last.safetensors").unlink()
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert "holds no checkpoint: restore it if it was lost, or start a new run" in result.stderr
    assert not RunFolder(folder).is_finished


@pytest.mark.parametrize("fact", ["code", "data"])
def test_a_run_whose_code_or_data_changed_is_not_resumed(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], fact: str
):
    folder = dead_run("cohorts, pooled")
    checkpoint = RunFolder(folder).load_checkpoint()
    assert checkpoint is not None
    checkpoint.extra["facts"][fact] = "another"
    RunFolder(folder).save_checkpoint(checkpoint)
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert f"the {fact} is not what it was" in result.stderr
    assert not RunFolder(folder).is_finished


@pytest.mark.parametrize("name", ["cohorts, pooled", "after the ranges"])
def test_a_run_whose_node_ledger_is_lost_is_not_resumed(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], name: str
):
    """With it went what the clients have spent: every budget would be whole again."""
    folder = dead_run(name)
    (folder / "node-ledger.sqlite").unlink()
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 1
    assert "node-ledger.sqlite is lost" in result.stderr
    assert not RunFolder(folder).is_finished


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"epsilon": 2.0}, "epsilon was 8.0 and is now 2.0"),
        ({"num-server-rounds": 5}, "num-server-rounds was 4 and is now 5"),
        ({"comparators": "dp-sgd"}, "comparators was 'none' and is now 'dp-sgd'"),
        ({"seed": 8}, "seed"),
    ],
)
def test_a_resumed_run_with_another_setting_is_refused_naming_it(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], changed: dict[str, Any], named: str
):
    folder = dead_run("cohorts, pooled")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = modulated_run(changed, "--resume", folder)
    assert result.exit_code != 0
    (line,) = result.stderr.splitlines()
    assert named in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["cohorts, pooled", "after the ranges", "unseeded, all"])
@pytest.mark.parametrize(
    ("written", "edited"),
    [
        ("epsilon = 8.0", "epsilon = 80.0"),
        ("num-server-rounds = 4", "num-server-rounds = 40"),
        ("alpha = 0.3", "alpha = 0.9"),
    ],
)
def test_a_run_whose_settings_were_edited_in_its_folder_is_not_resumed(
    dead_run: Callable[[str], Path], modulated_run: Callable[..., Any], name: str, written: str, edited: str
):
    folder = dead_run(name)
    file = folder / "config.toml"
    text = file.read_text()
    assert f"\n{written}\n" in text
    file.write_text(text.replace(f"\n{written}\n", f"\n{edited}\n"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = modulated_run({}, "--resume", folder)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert f"{file} is not what the run was started with: restore it, or start a new run" in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    file.write_text(text)
    assert modulated_run({}, "--resume", folder).exit_code == 0


def test_resuming_a_finished_run_is_refused(modulated: Callable[..., Any], modulated_run: Callable[..., Any]):
    run = modulated()
    result = modulated_run({}, "--resume", run.folder)
    assert result.exit_code != 0
    assert f"the run in {run.folder} is finished" in result.stderr


def test_a_seeded_run_whose_records_changed_sends_nothing_with_the_noise_of_before(
    modulated_run: Callable[..., Any], town: dict[str, Any], tmp_path: Path
):
    """The difference of the two messages would be free of noise; public facts alone cannot show the change."""
    rows = [f"{k % 7},{k % 5},{k}" for k in range(60)]
    table, test = tmp_path / "t.csv", tmp_path / "test.csv"
    table.write_text("\n".join(["a,b,y", *rows]))
    test.write_text("\n".join(["a,b,y", *rows[:10]]))
    Path(f"{table}.schema.toml").write_text(
        "".join(
            f"[columns.{name}]\nlow = 0\nhigh = {high}\nbaseline = 0\n" for name, high in (("a", 7), ("b", 5))
        )
        + "[columns.y]\nlow = 0\nhigh = 60\n"
    )
    case = {
        **town,
        "dataset": "csv",
        "options": "",
        "data-path": str(table),
        "test-path": str(test),
        "target": "y",
        "output-dir": str(tmp_path / "runs"),
    }
    killed = subprocess.run(
        [sys.executable, str(KILLED_RUNS)],
        input=json.dumps([{"app": "modulated", "settings": case, "at": REPLIED, "round": 1}]),
        text=True,
        capture_output=True,
        check=False,
    )
    assert killed.returncode == 0, killed.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    table.write_text("\n".join(["a,b,y", "6,4,0", *rows[1:]]))
    modulated_data._load.cache_clear()
    result = modulated_run({}, "--resume", folder, "--num-supernodes", "1")
    assert result.exit_code == 1
    assert "sent something else before in round 1" in result.stderr
    assert not RunFolder(folder).is_finished
