"""Reading files that a person named or may have closed: what the system refuses is told with the file's place."""

from __future__ import annotations

from pathlib import Path

__all__ = ["RunFolderError", "is_there", "read_file"]


class RunFolderError(ValueError):
    """A folder or file cannot be used: it is missing, not a run's, finished, in use, closed to this user or broken."""


def is_there(file: Path) -> bool:
    """Whether a file is there; one that the system hides or cannot reach is not taken for one that is missing.

    Raises
    ------
    RunFolderError
        If the system does not say.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(file, error) from error
    return True


def read_file(file: Path) -> bytes:
    """The bytes of a file.

    Raises
    ------
    RunFolderError
        If the system cannot read it.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"{file} cannot be read ({error.strerror}): let this user read it, or restore it from a copy."
    )
