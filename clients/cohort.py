"""A cohort: the logical clients that one node hosts, trained on one resident model and summed to one reply.

Privacy is per logical client: each is admitted by its own filter, clipped and noised alone, and recorded in
the node's ledger, before anything is added up. The sum is of fixed-point integers, so it has the same bits
however the clients are grouped into cohorts and in whatever order they come.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import NodeLedger
from fedveil.clients.gradients import Arrays
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.clients.meter import ContributionMeter, Measured
from fedveil.clients.same_model import require_same_model
from fedveil.clients.training import ClientData, LocalStepFailed, LocalUpdate, local_update
from fedveil.models import Learner, refuse_record_coupling
from fedveil.privacy import (
    CONTRIBUTION,
    NOTHING,
    QUANTILE,
    Known,
    Plan,
    PrivacyFilter,
    Relation,
    Release,
    StepMechanism,
    gradient_rows,
)
from fedveil.streams import Stream, Streams
from fedveil.wire import to_fixed

__all__ = ["Cohort", "CohortResult"]

_LIMIT = 2**62  # below it a sum has room for one more fixed-point update


@dataclass(frozen=True, eq=False)
class CohortResult:
    """What the clients of one cohort produced in one round.

    Parameters
    ----------
    totals : dict of str to int64 array
        Fixed-point sums of weight times update, over the clients that took part; 0 where the updates are kept.
    num_examples : int
        Sum of their n_i, which are public.
    took_part, out_of_budget : tuple of int
        Clients that trained, and clients whose filter refused them, in the order asked for.
    releases : tuple of Release
        Ledger rows of the clients that took part. Rows whose noise was chosen from private data stay in the node's
        ledger and are not here.
    released : dict of int to dict
        Values that clients released beside their updates, noised, by client and name; the rows pay for them.
    updates : dict of str to float64 array, optional
        Each client's update, stacked in the order of ``took_part``; only if asked for.
    """

    totals: dict[str, NDArray[np.int64]]
    num_examples: int
    took_part: tuple[int, ...]
    out_of_budget: tuple[int, ...]
    releases: tuple[Release, ...]
    released: dict[int, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    updates: dict[str, NDArray[np.float64]] | None = None


@dataclass(frozen=True)
class _Task:
    """What one client is asked to do in a round."""

    round: int
    client: int
    known: Known
    measure: bool


@dataclass(frozen=True, eq=False)
class _Answer:
    """What one client did in a round."""

    update: LocalUpdate
    released: dict[str, tuple[float, ...]]
    rows: tuple[Release, ...]


class Cohort:
    """The logical clients of one node in one run.

    Parameters
    ----------
    learner : Learner
        The architecture, its loss and its local step. No layer may mix records.
    data : mapping or callable
        ``data[client]`` or ``data(client)`` gives a client's :class:`ClientData`. A client that is out of
        budget is not asked for.
    plans : mapping of int to Plan or None
        What every client of this node will release and with how much noise; None where the node adds no noise.
    budgets : mapping of Relation to float
        mu_B of each client's total over the run, under each relation that is limited.
    streams : Streams
        Noise and batches. Seeded streams make this a simulation that repeats itself to the bit.
    node_ledger : NodeLedger, optional
        Where rows are recorded before a result is returned. None: remembered by this object only, for tests
        and for training without local privacy.
    run : str
        Name of the run in the ledger.
    steps : int
        Local steps a round.
    learning_rate : float
    clip_norm : float
        Clip of the records' gradients of clients without a plan; see :func:`local_update`.
    meter : ContributionMeter, optional
        Measures contributions; needed by plans that release them or depend on them.
    weigh : callable, optional
        ``weigh(sigmas)``: a client's weight from the noise of its steps, which must be fixed or released; default n_i.

    Raises
    ------
    ValueError
        If a layer mixes records, or Poisson-sampled steps come without the length of their schedule, which no
        filter replaces.
    """

    def __init__(
        self,
        learner: Learner,
        data: Mapping[int, ClientData] | Callable[[int], ClientData],
        plans: Mapping[int, Plan | None],
        *,
        budgets: Mapping[Relation, float],
        streams: Streams,
        node_ledger: NodeLedger | None,
        run: str,
        steps: int,
        learning_rate: float,
        clip_norm: float = math.inf,
        meter: ContributionMeter | None = None,
        weigh: Callable[[Sequence[float]], float] | None = None,
    ) -> None:
        refuse_record_coupling(learner.module)
        for client, plan in plans.items():
            if plan is not None and plan.num_releases is None and plan.sampling_rate < 1:
                raise ValueError(
                    f"client {client} samples its records and has no fixed schedule: give num_releases."
                )
        self.learner, self.run, self.plans = learner, run, dict(plans)
        self._meter, self._weigh = meter, weigh
        self._measurements: dict[int, Measured] = {}
        self._data = data if callable(data) else data.__getitem__
        self._budgets, self._streams = dict(budgets), streams
        self._ledger = node_ledger if node_ledger is not None else MemoryLedger()
        self._steps, self._learning_rate, self._clip_norm = steps, learning_rate, clip_norm

    @property
    def clients(self) -> tuple[int, ...]:
        """The logical clients of this node, in increasing order."""
        return tuple(sorted(self.plans))

    def num_records(self, client: int) -> int:
        """The public number of records n_i of a client."""
        plan = self.plans[client]
        return plan.num_records if plan is not None else len(self._data(client))

    def train(
        self,
        round: int,
        arrays: Arrays,
        clients: Iterable[int],
        *,
        known: Mapping[int, Known] | None = None,
        measure: Collection[int] = (),
        keep_updates: bool = False,
    ) -> CohortResult:
        """Train the given clients from one model and add their updates up.

        Parameters
        ----------
        round : int
            Round of the run, from 1.
        arrays : mapping of str to array
            The model that was sent, by the names of the model's parameters.
        clients : iterable of int
            Clients of this cohort, each at most once.
        known : mapping of int to Known, optional
            What the server knows of clients from their own releases. It need not be true: the rows of a step
            follow from the noise that is really added, and the filter counts the rows.
        measure : collection of int
            Clients whose plan has a release of the contribution, and that are to make it in this round.
        keep_updates : bool
            Return each client's own update instead of the totals, for a server that clips and adds noise itself. One
            that is not finite, or whose model, loss or local step fails, is zeros, from a client that took part like
            any other: were it an error, it would take the others' updates with it, and the server's sum would move by
            more than the one client's clip.

        Returns
        -------
        CohortResult
            Its rows are on disk. Who is out of budget is a function of public and released values; everything
            else in it is a function of the noised values that the rows pay for.

        Raises
        ------
        ValueError
            If a client or a parameter is unknown, a client is named twice, or an update does not fit the
            fixed-point grid. Rows of what was computed until then are recorded all the same.
        BudgetExceeded, ReplayMismatch, WriteFailed
            From the ledger; nothing may be sent then. A budget can be passed here only by requests served at the
            same time.
        """
        asked = tuple(int(client) for client in clients)
        self._check_clients(asked)
        arrays = self._in_model_order(arrays)
        told = known or {}
        tasks = {
            client: _Task(round, client, told.get(client, NOTHING), client in measure) for client in asked
        }
        totals = {name: np.zeros(np.shape(value), dtype=np.int64) for name, value in arrays.items()}
        num_examples, took_part, out_of_budget = 0, list[int](), list[int]()
        releases, digests, updates = list[Release](), dict[int, str](), list[dict[str, NDArray[np.float64]]]()
        released: dict[int, dict[str, tuple[float, ...]]] = {}
        try:
            for task in tasks.values():
                if not self._admits(task):
                    out_of_budget.append(task.client)
                    continue
                try:
                    answer = self._answer(task, arrays)
                except LocalStepFailed as failure:
                    if not keep_updates:
                        digests[task.client] = _digest({}, {})
                        releases += failure.releases
                        raise
                    # for the node's owner: the reply looks as if the update had been zeros
                    print(f"fedveil | round {round}: {failure} Its update counts as 0.", flush=True)
                    traceback.print_exception(failure)
                    answer = _Answer(LocalUpdate(_zeros(arrays), failure.releases), {}, failure.releases)
                releases += answer.rows
                digests[task.client] = _digest(answer.update.delta, answer.released)
                took_part.append(task.client)
                num_examples += self.num_records(task.client)
                if answer.released:
                    released[task.client] = answer.released
                if keep_updates:
                    updates.append(_finite_or_zero(answer.update.delta))
                else:
                    self._add(totals, task.client, answer)
        finally:
            # also after an error, which is the outcome of a noised step too
            if releases:
                self._ledger.record(
                    self.run,
                    digests,
                    releases,
                    replay=self._streams.is_seeded,
                    admit=lambda client, past: self._within_budget(tasks[client], past.spent, past.count),
                )
        stacked = {
            name: np.array([delta[name] for delta in updates]).reshape(-1, *np.shape(arrays[name]))
            for name in arrays
        }
        return CohortResult(
            totals,
            num_examples,
            tuple(took_part),
            tuple(out_of_budget),
            # the noise of a data-dependent row is a function of the records: it stays here
            tuple(row for row in releases if row.chosen != "data-dependent"),
            released,
            stacked if keep_updates else None,
        )

    def _check_clients(self, asked: tuple[int, ...]) -> None:
        unknown = sorted(set(asked) - set(self.plans))
        if unknown:
            raise ValueError(f"client {unknown[0]} is not on this node, which hosts {_listed(self.clients)}.")
        if len(set(asked)) < len(asked):
            raise ValueError("a client was named twice in one request; name each client once.")

    def _in_model_order(self, arrays: Arrays) -> dict[str, NDArray[np.floating]]:
        """The arrays in the order of the model's trainable parameters, in which noise is drawn."""
        names = require_same_model(self.learner, {name: np.shape(value) for name, value in arrays.items()})
        return {name: np.asarray(arrays[name]) for name in names}

    def _admits(self, task: _Task) -> bool:
        """Whether the client may take part, decided before its records are looked at."""
        # in a run that repeats itself, a replayed round's own rows are no past
        replayed = task.round if self._streams.is_seeded else None
        return self._within_budget(
            task,
            lambda: self._ledger.spent(self.run, task.client, except_round=replayed),
            lambda: self._ledger.count(self.run, task.client, except_round=replayed),
        )

    def _within_budget(
        self, task: _Task, spent: Callable[[], dict[Relation, float]], count: Callable[[], int]
    ) -> bool:
        """Whether a round's releases fit beside those made before."""
        plan = self.plans[task.client]
        if plan is None:
            return True
        if plan.sampling_rate < 1 or plan.is_data_dependent:
            # no filter is valid, so the schedule is fixed; to stop by realised noise would also show what it was
            return count() + self._steps <= (plan.num_releases or 0)
        rows = plan.rows(task.client, task.round, self._steps, task.known, measure=task.measure)
        past = spent()
        if any(math.isinf(past.get(relation, 0.0)) for relation in self._budgets):
            return False  # an earlier release has no bound under this relation
        known = {relation: past[relation] for relation in self._budgets if relation in past}
        return PrivacyFilter(self._budgets, known).admits(rows)

    def _answer(self, task: _Task, arrays: Arrays) -> _Answer:
        """One client's round: its update, what it releases beside it, and the rows that pay for both."""
        plan, data, known = self.plans[task.client], self._data(task.client), task.known
        if plan is not None and plan.is_data_dependent:
            measured = self._measured(task, data, arrays)
            known = Known(contribution=measured.rate)
            self._ledger.note(self.run, task.client, task.round, measured.explain())
        released: dict[str, tuple[float, ...]] = {}
        rows: tuple[Release, ...] = ()
        if plan is not None and plan.contribution is not None and task.measure:
            exact = self._measured(task, data, arrays).vector
            noised = exact + plan.contribution.sigma * self._stream("contribution-noise", task).normal(
                exact.size
            )
            released[CONTRIBUTION] = tuple(noised.tolist())
            rows = plan.contribution.releases(task.client, task.round)
        quantile = None if plan is None else plan.quantile
        update = local_update(
            self.learner,
            arrays,
            data,
            mechanism=None if plan is None else self._mechanism(plan, task, known),
            steps=self._steps,
            learning_rate=self._learning_rate,
            clip_norm=self._clip_norm,
            noise=self._stream("noise", task),
            batches=self._stream("batch", task),
            round=task.round,
            client=task.client,
            count_within=quantile is not None,
        )
        if quantile is not None and update.within is not None:
            noise = self._stream("quantile-noise", task).normal(1)
            released[QUANTILE] = (update.within + quantile.sigma * float(noise[0]),)
            rows += quantile.releases(task.client, task.round)
        return _Answer(update, released, update.releases + rows)

    def _mechanism(self, plan: Plan, task: _Task, known: Known) -> StepMechanism:
        try:
            return plan.mechanism(known)
        except ValueError:
            if not plan.is_data_dependent:
                raise
            # its sentence would tell sigma or R, which stay here
            raise ValueError(
                f"client {task.client}: its calibration gives no usable noise for the R that it measured."
            ) from None

    def _measured(self, task: _Task, data: ClientData, arrays: Arrays) -> Measured:
        if self._meter is None:
            raise ValueError(f"client {task.client} must measure its contribution and has no meter.")
        if self._meter.sees_the_model:
            return self._meter.measure(data, arrays)
        if task.client not in self._measurements:
            self._measurements[task.client] = self._meter.measure(data, arrays)
        return self._measurements[task.client]

    def _stream(self, purpose: str, task: _Task) -> Stream:
        return self._streams.stream(purpose, round=task.round, client=task.client)

    def _add(self, totals: dict[str, NDArray[np.int64]], client: int, answer: _Answer) -> None:
        """Add weight times update to the totals, in fixed point."""
        weight = float(self.num_records(client))
        if self._weigh is not None:
            weight = self._weigh([row.sigma for row in gradient_rows(answer.rows)])
        for name, change in answer.update.delta.items():
            try:
                totals[name] += to_fixed(weight * change)
            except ValueError as error:
                raise ValueError(f"client {client}, parameter {name!r}: {error}") from error
            if np.any(np.abs(totals[name]) >= _LIMIT):
                raise ValueError(
                    f"the sum of the updates of {name!r} leaves int64: lower learning-rate or clip-norm."
                )


def _finite_or_zero(delta: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    if all(np.all(np.isfinite(change)) for change in delta.values()):
        return dict(delta)
    return _zeros(delta)


def _zeros(like: Arrays) -> dict[str, NDArray[np.float64]]:
    return {name: np.zeros(np.shape(value)) for name, value in like.items()}


def _digest(delta: Mapping[str, NDArray[np.float64]], released: Mapping[str, tuple[float, ...]]) -> str:
    digest = blake2b(digest_size=16)
    for name, change in delta.items():
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(change).tobytes())
    for name, values in released.items():
        digest.update(name.encode() + b"\0" + np.array(values).tobytes())
    return digest.hexdigest()


def _listed(clients: tuple[int, ...]) -> str:
    return f"{len(clients)} clients" + (f", {clients[0]} to {clients[-1]}" if clients else "")
