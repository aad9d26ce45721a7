"""Message rounds: one request a node for the messages of its clients, and the sums of the replies that are good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedveil import wire
from fedveil.moment_sums import SumGrid, Sums, add, sum_messages, zero_sums
from fedveil.privacy import CohortRelease, MessagePlan
from fedveil.strategies.census import Census
from fedveil.strategies.judging import Judged, judge
from fedveil.strategies.message_replies import ExpectedMessages, MessageReply, check_messages
from fedveil.strategies.reply_arrays import BadReply

__all__ = ["Collected", "MessageRounds", "Reply"]

Reply = Literal["sum", "each"]
"""What a node sends: the sums of its clients' messages, or every message."""

Clients = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Collected:
    """What came back in one round.

    Attributes
    ----------
    sums : mapping of str to int64 array
        Fixed-point sums over the clients that took part, on the grid of the round; the same bits for any number of
        nodes, any order of replies and either kind of reply.
    took_part, out_of_budget : int64 array
        Clients, sorted: those in the sums, and those that say they have spent their budget.
    lost : tuple of int64 array
        Clients, sorted, whose messages may have left them without being in the sums: one array for each time.
    failures : tuple of str
        One sentence for every reply that was missing or refused.
    num_nodes : int
        Nodes with clients in the sums.
    messages, labels : float64 array (k, d) and (k,), or None
        The messages of the clients in ``took_part``, where the reply holds each.
    """

    sums: Mapping[str, NDArray[np.int64]]
    took_part: Clients
    out_of_budget: Clients
    lost: tuple[Clients, ...] = ()
    failures: tuple[str, ...] = ()
    num_nodes: int = 0
    messages: FloatArray | None = None
    labels: FloatArray | None = None

    def without_use(self) -> Collected:
        """The same for a round that nothing is learned from: messages that arrived are spent, and in no estimate."""
        return replace(self, took_part=self.took_part[:0], lost=(self.took_part, *self.lost))


@dataclass(frozen=True, eq=False)
class MessageRounds:
    """Everything about rounds of messages that does not change from round to round.

    Parameters
    ----------
    census : Census
    plan : MessagePlan or None
        Noise and cost of each message; None for messages without noise, which only simulated nodes send.
    mechanism : {"modulated", "range", "gradient", "unnoised"}
    grid : SumGrid
        The public fixed-point grid of the sums, the same as the nodes'.
    dimension : int
        d, the features of a record.
    run, variant : str
        The run's short name, and which of its plans the nodes are to follow; they know the noise of each themselves.
    code : mapping of str to str
        Library version and source hash that every reply must carry.
    reply : {"sum", "each"}
        Gradients come as sums only.
    """

    census: Census
    plan: MessagePlan | None
    mechanism: wire.Mechanism
    grid: SumGrid
    dimension: int
    run: str
    code: Mapping[str, str]
    variant: str = wire.MAIN
    reply: Reply = "sum"

    def requests(
        self, server_round: int, clients: Clients, arrays: Mapping[str, FloatArray]
    ) -> list[Message]:
        """One message to every node that hosts one of these clients (sorted).

        Parameters
        ----------
        arrays : mapping of str to float64 array
            ``coefficients`` (d + 1,), ``directions`` (m, d) and, where they were estimated, ``center`` and ``spread``.
        """
        record = ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})
        return [
            Message(
                RecordDict(
                    {
                        wire.ARRAYS: record,
                        wire.CONFIG: ConfigRecord(
                            {
                                wire.ROUND: server_round,
                                wire.RUN: self.run,
                                wire.REPLY: self.reply,
                                wire.MECHANISM: self.mechanism,
                                wire.VARIANT: self.variant,
                                wire.CLIENT_MASK: wire.encode_clients(hosted),
                                **self._numbering(node),
                            }
                        ),
                    }
                ),
                dst_node_id=node,
                message_type=wire.TRAIN,
                group_id=str(server_round),
            )
            for node, hosted in self.census.by_node(clients).items()
        ]

    def _numbering(self, node: int) -> dict[str, int]:
        """What a site is told of its clients' numbers; nothing to nodes that know them."""
        if not self.census.at_sites:
            return {}
        return {wire.FIRST: self.census.ranges[node][0], wire.NUM_CLIENTS: self.census.num_clients}

    def judge(
        self, server_round: int, clients: Clients, requests: Sequence[Message], replies: Iterable[Message]
    ) -> Judged[MessageReply]:
        """Good replies in the order of nodes' clients, and the reason for each that is not good."""
        asked = self.census.by_node(clients)

        def check(reply: Message, request: Message) -> MessageReply:
            return self._checked(reply, server_round, asked[request.metadata.dst_node_id])

        def named(request: Message) -> str:
            hosted = asked[request.metadata.dst_node_id]
            span = f"{hosted[0]} to {hosted[-1]}" if len(hosted) > 1 else f"{hosted[0]}"
            return f"{len(hosted)} clients, {span}"

        return judge(requests, replies, check, named)

    def lost(
        self, judged: Judged[MessageReply], clients: Clients, *, repeats_itself: bool
    ) -> tuple[Clients, ...]:
        """Clients whose messages may have left them unseen: as often as each is there, in arrays of clients once."""
        asked, times = self.census.by_node(clients), judged.assumed(repeats_itself=repeats_itself)
        return tuple(
            _joined([hosted for node, hosted in asked.items() if times.get(node, 0) > before])
            for before in range(max(times.values(), default=0))
        )

    def collect(
        self,
        server_round: int,
        clients: Clients,
        requests: Sequence[Message],
        replies: Iterable[Message],
        *,
        repeats_itself: bool,
    ) -> Collected:
        """Add up the good replies to :meth:`requests` of these clients; a bad or missing one is dropped by name.

        Parameters
        ----------
        requests : sequence of Message
            All that were sent; a node that was asked again has several.
        repeats_itself : bool
            See :meth:`Judged.assumed`.

        Raises
        ------
        NoGoodReplies
            If nodes were asked and no reply was good; the message has every node's reason.
        """
        judged = self.judge(server_round, clients, requests, replies)
        judged.refuse_if_none(server_round)
        good = judged.good
        arrays = self._joined_arrays(list(good.values()))
        stacked = self.reply == "each"
        return Collected(
            sums=self._sums_of_single(good) if stacked else arrays,
            took_part=_joined([reply.took_part for reply in good.values()]),
            out_of_budget=_joined([reply.out_of_budget for reply in good.values()]),
            lost=self.lost(judged, clients, repeats_itself=repeats_itself),
            failures=judged.failures,
            num_nodes=sum(len(reply.took_part) > 0 for reply in good.values()),
            messages=arrays["messages"] if stacked else None,
            labels=arrays["labels"] if stacked else None,
        )

    def sent(self, server_round: int, *cohorts: Clients) -> tuple[CohortRelease, ...]:
        """The ledger rows of one message of each client of each cohort; none where there is no noise or no client."""
        plan = self.plan
        if plan is None:
            return ()
        return tuple(plan.cohort_release(clients, server_round) for clients in cohorts if len(clients))

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.dimension
        if self.mechanism == "gradient":
            return {"gradient": (d + 1,)}
        if self.reply == "each":
            return {"messages": (d,), "labels": ()}
        return {"gram": (d, d), "cross": (d,), "total": (d,), "labels": (2,)}

    def _checked(self, answer: Message, server_round: int, hosted: Clients) -> MessageReply:
        expected = ExpectedMessages(
            clients=hosted,
            num_clients=self.census.num_clients,
            shapes=self._shapes,
            stacked=self.reply == "each",
            row=None if self.plan is None else self.plan.release(-1, server_round),
            code=self.code,
        )
        reply = check_messages(answer, expected)
        if self.reply == "each":
            for name, largest in (("messages", self.grid.largest), ("labels", self.grid.largest_label)):
                if np.any(np.abs(reply.arrays[name]) > largest):
                    raise BadReply(f"{name} go beyond {largest:.6g}, which no honest message does")
        return reply

    def _sums_of_single(self, good: Mapping[int, MessageReply]) -> Sums:
        """The sums that nodes would have sent, over their own blocks."""
        sums = zero_sums(self.dimension)
        for node, reply in good.items():
            members = reply.took_part - self.census.origin(node)
            add(sums, sum_messages(reply.arrays["messages"], reply.arrays["labels"], members, self.grid))
        return sums

    def _joined_arrays(self, good: Sequence[MessageReply]) -> dict[str, NDArray[Any]]:
        """Sums added, or messages one below the other: nodes come in the order of their clients."""
        dtype = np.float64 if self.reply == "each" else np.int64
        if self.reply == "each":
            return {
                name: np.concatenate([np.zeros((0, *shape), dtype), *(reply.arrays[name] for reply in good)])
                for name, shape in self._shapes.items()
            }
        totals = {name: np.zeros(shape, dtype) for name, shape in self._shapes.items()}
        for reply in good:
            for name, value in reply.arrays.items():
                # check_messages bounds each by its clients' part of 2^62, so that no sum of them leaves int64
                totals[name] += value
        return totals


def _joined(groups: Sequence[Clients]) -> Clients:
    return np.concatenate([np.zeros(0, np.int64), *groups])
