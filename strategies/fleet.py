"""The fleet: which node serves which logical client, and how many records each client has (public)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedveil import wire
from fedveil.strategies.reasons import one_line

__all__ = ["Fleet", "FleetError", "identify"]

_POLL = 0.05  # seconds between looks at the nodes that have registered


class FleetError(RuntimeError):
    """The nodes are not all there, or not what they must be."""


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


def identify(grid: Grid, *, expected: Mapping[str, str], timeout: float, say: Callable[[str], None]) -> Fleet:
    """Wait until every node is there and ask each which clients it serves.

    A run starts before its nodes have registered, so the first one is asked how many there are to be.

    Parameters
    ----------
    expected : mapping
        Library version and source hash of the server; a node with others runs other code.
    timeout : float
        Seconds to wait for all nodes, and again for all answers.

    Raises
    ------
    FleetError
        If nodes are missing, run other code, fail, or serve the same client twice.
    """
    first = _wait_for(grid, 1, timeout)[0]
    answers = _ask(grid, [first], timeout)
    total = _integer(answers[first], wire.PARTITIONS)
    others = [node for node in _wait_for(grid, total, timeout) if node != first]
    answers |= _ask(grid, others, timeout) if others else {}

    node_of: dict[int, int] = {}
    examples: dict[int, int] = {}
    for node, answer in sorted(answers.items(), key=lambda item: _integer(item[1], wire.PARTITION)):
        name = f"node {_integer(answer, wire.PARTITION)}"
        for key, value in expected.items():
            if answer.get(key) != value:
                raise FleetError(
                    f"{name} runs other code than the server ({key} {answer.get(key)!r}, here {value!r}): stop "
                    "the local SuperLink (it keeps the folder and the environment of its first run) or install the "
                    "same fedveil."
                )
        clients, counts = answer.get(wire.CLIENTS, []), answer.get(wire.EXAMPLES, [])
        if not isinstance(clients, list) or not isinstance(counts, list) or len(clients) != len(counts):
            raise FleetError(f"{name} sent a malformed list of clients.")
        for client, count in zip(clients, counts, strict=True):
            if type(client) is not int or client < 0:  # no bools
                raise FleetError(f"{name} serves client {client!r}; clients are numbers from 0.")
            if client in node_of:
                raise FleetError(
                    f"client {client} is served by two nodes; give every node its own partition-id."
                )
            if type(count) is not int or count < 1:
                raise FleetError(
                    f"client {client} says it has {count!r} records; a client needs at least one."
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


def _wait_for(grid: Grid, count: int, timeout: float) -> list[int]:
    end = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise FleetError(
                f"{len(nodes)} of {count} nodes are connected after {timeout:.0f} s; start the others."
            )
        time.sleep(_POLL)
    return nodes


def _ask(grid: Grid, nodes: list[int], timeout: float) -> dict[int, ConfigRecord]:
    requests = [
        Message(RecordDict({wire.CONFIG: ConfigRecord()}), dst_node_id=node, message_type=wire.QUERY_IDENTIFY)
        for node in nodes
    ]
    answers: dict[int, ConfigRecord] = {}
    for reply in grid.send_and_receive(requests, timeout=timeout):
        node = next(
            (m.metadata.dst_node_id for m in requests if is_reply_to(reply, m)), reply.metadata.src_node_id
        )
        if reply.has_error():
            raise FleetError(f"node {node} cannot start: {one_line(reply.error.reason or 'no reason given')}")
        records = reply.content.config_records if reply.has_content() else {}
        if wire.CONFIG not in records:
            raise FleetError(f"node {node} does not run a FedVeil ClientApp.")
        answers[node] = records[wire.CONFIG]
    if missing := set(nodes) - set(answers):
        raise FleetError(
            f"{len(missing)} of {len(nodes)} nodes did not say who they are within {timeout:.0f} s."
        )
    return answers


def is_reply_to(reply: Message, request: Message) -> bool:
    """Whether a reply answers this request; an error reply for a dead node does not carry that node's id."""
    return (
        bool(request.metadata.message_id)
        and reply.metadata.reply_to_message_id == request.metadata.message_id
    )


def _integer(answer: ConfigRecord, key: str) -> int:
    value = answer.get(key)
    if type(value) is not int or value < 0:  # no bools
        raise FleetError(
            f"a node did not say its {key}; set partition-id and num-partitions in its --node-config."
        )
    return value
