"""One release of each client of a cohort, as one value: the same ledger row for all, and who they are.

A million clients that each send one message have a million ledger rows that differ in the client only; here
they are one template row and an array.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.domain import one_of, whole
from fedveil.privacy.gaussian import compose_mu
from fedveil.privacy.release import RELATIONS, Relation, Release, rows_under


@dataclass(frozen=True, eq=False)
class CohortRelease:
    """The same release by each of many clients, each from its own records.

    Parameters
    ----------
    release : Release
        Template row; its client is -1.
    clients : int64 array of shape (K,)
        Who released, each once, in increasing order; may be empty.

    Raises
    ------
    ValueError
        When the template names a client or the clients are not as said.
    """

    release: Release
    clients: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check the fields and keep an array of our own."""
        if self.release.client != -1:
            raise ValueError(
                f"The template row of a cohort names client {self.release.client}: give it client -1."
            )
        object.__setattr__(self, "clients", _sorted_clients(self.clients))

    @property
    def count(self) -> int:
        """Number of clients that released."""
        return len(self.clients)

    @property
    def mu(self) -> float:
        """Gaussian privacy parameter of one client's release, under the template's relation."""
        return self.release.mu

    def of(self, client: int) -> Release:
        """Ledger row of one client of the cohort.

        Raises
        ------
        ValueError
            When the client is not in the cohort.
        """
        place = int(np.searchsorted(self.clients, client))
        if place == len(self.clients) or self.clients[place] != client:
            raise ValueError(
                f"Client {client} is not in this cohort: ask for one of its {self.count} clients."
            )
        return replace(self.release, client=int(client))

    def __iter__(self) -> Iterator[Release]:
        """Ledger rows one by one, in order of clients."""
        return (replace(self.release, client=client) for client in self.clients.tolist())


def participations(cohort_releases: Iterable[CohortRelease], num_clients: int) -> NDArray[np.int64]:
    """How many releases each client made.

    Returns
    -------
    int64 array of shape (num_clients,)
        Rows that tell of one release under two relations count once for each.

    Raises
    ------
    ValueError
        When a cohort holds a client that is not among the `num_clients`.
    """
    counts = np.zeros(whole("num_clients", num_clients, minimum=1), dtype=np.int64)
    for cohort in cohort_releases:
        if cohort.count and cohort.clients[-1] >= len(counts):
            raise ValueError(
                f"A cohort holds client {int(cohort.clients[-1])} of {len(counts)}: "
                "give the number of all clients of the run."
            )
        counts[cohort.clients] += 1
    return counts


def worst_mu(cohort_releases: Iterable[CohortRelease], relation: Relation) -> float:
    """Largest mu of any client over all its releases, composed, under `relation`.

    Clients with the same releases cost the same, so this composes once for each kind of history, exactly as
    `compose_mu` does, not once for each client. Every cohort counts as releases of their own, so two that tell of
    one message under two relations are counted twice: on the private side.

    Returns
    -------
    float
        0 for no release; inf when some release of a client has no row that bounds it under `relation`.

    Raises
    ------
    ValueError
        When the relation is unknown or a release is subsampled.
    """
    one_of("relation", relation, RELATIONS)
    cohorts = tuple(cohort for cohort in cohort_releases if cohort.count)
    if not cohorts:
        return 0.0
    num_clients = 1 + max(int(cohort.clients[-1]) for cohort in cohorts)
    kinds: defaultdict[Release, list[CohortRelease]] = defaultdict(list)
    for cohort in cohorts:  # the round and the name of a release change nothing of its cost
        kinds[replace(cohort.release, round=0, step=0, name="any")].append(cohort)
    counts = [participations(members, num_clients) for members in kinds.values()]
    # One number for each client, equal for those with equal counts of every kind.
    histories = np.zeros(num_clients, dtype=np.int64)
    for count in counts:
        _, histories = np.unique(histories * (count.max() + 1) + count, return_inverse=True)
    _, examples = np.unique(histories, return_index=True)
    bounding = [rows_under((row,), relation) for row in kinds]
    if None in bounding:
        return math.inf
    mus = [rows[0].mu for rows in bounding if rows is not None]
    return max(
        compose_mu(mu for mu, count in zip(mus, counts, strict=True) for _ in range(count[example]))
        for example in examples
    )


def _sorted_clients(clients: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(clients)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"clients of shape {array.shape} and type {array.dtype} are not allowed: give a list of whole numbers."
        )
    array = array.astype(np.int64)
    if array.size and (array[0] < 0 or (np.diff(array) <= 0).any()):
        raise ValueError("clients are not in order: give each client once, in increasing order, from 0.")
    array.setflags(write=False)
    return array
