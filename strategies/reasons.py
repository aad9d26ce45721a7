"""Why a node's reply cannot be used, and whose it was, in words that are fit for a log."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["one_line", "ranges", "shown"]

_LONGEST = 500  # characters
_LONGEST_VALUE = 80


def one_line(reason: str) -> str:
    """A reason, parts of which a node wrote, without Flower's wrapping of what a ClientApp raised."""
    line = re.sub(r"<class '[\w.]+'>:<['\"](.*)['\"]>", r"\1", " ".join(reason.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def shown(value: object) -> str:
    """A value that a node wrote, quoted and cut."""
    text = repr(value[: _LONGEST_VALUE + 1] if isinstance(value, str | bytes | list) else value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def ranges(clients: Sequence[int]) -> str:
    """Consecutive numbers as first-last: 0-4, 7."""
    runs: list[list[int]] = []
    for client in clients:
        if runs and client == runs[-1][-1] + 1:
            runs[-1].append(client)
        else:
            runs.append([client])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
