"""Reading a run's files: what the system refuses is told with the file's place."""

from __future__ import annotations

from pathlib import Path

__all__ = ["RunFolderError", "read_file"]


class RunFolderError(ValueError):
    """A folder cannot be used: it is missing, not a run's, finished, in use, or its settings are broken."""


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
        raise RunFolderError(f"{file} cannot be read ({error.strerror}).") from error
