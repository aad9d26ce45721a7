"""Fixing the number of threads: sums split over another number of threads round to other bits."""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits

__all__ = ["set_threads"]


def set_threads(count: int) -> None:
    """Let torch and the BLAS libraries that this process has loaded use ``count`` threads from now on.

    Torch is not imported for it (1.5 s and 200 MB for an app without networks): an app with networks must have
    imported it before.
    """
    threadpool_limits(limits=count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
