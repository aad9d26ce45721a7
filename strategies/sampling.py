"""Which logical clients take part in a round: drawn from the run's own stream, never from Flower's random node ids.

A fixed share is one of all clients of the run, whoever of them has spent its budget: rounds keep their size for as long
as so many are left.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.streams import Stream

__all__ = ["sample_fixed", "sample_poisson", "sample_size"]


def sample_size(fraction: float, num_clients: int, left: int) -> int:
    """How many of the clients that are left make up a share of all: at least one, if there is one."""
    return min(left, max(1, round(fraction * num_clients)))


def sample_fixed(clients: Sequence[int], fraction: float, num_clients: int, stream: Stream) -> list[int]:
    """A uniformly random subset of the clients that are left, as many as :func:`sample_size` says; sorted."""
    if fraction == 1:
        return sorted(clients)
    order = stream.permutation(len(clients))
    return sorted(clients[index] for index in order[: sample_size(fraction, num_clients, len(clients))])


def sample_poisson(clients: Sequence[int], rate: float, stream: Stream) -> list[int]:
    """Each client independently with probability ``rate``: the sampling that amplifies central privacy; sorted.

    The result may be empty, and its size is part of the secret: it must not be shown.
    """
    drawn = stream.uniform(len(clients)) < rate
    return sorted(client for client, taken in zip(clients, drawn, strict=True) if taken)
