"""PrivateAveraging: sample logical clients, send one message a node, check every reply, add the sums, step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Plan
from fedveil.strategies.agenda import Agenda
from fedveil.strategies.aggregation import CentralMechanism, central_update, total_weight, weighted_mean
from fedveil.strategies.fleet import Fleet
from fedveil.strategies.knowledge import Knowledge
from fedveil.strategies.outcome import RoundOutcome
from fedveil.strategies.reasons import one_line, ranges
from fedveil.strategies.replies import BadReply, Expected, TrainReply, check_reply
from fedveil.strategies.roll_call import is_reply_to
from fedveil.strategies.sampling import sample_fixed, sample_poisson
from fedveil.strategies.server_optimizer import ServerOptimizer
from fedveil.streams import Streams

__all__ = ["NoGoodReplies", "PrivateAveraging", "to_record"]


EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class NoGoodReplies(RuntimeError):
    """A round in which no node answered well; the message has every node's reason."""


@dataclass
class PrivateAveraging(Strategy):
    """Federated averaging of private updates over logical clients.

    Privacy is the clients' own (they send noised updates and a ledger row for each release), or with ``central`` the
    server's, for those who trust it. Weights are proportional to the public n_i, or as ``weigh`` says; with ``central``
    they are equal.

    Parameters
    ----------
    fleet : Fleet
        Who serves whom.
    streams : Streams
        Client sampling and central noise are drawn from it.
    optimizer : ServerOptimizer
        What is done with the mean update.
    plans : mapping of int to Plan or None
        Each client's planned releases; says what a reply owes, and what a client has spent whose reply does not come.
    run : str
        The run's short name; nodes file their ledger under it.
    code : mapping of str to str
        Library version and source hash that every reply must carry.
    fraction_train : float
        Share of the clients in a round (Poisson rate with ``central``).
    local_steps : int
        Releases of a client in a round.
    central : CentralMechanism, optional
        The server's own release, for privacy "central".
    knowledge : Knowledge, optional
        What clients have released beside their updates; sent back to them, since their noise may depend on it.
    weigh : callable, optional
        ``weigh(sigmas)``: a client's weight from the noise of its steps, the same function as the clients'.
    completed_rounds : int
        Rounds already done, when a run is resumed.
    on_round : callable, optional
        Called with the RoundOutcome of each round, round 0 (the initial model) included.
    """

    fleet: Fleet
    streams: Streams
    optimizer: ServerOptimizer
    plans: Mapping[int, Plan | None]
    run: str
    code: Mapping[str, str]
    fraction_train: float = 1.0
    local_steps: int = 1
    central: CentralMechanism | None = None
    knowledge: Knowledge | None = None
    weigh: Callable[[Sequence[float]], float] | None = None
    completed_rounds: int = 0
    out_of_budget: tuple[int, ...] = ()
    on_round: Callable[[RoundOutcome], None] | None = None
    say: Callable[[str], None] = print

    _arrays: dict[str, NDArray[np.float32]] = field(default_factory=dict, init=False)
    _asked: list[Message] = field(default_factory=list, init=False)
    _replies: list[TrainReply] = field(default_factory=list, init=False)
    _failures: dict[int, str] = field(default_factory=dict, init=False)
    _agenda: Agenda = field(init=False)
    _new: tuple[int, ...] = field(default=(), init=False)

    @property
    def mode(self) -> wire.ReplyMode:
        """What the nodes are asked to send back."""
        return "each" if self.central else "sum"

    @property
    def _hides_sample(self) -> bool:
        """Whether the guarantee rests on nobody knowing who was sampled, nor how many."""
        return self.central is not None and self.central.sampling_rate < 1

    def summary(self) -> None:
        """Say how the rounds will run."""
        share = "all" if self.fraction_train == 1 else f"{self.fraction_train:g} of the"
        self.say(
            f"each round trains {share} clients, {self.local_steps} step(s) each, on {self.fleet.num_nodes} nodes"
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds; Flower's loop, plus resuming, a callback a round, and an end when every budget is spent.

        Flower's own ``start`` always begins at round 1, cannot stop early, and loses everything at an exception.
        Nodes are never asked to evaluate: an accuracy on private records would be a release.

        Raises
        ------
        NoGoodReplies
            If a round has no usable reply at all.
        """
        result = Result(arrays=initial_arrays)
        self.summary()
        for server_round in range(self.completed_rounds, num_rounds + 1):
            began = time.monotonic()
            if server_round == self.completed_rounds:
                if server_round > 0:
                    continue  # this round's outcome is already on disk
            else:
                if self.central is None and not self._active():
                    self.say(
                        f"every client has spent its budget: training ends after round {server_round - 1}"
                    )
                    break
                requests = self.configure_train(
                    server_round, result.arrays, train_config or ConfigRecord(), grid
                )
                replies = grid.send_and_receive(requests, timeout=timeout) if self._asked else []
                arrays, metrics = self.aggregate_train(server_round, replies)
                result.arrays = arrays if arrays is not None else result.arrays
                result.train_metrics_clientapp[server_round] = metrics
            evaluation = evaluate_fn(server_round, result.arrays) if evaluate_fn else None
            if evaluation is not None:
                result.evaluate_metrics_serverapp[server_round] = evaluation
            if self.on_round:
                self.on_round(
                    self._outcome(server_round, result.arrays, evaluation, time.monotonic() - began)
                )
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to every node that serves a sampled client."""
        self._arrays = {name: array.numpy() for name, array in arrays.items()}
        stream = self.streams.stream("client-sampling", round=server_round)
        sample = sample_poisson if self.central else sample_fixed
        sampled = sample(self._active(), self.fraction_train, stream)
        self._agenda = Agenda.of(
            server_round, sampled, steps=self.local_steps, plans=self.plans, knowledge=self.knowledge
        )
        self._asked = []
        for node, clients in self.fleet.by_node(sampled).items():
            values = dict(config) | {wire.ROUND: server_round, wire.RUN: self.run, wire.REPLY: self.mode}
            request = ConfigRecord({**values, **self._agenda.told(clients), wire.CLIENTS: clients})
            content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: request})
            self._asked.append(
                Message(content, dst_node_id=node, message_type=wire.TRAIN, group_id=str(server_round))
            )
        return self._asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The next model from the good replies; a bad or missing one is dropped by name and counted.

        Raises
        ------
        NoGoodReplies
            If clients were asked and no reply was good.
        """
        self._replies, self._failures = self._sort(server_round, list(replies))
        if self._asked and not self._replies:
            reasons = "; ".join(sorted(set(self._failures.values())))
            raise NoGoodReplies(f"round {server_round}: no node sent a usable reply: {reasons}")
        for reason in self._failures.values():
            self.say(f"round {server_round}: dropped {reason}")
        stopped = {client for reply in self._replies for client in reply.out_of_budget}
        self.out_of_budget = tuple(sorted(set(self.out_of_budget) | stopped))
        self._new = ()
        if self.knowledge is not None:
            self._new = tuple(self.knowledge.take(server_round, self._replies, self.fleet.examples))
        metrics = MetricRecord({"replies": len(self._replies), "failures": len(self._failures)})
        if self.central:
            shapes = {name: array.shape for name, array in self._arrays.items()}
            update = central_update(self._replies, shapes, self.central, self.streams, server_round)
        elif counted := [reply for reply in self._replies if reply.num_examples]:
            update = weighted_mean(counted, total_weight(counted, self.weigh))
        else:
            self.say(f"round {server_round}: every sampled client has spent its budget; the model stays")
            return None, metrics
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused in words
            stepped = self.optimizer.step(server_round, self._arrays, update)
        if not all(np.all(np.isfinite(array)) for array in stepped.values()):
            raise ValueError(
                f"the model is not finite after round {server_round}: training diverged; lower server-learning-rate or "
                "learning-rate."
            )
        return to_record(stepped), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """No messages: the model is evaluated on the server's public test set."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate; see :meth:`configure_evaluate`."""
        return None

    def _active(self) -> list[int]:
        return [client for client in self.fleet.clients if client not in self.out_of_budget]

    def _sort(self, server_round: int, replies: Sequence[Message]) -> tuple[list[TrainReply], dict[int, str]]:
        """Good replies in the order of nodes asked, and the reason for each that is not good."""
        good: list[TrainReply] = []
        failures: dict[int, str] = {}
        for request in self._asked:
            node = request.metadata.dst_node_id
            clients = [int(c) for c in request.content.config_records[wire.CONFIG][wire.CLIENTS]]  # type: ignore[union-attr]
            expected = Expected(
                clients=clients,
                examples=self.fleet.examples,
                shapes={name: array.shape for name, array in self._arrays.items()},
                mode=self.mode,
                round=server_round,
                code=self.code,
                rows={client: self._agenda.owed_rows(client) for client in clients},
                released={client: self._agenda.owed_values(client) for client in clients},
            )
            # by request, not by sender: the error reply for a dead node does not name it
            answers = [reply for reply in replies if is_reply_to(reply, request)]
            try:
                if not answers:
                    raise BadReply("none came in time")
                reply = check_reply(answers[0], expected)
                total_weight(
                    [reply], self.weigh
                )  # noise that leaves no weight is the reply's fault, not the run's
                good.append(reply)
            except BadReply as error:
                failures[node] = f"the reply for clients {ranges(clients)}: {one_line(str(error))}"
                if self._hides_sample:
                    # a reason can tell who was sampled, and the guarantee rests on nobody knowing
                    failures[node] = "a reply, for a reason that the nodes' own logs tell"
        return good, failures

    def _outcome(
        self, server_round: int, arrays: ArrayRecord, evaluation: MetricRecord | None, seconds: float
    ) -> RoundOutcome:
        figures = {
            key: float(value) for key, value in (evaluation or {}).items() if not isinstance(value, list)
        }
        known = RoundOutcome(
            server_round=server_round,
            arrays={name: array.numpy() for name, array in arrays.items()},
            evaluation=figures,
            seconds=seconds,
            out_of_budget=self.out_of_budget,
        )
        if server_round == 0:
            return known
        lost = [
            int(client)
            for request in self._asked
            if request.metadata.dst_node_id in self._failures
            for client in request.content.config_records[wire.CONFIG][wire.CLIENTS]  # type: ignore[union-attr]
        ]
        released = tuple(row for reply in self._replies for row in reply.releases)
        if self.central:
            released += (self.central.release(server_round),)
        return replace(
            known,
            releases=tuple(sorted(released, key=lambda row: (row.client, row.name, row.step, row.relation))),
            assumed=tuple(row for client in lost for row in self._agenda.rows(client)),
            num_clients=None if self._hides_sample else sum(len(reply.took_part) for reply in self._replies),
            failures=tuple(self._failures.values()),
            contributions=self._new,
        )


def to_record(arrays: Mapping[str, NDArray[np.float32]]) -> ArrayRecord:
    """A model as an ArrayRecord, names and order kept."""
    # order="C" and not ascontiguousarray, which makes one-element vectors of scalars
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})
