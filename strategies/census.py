"""The census: which node hosts which range of clients, for as many clients as there are people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.strategies.reasons import shown
from fedveil.strategies.roll_call import FleetError, call_roll

__all__ = ["Census", "identify_nodes", "identify_sites"]

LARGEST_SITE = 2**24
"""Records of one site: a node that claims more would have the server set memory aside for them."""


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
    at_sites : bool
        Whether nodes bring their own records: their clients' numbers are then the server's to give.

    Raises
    ------
    FleetError
        If a client is hosted twice, by nobody, or has no such number.
    """

    ranges: Mapping[int, tuple[int, int]]
    num_clients: int
    at_sites: bool = False

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

    def origin(self, node: int) -> int:
        """The client at which the blocks of a node's sums begin: the first of all, or of its own at a site."""
        return self.ranges[node][0] if self.at_sites else 0

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
                    f"{name} says that it hosts {shown(count)} clients from {shown(first)}; the run has clients 0 to "
                    f"{num_clients - 1}: give nodes and server the same number of clients."
                )
        ranges[node] = (first, count)  # type: ignore[assignment]
    census = Census(ranges, num_clients)
    nodes = "1 node serves" if census.num_nodes == 1 else f"{census.num_nodes} nodes serve"
    say(f"{nodes} {num_clients} clients of one record each")
    return census


def identify_sites(
    grid: Grid,
    *,
    expected: Mapping[str, str],
    schema: str,
    timeout: float,
    say: Callable[[str], None],
) -> Census:
    """Wait until every site is there, ask each how many records it has, and number them by the order of partitions.

    Parameters
    ----------
    expected : mapping
        Library version and source hash of the server; a node with others runs other code.
    schema : str
        Digest of the server's public description of records; a site must have the same.
    timeout : float
        Seconds to wait for all nodes, and again for all answers.

    Raises
    ------
    FleetError
        If nodes are missing, run other code, describe their records in another way, fail, are there twice, or say a
        number of records that there cannot be.
    """
    ranges: dict[int, tuple[int, int]] = {}
    reached = 0
    present = call_roll(grid, expected=expected, timeout=timeout, schema=schema)
    for (_, name, answer), (_, _, following) in pairwise(present):
        if answer[wire.PARTITION] == following[wire.PARTITION]:
            raise FleetError(
                f"{name} is there twice: give every node its own partition-id, from 0 to {len(present) - 1}."
            )
    for index, (node, name, answer) in enumerate(present):
        if answer[wire.PARTITION] != index:
            raise FleetError(
                f"{name} is there and node {index} is not: give every node its own partition-id, from 0 to "
                f"{len(present) - 1}."
            )
        count = answer.get(wire.COUNT)
        if type(count) is not int or not 1 <= count <= LARGEST_SITE:  # no bools
            raise FleetError(
                f"{name} says that it has {shown(count)} records; a site has 1 to {LARGEST_SITE}: look at its "
                "data-path, or start the run without it."
            )
        if count == 1:
            say(
                f"{name} has one record: the sums that it sends are that record's own message, with its label in the "
                "clear where labels are not private"
            )
        ranges[node] = (reached, count)
        reached += count
    census = Census(ranges, reached, at_sites=True)
    sites = "1 site brings" if census.num_nodes == 1 else f"{census.num_nodes} sites bring"
    say(f"{sites} {reached} clients of one record each")
    return census


def _refuse_gap(reached: int, first: int) -> None:
    if first > reached:
        span = f"client {reached}" if first == reached + 1 else f"clients {reached} to {first - 1}"
        raise FleetError(f"no node hosts {span}; start the nodes with the other partition-ids.")
