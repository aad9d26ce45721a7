"""Asking clients for their losses: one message a node, and every reply checked as a train reply is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.loss_query import DIFFERENCES, MOMENTS, QUERY_LOSSES, LossQuery, moments_size, split_moments
from fedveil.privacy import LossReleases, Release
from fedveil.strategies.fleet import Fleet
from fedveil.strategies.reasons import one_line, ranges
from fedveil.strategies.replies import BadReply, clients_under
from fedveil.strategies.roll_call import is_reply_to

__all__ = ["LossAnswers", "ask_losses"]

_MOST = 1e100  # so that what is computed from a number stays finite

Plans = Mapping[int, LossReleases]


@dataclass(frozen=True, eq=False)
class LossAnswers:
    """What clients have answered.

    Attributes
    ----------
    vectors : mapping of int to float64 array
        Of each client that took part, in the order of clients.
    releases : tuple of Release
        Their ledger rows.
    assumed : tuple of Release
        Rows of clients whose reply is missing or bad: it may have left them, so it counts as spent.
    out_of_budget : tuple of int
        Clients whose filter refused.
    failures : tuple of str
        One sentence for every reply that was missing or refused.
    """

    vectors: Mapping[int, NDArray[np.float64]]
    releases: tuple[Release, ...] = ()
    assumed: tuple[Release, ...] = ()
    out_of_budget: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()


def ask_losses(
    grid: Grid,
    fleet: Fleet,
    query: LossQuery,
    plans: Plans,
    *,
    code: Mapping[str, str],
    timeout: float,
) -> LossAnswers:
    """Ask every client of the fleet, and keep what is as it must be.

    Parameters
    ----------
    grid : Grid
    fleet : Fleet
    query : LossQuery
    plans : mapping of int to LossReleases
        What each client will release; empty for study.
    code : mapping of str to str
        Library version and source hash that every reply must carry.
    timeout : float
        Seconds to wait for all replies.
    """
    by_node = fleet.by_node(fleet.clients)
    requests = [
        Message(
            query.request(clients),
            dst_node_id=node,
            message_type=QUERY_LOSSES,
            group_id=str(query.round),
        )
        for node, clients in by_node.items()
    ]
    replies = list(grid.send_and_receive(requests, timeout=timeout)) if requests else []
    vectors: dict[int, NDArray[np.float64]] = {}
    releases, assumed = list[Release](), list[Release]()
    out_of_budget, failures = list[int](), list[str]()
    for request, clients in zip(requests, by_node.values(), strict=True):
        # by request, not by sender: the error reply for a dead node does not name it
        answers = [reply for reply in replies if is_reply_to(reply, request)]
        try:
            if not answers:
                raise BadReply("none came in time")
            answer = _check(
                answers[0], query, {client: fleet.examples[client] for client in clients}, plans, code
            )
        except BadReply as error:
            failures.append(f"the reply for clients {ranges(clients)}: {one_line(str(error))}")
            assumed += [row for client in clients for row in _owed(plans, client, query.round)]
            continue
        vectors |= answer.vectors
        releases += answer.releases
        out_of_budget += answer.out_of_budget
    return LossAnswers(
        {client: vectors[client] for client in sorted(vectors)},
        tuple(sorted(releases, key=lambda row: (row.client, row.step))),
        tuple(assumed),
        tuple(sorted(out_of_budget)),
        tuple(failures),
    )


def _owed(plans: Plans, client: int, server_round: int) -> tuple[Release, ...]:
    return plans[client].releases(client, server_round) if client in plans else ()


def _check(
    message: Message, query: LossQuery, examples: Mapping[int, int], plans: Plans, code: Mapping[str, str]
) -> LossAnswers:
    """Read one reply.

    Raises
    ------
    BadReply
        If anything in it is missing, malformed, not finite, of the wrong length, about unknown clients, or if its rows
        are not exactly those of its clients' plans.
    """
    if message.has_error():
        raise BadReply(message.error.reason or f"error {message.error.code}")
    content = message.content if message.has_content() else {}
    if set(content) != {wire.LEDGER} or wire.LEDGER not in message.content.config_records:
        raise BadReply(
            "a reply about losses must hold the ledger rows and what was released, and nothing else"
        )
    record = message.content.config_records[wire.LEDGER]
    for key, value in code.items():
        if record.get(key) != value:
            raise BadReply(f"it runs other code than the server: {key} {record.get(key)!r}, here {value!r}")
    took_part, out = clients_under(record, wire.CLIENTS), clients_under(record, wire.OUT_OF_BUDGET)
    if sorted(took_part + out) != sorted(examples):
        raise BadReply(f"it speaks of clients {sorted(took_part + out)}, asked were {sorted(examples)}")
    if out and query.kind == "study":
        raise BadReply("it has clients out of budget, and exact moments have none")
    rows, released = record.get(wire.ROWS), record.get(wire.RELEASED)
    if not isinstance(rows, bytes) or not isinstance(released, bytes):
        raise BadReply("it has no ledger rows, or does not say what was released")
    try:
        releases, values = wire.decode_releases(rows), wire.decode_released(released)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
    owed = [row for client in took_part for row in _owed(plans, client, query.round)]
    # the same arithmetic on both sides, so to the bit
    if sorted(releases, key=_place) != sorted(owed, key=_place):
        raise BadReply(f"its {len(releases)} ledger rows are not the {len(owed)} that its clients owe")
    name = MOMENTS if query.kind == "study" else DIFFERENCES
    sizes = {client: {name: _size(query, plans, client)} for client in took_part}
    if {c: {key: len(numbers) for key, numbers in named.items()} for c, named in values.items()} != sizes:
        raise BadReply("what it released is not what its clients were to release")
    if any(abs(number) > _MOST for named in values.values() for number in named[name]):
        raise BadReply("a released value is beyond all measure")
    vectors = {client: np.array(values[client][name]) for client in took_part}
    if query.kind == "study":
        for client, vector in vectors.items():
            _try_moments(vector, query, examples[client])
    return LossAnswers(vectors, releases, (), out)


def _try_moments(vector: NDArray[np.float64], query: LossQuery, num_records: int) -> None:
    try:
        split_moments(vector, query.pairs, num_records)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error


def _place(row: Release) -> tuple[int, int, int, str, float, float]:
    return row.client, row.round, row.step, row.name, row.sensitivity, row.sigma


def _size(query: LossQuery, plans: Plans, client: int) -> int:
    if query.kind == "study":
        return sum(moments_size(pairs + 1) for pairs in query.pairs)
    return plans[client].size
