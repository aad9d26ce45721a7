"""A run's folder: made with its settings, resumed from its checkpoint, finished with its model."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedveil.artifacts import (
    Checkpoint,
    DamagedFile,
    RunFolder,
    RunFolderError,
    WriteFailed,
    releases_of,
    table_from_bytes,
)
from fedveil.privacy import Ledger, Release

CONFIG = {"num-server-rounds": 4, "learning-rate": 0.1, "seed": 7}
MODEL = {"w": np.ones((2, 3), np.float32)}


def rows(rounds: range) -> tuple[Release, ...]:
    return tuple(
        Release(client, round, 0, "gradient", relation, 1 / (3 + client), 1 / 7)
        for round in rounds
        for client in range(6)
        for relation in ("attribute", "record")
    )


def checkpoint(round: int = 2) -> Checkpoint:
    generator = np.random.default_rng(3)
    return Checkpoint(
        round=round,
        arrays={
            "linear.weight": generator.normal(size=(10, 64)).astype(np.float32),
            "linear.bias": generator.normal(size=10).astype(np.float32),
        },
        optimizer={
            "step": np.array(3, np.int64),
            "linear.weight/m": generator.normal(size=(64, 10)).T,  # a view that is not contiguous
        },
        releases=rows(range(1, round + 1)),
        metrics=[
            {"round": 1, "accuracy": 0.1, "seconds": 1.5},
            {"round": 2, "accuracy": 1 / 3, "note": "slow"},
        ],
        config_hash="ab" * 16,
        extra={"out_of_budget": [3, 5], "largest": np.float32(0.5), "nested": {"none": None}},
        assumed=(Release(9, 2, 0, "gradient", "record", 0.1, 0.3),),
    )


def unfinished(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "fedsva", CONFIG)
    folder.save_checkpoint(checkpoint())
    return folder


def test_a_new_folder_is_named_by_time_app_and_id_and_holds_the_settings(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "fedsva", CONFIG)
    assert re.fullmatch(r"\d{8}-\d{6}-fedsva-[0-9a-f]{8}", folder.name)
    assert folder.path.parent == tmp_path / "runs"
    assert folder.config == CONFIG
    assert not folder.is_finished
    assert folder.load_checkpoint() is None
    assert RunFolder.create(tmp_path / "runs", "fedsva", CONFIG).path != folder.path


def test_a_secret_seed_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "fedsva", CONFIG | {"seed": 918273645}, redact={"seed"})
    folder.save_checkpoint(checkpoint())
    folder.finish({"w": np.zeros(3)}, [], ())
    assert folder.config["seed"] == "secret"
    assert all(b"918273645" not in file.read_bytes() for file in folder.path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("output", "app"), [("runs", "fedsva"), ("/tmp", "../x"), ("/tmp", ""), ("/tmp", ".x")]
)
def test_a_relative_place_or_a_strange_name_is_refused(output: str, app: str) -> None:
    with pytest.raises(ValueError, match=r"output-dir must be an absolute path|an app's name"):
        RunFolder.create(output, app, CONFIG)


def test_a_place_that_cannot_be_written_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(WriteFailed, match=r"file/.*-fedsva-.* could not be written"):
        RunFolder.create(tmp_path / "file", "fedsva", CONFIG)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(WriteFailed, match=r"No space left on device"):
            RunFolder.create(tmp_path / "runs", "fedsva", CONFIG)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_checkpoint_comes_back_to_the_bit_and_in_order(tmp_path: Path) -> None:
    saved = checkpoint()
    folder = RunFolder.create(tmp_path, "fedsva", CONFIG)
    folder.save_checkpoint(checkpoint(1))
    folder.save_checkpoint(saved)
    loaded = RunFolder.open(folder.path).load_checkpoint()
    assert loaded is not None
    for before, after in ((saved.arrays, loaded.arrays), (saved.optimizer, loaded.optimizer)):
        assert list(after) == list(before)
        for name, array in before.items():
            assert after[name].dtype == array.dtype
            assert after[name].shape == array.shape
            assert after[name].tobytes() == array.tobytes()
            assert after[name].flags.writeable
    assert (loaded.round, loaded.config_hash) == (2, "ab" * 16)
    assert (loaded.releases, loaded.assumed) == (saved.releases, saved.assumed)
    assert loaded.metrics == saved.metrics
    assert loaded.extra == {"out_of_budget": [3, 5], "largest": 0.5, "nested": {"none": None}}


def test_an_array_or_value_that_cannot_be_stored_is_named_and_the_old_checkpoint_stays(
    tmp_path: Path,
) -> None:
    folder = unfinished(tmp_path)
    with pytest.raises(ValueError, match="array 'arrays/names' has data type <U1"):
        folder.save_checkpoint(Checkpoint(3, {"names": np.array(["a"])}, {}, (), [], ""))
    with pytest.raises(ValueError, match="only numbers, strings, lists and mappings"):
        folder.save_checkpoint(Checkpoint(3, {}, {}, (), [], "", {"object": object()}))
    loaded = folder.load_checkpoint()
    assert loaded is not None
    assert loaded.round == 2


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_named(share: float, tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    file = folder.path / "checkpoint" / "last.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedFile, match=f"{re.escape(str(file))} is truncated or not a file of FedVeil"):
        RunFolder.open(folder.path).load_checkpoint()


def test_a_single_changed_bit_in_a_checkpoint_is_seen(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    file = folder.path / "checkpoint" / "last.safetensors"
    whole = file.read_bytes()
    for position in np.random.default_rng(4).integers(0, len(whole), 40):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        try:
            loaded = folder.load_checkpoint()
        except DamagedFile:
            continue
        pytest.fail(f"bit of byte {position} was changed and {loaded} was read")


def test_a_missing_or_foreign_or_broken_folder_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"nothing is not a folder"):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match=r"is not the folder of a run \(it has no config.toml\)"):
        RunFolder.open(tmp_path)
    folder = unfinished(tmp_path)
    (folder.path / "config.toml").write_text("seed = ")
    with pytest.raises(RunFolderError, match=r"config.toml cannot be read \(Invalid value"):
        RunFolder.open(folder.path)


def test_a_finished_run_is_neither_resumed_nor_written_to(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    folder.finish({"w": np.zeros(3)}, [], ())
    with pytest.raises(RunFolderError, match="is finished"):
        RunFolder.open(folder.path)
    with pytest.raises(RunFolderError, match="is finished"):
        folder.save_checkpoint(checkpoint())
    with pytest.raises(RunFolderError, match="is finished"):
        folder.finish({"w": np.zeros(3)}, [], ())


def test_a_finished_folder_holds_metrics_ledger_and_model(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    last = checkpoint()
    with pytest.raises(RunFolderError, match=r"model.safetensors cannot be read"):
        folder.load_model()
    folder.finish(
        last.arrays, last.metrics, Ledger(last.releases), {"classes": ["0", "1"]}, assumed=last.assumed
    )
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoint", "config.toml", "ledger.parquet", "metrics.parquet", "model.safetensors"
    ]  # fmt: skip
    arrays, note = RunFolder(folder.path).load_model()
    assert list(arrays) == list(last.arrays)
    assert note == {"classes": ["0", "1"]}
    plain = safetensors.numpy.load_file(folder.path / "model.safetensors")
    np.testing.assert_array_equal(plain["linear.weight"], last.arrays["linear.weight"])
    ledger = table_from_bytes((folder.path / "ledger.parquet").read_bytes(), "ledger.parquet")
    arrived, assumed = releases_of(ledger)
    assert set(arrived) == set(last.releases)
    assert assumed == last.assumed
    metrics = table_from_bytes((folder.path / "metrics.parquet").read_bytes(), "metrics.parquet")
    assert metrics.to_pylist()[1] == {"round": 2, "accuracy": 1 / 3, "seconds": None, "note": "slow"}


def test_results_that_cannot_be_stored_leave_the_run_unfinished_and_nothing_written(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    with pytest.raises(ValueError, match="metric 'loss'"):
        folder.finish({"w": np.zeros(3)}, [{"loss": "a"}, {"loss": 1}], ())
    assert not folder.is_finished
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoint", "config.toml"]


@pytest.mark.parametrize("failing", range(4))
def test_a_disk_that_fills_up_while_finishing_leaves_a_run_that_can_be_resumed(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unfinished(tmp_path)
    last = checkpoint()
    calls, fsync = [], os.fsync

    def sometimes(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            calls.append(descriptor)
            if len(calls) == failing + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sometimes)
        if failing < 3:
            with pytest.raises(WriteFailed, match=re.escape(str(folder.path))):
                folder.finish(last.arrays, last.metrics, last.releases)
            assert not folder.is_finished
        else:
            folder.finish(last.arrays, last.metrics, last.releases)
            assert len(calls) == 3
    if failing < 3:
        resumed = RunFolder.open(folder.path)
        resumed.finish(last.arrays, last.metrics, last.releases)
        assert resumed.is_finished


def test_ledgers_of_a_resumed_and_of_an_unbroken_run_are_equal_to_the_byte(tmp_path: Path) -> None:
    model = {"w": np.zeros(3, np.float32)}
    unbroken = RunFolder.create(tmp_path, "fedsva", CONFIG)
    unbroken.finish(model, [], rows(range(1, 5)), assumed=checkpoint().assumed)
    broken = RunFolder.create(tmp_path, "fedsva", CONFIG)
    broken.save_checkpoint(checkpoint(2))
    resumed = RunFolder.open(broken.path)
    past = resumed.load_checkpoint()
    assert past is not None
    late = rows(range(3, 5))[::-1]  # replies come in another order
    resumed.finish(model, [], Ledger(past.releases).add(late), assumed=past.assumed)
    for name in ("ledger.parquet", "model.safetensors"):
        assert (unbroken.path / name).read_bytes() == (broken.path / name).read_bytes()


def test_a_run_that_another_process_still_writes_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unfinished(tmp_path).path
    code = (
        "import sys; from fedveil.artifacts import RunFolder;"
        "folder = RunFolder.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    monkeypatch.setattr("time.monotonic", iter(range(0, 10**6, 20)).__next__)  # patience ends at once
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RunFolderError, match="another process still writes to"):
            RunFolder.open(path)
        other.kill()
    assert RunFolder.open(path).load_checkpoint() is not None


def test_the_process_that_failed_can_resume_its_own_run(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    again = RunFolder.open(folder.path)
    again.save_checkpoint(checkpoint())
    assert folder.path == again.path


def test_a_secret_is_readable_by_its_owner_alone_and_only_until_the_run_is_finished(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "fedsva", CONFIG, redact={"seed"})
    secrets = folder.path / "checkpoint" / "secrets.toml"
    assert folder.config["seed"] == "secret"
    assert folder.secrets == {"seed": 7}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    folder.finish(checkpoint().arrays, [], ())
    assert not secrets.exists()
    assert RunFolder(folder.path).secrets == {}
    for file in folder.path.rglob("*"):
        assert not file.is_file() or b"seed = 7" not in file.read_bytes(), file


# the course of a run, and further results


def test_a_draft_that_a_killed_writer_left_in_the_trajectory_is_removed_when_the_run_goes_on(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "fedsva", CONFIG)
    folder.save_trajectory(0, MODEL, keep=3)
    draft = folder.path / "trajectory" / ".round-000001.safetensors.0123456789abcdef.tmp"
    draft.write_bytes(b"half")
    assert [round for round, _ in folder.load_trajectory()] == [0]
    RunFolder.open(folder.path)
    assert not draft.exists()


def test_a_finished_run_keeps_its_trajectory_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "fedsva", CONFIG)
    folder.save_trajectory(0, MODEL, keep=3)
    folder.finish(checkpoint().arrays, [], ())
    with pytest.raises(RunFolderError, match="is finished"):
        folder.save_trajectory(1, MODEL, keep=3)
    assert len(folder.load_trajectory()) == 1


@pytest.mark.parametrize("name", ["rq.json", "quantized/int4.safetensors", "a-b_c/d.e"])
def test_further_results_lie_beside_those_of_a_finished_run_and_replace_earlier_ones(
    tmp_path: Path, name: str
) -> None:
    folder = unfinished(tmp_path)
    with pytest.raises(RunFolderError, match="is not finished: resume it first"):
        folder.add(name, b"early")
    folder.finish(checkpoint().arrays, [], ())
    folder.add(name, b"first")
    assert folder.add(name, b"second") == folder.path / name
    assert (folder.path / name).read_bytes() == b"second"


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "/tmp/x", "a/../../x", "a/b/c", "a//b", ".hidden", "a/.hidden", "a b", "a/"),
        *("config.toml", "metrics.parquet", "ledger.parquet", "model.safetensors"),
        *("checkpoint", "checkpoint/last.safetensors", "trajectory/round-000000.safetensors"),
    ],
)
def test_further_results_lead_nowhere_else_and_take_no_name_of_the_runs_own(
    tmp_path: Path, name: str
) -> None:
    folder = unfinished(tmp_path)
    folder.finish(checkpoint().arrays, [], ())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match="is no name for a further result"):
        folder.add(name, b"x")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_further_result_that_cannot_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    folder.finish(checkpoint().arrays, [], ())
    folder.add("quantized", b"a file, where a folder should be")
    with pytest.raises(WriteFailed, match=re.escape(str(folder.path / "quantized" / "int4.safetensors"))):
        folder.add("quantized/int4.safetensors", b"x")


def test_documents_are_read_back_and_missing_ones_are_none(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    folder.finish(checkpoint().arrays, [], (), documents={"membership": {"level": 0.95}})
    assert folder.document("membership") == {"level": 0.95}
    assert folder.document("others") is None
    (folder.path / "membership.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"membership\.json is not what a run writes"):
        folder.document("membership")
