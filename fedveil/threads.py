"""Fixing the number of threads: sums split over another number of threads round to other bits."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

__all__ = ["set_threads"]


def set_threads(count: int) -> None:
    """Let torch and the BLAS libraries of this process use ``count`` threads from now on."""
    threadpool_limits(limits=count)
    try:
        import torch
    except ModuleNotFoundError:  # a node of an app without networks
        return
    torch.set_num_threads(count)
