"""Sums of messages that have the same bits on any number of nodes: fixed blocks, rounded once, added as integers.

Clients are numbered from 0 and grouped into blocks of consecutive ones. A block is summed in float64 by matrix
operations, rounded once to a public fixed-point grid, and added in int64, which is exact in any order. A node hosts
whole blocks, so that how clients are split over nodes changes no bit. Where nodes bring their own clients, blocks begin
at each node's first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_LABEL",
    "LARGEST_NORMAL",
    "SumGrid",
    "Sums",
    "add",
    "block_size",
    "block_sums",
    "blocks_of",
    "fraction_bits",
    "share_of",
    "sum_messages",
    "zero_sums",
]

LARGEST_NORMAL = 9.3
"""Bound on the magnitude of a standard normal drawn by :func:`fedveil.streams.normals_from`."""
LARGEST_LABEL = 2.0**20
"""Bound on the magnitude of labels in the clear where no smaller one is public."""

_BLOCKS = 64  # or more, once there are so many clients: 16 nodes then have nearly equal shares
_LARGEST_BLOCK = 4096  # with 32 features: a megabyte of messages, few calls, and in the cache still
_GRID_BITS = 24  # of the noise that stay in a message
_ANCHORED = 50  # bits of a message beside which the anchor of the rounding stays a double of its own size
_ROOM = 62  # bits of a sum; int64 has one more besides the sign

FloatArray = NDArray[np.float64]
Sums = dict[str, NDArray[np.int64]]


def block_size(num_clients: int) -> int:
    """Clients in a block: public, and the same for any number of nodes.

    Parameters
    ----------
    num_clients : int
        Clients of the run, at least 1.

    Returns
    -------
    int
        A power of two, at most 4,096, so that there are at least 64 blocks where there are 64 clients.
    """
    return min(_LARGEST_BLOCK, 1 << (max(num_clients // _BLOCKS, 1).bit_length() - 1))


def share_of(partition: int, num_partitions: int, num_clients: int) -> tuple[int, int]:
    """Consecutive clients of one node, whole blocks of them.

    Parameters
    ----------
    partition, num_partitions : int
        Which node of how many.
    num_clients : int

    Returns
    -------
    first, count : int
        The node hosts the clients first, ..., first + count - 1. Shares differ by at most one block.

    Raises
    ------
    ValueError
        If there is no such node, or there are fewer blocks than nodes.
    """
    size = block_size(num_clients)
    num_blocks = -(-num_clients // size)
    if not 0 <= partition < num_partitions:
        raise ValueError(f"node {partition} of {num_partitions} does not exist: nodes are numbered from 0.")
    if num_partitions > num_blocks:
        raise ValueError(
            f"{num_clients} client(s) in blocks of {size} are too few for {num_partitions} nodes: use at most "
            f"{num_blocks}."
        )
    first, last = (
        min(num_blocks * k // num_partitions * size, num_clients) for k in (partition, partition + 1)
    )
    return first, last - first


def blocks_of(clients: NDArray[np.int64], size: int) -> Iterator[slice]:
    """The parts of a row of clients that lie in one block each, in order.

    Parameters
    ----------
    clients : int64 array (k,)
        Strictly increasing.
    size : int
        Clients in a block.
    """
    if not clients.size:
        return
    bounds = np.arange(clients[0] // size, clients[-1] // size + 2) * size
    places = np.searchsorted(clients, bounds).tolist()
    yield from (slice(start, end) for start, end in pairwise(places) if start < end)


def fraction_bits(num_clients: int, largest: float) -> int:
    """Bits after the binary point with which no sum over clients can leave int64.

    Parameters
    ----------
    num_clients : int
        Values that are added at most, at least 1.
    largest : float
        Bound > 0 on the magnitude of each.

    Returns
    -------
    int
        b with 2^61 <= num_clients * largest * 2^b < 2^62: half of int64 is left for rounding.

    Raises
    ------
    ValueError
        If the bound is not a finite number above 0.
    """
    total = num_clients * largest
    if not 0 < total < math.inf:
        raise ValueError(
            f"largest = {largest!r} must be above 0 and its sum over {num_clients} clients finite."
        )
    return _ROOM - math.frexp(total)[1]


def message_step(sigma: float, largest: float) -> float:
    """Grid of single messages: 2^-24 of the noise, or more where a message is so large that doubles have no more bits.

    So fine a grid biases no moment that anybody could see, and so coarse a one leaves 2^20 doubles or more of the noise
    in every cell, whatever sigma is.

    Parameters
    ----------
    sigma : float
        Standard deviation > 0 of the noise.
    largest : float
        Public bound on the magnitude of a coordinate.
    """
    return 2.0 ** max(math.frexp(sigma)[1] - _GRID_BITS, math.frexp(largest)[1] - _ANCHORED)


def round_to(step: float, values: FloatArray) -> None:
    """Round messages, or noised labels, to multiples of :func:`message_step`, in place.

    The low bits of a noised double say which values can have been below the noise (Mironov 2012); a grid that is coarse
    beside them and fine beside the noise takes them away before anything is added or sent.
    """
    # doubles of this size are one step apart, so adding and subtracting it rounds to nearest
    anchor = step * 1.5 * 2.0**52
    values += anchor
    values -= anchor


@dataclass(frozen=True)
class SumGrid:
    """The public fixed-point grid of every sum of one round's messages.

    Parameters
    ----------
    num_clients : int
        Clients of the run, whether they take part or not.
    largest : float
        Bound on each coordinate of a message: |c| B + lambda + 9.3 sigma (THEORY section 2), or for gradients
        C + 9.3 sigma; see :meth:`of`.
    largest_label : float
        Bound on the label that arrives, in the clear or noised.
    """

    num_clients: int
    largest: float
    largest_label: float = 1.0

    @classmethod
    def of(
        cls,
        num_clients: int,
        *,
        bound: float,
        sigma: float,
        scale: float = 1.0,
        amplitude: float = 0.0,
        largest_label: float | None = None,
    ) -> SumGrid:
        """The grid of messages from public constants alone: the same for server and nodes.

        Parameters
        ----------
        num_clients : int
        bound : float
            B, the L2 clip of a record; C for gradients.
        sigma : float
            Noise of a message; 0 where there is none.
        scale : float
            c = 1 - alpha; 1 for gradients.
        amplitude : float
            lambda: the wave moves a message by at most that in norm, whatever m. 0 for messages without it.
        largest_label : float, optional
            Public bound on a label in the clear; None where the label is a noised coordinate of the message.
        """
        # |c| B + 9.3 sigma bounds a noised label too; a little is left for the rounding of the arithmetic
        largest = (abs(scale) * bound + amplitude + LARGEST_NORMAL * sigma) * (1 + 2.0**-40)
        return cls(num_clients, largest, largest if largest_label is None else largest_label)

    @cached_property
    def bits(self) -> Mapping[str, NDArray[np.int64]]:
        """Bits after the binary point of each sum that a node can send, of ``labels`` one for each of its two."""
        vector, label = self.largest, self.largest_label
        bounds = {
            "gram": (vector * vector,),
            "cross": (vector * label,),
            "total": (vector,),
            # of its own each: the square of a small label is smaller still
            "labels": (label, label * label),
            "gradient": (vector,),
        }
        return {
            name: np.array([fraction_bits(self.num_clients, bound) for bound in each])
            for name, each in bounds.items()
        }

    def to_fixed(self, name: str, values: FloatArray) -> NDArray[np.int64]:
        """Round the sum over one block to the grid.

        Raises
        ------
        ValueError
            If a value is not finite or beyond the bound that the grid was made for.
        """
        scaled = np.ldexp(values, self.bits[name])
        np.rint(scaled, out=scaled)
        if not abs(scaled).max() <= 2.0**_ROOM:  # also false for NaN
            raise ValueError(
                f"the sum {name!r} is beyond its public bound: labels in the clear must not pass "
                f"{self.largest_label:g} in magnitude."
            )
        return scaled.astype(np.int64)

    def to_real(self, name: str, values: NDArray[np.int64]) -> FloatArray:
        """The real values of fixed-point sums, of one node or all."""
        return np.ldexp(values.astype(np.float64), -self.bits[name])


def sum_messages(messages: FloatArray, labels: FloatArray, clients: NDArray[np.int64], grid: SumGrid) -> Sums:
    """Sums of single messages, with the same bits as if nodes had added them.

    Parameters
    ----------
    messages : float64 array (k, d)
    labels : float64 array (k,)
        As they arrived: in the clear, or the noised coordinate.
    clients : int64 array (k,)
        Who sent them, strictly increasing.
    grid : SumGrid

    Returns
    -------
    dict of str to int64 array
        ``gram`` (d, d), sum of G'G; ``cross`` (d,), sum of y G; ``total`` (d,), sum of G; ``labels`` (2,), sums of
        y and y^2; on the grid.

    Raises
    ------
    ValueError
        If a sum is beyond the grid's bound.
    """
    sums = zero_sums(messages.shape[1])
    for part in blocks_of(clients, block_size(grid.num_clients)):
        add(sums, block_sums(messages[part], labels[part], grid))
    return sums


def zero_sums(dimension: int) -> Sums:
    """The sums over no message at all."""
    shapes = {"gram": (dimension, dimension), "cross": (dimension,), "total": (dimension,), "labels": (2,)}
    return {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}


def add(sums: Sums, more: Sums) -> None:
    """Add sums to others, in place."""
    for name, values in more.items():
        sums[name] += values


def block_sums(messages: FloatArray, labels: FloatArray, grid: SumGrid) -> Sums:
    """The sums over the messages of one block, as :func:`sum_messages` gives them."""
    both = np.empty((2, len(labels)))
    both[0], both[1] = labels, 1.0
    first, moments = both @ messages, both @ labels
    return {
        "gram": grid.to_fixed("gram", messages.T @ messages),
        "cross": grid.to_fixed("cross", first[0]),
        "total": grid.to_fixed("total", first[1]),
        "labels": grid.to_fixed("labels", moments[::-1]),
    }
