"""Rows of whole cohorts in a node's ledger: one for the release of many clients, who they are as a bitmap.

Clients that each hold one record and release the same quantity with the same noise have rows that differ in the client
only. Kept one by one, those of a million would take minutes to write.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts.arrays_file import DamagedFile
from fedveil.artifacts.client_rows import ReplayMismatch, round_up
from fedveil.client_mask import pack_clients, unpack_clients
from fedveil.privacy import CohortRelease, PrivacyFilter, Relation, Release, squared_mu

__all__ = ["Alike", "Sent", "add", "affordable", "alike", "alike_of", "earlier", "unsent"]

_ROW = "round, digests, step, name, relation, sensitivity, sigma, chosen, sampling_rate, clients"
_LARGEST_CLIENT = 2**40
_DIGEST = 16


@dataclass(frozen=True, eq=False)
class Sent:
    """A cohort's message: what it released, and a digest of each part of it.

    Parameters
    ----------
    digests : mapping of int to bytes
        By the first client of each part, 16 bytes that tell of who is in it and what they send; a part reaches to the
        next, and the last to the end. Parts are the same however clients are split over nodes.
    cohort : CohortRelease

    Raises
    ------
    ValueError
        If the parts are not all clients, or a digest has another length.
    """

    digests: Mapping[int, bytes]
    cohort: CohortRelease

    def __post_init__(self) -> None:
        """Check that every client is in a part."""
        starts = np.array(sorted(self.digests), dtype=np.int64)
        whole = starts[:1].tolist() == self.cohort.clients[:1].tolist()
        if not whole or not np.isin(starts, self.cohort.clients).all():
            raise ValueError(
                "a cohort has ledger rows but no digest of its message: give one for every part."
            )
        if any(len(digest) != _DIGEST for digest in self.digests.values()):
            raise ValueError(f"a digest of a part of a message must have {_DIGEST} bytes.")

    @property
    def round(self) -> int:
        """Round of the release."""
        return self.cohort.release.round

    def members(self) -> dict[int, NDArray[np.int64]]:
        """Clients of each part, by its first."""
        starts = sorted(self.digests)
        places = np.searchsorted(self.cohort.clients, starts[1:])
        return dict(zip(starts, np.split(self.cohort.clients, places), strict=True)) if starts else {}


class Alike(NamedTuple):
    """Messages that the same clients sent with the same noise: a row of the kind, who sent it, and how often."""

    release: Release
    clients: NDArray[np.int64]
    times: int = 1


def alike_of(sent: Iterable[Sent], except_round: int | None) -> Iterator[Alike]:
    """What messages count for in budgets, but for those of one round."""
    for one in sent:
        if one.round != except_round:
            row = one.cohort.release
            terms = (row.relation, row.sensitivity, row.sigma, row.chosen, row.sampling_rate)
            yield Alike(_kind(*terms), one.cohort.clients)


def alike(database: sqlite3.Connection, run: str, except_round: int | None = None) -> Iterator[Alike]:
    """What the messages of a run count for in budgets, one row in memory at a time.

    Parameters
    ----------
    except_round : int, optional
        Leave this round out: in a seeded run that replays a round, its own rows are no past.

    Raises
    ------
    DamagedFile
        If a row is none.
    """
    query = """SELECT relation, sensitivity, sigma, chosen, sampling_rate, clients FROM cohorts
               WHERE run = ?1 AND (?2 IS NULL OR round <> ?2) ORDER BY round, attempt"""
    # who takes part in every round has equal rows one after another: they are read once
    with _damage_named(database):
        for (*terms, packed), rows in groupby(database.execute(query, (run, except_round))):
            yield Alike(_kind(*terms), unpack_clients(packed, _LARGEST_CLIENT), sum(1 for _ in rows))


def earlier(database: sqlite3.Connection, run: str | None = None, round: int | None = None) -> list[Sent]:
    """Messages of one run or all runs, of one round or all rounds, by run, round and attempt.

    Raises
    ------
    DamagedFile
        If a row is none.
    """
    query = f"""SELECT {_ROW} FROM cohorts WHERE (?1 IS NULL OR run = ?1) AND (?2 IS NULL OR round = ?2)
                ORDER BY run, round, attempt"""
    if run is not None and round is not None:  # by the key, and not through all rows
        query = f"SELECT {_ROW} FROM cohorts WHERE run = ?1 AND round = ?2 ORDER BY attempt"
    with _damage_named(database):
        return [_sent(row) for row in database.execute(query, (run, round))]


@lru_cache(maxsize=4096)  # most messages of a run are of one kind
def _kind(relation: Relation, sensitivity: float, sigma: float, chosen: Any, sampling_rate: float) -> Release:
    """A row that stands for all of its kind, whose mu is the same."""
    return Release(-1, 0, 0, "any", relation, sensitivity, sigma, chosen, sampling_rate)


@contextmanager
def _damage_named(database: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        path = database.execute("PRAGMA database_list").fetchone()[2]
        raise DamagedFile(f"{path} has a cohort's row that cannot be read ({error}): restore it.") from error


def add(database: sqlite3.Connection, run: str, sent: Sent) -> None:
    """Add a message, as the next attempt of its round."""
    row = sent.cohort.release
    query = "SELECT COUNT(*) FROM cohorts WHERE run = ? AND round = ?"
    attempt = database.execute(query, (run, row.round)).fetchone()[0]
    terms = (row.step, row.name, row.relation, row.sensitivity, row.sigma, row.chosen, row.sampling_rate)
    starts = sorted(sent.digests)
    digests = np.array(starts, dtype="<i8").tobytes() + b"".join(sent.digests[start] for start in starts)
    database.execute(
        "INSERT INTO cohorts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (run, row.round, attempt, digests, *terms, pack_clients(sent.cohort.clients)),
    )


def unsent(run: str, sent: Sent, before: Iterable[Sent]) -> Sent:
    """The parts of a seeded run's message that it has not sent before; those that are equal count once.

    Raises
    ------
    ReplayMismatch
        If a client sent something else in that round: with the noise of before, the difference of the two would be
        free of noise.
    """
    others = [other for other in before if other.round == sent.round]
    known = {
        (start, digest, other.cohort.release) for other in others for start, digest in other.digests.items()
    }
    release = sent.cohort.release
    new = {
        start: part
        for start, part in sent.members().items()
        if (start, sent.digests[start], release) not in known
    }
    clients = np.concatenate([np.zeros(0, dtype=np.int64), *new.values()])
    for other in others:
        again = clients[_is_in(clients, other.cohort.clients)]
        if again.size:
            raise ReplayMismatch(
                f"client {again[0]} sent something else before in round {sent.round} of run {run!r}, and a "
                "seeded run must repeat itself to the bit: restore its settings, data and library versions, or "
                "start a new run."
            )
    return Sent({start: sent.digests[start] for start in new}, CohortRelease(release, clients))


def affordable(
    cohort: CohortRelease, budget: Mapping[Relation, float], before: Iterable[Alike]
) -> NDArray[np.bool_]:
    """Which clients of a cohort can make the release without passing their budget mu_B under any relation.

    Returns
    -------
    bool array (k,)
        In the order of the cohort's clients.
    """
    counts = _counts(cohort.clients, before)
    allowed = np.ones(cohort.count, dtype=bool)
    for relation, mu in budget.items():
        history, sums = _histories(counts, cohort.count, relation)
        verdicts = [
            math.isfinite(spent) and PrivacyFilter({relation: mu}, {relation: spent}).admits([cohort.release])
            for spent in sums.tolist()
        ]
        allowed &= np.array(verdicts, dtype=bool)[history]
    return allowed


def _counts(clients: NDArray[np.int64], before: Iterable[Alike]) -> dict[Release, NDArray[np.int64]]:
    """How often each client made each kind of release."""
    if not clients.size:
        return {}
    first, last = int(clients[0]), int(clients[-1])
    tables: defaultdict[Release, NDArray[np.int64]] = defaultdict(
        lambda: np.zeros(last - first + 1, dtype=np.int64)
    )
    for release, members, times in before:
        low, high = np.searchsorted(members, first), np.searchsorted(members, last, side="right")
        tables[release][members[low:high] - first] += times
    return {release: table[clients - first] for release, table in tables.items()}


def _histories(
    counts: Mapping[Release, NDArray[np.int64]], size: int, relation: Relation
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Group clients that released each kind equally often: their group, and the sum of mu^2 of each group."""
    times: dict[float, NDArray[np.int64]] = {}
    for release, made in counts.items():
        square = squared_mu([release], relation)
        times[square] = times[square] + made if square in times else made
    history, groups = np.zeros(size, dtype=np.int64), list[dict[float, int]]([{}])
    for square, made in times.items():
        radix = int(made.max(initial=0)) + 1
        joined = history * radix + made
        # counted and not sorted: a million clients have few different histories
        present = np.flatnonzero(np.bincount(joined, minlength=1))
        groups = [{**groups[code // radix], square: int(code % radix)} for code in present]
        place = np.zeros(int(present.max(initial=0)) + 1, dtype=np.int64)
        place[present] = np.arange(present.size)
        history = place[joined]
    return history, np.array([_total(group) for group in groups])


def _total(times: Mapping[float, int]) -> float:
    made = {square: count for square, count in times.items() if count}
    if any(math.isinf(square) for square in made):
        return math.inf
    return round_up(sum(Fraction(square) * count for square, count in made.items()))


def _is_in(clients: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each client is among the members; both strictly increasing."""
    if not members.size or not clients.size:
        return np.zeros(clients.size, dtype=bool)
    if clients.size == members.size and np.array_equal(clients, members):
        return np.ones(clients.size, dtype=bool)
    first = min(int(clients[0]), int(members[0]))
    table = np.zeros(max(int(clients[-1]), int(members[-1])) - first + 1, dtype=bool)
    table[members - first] = True
    return table[clients - first]


def _sent(row: tuple[Any, ...]) -> Sent:
    round, digests, *terms, clients = row
    parts = len(digests) // (8 + _DIGEST)
    starts = np.frombuffer(digests[: 8 * parts], dtype="<i8").tolist()
    ends = (digests[8 * parts + _DIGEST * part :][:_DIGEST] for part in range(parts))
    release = Release(-1, round, *terms)
    return Sent(
        dict(zip(starts, ends, strict=True)), CohortRelease(release, unpack_clients(clients, _LARGEST_CLIENT))
    )
