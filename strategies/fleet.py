"""The fleet: which node serves which logical client, and how many records each client has (public)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.serverapp import Grid

from fedveil import wire
from fedveil.strategies.reasons import ranges, shown
from fedveil.strategies.roll_call import FleetError, call_roll

__all__ = ["Fleet", "FleetError", "identify", "require_examples"]


_MOST_RECORDS = (
    2**30
)  # of a client: nobody can check what a site says of itself, so that it is no number at will


@dataclass(frozen=True)
class Fleet:
    """Who serves whom.

    Attributes
    ----------
    node_of : mapping of int to int
        Logical client to Flower node id.
    examples : mapping of int to int
        Logical client to its number of records n_i.
    """

    node_of: Mapping[int, int]
    examples: Mapping[int, int]

    @property
    def clients(self) -> list[int]:
        """All logical clients, in order."""
        return sorted(self.node_of)

    @property
    def num_nodes(self) -> int:
        """Nodes that serve at least one client."""
        return len(set(self.node_of.values()))

    def by_node(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """The given clients, in order, under the node that serves each."""
        groups: dict[int, list[int]] = {}
        for client in sorted(clients):
            groups.setdefault(self.node_of[client], []).append(client)
        return groups


def identify(
    grid: Grid,
    *,
    expected: Mapping[str, str],
    timeout: float,
    say: Callable[[str], None],
    schema: str | None = None,
) -> Fleet:
    """Wait until every node is there and ask each which clients it serves.

    Parameters
    ----------
    expected : mapping
        Library version and source hash of the server; a node with others runs other code.
    timeout : float
        Seconds to wait for all nodes, and again for all answers.
    schema : str, optional
        Digest of the server's public description of records, where every node brings its own: theirs must be equal.

    Raises
    ------
    FleetError
        If nodes are missing, run other code, describe their records in another way, fail, or serve the same client
        twice.
    """
    node_of: dict[int, int] = {}
    examples: dict[int, int] = {}
    for node, name, answer in call_roll(grid, expected=expected, timeout=timeout, schema=schema):
        clients, counts = answer.get(wire.CLIENTS, []), answer.get(wire.EXAMPLES, [])
        if not isinstance(clients, list) or not isinstance(counts, list) or len(clients) != len(counts):
            raise FleetError(
                f"{name} sent a malformed list of clients ({wire.CLIENTS} {shown(clients)}, {wire.EXAMPLES} "
                f"{shown(counts)}): let its ClientApp answer query.identify as FedVeil's does, a number of records for "
                "each client."
            )
        for client, count in zip(clients, counts, strict=True):
            if type(client) is not int or client < 0:  # no bools
                raise FleetError(
                    f"{name} serves client {shown(client)}; clients are numbers from 0: let its ClientApp number them "
                    "so."
                )
            if client in node_of:
                raise FleetError(
                    f"client {client} is served by two nodes; give every node its own partition-id."
                )
            if type(count) is not int or not 1 <= count <= _MOST_RECORDS:
                raise FleetError(
                    f"client {client} of {name} says it has {shown(count)} records; a client has 1 to {_MOST_RECORDS}: "
                    "give it as many, or start the run without it."
                )
            node_of[client], examples[client] = node, count
    if not node_of:
        raise FleetError("no node serves any client; check num-clients and the nodes' partition-ids.")
    fleet = Fleet(node_of, examples)
    say(
        f"{fleet.num_nodes} node{'s serve' if fleet.num_nodes > 1 else ' serves'} {len(node_of)} clients, "
        f"{sum(examples.values())} records ({min(examples.values())} to {max(examples.values())} a client)"
    )
    return fleet


def require_examples(fleet: Fleet, examples: Mapping[int, int]) -> None:
    """Refuse a fleet whose clients, or their numbers of records, are not those that the server has counted itself.

    A client weighs by its number of records, so a false one would be given nearly all the weight.

    Parameters
    ----------
    fleet : Fleet
    examples : mapping of int to int
        Number of records of each client.

    Raises
    ------
    FleetError
        Naming clients and nodes.
    """
    told = {client: f"client {client} (of node {node})" for client, node in fleet.node_of.items()}
    missing = sorted(set(examples) - set(told))
    unknown = sorted(set(told) - set(examples))
    if missing or unknown:
        parts = [f"nobody serves client {ranges(missing)}"] if missing else []
        parts += [f"the data has no {told[client]}" for client in unknown[:1]]
        raise FleetError(
            f"the nodes serve {len(told)} clients and the data has {len(examples)}: {' and '.join(parts)}; give all "
            "nodes the server's data, and every partition-id from 0 on to one of them."
        )
    for client, count in sorted(examples.items()):
        if fleet.examples[client] != count:
            raise FleetError(
                f"{told[client]} says it has {fleet.examples[client]} records, and the server's data gives it {count}: "
                "give that node the data that the server has."
            )
