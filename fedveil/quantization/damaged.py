"""The error for a file that cannot be what its name says."""

from __future__ import annotations

__all__ = ["DamagedFile"]


class DamagedFile(ValueError):
    """A file is truncated, changed, or not what its name says."""
