"""One writing process a run folder: what still runs is not resumed by a second process beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

__all__ = ["acquire"]

_BUSY = {errno.EACCES, errno.EAGAIN}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


def acquire(path: Path, *, patience: float = 10.0) -> int | None:
    """Lock a file for this process; the system drops the lock when the process ends, however it ends.

    A POSIX record lock: a second lock by the same process succeeds, so that a run that failed can be resumed
    by the program that ran it.

    Parameters
    ----------
    path : Path
        The lock file; created if missing, never removed.
    patience : float
        Seconds to wait for a process that is just being ended.

    Returns
    -------
    int or None
        The open file descriptor; closing it gives the lock back. None if another process holds the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                # some cluster file systems have no locks: a second writer cannot be seen there
                return descriptor
            if error.errno not in _BUSY or time.monotonic() >= deadline:
                os.close(descriptor)
                if error.errno not in _BUSY:
                    raise
                return None
        time.sleep(0.1)
