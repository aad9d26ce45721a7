"""The roll call: wait until every node is there, ask each who it is, and refuse nodes that run other code."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedveil import wire
from fedveil.strategies.reasons import one_line, ranges, shown
from fedveil.strategies.request_life import live_for

__all__ = ["FleetError", "call_roll", "is_reply_to"]

_POLL = 0.05  # seconds between looks at the nodes that have registered
_MOST_NUMBERS = 5  # of different answers, or of nodes, that an error tells


class FleetError(RuntimeError):
    """The nodes are not all there, or not what they must be."""


def call_roll(
    grid: Grid, *, expected: Mapping[str, str], timeout: float, schema: str | None = None
) -> list[tuple[int, str, ConfigRecord]]:
    """What every node says of itself, in the order of the shares of clients that they host.

    A run starts before its nodes have registered, so those that have are asked how many there are to be. All must say
    the same, and so many must be there: a node with another number would have the others left out.

    Parameters
    ----------
    expected : mapping
        Library version and source hash of the server; a node with others runs other code.
    timeout : float
        Seconds to wait for all nodes, and again for all answers.
    schema : str, optional
        Digest of the server's public description of records, where every node brings its own: theirs must be equal.

    Returns
    -------
    list of tuple
        Node id, the node's name for people, and its answer.

    Raises
    ------
    FleetError
        If nodes are missing, disagree on how many they are, run other code, describe their records in another way, or
        fail.
    """
    early = _wait_for(
        grid, 1, timeout
    )  # all that are there already: in a deployment a question is ten seconds
    answers = _ask(grid, early, timeout)
    total = _agreed(answers)
    others = [node for node in _wait_for(grid, total, timeout) if node not in answers]
    answers |= _ask(grid, others, timeout) if others else {}
    if len(answers) != _agreed(answers):
        raise FleetError(
            f"{len(answers)} nodes answer, and num-partitions is {total} in their --node-config: start as many nodes "
            "as that says, or give every node their number."
        )
    numbers = {node: _integer(answer, wire.PARTITION, node) for node, answer in answers.items()}
    present = sorted(answers, key=numbers.__getitem__)
    return [(node, _named(numbers[node], answers[node], expected, schema), answers[node]) for node in present]


def is_reply_to(reply: Message, request: Message) -> bool:
    """Whether a reply answers this request; an error reply for a dead node does not carry that node's id."""
    return (
        bool(request.metadata.message_id)
        and reply.metadata.reply_to_message_id == request.metadata.message_id
    )


def _named(number: int, answer: ConfigRecord, expected: Mapping[str, str], schema: str | None) -> str:
    name = f"node {number}"
    for key, value in expected.items():
        if answer.get(key) != value:
            raise FleetError(
                f"{name} runs other code than the server ({key} {shown(answer.get(key))}, here {value!r}): stop "
                "the local SuperLink (it keeps the folder and the environment of its first run) or install the "
                "same fedveil."
            )
    if schema is not None and answer.get(wire.SCHEMA) != schema:
        raise FleetError(
            f"{name} describes its records in another way than the server ({wire.SCHEMA} "
            f"{shown(answer.get(wire.SCHEMA))}, here {schema!r}): give it the server's schema file, the same columns, "
            "ranges, categories and classes in the same order."
        )
    return name


def _agreed(answers: Mapping[int, ConfigRecord]) -> int:
    """How many nodes there are to be, as each of them says."""
    said: dict[int, list[int]] = {}
    for node, answer in answers.items():
        said.setdefault(_integer(answer, wire.PARTITIONS, node), []).append(
            _integer(answer, wire.PARTITION, node)
        )
    if len(said) > 1:
        by_node = sorted((sorted(nodes), total) for total, nodes in said.items())
        told = [f"node {ranges(nodes)}: {total}" for nodes, total in by_node[:_MOST_NUMBERS]]
        raise FleetError(
            f"nodes say different {wire.PARTITIONS} ({'; '.join(told)}{'; ...' if len(said) > _MOST_NUMBERS else ''}): "
            "start every node with the same, the number of all nodes."
        )
    return next(iter(said))


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
    live_for(requests, timeout)
    answers: dict[int, ConfigRecord] = {}
    for reply in grid.send_and_receive(requests, timeout=timeout):
        node = next(
            (m.metadata.dst_node_id for m in requests if is_reply_to(reply, m)), reply.metadata.src_node_id
        )
        if reply.has_error():
            raise FleetError(f"node {node} cannot start: {one_line(reply.error.reason or 'no reason given')}")
        records = reply.content.config_records if reply.has_content() else {}
        if wire.CONFIG not in records:
            raise FleetError(
                f"node {node} does not run a FedVeil ClientApp: it runs the one that the submitted app names under "
                "[tool.flwr.app.components], so name FedVeil's there, or one that answers query.identify as it does."
            )
        answers[node] = records[wire.CONFIG]
    if missing := set(nodes) - set(answers):
        raise FleetError(
            f"{len(missing)} of {len(nodes)} nodes did not say who they are within {timeout:.0f} s (node "
            f"{_few(missing)}): look into their logs, and raise round-timeout if they are only slow, or busy with "
            "another run."
        )
    return answers


def _few(nodes: Collection[int]) -> str:
    listed = ", ".join(map(str, sorted(nodes)[:_MOST_NUMBERS]))
    return f"{listed} and {len(nodes) - _MOST_NUMBERS} more" if len(nodes) > _MOST_NUMBERS else listed


def _integer(answer: ConfigRecord, key: str, node: int) -> int:
    value = answer.get(key)
    if type(value) is not int or value < 0:  # no bools
        raise FleetError(
            f"node {node} did not say its {key}; set partition-id and num-partitions in its --node-config."
        )
    return value
