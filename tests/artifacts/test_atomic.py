"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedveil.artifacts import WriteFailed, write_bytes, write_text


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: a real write fails, in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_bytes(file, b"old")
    write_text(file, "new: µ")
    assert file.read_text("utf-8") == "new: µ"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_one_sentence_with_the_path_and_the_old_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_bytes(file, b"old")
    with largest_file(100_000), pytest.raises(WriteFailed) as caught:
        write_bytes(file, bytes(1_000_000))
    assert caught.value.errno == errno.EFBIG
    assert str(caught.value).startswith(f"{file} could not be written (File too large)")
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_refusal_of_the_system_leaves_the_old_file_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_bytes(file, b"old")

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(WriteFailed, match="No space left on device"):
            write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupt_in_the_middle_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_bytes(file, b"old")

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="missing/file could not be written"):
        write_bytes(tmp_path / "missing" / "file", b"")


def test_the_file_and_its_folder_are_synced_in_this_order_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def renamed(*paths: Path) -> None:
        order.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_bytes(tmp_path / "file", b"new")
    assert order == ["file", "rename", "folder"]
