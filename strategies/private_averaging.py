"""PrivateAveraging: sample logical clients, send one message a node, check every reply, add the sums, step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Plan, Release
from fedveil.strategies import secret_sample
from fedveil.strategies.agenda import Agenda
from fedveil.strategies.aggregation import CentralMechanism, central_update, total_weight, weighted_mean
from fedveil.strategies.attempts import too_few, too_few_left
from fedveil.strategies.expectations import Expectations
from fedveil.strategies.fleet import Fleet
from fedveil.strategies.judging import Judged, NoGoodReplies
from fedveil.strategies.knowledge import Knowledge
from fedveil.strategies.outcome import RoundOutcome
from fedveil.strategies.replies import TrainReply
from fedveil.strategies.round_loop import RoundLoop
from fedveil.strategies.sampling import sample_fixed, sample_poisson
from fedveil.strategies.server_optimizer import ServerOptimizer
from fedveil.strategies.update_bound import UpdateBound
from fedveil.streams import Streams

__all__ = ["NoGoodReplies", "PrivateAveraging", "to_record"]


@dataclass
class PrivateAveraging(RoundLoop[TrainReply, Release, RoundOutcome]):
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
        Share of all clients in a round, all that are left where they are fewer; the Poisson rate with ``central``.
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
    min_replies : int
        Fewest nodes whose updates a round is averaged from; with fewer the model stays. 1 with a secret sample.
    round_attempts : int
        How often a node is asked in a round at most, if its reply is missing, an error or bad. 1 with a secret sample.
    bound : UpdateBound, optional
        What clipping allows an update, where clients clip and their local step is gradient descent: a reply beyond it
        is dropped. None: nothing bounds an honest update.
    on_repeat : callable, optional
        ``on_repeat(server_round, rows)`` is called before nodes are asked again, with the ledger rows of releases that
        may have left in the attempts so far, to be kept for the case that the server dies; they are in the round's
        outcome too. Not called in a seeded run, whose repeated round sends the same bits.
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
    min_replies: int = 1
    round_attempts: int = 1
    bound: UpdateBound | None = None
    on_repeat: Callable[[int, tuple[Release, ...]], None] | None = None

    _arrays: dict[str, NDArray[np.float32]] = field(default_factory=dict, init=False)
    _asked: list[Message] = field(default_factory=list, init=False)
    _replies: list[TrainReply] = field(default_factory=list, init=False)
    _failures: tuple[str, ...] = field(default=(), init=False)
    _assumed: tuple[Release, ...] = field(default=(), init=False)
    _averaged: bool = field(default=False, init=False)
    _expectations: Expectations = field(init=False)
    _new: tuple[int, ...] = field(default=(), init=False)

    @property
    def mode(self) -> wire.ReplyMode:
        """What the nodes are asked to send back."""
        return "each" if self.central else "sum"

    @property
    def _hides_sample(self) -> bool:
        """Whether the guarantee rests on nobody knowing who was sampled, nor how many.

        Then nothing that is said, returned, kept or decided may depend on that, nor on who of them answered.
        """
        return self.central is not None and self.central.sampling_rate < 1

    def summary(self) -> None:
        """Say how the rounds will run."""
        share = "all" if self.fraction_train == 1 else f"{self.fraction_train:g} of the"
        self.say(
            f"each round trains {share} clients, {self.local_steps} step(s) each, on {self.fleet.num_nodes} nodes"
        )
        if self._hides_sample:
            self.say(secret_sample.NOTICE)

    @property
    def _num_nodes(self) -> int:
        return self.fleet.num_nodes

    def _begin(self, initial: ArrayRecord, num_rounds: int) -> ArrayRecord:
        if self._hides_sample:
            secret_sample.check_settings(self.min_replies, self.round_attempts, self.plans)
        return initial

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to every node that serves a sampled client; none where they are fewer than ``min_replies``."""
        if self._hides_sample:
            secret_sample.require_a_node(grid, self.fleet, server_round)
        self._arrays = {name: array.numpy() for name, array in arrays.items()}
        stream = self.streams.stream("client-sampling", round=server_round)
        active, share = self._active(), self.fraction_train
        if self.central:
            sampled = sample_poisson(active, share, stream)
        else:
            sampled = sample_fixed(active, share, len(self.fleet.clients), stream)
        agenda = Agenda.of(
            server_round, sampled, steps=self.local_steps, plans=self.plans, knowledge=self.knowledge
        )
        shapes = {name: array.shape for name, array in self._arrays.items()}
        self._expectations = Expectations(
            agenda, self.fleet.examples, shapes, self.mode, self.code, self.weigh, self.bound
        )
        self._asked = []
        groups = self.fleet.by_node(sampled)
        # where the sample is secret, that nobody is asked must not be told
        if not self._hides_sample and len(groups) < self.min_replies:
            self.say(
                f"round {server_round}: its clients are on {len(groups)} node(s), and min-replies is "
                f"{self.min_replies}: nobody is asked, and the model stays"
            )
            return []
        for node, clients in groups.items():
            values = dict(config) | {wire.ROUND: server_round, wire.RUN: self.run, wire.REPLY: self.mode}
            request = ConfigRecord({**values, **agenda.told(clients), wire.CLIENTS: clients})
            content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: request})
            self._asked.append(
                Message(content, dst_node_id=node, message_type=wire.TRAIN, group_id=str(server_round))
            )
        return self._asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The next model from the good replies; a bad or missing one is dropped by name and counted.

        With a secret sample it is a zero in the sum, which the sensitivity covers, and nothing else follows from it.

        Raises
        ------
        NoGoodReplies
            If clients were asked and no reply was good; never with a secret sample.
        """
        judged = self._judge(server_round, self._asked, replies)
        self._replies, metrics = list(judged.good.values()), MetricRecord()
        if not self._hides_sample:
            metrics = self._tell(server_round, judged)
        counted = [reply for reply in self._replies if reply.num_examples]
        self._averaged = self._hides_sample or self._can_average(server_round, len(counted))
        if not self._averaged:
            return None, metrics
        if self.central:
            shapes = {name: array.shape for name, array in self._arrays.items()}
            update = central_update(self._replies, shapes, self.central, self.streams, server_round)
        else:
            update = weighted_mean(counted, total_weight(counted, self.weigh))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused in words
            stepped = self.optimizer.step(server_round, self._arrays, update)
        if not all(np.all(np.isfinite(array)) for array in stepped.values()):
            raise ValueError(
                f"the model is not finite after round {server_round}: training diverged; lower server-learning-rate or "
                "learning-rate."
            )
        return to_record(stepped), metrics

    def _tell(self, server_round: int, judged: Judged[TrainReply]) -> MetricRecord:
        """Say what was dropped, and note what has been released and who has stopped; how many replies there were."""
        judged.refuse_if_none(server_round)
        self._failures = judged.failures
        self._assumed = self._may_have_left(server_round, judged)
        for reason in self._failures:
            self.say(f"round {server_round}: dropped {reason}")
        stopped = {client for reply in self._replies for client in reply.out_of_budget}
        self.out_of_budget = tuple(sorted(set(self.out_of_budget) | stopped))
        self._new = ()
        if self.knowledge is not None:
            self._new = tuple(self.knowledge.take(server_round, self._replies, self.fleet.examples))
        return MetricRecord({"replies": len(self._replies), "failures": len(self._failures)})

    def _active(self) -> list[int]:
        return [client for client in self.fleet.clients if client not in self.out_of_budget]

    def _nothing_left(self) -> str:
        """Why there can be no further round; empty while there can."""
        if self.central is not None:
            return ""
        return too_few_left(len(self.fleet.by_node(self._active())), self.min_replies)

    def _can_average(self, server_round: int, found: int) -> bool:
        """Whether enough nodes have sent something to average; if not, says why."""
        nodes = len({request.metadata.dst_node_id for request in self._asked})
        if not self.central:
            if not nodes:
                return False  # said when nobody was asked
            if not found and not self._failures:
                self.say(f"round {server_round}: every sampled client has spent its budget; the model stays")
                return False
        if reason := too_few(found, nodes, self.min_replies):
            self.say(f"round {server_round}: {reason}: the round is skipped, and the model stays")
        return not reason

    def _judge(
        self, server_round: int, requests: Sequence[Message], replies: Iterable[Message]
    ) -> Judged[TrainReply]:
        return self._expectations.judge(requests, replies)

    def _may_have_left(self, server_round: int, judged: Judged[TrainReply]) -> tuple[Release, ...]:
        return self._expectations.assumed(judged, self._asked, repeats_itself=self.streams.is_seeded)

    def _outcome(
        self, server_round: int, arrays: ArrayRecord, evaluation: Mapping[str, float], seconds: float
    ) -> RoundOutcome:
        known = RoundOutcome(
            server_round=server_round,
            arrays={name: array.numpy() for name, array in arrays.items()},
            evaluation=dict(evaluation),
            seconds=math.nan if self._hides_sample else seconds,
            out_of_budget=self.out_of_budget,
        )
        if server_round == 0:
            return known
        released = tuple(row for reply in self._replies for row in reply.releases)
        if self.central and self._averaged:
            released += (self.central.release(server_round),)
        return replace(
            known,
            releases=tuple(sorted(released, key=lambda row: (row.client, row.name, row.step, row.relation))),
            assumed=self._assumed,
            num_clients=None if self._hides_sample else sum(len(reply.took_part) for reply in self._replies),
            failures=self._failures,
            contributions=self._new,
        )


def to_record(arrays: Mapping[str, NDArray[np.float32]]) -> ArrayRecord:
    """A model as an ArrayRecord, names and order kept."""
    # order="C" and not ascontiguousarray, which makes one-element vectors of scalars
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})
