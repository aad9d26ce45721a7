"""How a node answers the question for losses: each client's differences, clipped, noised and paid for.

A client's losses are evaluated on its own records, the differences with the reference are clipped and summed, and the
client adds noise from its own stream. What that costs is in the node's ledger before the answer is returned, and the
client's filter has admitted it beside all it has released before; a client that cannot pay is out of budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedveil.artifacts import NodeLedger
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.clients.same_model import require_same_model
from fedveil.clients.training import ClientData
from fedveil.loss_query import MOMENTS, LossQuery, moments_vector
from fedveil.models import Learner, candidate_losses
from fedveil.privacy import LOSS_DIFFERENCES, LossMoments, LossReleases, PrivacyFilter, Relation, Release
from fedveil.streams import Streams
from fedveil.wire import (
    CLIENTS,
    LEDGER,
    LIBRARY,
    OUT_OF_BUDGET,
    RELEASED,
    ROWS,
    SOURCE,
    encode_released,
    encode_releases,
)

__all__ = ["LossNode", "handle_losses"]


@dataclass(frozen=True, eq=False)
class LossNode:
    """The clients of one node in one run, as far as their losses are asked for.

    Parameters
    ----------
    learner : Learner
        The network and the loss of a record.
    data : callable
        ``data(client)`` gives a client's :class:`ClientData`; a client that is out of budget is not asked for.
    examples : mapping of int to int
        The public number of records of each client here.
    run : str
        Name of the run in the ledger.
    streams : Streams
        Noise. Seeded streams make this a simulation that repeats itself to the bit.
    mus : mapping of Relation to float
        What a client's releases may cost together; empty where losses are not released.
    budgets : mapping of Relation to float
        mu_B of each client's total over the run, training included.
    ledger : NodeLedger or MemoryLedger, optional
        Where rows are recorded before an answer is returned; needed for releases.
    study : bool
        Give exact moments, which are not private: for simulations.
    """

    learner: Learner
    data: Callable[[int], ClientData]
    examples: Mapping[int, int]
    run: str
    streams: Streams
    mus: Mapping[Relation, float]
    budgets: Mapping[Relation, float]
    ledger: NodeLedger | MemoryLedger | None = None
    study: bool = False


def handle_losses(request: RecordDict, node: LossNode, fingerprint: Mapping[str, str]) -> RecordDict:
    """Answer a request for losses.

    Parameters
    ----------
    request : RecordDict
        See :class:`fedveil.loss_query.LossQuery`.
    node : LossNode
    fingerprint : mapping of str to str
        Library version and source hash, from :func:`fedveil.wire.fingerprint`.

    Returns
    -------
    RecordDict
        ``ledger`` with ``rows``, ``released`` (a vector a client), ``clients``, ``out-of-budget``, ``library`` and
        ``source``. The rows are on disk.

    Raises
    ------
    ValueError
        If the request is malformed, of another run, of clients that are not here, or asks for what this node's own
        settings do not give; no record has been looked at then.
    BudgetExceeded, ReplayMismatch, WriteFailed
        From the ledger; nothing may be sent then.
    """
    query, clients = LossQuery.read(request)
    _check(query, clients, node)
    if query.kind == "study":
        released = {client: {MOMENTS: tuple(_moments(query, node, client).tolist())} for client in clients}
        return _reply(released, (), (), fingerprint)
    vectors, rows, out_of_budget = _release(query, clients, node)
    released = {client: {LOSS_DIFFERENCES: tuple(vector.tolist())} for client, vector in vectors.items()}
    return _reply(released, rows, out_of_budget, fingerprint)


def _check(query: LossQuery, clients: tuple[int, ...], node: LossNode) -> None:
    """Refuse, before any record is looked at, what this node does not do."""
    if query.run != node.run:
        raise ValueError(
            f"the request is of run {query.run!r}, but this node was set up for run {node.run!r}."
        )
    if query.kind == "study" and not node.study:
        raise ValueError(
            "exact moments of losses are not private: a node gives them in a simulation with membership = 'study' only."
        )
    if query.kind == "released" and (not node.mus or node.ledger is None):
        raise ValueError(
            "this node has no budget to release losses: it gives them with membership = 'federated' only."
        )
    unknown = [client for client in clients if type(client) is not int or client not in node.examples]
    if unknown:
        raise ValueError(
            f"client {unknown[0]!r} is not on this node, which hosts {len(node.examples)} clients."
        )
    if len(set(clients)) < len(clients):
        raise ValueError("a client was named twice in one request; name each client once.")
    shapes = {name: array.shape[1:] for name, array in query.candidates.items()}
    require_same_model(node.learner, shapes, "the candidates have")


def _release(
    query: LossQuery, clients: tuple[int, ...], node: LossNode
) -> tuple[dict[int, NDArray[np.float64]], tuple[Release, ...], tuple[int, ...]]:
    ledger = node.ledger
    if ledger is None:
        raise ValueError("losses are released with a ledger only: give the node one.")
    plans = {
        client: LossReleases.planned(node.examples[client], query.pairs, query.clip_norms, node.mus)
        for client in clients
    }
    # in a run that repeats itself, the rows of the same question are no past
    replayed = query.round if node.streams.is_seeded else None
    vectors: dict[int, NDArray[np.float64]] = {}
    rows, digests, out_of_budget = list[Release](), dict[int, str](), list[int]()
    for client, plan in plans.items():
        own = plan.releases(client, query.round)
        # what losses may cost is spent at once, so that a second question gets no answer
        asked = any(
            row.name == LOSS_DIFFERENCES and row.round != replayed
            for row in ledger.releases(node.run, client)
        )
        spent = ledger.spent(node.run, client, except_round=replayed)
        if asked or not _admits(node.budgets, spent, own):
            out_of_budget.append(client)
            continue
        # of this question alone: in a seeded run two questions with one noise would tell their difference
        purpose = f"loss-noise/{query.digest}"
        normals = node.streams.stream(purpose, round=query.round, client=client).normal(plan.size)
        vectors[client] = plan.release(_losses(query, node, client), normals)
        digests[client] = blake2b(vectors[client].tobytes(), digest_size=16).hexdigest()
        rows += own
    if rows:
        ledger.record(
            node.run,
            digests,
            rows,
            replay=node.streams.is_seeded,
            admit=lambda client, past: _admits(
                node.budgets, past.spent(), plans[client].releases(client, query.round)
            ),
        )
    return vectors, tuple(rows), tuple(out_of_budget)


def _admits(
    budgets: Mapping[Relation, float], past: Mapping[Relation, float], rows: tuple[Release, ...]
) -> bool:
    """Whether these rows fit beside those before; where nothing is limited no filter could tell, and none leave."""
    if not budgets or any(math.isinf(past.get(relation, 0.0)) for relation in budgets):
        return False
    return PrivacyFilter(budgets, {key: past[key] for key in budgets if key in past}).admits(rows)


def _losses(query: LossQuery, node: LossNode, client: int) -> NDArray[np.float64]:
    data = node.data(client)
    return candidate_losses(node.learner, query.candidates, data.features, data.labels, data.shape or None)


def _moments(query: LossQuery, node: LossNode, client: int) -> NDArray[np.float64]:
    """Exact moments of each quantizer's candidates, one vector."""
    ends = np.cumsum(np.array(query.pairs) + 1)[:-1]
    parts = np.split(_losses(query, node, client), ends, axis=1)
    return np.concatenate([moments_vector(LossMoments.from_losses(part)) for part in parts])


def _reply(
    released: Mapping[int, Mapping[str, tuple[float, ...]]],
    rows: tuple[Release, ...],
    out_of_budget: tuple[int, ...],
    fingerprint: Mapping[str, str],
) -> RecordDict:
    return RecordDict(
        {
            LEDGER: ConfigRecord(
                {
                    ROWS: encode_releases(rows),
                    RELEASED: encode_released(released),
                    CLIENTS: list(released),
                    OUT_OF_BUDGET: list(out_of_budget),
                    LIBRARY: fingerprint[LIBRARY],
                    SOURCE: fingerprint[SOURCE],
                }
            )
        }
    )
