"""The lock of a run's folder: kept as long as the process has one folder of the run, whatever becomes of the others."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedveil.artifacts import RunFolder, RunFolderError
from fedveil.artifacts.writer_lock import acquire, give_back

ANOTHER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
    except (BlockingIOError, PermissionError):
        print("held")
"""


def of_another_process(file: Path) -> str:
    """Whether a second process can have the lock: "free" or "held"."""
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER, file], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def lock_of(folder: RunFolder) -> Path:
    return folder.path / "checkpoint" / "lock"


def test_a_failed_run_that_is_forgotten_leaves_the_lock_to_the_one_that_goes_on_with_it(tmp_path: Path):
    failed = RunFolder.create(tmp_path, "fedsva", {"seed": 1})
    resumed = RunFolder.open(failed.path)
    lock = lock_of(resumed)
    del failed
    gc.collect()
    assert of_another_process(lock) == "held"
    del resumed
    gc.collect()
    assert of_another_process(lock) == "free"


def test_a_folder_that_is_refused_after_it_was_locked_leaves_the_lock_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held = RunFolder.create(tmp_path, "fedsva", {"seed": 1})

    def finished(folder: RunFolder) -> None:
        raise RunFolderError("finished meanwhile.")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_refuse_finished", finished)
        with pytest.raises(RunFolderError, match="meanwhile"):
            RunFolder.open(held.path)
    gc.collect()
    assert of_another_process(lock_of(held)) == "held"


def test_the_same_folder_by_another_path_is_the_same_lock(tmp_path: Path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to("here")
    one, other = acquire(tmp_path / "here" / "lock"), acquire(tmp_path / "there" / "lock")
    assert one is not None
    assert one is other
    give_back(other)
    assert of_another_process(tmp_path / "here" / "lock") == "held"
    give_back(one)
    assert of_another_process(tmp_path / "there" / "lock") == "free"


def test_a_file_that_took_the_place_of_a_locked_one_has_a_lock_of_its_own(tmp_path: Path):
    file = tmp_path / "lock"
    before = acquire(file)
    file.unlink()
    after = acquire(file)
    assert before is not None
    assert after is not None
    assert before is not after
    give_back(before)
    assert of_another_process(file) == "held"
    give_back(after)


def test_a_lock_that_is_given_back_in_the_middle_of_asking_for_one_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # as the collector of garbage may do at any instant, in the same thread
    first, second = tmp_path / "first", tmp_path / "second"
    held = [acquire(first)]
    system_open = os.open

    def collecting(*args: object, **kwargs: object) -> int:
        while held:
            lock = held.pop()
            assert lock is not None
            give_back(lock)
        return system_open(*args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", collecting)
        other = acquire(second)
    assert held == []
    assert of_another_process(first) == "free"
    assert of_another_process(second) == "held"
    assert other is not None
    give_back(other)


def test_threads_that_ask_and_give_back_never_drop_the_lock_of_one_that_keeps_it(tmp_path: Path):
    file = tmp_path / "lock"
    kept = acquire(file)
    assert kept is not None
    found: list[bool] = []

    def work() -> None:
        for _ in range(200):
            lock = acquire(file)
            found.append(lock is kept)
            if lock is not None:
                give_back(lock)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 800
    assert kept.holders == 1
    assert of_another_process(file) == "held"
    give_back(kept)
    assert of_another_process(file) == "free"


def test_a_forked_child_has_no_lock_of_its_parent_s_and_drops_none(tmp_path: Path):
    file = tmp_path / "lock"
    kept = acquire(file)
    assert kept is not None
    child = os.fork()
    if child == 0:
        try:
            refused = acquire(file, patience=0.0) is None
            give_back(kept)  # the parent's object, copied
            os._exit(0 if refused and acquire(file, patience=0.0) is None else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert of_another_process(file) == "held"
    give_back(kept)


def test_a_forked_child_keeps_a_lock_of_its_own_when_what_it_inherited_is_collected(tmp_path: Path):
    file = tmp_path / "lock"
    inherited = acquire(file)
    assert inherited is not None
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(writer)
            os.read(reader, 1)  # until the parent has given its lock back
            own = acquire(file, patience=5.0)
            give_back(inherited)
            os._exit(0 if own is not None and of_another_process(file) == "held" else 1)
        finally:
            os._exit(2)
    os.close(reader)
    give_back(inherited)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
