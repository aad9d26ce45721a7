"""Numbers as JSON can hold them: it has no infinity and no NaN."""

from __future__ import annotations

import math

__all__ = ["json_number"]


def json_number(value: float) -> float | str | None:
    """The number itself; None for NaN, "inf" and "-inf" for the infinities."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)
