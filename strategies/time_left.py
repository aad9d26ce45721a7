"""How long a run still takes, in words: from the seconds of its last rounds."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["time_left"]

_RECENT = 5  # rounds


def time_left(seconds: Sequence[float], rounds: int) -> str:
    """Seconds or minutes that some more rounds take if they are like the last ones.

    Parameters
    ----------
    seconds : sequence of float
        Of every round so far, at least one; the first, which has no training in it, counts while there is no better.
    rounds : int
        Rounds that are left.
    """
    recent = seconds[-_RECENT:] if len(seconds) < 3 else seconds[1:][-_RECENT:]
    left = rounds * sum(recent) / len(recent)
    return f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
