"""The census: which node hosts which range of clients, for as many clients as there are people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.strategies.roll_call import FleetError, call_roll

__all__ = ["Census", "identify_nodes"]


@dataclass(frozen=True)
class Census:
    """Who hosts whom: every node a range of consecutive clients, every client at exactly one node.

    No object is kept for a client, so that a million of them cost nothing.

    Parameters
    ----------
    ranges : mapping of int to (int, int)
        Flower node id to its first client and how many it hosts, which may be none.
    num_clients : int
        Clients 0 to ``num_clients - 1``, each with one record.

    Raises
    ------
    FleetError
        If a client is hosted twice, by nobody, or has no such number.
    """

    ranges: Mapping[int, tuple[int, int]]
    num_clients: int

    def __post_init__(self) -> None:
        """Check that the ranges are exactly all clients, and put them in order."""
        ordered = sorted((first, count, node) for node, (first, count) in self.ranges.items() if count)
        reached = 0
        for first, count, _ in ordered:
            if first < reached:
                raise FleetError(
                    f"client {first} is hosted by two nodes; give every node its own partition-id."
                )
            _refuse_gap(reached, first)
            reached = first + count
        if reached > self.num_clients:
            raise FleetError(
                f"a node hosts client {reached - 1}, and the run has {self.num_clients}; give nodes and server the "
                "same data and number of clients."
            )
        _refuse_gap(reached, self.num_clients)
        object.__setattr__(self, "ranges", {node: (first, count) for first, count, node in ordered})

    @property
    def num_nodes(self) -> int:
        """Nodes that host at least one client."""
        return len(self.ranges)

    def by_node(self, clients: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """The given clients (sorted) under the node that hosts each, nodes in the order of their clients."""
        groups = {}
        for node, (first, count) in self.ranges.items():
            low, high = np.searchsorted(clients, (first, first + count))
            if high > low:
                groups[node] = clients[low:high]
        return groups


def identify_nodes(
    grid: Grid,
    *,
    expected: Mapping[str, str],
    num_clients: int,
    timeout: float,
    say: Callable[[str], None],
) -> Census:
    """Wait until every node is there and ask each which range of clients it hosts.

    Parameters
    ----------
    expected : mapping
        Library version and source hash of the server; a node with others runs other code.
    num_clients : int
        How many clients the run has.
    timeout : float
        Seconds to wait for all nodes, and again for all answers.

    Raises
    ------
    FleetError
        If nodes are missing, run other code, fail, or together host anything but clients 0 to ``num_clients - 1``
        once each.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for node, name, answer in call_roll(grid, expected=expected, timeout=timeout):
        first, count = answer.get(wire.FIRST), answer.get(wire.COUNT)
        for value in (first, count):
            if type(value) is not int or not 0 <= value <= num_clients:  # no bools
                raise FleetError(
                    f"{name} says that it hosts {count!r} clients from {first!r}; the run has clients 0 to "
                    f"{num_clients - 1}: give nodes and server the same number of clients."
                )
        ranges[node] = (first, count)  # type: ignore[assignment]
    census = Census(ranges, num_clients)
    nodes = "1 node serves" if census.num_nodes == 1 else f"{census.num_nodes} nodes serve"
    say(f"{nodes} {num_clients} clients of one record each")
    return census


def _refuse_gap(reached: int, first: int) -> None:
    if first > reached:
        span = f"client {reached}" if first == reached + 1 else f"clients {reached} to {first - 1}"
        raise FleetError(f"no node hosts {span}; start the nodes with the other partition-ids.")
