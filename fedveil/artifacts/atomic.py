"""Files that appear whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = [
    "WriteFailed",
    "create",
    "remove_drafts",
    "remove_leftovers",
    "sync_folder",
    "write_bytes",
    "write_failures_named",
    "write_text",
]

_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class WriteFailed(OSError):
    """Something could not be written; the message is one sentence with the path and the system's reason."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a crash or a full disk at any instant leaves the old file or the new one, whole.

    The bytes go to a new file in the same folder (a rename is atomic only within one file system), which is
    synced and renamed onto ``path``; then the folder is synced, so that the new file survives a power cut
    once this returns.

    Parameters
    ----------
    path : Path
        Where the file shall be; its folder exists.
    data : bytes
        The whole content.

    Raises
    ------
    WriteFailed
        If the system refuses: disk full, no permission, no such folder. Nothing is left behind, the old file
        stays.
    """
    draft = _draft_of(path)
    with write_failures_named(path):
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(draft, path)
        except BaseException:  # an interrupt too: the draft never stays
            with contextlib.suppress(OSError):  # the first error is the one to tell
                draft.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file as :func:`write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def create(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a file that is its owner's alone; one that is there stays, also one that is made at the same time.

    The path leads to nothing or to the whole file, at any instant and for any number of processes. One that is killed
    may leave its draft, or a draft that is a second name of the file: :func:`remove_drafts` removes both.

    Parameters
    ----------
    path : Path
        Where the file shall be; its folder exists.
    fill : callable
        ``fill(draft)`` writes the content into an empty file, and syncs it.

    Raises
    ------
    WriteFailed
        If the system refuses.
    """
    draft = _draft_of(path)
    with write_failures_named(path), _one_at_a_time(path.parent):
        if os.path.lexists(path):
            return
        try:
            os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            fill(draft)
            _give_name(draft, path)
        finally:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                draft.unlink(missing_ok=True)
        sync_folder(path.parent)


def _give_name(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)  # and no rename, which would replace what another machine has made there
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(draft, path)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes and threads of this machine out of the block, without a file that would stay."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile must not keep it
    finally:
        os.close(descriptor)


def remove_drafts(path: Path) -> None:
    """Remove what killed processes left of :func:`create`; only once the file is there, so that nobody makes it."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.tmp*"):  # SQLite's journal of one, too
        draft.unlink(missing_ok=True)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder, and say so
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the drafts that writers killed in the middle of :func:`write_bytes` left in a folder.

    Only for a folder that no other process writes to.
    """
    for draft in folder.glob(".*.tmp"):
        if draft.is_file():
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def write_failures_named(path: Path) -> Iterator[None]:
    """Turn every OSError of the block into a :class:`WriteFailed` that names ``path``."""
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        failure = WriteFailed(f"{path} could not be written ({reason}): make room or choose another folder.")
        failure.errno = error.errno
        raise failure from error
