"""Scenarios for test_crash.py: what is on disk after SIGKILL before each single call to the system.

Each scenario runs in forked children. The k-th child kills itself just before its k-th call that changes
something on disk, for k = 1, 2, ... until a child survives; after each the scenario looks at what is there.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedveil.artifacts import Checkpoint, NodeLedger, RunFolder, RunFolderError
from fedveil.privacy import Release

CALLS = ("open", "fsync", "link", "replace", "rename", "mkdir", "unlink")


def release(client: int, round: int) -> Release:
    return Release(client, round, 0, "gradient", "record", 0.02, 0.05)


def checkpoint(round: int) -> Checkpoint:
    """A checkpoint in which every number is the round, so that a mixture of two is seen."""
    return Checkpoint(
        round=round,
        arrays={"weight": np.full((64, 32), round, np.float32), "bias": np.full(32, round, np.float32)},
        optimizer={"momentum": np.full(2048, float(round))},
        releases=tuple(release(client, past) for past in range(1, round + 1) for client in range(5)),
        metrics=[{"round": past, "accuracy": past / 10} for past in range(1, round + 1)],
        config_hash="0" * 32,
        extra={"round": round},
    )


def whole(folder: Path) -> int:
    """The round of the checkpoint in a folder, after a look at every part of it."""
    found = RunFolder.open(folder).load_checkpoint()
    assert found is not None, "the checkpoint is gone"
    expected = checkpoint(found.round)
    for name, array in (expected.arrays | expected.optimizer).items():
        np.testing.assert_array_equal((found.arrays | found.optimizer)[name], array)
    assert found.releases == expected.releases
    assert found.metrics == expected.metrics
    assert found.extra == expected.extra
    return found.round


def killed_before(call: int, work: Callable[[], None]) -> bool:
    """Run work in a child that dies before its given call to the system; whether it was killed."""
    child = os.fork()
    if child == 0:
        left = [call]

        def counted(function: Callable[..., object]) -> Callable[..., object]:
            def wrapper(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return wrapper

        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
    return False


def replace_checkpoint(root: Path) -> None:
    """Old or new checkpoint, never a mixture, never a folder that looks finished."""
    base = RunFolder.create(root, "base", {"seed": 1})
    base.save_checkpoint(checkpoint(1))
    seen, call, killed = set(), 0, True
    while killed:
        call += 1
        copy = root / f"copy-{call}"
        shutil.copytree(base.path, copy)
        killed = killed_before(call, lambda copy=copy: RunFolder.open(copy).save_checkpoint(checkpoint(2)))
        assert not RunFolder(copy).is_finished
        seen.add(whole(copy))
        assert not list(copy.rglob("*.tmp")), "opening a folder removes what a killed writer left"
    assert seen == {1, 2}
    assert call >= 5, "open, sync, rename, open and sync of the folder"


def finish(root: Path) -> None:
    """Finished means that all three files are whole; otherwise the run resumes and ends the same."""
    base = RunFolder.create(root, "base", {"seed": 1})
    last = checkpoint(3)
    base.save_checkpoint(last)
    expected, call, killed, finished = b"", 0, True, 0
    while killed:
        call += 1
        copy = root / f"copy-{call}"
        shutil.copytree(base.path, copy)

        def end(copy: Path = copy) -> None:
            RunFolder.open(copy).finish(last.arrays, last.metrics, last.releases, {"round": 3})

        killed = killed_before(call, end)
        if RunFolder(copy).is_finished:
            finished += 1
            try:
                RunFolder.open(copy)
                raise AssertionError("a finished run must not be resumed")
            except RunFolderError:
                pass
        else:
            assert whole(copy) == 3
            end()
        arrays, note = RunFolder(copy).load_model()
        np.testing.assert_array_equal(arrays["weight"], last.arrays["weight"])
        assert note == {"round": 3}
        ledger = (copy / "ledger.parquet").read_bytes()
        expected = expected or ledger
        assert ledger == expected
    assert call >= 15, "three files, each written, synced and renamed"
    assert finished >= 2, "the model is renamed into place before the last calls"


def create(root: Path) -> None:
    """A folder that is there has its settings in it."""
    config = {"seed": 1, "learning-rate": 0.5}
    call, killed = 0, True
    while killed:
        call += 1
        output = root / str(call)
        killed = killed_before(call, lambda output=output: RunFolder.create(output, "fedsva", config))
        folders = [path for path in output.glob("*") if not path.name.startswith(".")]
        assert all(RunFolder.open(path).config == config for path in folders)
    assert len(folders) == 1
    assert call >= 5


def ledger(root: Path) -> None:
    """A node's ledger that is there is whole, and the next to come has one and removes what was left."""
    seen, call, killed = set(), 0, True
    while killed:
        call += 1
        file = root / str(call) / "ledger.sqlite"
        killed = killed_before(call, lambda file=file: NodeLedger(file))
        seen.add(file.exists())
        assert not file.exists() or file.stat().st_size > 0, "an empty file is where the ledger should be"
        made = NodeLedger(file)
        made.record("run", {3: "a"}, [release(3, 1)], replay=False)
        assert [path.name for path in file.parent.iterdir()] == ["ledger.sqlite"]
        assert NodeLedger(file).count("run", 3) == 1
    assert seen == {False, True}
    assert call >= 6, "folder, lock, draft, link, draft removed, folder synced"


if __name__ == "__main__":
    {"replace-checkpoint": replace_checkpoint, "finish": finish, "create": create, "ledger": ledger}[
        sys.argv[1]
    ](Path(sys.argv[2]))
