"""The attempts of one round: ask, and ask again only those whose reply is missing, an error or bad."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedveil.privacy.domain import whole
from fedveil.strategies.judging import Judged
from fedveil.strategies.request_life import live_for

__all__ = ["ask", "check_attempts", "too_few", "too_few_left"]

T = TypeVar("T")

_POLL = 0.5  # seconds between looks for nodes that have gone
_TOLD = 3  # reasons in the line of an attempt; each has a line of its own when the round is over


def ask(
    grid: Grid,
    requests: Sequence[Message],
    judge: Callable[[Sequence[Message], Sequence[Message]], Judged[T]],
    *,
    attempts: int,
    timeout: float,
    before_repeat: Callable[[Judged[T]], None],
    say: Callable[[str], None],
) -> tuple[list[Message], list[Message]]:
    """Send the requests of a round until every node has answered well, a few times at most.

    A good reply is kept: no node that gave one is asked for the same release twice. A refusal because clients have
    spent their budget is a good reply. A node that has gone is waited for before it is asked again, for what is left of
    the attempt's time. A reply to an earlier attempt that comes while a later one runs is taken in.

    Parameters
    ----------
    requests : sequence of Message
        One a node.
    judge : callable
        ``judge(requests, replies)``; asked only where another attempt may follow.
    attempts : int
        How often a node is asked at most, at least 1.
    timeout : float
        Seconds that one attempt may take, so that the round takes ``attempts * timeout`` at most.
    before_repeat : callable
        Told what is known when another attempt is about to begin; what it writes is on disk before nodes are asked.

    Returns
    -------
    requests, replies : list of Message
        All that were sent, and all that came.
    """
    sent, came, due = list[Message](), list[Message](), list(requests)
    for attempt in range(1, attempts + 1):
        if not due:
            break
        began = time.monotonic()
        live_for(due, (attempts - attempt + 1) * timeout)  # a reply to an earlier attempt is taken in
        came += grid.send_and_receive(due, timeout=timeout)
        came += _late(grid, sent, came)
        sent += due
        if attempt == attempts:
            break
        judged = judge(sent, came)
        due = [_again(request) for request in requests if request.metadata.dst_node_id not in judged.good]
        if due:
            before_repeat(judged)
            say(
                f"attempt {attempt + 1} of {attempts}: {len(due)} of {len(requests)} nodes are asked again, for "
                f"{'; '.join(judged.failures[:_TOLD])}{'; and others' if len(judged.failures) > _TOLD else ''}"
            )
            _wait_for(grid, {request.metadata.dst_node_id for request in due}, began + timeout)
    return sent, came


def check_attempts(min_replies: int, attempts: int, num_nodes: int) -> None:
    """Refuse settings that no round can meet.

    Raises
    ------
    ValueError
        If a number is no whole one of at least 1, or more replies are needed than there are nodes.
    """
    whole("round_attempts", attempts, minimum=1)
    if whole("min_replies", min_replies, minimum=1) > num_nodes:
        raise ValueError(
            f"min-replies = {min_replies} can never be met: the run's clients are on {num_nodes} node(s); give at most "
            "that many."
        )


def too_few(found: int, asked: int, needed: int) -> str:
    """Why a round is not averaged; empty where enough nodes have sent something to average."""
    if found >= needed:
        return ""
    return f"{found} of {asked} nodes sent something to average, and min-replies is {needed}"


def too_few_left(nodes: int, needed: int) -> str:
    """Why there can be no further round; empty where clients with budget are left on enough nodes."""
    if not nodes:
        return "every client has spent its budget"
    if nodes < needed:
        return f"clients that have not spent their budget are left on {nodes} node(s), and min-replies is {needed}"
    return ""


def _again(request: Message) -> Message:
    metadata = request.metadata
    return Message(request.content, metadata.dst_node_id, metadata.message_type, group_id=metadata.group_id)


def _late(grid: Grid, sent: Sequence[Message], came: Sequence[Message]) -> list[Message]:
    answered = {reply.metadata.reply_to_message_id for reply in came}
    silent = [request.metadata.message_id for request in sent]
    silent = [identifier for identifier in silent if identifier and identifier not in answered]
    return list(grid.pull_messages(silent)) if silent else []


def _wait_for(grid: Grid, nodes: Collection[int], end: float) -> None:
    while not set(nodes) <= set(grid.get_node_ids()) and (left := end - time.monotonic()) > 0:
        time.sleep(min(_POLL, left))
