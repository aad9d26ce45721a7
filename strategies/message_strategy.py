"""Rounds of messages: draw clients, ask, add up what is good, learn, tell; and resume."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.moment_sums import SumGrid
from fedveil.privacy import CohortRelease, MessagePlan, ModulatedMoments
from fedveil.strategies.attempts import too_few, too_few_left
from fedveil.strategies.attendance import Attendance, Participation
from fedveil.strategies.census import Census
from fedveil.strategies.judging import Judged
from fedveil.strategies.message_replies import MessageReply
from fedveil.strategies.message_rounds import Collected, MessageRounds, Reply
from fedveil.strategies.modulated_outcome import ModulatedOutcome
from fedveil.strategies.round_loop import RoundLoop
from fedveil.streams import Streams

__all__ = ["MessageStrategy", "State"]

FloatArray = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]


@dataclass(kw_only=True, eq=False)
class MessageStrategy(RoundLoop[MessageReply, CohortRelease, ModulatedOutcome]):
    """Federated regression from one message a client and round; what is learned from the sums is the subclass's.

    Parameters
    ----------
    census : Census
        Which node hosts which clients.
    plan : MessagePlan or None
        Noise and cost of every message, and how often a client may send; None: no noise, in simulations only.
    dimension : int
        d, features of a record. Coefficients are d slopes, then the intercept.
    streams : Streams
        Draws of clients and directions.
    run : str
        The run's short name; nodes file their ledger under it.
    code : mapping of str to str
        Library version and source hash that every reply must carry.
    variant : str
        Which of the nodes' plans is asked for: :data:`fedveil.wire.MAIN`, or a comparator's.
    reply : {"sum", "each"}
        What nodes send; the coefficients have the same bits either way.
    participation : {"all", "sampled", "cohorts"}
    fraction_train : float
        Share of all clients in a round, for "sampled"; all that are left, where they are fewer.
    ranges : (float64 array (d,), float64 array (d,)), optional
        Estimated center and spread that clients are to scale their features by.
    completed_rounds : int
        Rounds already done, when a run is resumed; call :meth:`restore` too.
    on_round : callable, optional
        Called with the ModulatedOutcome of each round, round 0 (the initial model) included.
    min_replies : int
        Fewest nodes whose messages a round learns from; with fewer the model stays.
    round_attempts : int
        How often a node is asked in a round at most, if its reply is missing, an error or bad.
    on_repeat : callable, optional
        ``on_repeat(server_round, cohorts)`` is called before nodes are asked again, with the messages that may have
        left in the attempts so far, to be kept for the case that the server dies; they are in the round's outcome too.
        Not called in a seeded run, whose repeated round sends the same bits.
    """

    census: Census
    plan: MessagePlan | None
    dimension: int
    streams: Streams
    run: str
    code: Mapping[str, str]
    variant: str = wire.MAIN
    reply: Reply = "sum"
    participation: Participation = "all"
    fraction_train: float = 1.0
    ranges: tuple[FloatArray, FloatArray] | None = None
    completed_rounds: int = 0
    on_round: Callable[[ModulatedOutcome], None] | None = None
    say: Callable[[str], None] = print
    min_replies: int = 1
    round_attempts: int = 1
    on_repeat: Callable[[int, tuple[CohortRelease, ...]], None] | None = None

    coefficients: FloatArray = field(init=False)
    moments: ModulatedMoments | None = field(default=None, init=False)
    problem: str | None = field(default=None, init=False)
    projected: bool = field(default=False, init=False)
    _attendance: Attendance = field(init=False)
    _rounds: MessageRounds = field(init=False)
    _num_rounds: int = field(default=1, init=False)
    _clients: NDArray[np.int64] = field(init=False)
    _sent_directions: FloatArray = field(init=False)
    _asked: list[Message] = field(default_factory=list, init=False)
    _collected: Collected | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Everything that does not change from round to round."""
        self.coefficients = np.zeros(self.dimension + 1)
        self._clients = np.zeros(0, np.int64)
        self._attendance = Attendance(
            self.census.num_clients,
            self.participation,
            self.streams,
            num_releases=None if self.plan is None else self.plan.num_releases,
            fraction=self.fraction_train,
        )
        self._rounds = MessageRounds(
            census=self.census,
            plan=self.plan,
            mechanism=self._mechanism,
            grid=self._grid(),
            dimension=self.dimension,
            run=self.run,
            code=self.code,
            variant=self.variant,
            reply=self.reply,
        )

    @property
    @abstractmethod
    def _mechanism(self) -> wire.Mechanism:
        """What clients are asked for."""

    @abstractmethod
    def _grid(self) -> SumGrid:
        """The public fixed-point grid of the sums."""

    @abstractmethod
    def _directions(self, server_round: int) -> FloatArray:
        """The (m, d) directions of a round, m = 0 without modulation."""

    @abstractmethod
    def _learn(self, server_round: int, collected: Collected, directions: FloatArray) -> None:
        """Take in what came back; some client took part. Sets ``coefficients`` and what else there is to tell."""

    def _own_state(self) -> State:
        """What the subclass keeps from round to round."""
        return {}

    def _take_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`_own_state`."""

    def summary(self) -> None:
        """Say how the rounds will run."""
        who = {
            "all": "all clients",
            "sampled": f"{self.fraction_train:g} of the clients",
            "cohorts": "one of disjoint cohorts",
        }[self.participation]
        nodes = "1 node" if self.census.num_nodes == 1 else f"{self.census.num_nodes} nodes"
        self.say(f"each round asks {who} on {nodes} for one message a client")

    @property
    def _num_nodes(self) -> int:
        return self.census.num_nodes

    def _begin(self, initial: ArrayRecord, num_rounds: int) -> ArrayRecord:
        """The coefficients, from ``coefficients``, float64 (d + 1,)."""
        self.coefficients = self._initial(initial)
        self._num_rounds = num_rounds
        if self.participation == "cohorts":
            self._attendance.split(num_rounds)
        return self._record()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to every node that hosts a client of this round; none where they are fewer than ``min_replies``.

        Raises
        ------
        ValueError
            If `config` is not empty: nodes of one-record clients take no settings from a server.
        TooFewReplies
            If they are, in a run of one round.
        """
        if config:
            raise ValueError(
                f"the training config has {', '.join(map(repr, config))}, and nodes of one-record clients take no "
                "settings from a server: leave train_config out."
            )
        self._clients = self._attendance.draw(server_round, self._num_rounds)
        self._sent_directions = self._directions(server_round)
        sent = {wire.COEFFICIENTS: self.coefficients, wire.DIRECTIONS: self._sent_directions}
        if self.ranges is not None:
            sent |= {wire.CENTER: self.ranges[0], wire.SPREAD: self.ranges[1]}
        self._asked = self._rounds.requests(server_round, self._clients, sent)
        if 0 < len(self._asked) < self.min_replies:
            self._skip(
                server_round,
                f"its clients are on {len(self._asked)} node(s), and min-replies is {self.min_replies}: nobody is "
                "asked",
            )
            self._asked = []
        return self._asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The next coefficients from the good replies; a bad or missing one is dropped by name and counted.

        Raises
        ------
        NoGoodReplies
            If clients were asked and no reply was good; in a run of one round (TooFewReplies) also if they are fewer
            than ``min_replies``.
        """
        self.problem, self.projected = None, False
        collected = self._rounds.collect(
            server_round, self._clients, self._asked, replies, repeats_itself=self.streams.is_seeded
        )
        self._collected = collected
        for reason in collected.failures:
            self.say(f"round {server_round}: dropped {reason}")
        self._attendance.paid(collected.took_part)
        for lost in collected.lost:
            self._attendance.paid(lost)
        self._attendance.stop(collected.out_of_budget)
        metrics = MetricRecord({"clients": len(collected.took_part), "failures": len(collected.failures)})
        if not self._asked and len(self._clients):
            return None, metrics  # said when nobody was asked
        if not len(collected.took_part) and not collected.failures:
            self.say(f"round {server_round}: every client of the round has spent its budget; the model stays")
            return None, metrics
        nodes = len({request.metadata.dst_node_id for request in self._asked})
        if reason := too_few(collected.num_nodes, nodes, self.min_replies):
            self._collected = collected.without_use()
            self._skip(server_round, f"{reason}: the round is skipped")
            return None, metrics
        self._learn(server_round, collected, self._sent_directions)
        if self.problem is not None:
            self.say(f"round {server_round}: {self.problem}")
        return self._record(), metrics

    def _nothing_left(self) -> str:
        """Why there can be no further round; empty while there can."""
        able = np.flatnonzero(self._attendance.able())
        return too_few_left(len(self.census.by_node(able)), self.min_replies)

    def _skip(self, server_round: int, reason: str) -> None:
        """Say that the model stays."""
        self.say(f"round {server_round}: {reason}, and the model stays")

    def _judge(
        self, server_round: int, requests: Sequence[Message], replies: Iterable[Message]
    ) -> Judged[MessageReply]:
        return self._rounds.judge(server_round, self._clients, requests, replies)

    def _may_have_left(self, server_round: int, judged: Judged[MessageReply]) -> tuple[CohortRelease, ...]:
        lost = self._rounds.lost(judged, self._clients, repeats_itself=self.streams.is_seeded)
        return self._rounds.sent(server_round, *lost)

    def interrupted(self, server_round: int, num_rounds: int) -> tuple[CohortRelease, ...]:
        """Messages that clients may have sent in a round which the server did not live to see.

        They count in the run's ledger, and stop nobody here: whether they left is known to the nodes' own ledgers,
        which refuse whoever has spent his budget. Who was sampled is forgotten where draws are not from a seed, so
        every client that could have been counts.
        """
        clients = np.flatnonzero(self._attendance.able())
        if self.participation == "cohorts":
            clients = self._attendance.draw(server_round, num_rounds)
        return self._rounds.sent(server_round, clients)

    def state(self) -> State:
        """All that a resumed run needs to end like an unbroken one, as arrays by name."""
        return {"coefficients": self.coefficients.copy(), **self._attendance.state(), **self._own_state()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`; give its ``coefficients`` to :meth:`start`.

        Raises
        ------
        ValueError
            If the state is of another number of clients or features.
        """
        if np.shape(state["coefficients"]) != (self.dimension + 1,):
            raise ValueError(
                f"the saved state has {np.size(state['coefficients'])} coefficients, and the run {self.dimension + 1}: "
                "resume it with the data it was started with."
            )
        self.coefficients = np.array(state["coefficients"], np.float64)
        self._attendance.restore(state)
        self._take_state(state)

    def _initial(self, arrays: ArrayRecord) -> FloatArray:
        if list(arrays) != [wire.COEFFICIENTS]:
            raise ValueError(f"the initial arrays are {list(arrays)}: give one, {wire.COEFFICIENTS!r}.")
        values = np.array(arrays[wire.COEFFICIENTS].numpy(), np.float64)
        if values.shape != (self.dimension + 1,) or not np.isfinite(values).all():
            raise ValueError(
                f"the initial coefficients have shape {values.shape}: give {self.dimension + 1} finite numbers, the "
                "slopes and then the intercept."
            )
        return values

    def _record(self) -> ArrayRecord:
        return ArrayRecord({wire.COEFFICIENTS: Array(self.coefficients)})

    def _outcome(
        self, server_round: int, arrays: ArrayRecord, evaluation: Mapping[str, float], seconds: float
    ) -> ModulatedOutcome:
        collected = self._collected
        return ModulatedOutcome(
            server_round=server_round,
            coefficients=self.coefficients.copy(),
            evaluation=dict(evaluation),
            seconds=seconds,
            directions=None if collected is None else self._sent_directions,
            releases=() if collected is None else self._rounds.sent(server_round, collected.took_part),
            assumed=() if collected is None else self._rounds.sent(server_round, *collected.lost),
            num_clients=0 if collected is None else len(collected.took_part),
            out_of_budget=int(self._attendance.stopped.sum()),
            failures=() if collected is None else collected.failures,
            problem=self.problem,
            projected=self.projected,
        )
