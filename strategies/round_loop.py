"""The loop of rounds that FedVeil's strategies share: ask, check, learn, evaluate, tell; and go on where a run was."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedveil.strategies.attempts import ask, check_attempts
from fedveil.strategies.judging import Judged
from fedveil.streams import Streams

__all__ = ["EvaluateFn", "RoundLoop"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

Reply = TypeVar("Reply")
Row = TypeVar("Row")
Outcome = TypeVar("Outcome")


class RoundLoop(Strategy, Generic[Reply, Row, Outcome]):
    """Flower's loop of rounds, plus resuming, a callback a round, repeats, and an end when every budget is spent.

    Flower's own ``start`` always begins at round 1, cannot stop early, asks nobody twice and loses everything at an
    exception. There is one phase: nodes are never asked to evaluate, since a figure of private records is a release.

    Generic in a checked reply, in a ledger row, and in what ``on_round`` is told.

    Attributes
    ----------
    streams : Streams
        Seeded, a node that is asked again sends the same bits, which is the same release.
    completed_rounds : int
        Rounds already done, when a run is resumed.
    on_round : callable, optional
        Called with the outcome of each round, round 0 (the initial model) included.
    say : callable
        Takes lines for the user.
    min_replies : int
        Fewest nodes that a round learns from.
    round_attempts : int
        How often a node is asked in a round at most, if its reply is missing, an error or bad.
    on_repeat : callable, optional
        ``on_repeat(server_round, rows)`` is called before nodes are asked again, with the ledger rows of releases that
        may have left in the attempts so far, to be kept for the case that the server dies; they are in the round's
        outcome too. Not called in a seeded run.
    """

    streams: Streams
    completed_rounds: int
    on_round: Callable[[Outcome], None] | None
    say: Callable[[str], None]
    min_replies: int
    round_attempts: int
    on_repeat: Callable[[int, tuple[Row, ...]], None] | None

    _asked: list[Message]  # every request of the round, those of repeated attempts too

    @property
    @abstractmethod
    def _num_nodes(self) -> int:
        """How many nodes the run's clients are on."""

    @abstractmethod
    def _begin(self, initial: ArrayRecord, num_rounds: int) -> ArrayRecord:
        """Refuse what cannot run; the model that rounds start from."""

    @abstractmethod
    def _nothing_left(self) -> str:
        """Why there can be no further round; empty while there can."""

    @abstractmethod
    def _judge(
        self, server_round: int, requests: Sequence[Message], replies: Iterable[Message]
    ) -> Judged[Reply]:
        """Check what came in this round."""

    @abstractmethod
    def _may_have_left(self, server_round: int, judged: Judged[Reply]) -> tuple[Row, ...]:
        """Releases of this round that nodes may have made without a good reply that tells of them."""

    @abstractmethod
    def _outcome(
        self, server_round: int, arrays: ArrayRecord, evaluation: Mapping[str, float], seconds: float
    ) -> Outcome:
        """What there is to tell of the round that has just ended."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 1,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds.

        Parameters
        ----------
        grid : Grid
            Flower's way to the nodes.
        initial_arrays : ArrayRecord
            The model to start from; of a resumed run, the model after ``completed_rounds``.
        num_rounds : int
            Rounds of the whole run, those already done included.
        timeout : float
            Seconds that one attempt of a round may take.
        train_config : ConfigRecord, optional
            What nodes are told beside what the strategy tells them; strategies whose nodes take no settings from a
            server refuse any.
        evaluate_config : ConfigRecord, optional
            Not used: nobody is asked to evaluate.
        evaluate_fn : callable, optional
            ``evaluate_fn(server_round, arrays)``: figures of the server's public test set.

        Raises
        ------
        NoGoodReplies
            If a round has no usable reply at all.
        ValueError
            If the settings, or the initial arrays, can't be used; more replies are needed than there are nodes.
        """
        check_attempts(self.min_replies, self.round_attempts, self._num_nodes)
        result = Result(arrays=self._begin(initial_arrays, num_rounds))
        self.summary()
        if self.completed_rounds == 0:
            self._end_round(0, result, evaluate_fn, time.monotonic())
        for server_round in range(self.completed_rounds + 1, num_rounds + 1):
            began = time.monotonic()
            if reason := self._nothing_left():
                self.say(f"{reason}: the run ends after round {server_round - 1}")
                break
            self._asked, replies = ask(
                grid,
                list(self.configure_train(server_round, result.arrays, train_config or ConfigRecord(), grid)),
                partial(self._judge, server_round),
                attempts=self.round_attempts,
                timeout=timeout,
                before_repeat=partial(self._before_repeat, server_round),
                say=partial(self._say_of, server_round),
            )
            arrays, metrics = self.aggregate_train(server_round, replies)
            if arrays is not None:
                result.arrays = arrays
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            self._end_round(server_round, result, evaluate_fn, began)
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """No messages: the model is evaluated on the server's public test set."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate; see :meth:`configure_evaluate`."""
        return None

    def _before_repeat(self, server_round: int, judged: Judged[Reply]) -> None:
        if self.on_repeat is not None and not self.streams.is_seeded:
            self.on_repeat(server_round, self._may_have_left(server_round, judged))

    def _say_of(self, server_round: int, line: str) -> None:
        self.say(f"round {server_round}: {line}")

    def _end_round(
        self, server_round: int, result: Result, evaluate_fn: EvaluateFn | None, began: float
    ) -> None:
        """Evaluate, and tell; the time until then is the round's."""
        evaluation = evaluate_fn(server_round, result.arrays) if evaluate_fn else None
        if evaluation is not None:
            result.evaluate_metrics_serverapp[server_round] = evaluation
        if self.on_round:
            figures = {
                key: float(value) for key, value in (evaluation or {}).items() if not isinstance(value, list)
            }
            self.on_round(self._outcome(server_round, result.arrays, figures, time.monotonic() - began))
