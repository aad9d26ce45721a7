"""One writing process a run folder: what still runs is not resumed by a second process beside it.

A POSIX record lock belongs to the process, and the system drops it when the process closes ANY descriptor of the file.
So a process opens each lock file once, however many folders of one run it has, and closes it with the last of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

__all__ = ["WriterLock", "acquire", "give_back"]

_BUSY = {errno.EACCES, errno.EAGAIN}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


@dataclass(eq=False)
class WriterLock:
    """A lock file that this process has open, and how many of its holders have not given it back."""

    file: tuple[int, int]
    descriptor: int
    holders: int = 0


class _Process:
    """What the locks of this process are; there is one, for the system keeps them by process."""

    def __init__(self) -> None:
        self.guard = Lock()
        # by device and inode: one file has several paths where folders are linked or mounted twice
        self.locks: dict[tuple[int, int], WriterLock] = {}
        self.returned: deque[WriterLock] = deque()


_process = _Process()


def acquire(path: Path, *, patience: float = 10.0) -> WriterLock | None:
    """Lock a file for this process; the system drops the lock when the process ends, however it ends.

    A process that has the lock gets it again, so that a run that failed can be resumed by the program that ran it.

    Parameters
    ----------
    path : Path
        The lock file; created if missing, never removed.
    patience : float
        Seconds to wait for a process that is just being ended.

    Returns
    -------
    WriterLock or None
        To be given back once by :func:`give_back`. None if another process holds the lock.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            with _process.guard:
                lock = _locked(path)
        finally:
            _settle()
        if lock is not None or time.monotonic() >= deadline:
            return lock
        time.sleep(0.1)


def give_back(lock: WriterLock) -> None:
    """Give back what one call of :func:`acquire` returned; the last one of a file unlocks it.

    It never waits: the collector of garbage may call it at any instant, in the middle of :func:`acquire` too.
    """
    _process.returned.append(lock)
    _settle()


def _locked(path: Path) -> WriterLock | None:
    """The lock of a file for one more holder; None where another process holds it. Under the guard."""
    try:
        known = os.stat(path)
    except FileNotFoundError:
        known = None
    lock = _process.locks.get((known.st_dev, known.st_ino)) if known else None
    if lock is None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # some cluster file systems have no locks: a second writer cannot be seen there
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                if error.errno in _BUSY:
                    return None
                raise
        opened = os.fstat(descriptor)
        lock = WriterLock((opened.st_dev, opened.st_ino), descriptor)
        _process.locks[lock.file] = lock
    lock.holders += 1
    return lock


def _settle() -> None:
    """Close what nobody holds any more; whoever has the guard meanwhile does it after giving the guard back."""
    while _process.returned and _process.guard.acquire(blocking=False):
        try:
            while _process.returned:
                lock = _process.returned.popleft()
                lock.holders -= 1
                if lock.holders == 0 and _process.locks.get(lock.file) is lock:
                    del _process.locks[lock.file]
                    os.close(lock.descriptor)
        finally:
            _process.guard.release()


def _begin_anew() -> None:
    """A forked child has the descriptors and none of the locks: closed now, they cannot drop one of its own later."""
    global _process
    inherited, _process = _process, _Process()
    for lock in inherited.locks.values():
        os.close(lock.descriptor)


os.register_at_fork(after_in_child=_begin_anew)
