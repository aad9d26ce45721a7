"""Asking clients for their losses: one message a node, and every reply checked as a train reply is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.loss_query import MOMENTS, QUERY_LOSSES, LossQuery, moments_size, split_moments
from fedveil.privacy import LOSS_DIFFERENCES, LossReleases, Release
from fedveil.strategies.fleet import Fleet
from fedveil.strategies.judging import judge
from fedveil.strategies.reasons import ranges
from fedveil.strategies.reply_arrays import BadReply, check_code, content_of
from fedveil.strategies.reply_ledger import clients_under, owed_released, owed_rows
from fedveil.strategies.request_life import live_for

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
        One sentence for every reply that was missing or refused, and for every one that was not to be.
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

    def asked(request: Message) -> list[int]:
        return by_node[request.metadata.dst_node_id]

    def check(reply: Message, request: Message) -> LossAnswers:
        return _check(
            reply, query, {client: fleet.examples[client] for client in asked(request)}, plans, code
        )

    live_for(requests, timeout)
    replies = list(grid.send_and_receive(requests, timeout=timeout)) if requests else []
    judged = judge(requests, replies, check, lambda request: f"clients {ranges(asked(request))}")
    good = judged.good.values()
    vectors = {client: vector for answer in good for client, vector in answer.vectors.items()}
    # a client answers one question once, so that answers that differ are as many releases, also in a seeded run
    unseen = judged.assumed(repeats_itself=False)
    assumed = (
        row
        for node, count in unseen.items()
        for client in by_node[node]
        for row in _owed(plans, client, query.round) * count
    )
    return LossAnswers(
        {client: vectors[client] for client in sorted(vectors)},
        tuple(
            sorted(
                (row for answer in good for row in answer.releases), key=lambda row: (row.client, row.step)
            )
        ),
        tuple(assumed),
        tuple(sorted(client for answer in good for client in answer.out_of_budget)),
        judged.failures,
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
    content = content_of(message)
    if set(content) != {wire.LEDGER} or wire.LEDGER not in content.config_records:
        raise BadReply(
            "a reply about losses must hold the ledger rows and what was released, and nothing else"
        )
    record = content.config_records[wire.LEDGER]
    check_code(record, code)
    took_part, out = clients_under(record, wire.CLIENTS), clients_under(record, wire.OUT_OF_BUDGET)
    if sorted(took_part + out) != sorted(examples):
        raise BadReply(f"it speaks of clients {sorted(took_part + out)}, asked were {sorted(examples)}")
    if out and query.kind == "study":
        raise BadReply("it has clients out of budget, and exact moments have none")
    owed = {client: _owed(plans, client, query.round) for client in took_part}
    releases = owed_rows(record, owed, query.round)
    name = MOMENTS if query.kind == "study" else LOSS_DIFFERENCES
    values = owed_released(record, {client: {name: _size(query, plans, client)} for client in took_part})
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


def _size(query: LossQuery, plans: Plans, client: int) -> int:
    if query.kind == "study":
        return sum(moments_size(pairs + 1) for pairs in query.pairs)
    return plans[client].size
