"""Why a node's reply cannot be used, in one line that is fit for a log."""

from __future__ import annotations

import re

__all__ = ["one_line"]

_LONGEST = 500  # characters


def one_line(reason: str) -> str:
    """A reason, parts of which a node wrote, without Flower's wrapping of what a ClientApp raised."""
    line = re.sub(r"<class '[\w.]+'>:<['\"](.*)['\"]>", r"\1", " ".join(reason.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
