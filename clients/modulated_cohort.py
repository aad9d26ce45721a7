"""A node of clients that hold one record each: their messages, made in blocks, recorded, and added up.

Privacy is each client's own: its record is clipped and noised alone, and its ledger row is on disk, before anything
leaves. Sums are of fixed blocks of consecutive clients on a public fixed-point grid, so that they have the same bits on
any number of nodes.

A node has a share of clients that everybody numbers alike, or is a site that brings its own. Who has paid at a site is
filed under its own numbers, from 0: the numbers that a server gives its clients change from run to run, and one that
changed them within a run would otherwise find every budget whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import NodeLedger
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.clients.modulated_encoding import Encoded, encode_gradients, encode_messages, words_needed
from fedveil.clients.modulated_place import Place
from fedveil.clients.modulated_request import MessageRequest
from fedveil.clients.modulated_variant import VariantPlan
from fedveil.moment_sums import Sums, add, block_size, block_sums, blocks_of, zero_sums
from fedveil.privacy import CohortRelease
from fedveil.streams import Streams
from fedveil.wire import MAIN

__all__ = ["ModulatedCohort", "ModulatedResult", "VariantPlan"]

Rows = Callable[[int, int], tuple[NDArray[np.floating], NDArray[np.float64]]]
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class ModulatedResult:
    """What leaves a node in one round.

    Parameters
    ----------
    arrays : dict of str to array
        Sums, int64: ``gram`` (d, d), ``cross`` (d,), ``total`` (d,), ``labels`` (2,), or ``gradient`` (d + 1,); see
        :class:`fedveil.moment_sums.SumGrid`. Or, float64 in the order of clients: ``messages`` (k, d) and ``labels``
        (k,).
    took_part, out_of_budget : int64 array
        Clients that sent, and clients that could not pay, by their numbers in the run; functions of public facts.
    release : CohortRelease or None
        The row of each client that took part, by the numbers under which the node files them; None for messages
        without noise.
    """

    arrays: Arrays
    took_part: NDArray[np.int64]
    out_of_budget: NDArray[np.int64]
    release: CohortRelease | None


@dataclass(frozen=True, eq=False)
class _Part:
    """What the clients of one block send: sums or single messages, a digest, and how many records were clipped."""

    first: int
    arrays: Arrays
    digest: bytes
    clipped: int


class ModulatedCohort:
    """The clients of one node in one run, one record each.

    Parameters
    ----------
    rows : callable
        ``rows(first, last)``: features (k, d), standardised by public constants, and targets (k,) of the clients
        first, ..., last - 1; a site counts its own from 0.
    first, count : int
        Clients that this node hosts; whole blocks, see :func:`fedveil.moment_sums.share_of`. A site has no first one:
        None, and each request tells what number it has in the run.
    num_clients : int
        Clients of the run, on all nodes; None at a site, as above.
    plans : mapping of str to VariantPlan
        What clients send for each variant. Outside a simulation only ``main``, and variants of mechanism ``range``,
        can be asked for, which are of the run itself, and variants without noise if the node's owner allows them.
    streams : Streams
        Phases and noise. Seeded streams make this a simulation that repeats itself to the bit.
    node_ledger : NodeLedger, optional
        Where rows are recorded before a result is returned. None: remembered by this object only.
    run : str
        Name of the run in the ledger; that of a comparator is ``<run>-<variant>``.
    simulated : bool
        Whether this node is simulated: its records are then no secret from whoever runs it.
    filed_as : str
        What the ledger calls the run, where that is not its name: simulated sites share a file.
    allows_unnoised : bool
        Whether records may leave without any noise, outside a simulation too: only where the node's owner says so.

    Raises
    ------
    ValueError
        If the clients are not whole blocks of the run's, a site has none, or a node that is not simulated has seeded
        streams.
    """

    def __init__(
        self,
        rows: Rows,
        first: int | None,
        count: int,
        num_clients: int | None,
        plans: Mapping[str, VariantPlan],
        streams: Streams,
        node_ledger: NodeLedger | None,
        run: str,
        simulated: bool,
        filed_as: str = "",
        allows_unnoised: bool = False,
    ) -> None:
        if first is not None and num_clients is not None:
            self._share: Place | None = Place.of_share(first, count, num_clients)
        elif count < 1 or (first, num_clients) != (None, None):
            raise ValueError(
                f"first = {first}, count = {count}, num_clients = {num_clients}: give all three, or for a site its "
                "count alone, of at least 1."
            )
        else:
            self._share = None
        if streams.is_seeded and not simulated:
            raise ValueError("noise from a seed protects nobody: seeded streams are for simulations only.")
        self.first, self.count, self.num_clients, self.run = first, count, num_clients, run
        self._rows, self._plans, self._streams, self._simulated = rows, dict(plans), streams, simulated
        self._filed_as, self._allows_unnoised = filed_as or run, simulated or allows_unnoised
        self._ledger = node_ledger if node_ledger is not None else MemoryLedger()

    @property
    def is_site(self) -> bool:
        """Whether the node brings its own clients, whose numbers in the run are the server's to give."""
        return self._share is None

    @property
    def max_client(self) -> int:
        """Largest number of a client that can be asked for: of the run's, or of the site's own, from 0."""
        return (self.count if self.num_clients is None else self.num_clients) - 1

    def answer(self, request: MessageRequest) -> ModulatedResult:
        """Make the messages of one round.

        Returns
        -------
        ModulatedResult
            Its rows are on disk. Everything in it is a function of public facts and of noised messages, but for
            labels in the clear where the variant has no label privacy, and for ``unnoised``.

        Raises
        ------
        ValueError
            If the request is not one for this node, or a record cannot be encoded.
        BudgetExceeded, ReplayMismatch, WriteFailed
            From the ledger; nothing may be sent then. A budget can be passed here only by requests served at the
            same time.
        """
        variant, place = self._variant(request), self._place(request)
        clients = place.own(request.clients)
        took_part, out_of_budget = clients, clients[:0]
        name = self._name(request.variant, variant)
        replay = self._streams.is_seeded
        if variant.plan is not None:
            asked = variant.plan.cohort_release(clients, request.round)
            allowed = self._ledger.affordable(name, asked, replay=replay, budget=variant.budget)
            took_part, out_of_budget = clients[allowed], clients[~allowed]
        parts = list(self._parts(request, variant, place, took_part))
        arrays = _joined(parts, request, variant)
        told = took_part + place.offset, out_of_budget + place.offset
        if variant.plan is None:
            note = f"{took_part.size} records left without noise"
            self._ledger.note(name, int(took_part[0]) if took_part.size else -1, request.round, note)
            return ModulatedResult(arrays, *told, None)
        release = variant.plan.cohort_release(took_part, request.round)
        clipped = sum(part.clipped for part in parts)
        note = f"{clipped} of {took_part.size} records were clipped to norm {variant.bound!r}"
        digests = {part.first: part.digest for part in parts}
        self._ledger.record_cohort(name, digests, release, replay=replay, budget=variant.budget, note=note)
        return ModulatedResult(arrays, *told, release)

    def _variant(self, request: MessageRequest) -> VariantPlan:
        """The node's own plan for a request, once all of the request is allowed."""
        if request.run != self.run:
            raise ValueError(
                f"the request is of run {request.run!r}, but this node was set up for run {self.run!r}."
            )
        variant = self._plans.get(request.variant)
        if variant is None:
            known = ", ".join(map(repr, self._plans))
            raise ValueError(f"variant {request.variant!r} is not one of this run, which has {known}.")
        if variant.plan is None and not self._allows_unnoised:
            raise ValueError(
                f"variant {request.variant!r} sends records without noise, which on a real node its owner alone can "
                'allow: list "none" under privacy in the node\'s policy file.'
            )
        if variant.plan is not None and not (self._simulated or _is_own(request.variant, variant)):
            raise ValueError(
                f"variant {request.variant!r} is for simulations only: it would spend the clients' budgets again."
            )
        if request.mechanism != variant.mechanism:
            raise ValueError(
                f"variant {request.variant!r} has mechanism {variant.mechanism!r}, and {request.mechanism!r} was asked."
            )
        wave = variant.modulation
        if wave.amplitude > 0 and len(request.directions) != wave.num_directions:
            raise ValueError(
                f"{len(request.directions)} directions were sent, and this run has {wave.num_directions}."
            )
        return variant

    def _place(self, request: MessageRequest) -> Place:
        if self._share is None:
            return Place.of_site(self.count, request)
        if request.num_clients is not None:
            raise ValueError("this node has a share of all clients, and a request numbered them anew.")
        return self._share

    def _name(self, name: str, variant: VariantPlan) -> str:
        return self._filed_as if _is_own(name, variant) else f"{self._filed_as}-{name}"

    def _parts(
        self, request: MessageRequest, variant: VariantPlan, place: Place, clients: NDArray[np.int64]
    ) -> Iterator[_Part]:
        """What the asked clients of each block send."""
        grid = variant.grid(place.num_clients)
        for members, block in self._blocks(request, variant, place, clients):
            arrays: Arrays
            if variant.mechanism == "gradient":
                arrays = {"gradient": grid.to_fixed("gradient", block.messages.sum(axis=0))}
            elif request.each:
                arrays = {"messages": block.messages, "labels": block.labels}
            else:
                arrays = dict(block_sums(block.messages, block.labels, grid))
            yield _Part(int(members[0]), arrays, _digest(members, arrays), block.clipped)

    def _blocks(
        self, request: MessageRequest, variant: VariantPlan, place: Place, clients: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], Encoded]]:
        encode = encode_gradients if variant.mechanism == "gradient" else encode_messages
        needed = words_needed(variant, request.dimension)
        for part in blocks_of(clients, block_size(place.num_clients)):
            members = clients[part]
            first, last = int(members[0]), int(members[-1]) + 1
            features, targets = self._rows(first, last)
            words = {
                kind: self._streams.words_of(
                    f"message-{kind}/{request.variant}",
                    round=request.round,
                    first=first + place.offset,  # else the first clients of all sites had the same noise
                    count=last - first,
                    words_each=number,
                )
                for kind, number in needed.items()
            }
            if members.size < last - first:
                places = members - first
                features, targets = features[places], targets[places]
                words = {kind: each[places] for kind, each in words.items()}
            yield members, encode(features, targets, members, words, variant, request)


def _is_own(name: str, variant: VariantPlan) -> bool:
    """Whether a variant's releases are the run's own, under one budget with its main ones."""
    return name == MAIN or variant.mechanism == "range"


def _joined(parts: list[_Part], request: MessageRequest, variant: VariantPlan) -> Arrays:
    """The arrays of a reply: those of the parts added up, or one after another."""
    width = request.dimension
    if request.each:
        return {
            name: np.concatenate([np.zeros(shape), *(part.arrays[name] for part in parts)])
            for name, shape in (("messages", (0, width)), ("labels", (0,)))
        }
    gradient = variant.mechanism == "gradient"
    sums = {"gradient": np.zeros(width + 1, dtype=np.int64)} if gradient else zero_sums(width)
    for part in parts:
        add(sums, cast(Sums, part.arrays))
    return dict(sums)


def _digest(members: NDArray[np.int64], arrays: Arrays) -> bytes:
    digest = blake2b(np.array([members[0], members[-1], members.size]).tobytes(), digest_size=16)
    if members.size <= members[-1] - members[0]:  # else they are all between the first and the last
        digest.update(members.tobytes())
    for name, values in arrays.items():
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(values).tobytes())
    return digest.digest()
