"""What is expected of the replies to one round of private averaging, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message

from fedveil import wire
from fedveil.privacy import Release, gradient_rows
from fedveil.strategies.agenda import Agenda
from fedveil.strategies.aggregation import total_weight
from fedveil.strategies.judging import Judged, judge
from fedveil.strategies.reasons import ranges
from fedveil.strategies.replies import Expected, TrainReply, check_reply
from fedveil.strategies.update_bound import UpdateBound

__all__ = ["Expectations", "clients_asked"]


@dataclass(frozen=True, eq=False)
class Expectations:
    """Everything against which the replies of one round are checked.

    Parameters
    ----------
    agenda : Agenda
        What its clients were told and owe.
    examples : mapping of int to int
        Each client's number of records.
    shapes : mapping of str to tuple
        Array names and shapes of the model.
    mode : {"sum", "each"}
    code : mapping of str to str
        Library version and source hash.
    weigh : callable or None
        A client's weight from the noise of its steps; None: its number of records.
    bound : UpdateBound or None
        What clipping allows an update; None where nothing bounds an honest one.
    """

    agenda: Agenda
    examples: Mapping[int, int]
    shapes: Mapping[str, tuple[int, ...]]
    mode: wire.ReplyMode
    code: Mapping[str, str]
    weigh: Callable[[Sequence[float]], float] | None = None
    bound: UpdateBound | None = None

    def judge(self, requests: Sequence[Message], replies: Iterable[Message]) -> Judged[TrainReply]:
        """Good replies in the order of nodes asked, and the reason for each that is not good."""
        # a share of int64 for each node, so that no sum over nodes leaves it
        room = (2**63 - 1) // max(len({request.metadata.dst_node_id for request in requests}), 2)
        known: dict[tuple[int, ...], Expected] = {}

        def check(reply: Message, request: Message) -> TrainReply:
            clients = clients_asked(request)
            if clients not in known:
                known[clients] = self._of(clients, room)
            checked = check_reply(reply, known[clients])
            total_weight([checked], self.weigh)  # no weight left is the reply's fault, not the run's
            return checked

        return judge(requests, replies, check, lambda request: f"clients {ranges(clients_asked(request))}")

    def assumed(
        self, judged: Judged[TrainReply], requests: Iterable[Message], *, repeats_itself: bool
    ) -> tuple[Release, ...]:
        """Ledger rows of releases that may have left their clients unseen, once for each time.

        Parameters
        ----------
        repeats_itself : bool
            See :meth:`Judged.assumed`.
        """
        clients = {request.metadata.dst_node_id: clients_asked(request) for request in requests}
        return tuple(
            row
            for node, count in judged.assumed(repeats_itself=repeats_itself).items()
            for client in clients[node]
            for row in self.agenda.rows(client) * count
        )

    def _of(self, clients: Sequence[int], room: int) -> Expected:
        rows = {client: self.agenda.rows(client) for client in clients}
        bounds = {client: self._largest(client, owed) for client, owed in rows.items()}
        return Expected(
            clients=clients,
            examples=self.examples,
            shapes=self.shapes,
            mode=self.mode,
            round=self.agenda.server_round,
            code=self.code,
            rows=rows,
            released={client: self.agenda.owed_values(client) for client in clients},
            sigmas={client: self.agenda.sigmas(client) for client in clients},
            largest={client: bound for client, bound in bounds.items() if bound is not None},
            room=room,
        )

    def _largest(self, client: int, rows: Sequence[Release]) -> float | None:
        """Most that a client can honestly add to a coordinate of a reply; None where nothing bounds it."""
        plan = self.agenda.plans[client]
        if self.bound is None or (plan is not None and plan.is_data_dependent):
            return None
        sigmas = [row.sigma for row in gradient_rows(rows)]
        largest = self.bound.of(self.agenda.steps, sigmas, 1.0 if plan is None else plan.sampling_rate)
        if self.mode == "each":
            return largest
        if self.weigh is None:
            return largest * self.examples[client]
        try:
            return largest * self.weigh(sigmas)
        except ValueError:
            return None  # the noise leaves no weight: told with the reply


def clients_asked(request: Message) -> tuple[int, ...]:
    """The clients whose training a request asks for."""
    return tuple(int(client) for client in request.content.config_records[wire.CONFIG][wire.CLIENTS])  # type: ignore[union-attr]
