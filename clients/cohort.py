"""A cohort: the logical clients that one node hosts, trained on one resident model and summed to one reply.

Privacy is per logical client: each is admitted by its own filter, clipped and noised alone, and recorded in
the node's ledger, before anything is added up. The sum is of fixed-point integers, so it has the same bits
however the clients are grouped into cohorts and in whatever order they come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedveil.artifacts import NodeLedger
from fedveil.clients.gradients import Arrays
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.clients.training import ClientData, LocalUpdate, local_update
from fedveil.models import refuse_record_coupling
from fedveil.privacy import PrivacyFilter, Relation, Release, StepMechanism
from fedveil.streams import Streams
from fedveil.wire import to_fixed

__all__ = ["Cohort", "CohortResult"]

_LIMIT = 2**62  # below it a sum has room for one more fixed-point update


@dataclass(frozen=True, eq=False)
class CohortResult:
    """What the clients of one cohort produced in one round.

    Parameters
    ----------
    totals : dict of str to int64 array
        Fixed-point sums of n_i times the update, over the clients that took part; 0 where the updates are kept.
    num_examples : int
        Sum of their n_i, which are public.
    took_part, out_of_budget : tuple of int
        Clients that trained, and clients whose filter refused them, in the order asked for.
    releases : tuple of Release
        Ledger rows of the clients that took part.
    updates : dict of str to float64 array, optional
        Each client's update, stacked in the order of ``took_part``; only if asked for.
    """

    totals: dict[str, NDArray[np.int64]]
    num_examples: int
    took_part: tuple[int, ...]
    out_of_budget: tuple[int, ...]
    releases: tuple[Release, ...]
    updates: dict[str, NDArray[np.float64]] | None = None


class Cohort:
    """The logical clients of one node in one run.

    Parameters
    ----------
    model : torch.nn.Module
        The architecture. No layer may mix records.
    data : mapping or callable
        ``data[client]`` or ``data(client)`` gives a client's :class:`ClientData`. A client that is out of
        budget is not asked for.
    mechanisms : mapping of int to StepMechanism or None
        The noised step of every client of this node; None where the node adds no noise.
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
        Clip of the records' gradients of clients without a mechanism; see :func:`local_update`.

    Raises
    ------
    ValueError
        If a layer mixes records, or Poisson-sampled steps come without the length of their schedule, which no
        filter replaces.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[int, ClientData] | Callable[[int], ClientData],
        mechanisms: Mapping[int, StepMechanism | None],
        *,
        budgets: Mapping[Relation, float],
        streams: Streams,
        node_ledger: NodeLedger | None,
        run: str,
        steps: int,
        learning_rate: float,
        clip_norm: float = math.inf,
    ) -> None:
        refuse_record_coupling(model)
        for client, mechanism in mechanisms.items():
            if mechanism is not None and mechanism.sampling_rate < 1 and mechanism.num_releases is None:
                raise ValueError(
                    f"client {client} samples its records and has no fixed schedule: give num_releases."
                )
        self.model, self.run, self.mechanisms = model, run, dict(mechanisms)
        self._data = data if callable(data) else data.__getitem__
        self._budgets, self._streams = dict(budgets), streams
        self._ledger = node_ledger if node_ledger is not None else MemoryLedger()
        self._steps, self._learning_rate, self._clip_norm = steps, learning_rate, clip_norm

    @property
    def clients(self) -> tuple[int, ...]:
        """The logical clients of this node, in increasing order."""
        return tuple(sorted(self.mechanisms))

    def num_records(self, client: int) -> int:
        """The public number of records n_i of a client."""
        mechanism = self.mechanisms[client]
        return mechanism.num_records if mechanism is not None else len(self._data(client))

    def train(
        self, round: int, arrays: Arrays, clients: Iterable[int], *, keep_updates: bool = False
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
        keep_updates : bool
            Return each client's own update instead of the totals, for a server that clips and adds noise itself. One
            that is not finite counts as 0: were it an error, it would take the others' updates with it, and the
            server's sum would move by more than the one client's clip.

        Returns
        -------
        CohortResult
            Its rows are on disk. Who is out of budget is a function of public and released values; everything
            else in it is a function of the noised means that the rows pay for.

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
        totals = {name: np.zeros(np.shape(value), dtype=np.int64) for name, value in arrays.items()}
        num_examples, took_part, out_of_budget = 0, list[int](), list[int]()
        releases, digests, updates = list[Release](), dict[int, str](), list[dict[str, NDArray[np.float64]]]()
        try:
            for client in asked:
                if not self._admits(round, client):
                    out_of_budget.append(client)
                    continue
                update = self._update(round, client, arrays)
                releases += update.releases
                digests[client] = _digest(update.delta)
                took_part.append(client)
                num_examples += self.num_records(client)
                if keep_updates:
                    updates.append(_finite_or_zero(update.delta))
                else:
                    self._add(totals, client, update.delta)
        finally:
            # also after an error, which is the outcome of a noised step too
            if releases:
                self._ledger.record(
                    self.run,
                    digests,
                    releases,
                    replay=self._streams.is_seeded,
                    admit=lambda client, past: self._within_budget(round, client, past.spent, past.count),
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
            tuple(releases),
            stacked if keep_updates else None,
        )

    def _check_clients(self, asked: tuple[int, ...]) -> None:
        unknown = sorted(set(asked) - set(self.mechanisms))
        if unknown:
            raise ValueError(f"client {unknown[0]} is not on this node, which hosts {_listed(self.clients)}.")
        if len(set(asked)) < len(asked):
            raise ValueError("a client was named twice in one request; name each client once.")

    def _in_model_order(self, arrays: Arrays) -> dict[str, NDArray[np.floating]]:
        """The arrays in the order of the model's trainable parameters, in which noise is drawn."""
        parameters = self.model.named_parameters()
        shapes = {name: tuple(value.shape) for name, value in parameters if value.requires_grad}
        given = {name: np.shape(value) for name, value in arrays.items()}
        if given != shapes:
            raise ValueError(
                f"the model that was sent has arrays {given}, but this node's model has {shapes}: "
                "server and node must build the same model."
            )
        return {name: np.asarray(arrays[name]) for name in shapes}

    def _admits(self, round: int, client: int) -> bool:
        """Whether the client may take part, decided before its records are looked at."""
        # in a run that repeats itself, a replayed round's own rows are no past
        replayed = round if self._streams.is_seeded else None
        return self._within_budget(
            round,
            client,
            lambda: self._ledger.spent(self.run, client, except_round=replayed),
            lambda: self._ledger.count(self.run, client, except_round=replayed),
        )

    def _within_budget(
        self, round: int, client: int, spent: Callable[[], dict[Relation, float]], count: Callable[[], int]
    ) -> bool:
        """Whether a round's releases fit beside those made before."""
        mechanism = self.mechanisms[client]
        if mechanism is None:
            return True
        if mechanism.sampling_rate < 1:
            return count() + self._steps <= (mechanism.num_releases or 0)
        rows = [row for step in range(self._steps) for row in mechanism.releases(client, round, step)]
        past = spent()
        if any(math.isinf(past.get(relation, 0.0)) for relation in self._budgets):
            return False  # an earlier release has no bound under this relation
        known = {relation: past[relation] for relation in self._budgets if relation in past}
        return PrivacyFilter(self._budgets, known).admits(rows)

    def _update(self, round: int, client: int, arrays: Arrays) -> LocalUpdate:
        return local_update(
            self.model,
            arrays,
            self._data(client),
            mechanism=self.mechanisms[client],
            steps=self._steps,
            learning_rate=self._learning_rate,
            clip_norm=self._clip_norm,
            noise=self._streams.stream("noise", round=round, client=client),
            batches=self._streams.stream("batch", round=round, client=client),
            round=round,
            client=client,
        )

    def _add(
        self, totals: dict[str, NDArray[np.int64]], client: int, delta: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """Add n_i times the update to the totals, in fixed point."""
        weight = self.num_records(client)
        for name, change in delta.items():
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
    return {name: np.zeros_like(change) for name, change in delta.items()}


def _digest(delta: Mapping[str, NDArray[np.float64]]) -> str:
    digest = blake2b(digest_size=16)
    for name, change in delta.items():
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(change).tobytes())
    return digest.hexdigest()


def _listed(clients: tuple[int, ...]) -> str:
    return f"{len(clients)} clients" + (f", {clients[0]} to {clients[-1]}" if clients else "")
