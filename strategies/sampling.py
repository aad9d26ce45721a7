"""Which logical clients take part in a round: drawn from the run's own stream, never from Flower's random node ids."""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.streams import Stream

__all__ = ["sample_fixed", "sample_poisson"]


def sample_fixed(clients: Sequence[int], fraction: float, stream: Stream) -> list[int]:
    """A uniformly random subset of round(fraction * len(clients)) clients, at least one; sorted."""
    if fraction == 1:
        return sorted(clients)
    count = max(1, round(fraction * len(clients)))
    order = stream.permutation(len(clients))
    return sorted(clients[index] for index in order[:count])


def sample_poisson(clients: Sequence[int], rate: float, stream: Stream) -> list[int]:
    """Each client independently with probability ``rate``: the sampling that amplifies central privacy; sorted.

    The result may be empty, and its size is part of the secret: it must not be shown.
    """
    drawn = stream.uniform(len(clients)) < rate
    return sorted(client for client, taken in zip(clients, drawn, strict=True) if taken)
