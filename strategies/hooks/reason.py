"""What went wrong in a hook, in one line."""

from __future__ import annotations

from fedveil.strategies.reasons import one_line

__all__ = ["reason_of"]


def reason_of(error: BaseException) -> str:
    """In one line; what is not meant for the user comes with its type."""
    told = str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"
    return one_line(told or type(error).__name__)
