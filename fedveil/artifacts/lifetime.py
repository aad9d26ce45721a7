"""What a node's records have spent over all runs: a total that no new run, name or restart makes smaller.

Each run counts with the client of it that has spent most, since clients have other numbers in another run. Sums are
exact and on the private side: every attempt counts, whether its message arrived or not; records that were sampled for a
release count as if all had been used; what has no bound counts as infinite. A total that is kept below mu_B^2 at every
release is a filter: the (epsilon, delta) of mu_B holds for all runs together, whatever led from one to the next
(THEORY 0).
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from fedveil.artifacts import cohort_rows
from fedveil.artifacts.cohort_rows import Alike
from fedveil.artifacts.node_tables import TERMS, damaged
from fedveil.privacy import RELATIONS, BudgetExceeded, Relation, Release, squared_mu

__all__ = ["LifetimeExceeded", "Square", "book", "refuse_excess", "spent_by_run"]

Square = Fraction | float
"""A sum of mu^2; a float only where it is infinite."""

Terms = tuple[Any, ...]


class LifetimeExceeded(BudgetExceeded):
    """A release was refused since all runs together would spend more than the node's owner allows."""


def spent_by_run(database: sqlite3.Connection, relation: Relation) -> dict[str, Square]:
    """Sum of mu^2 of the worst-off client of each run that is in the ledger, by the run's name.

    Raises
    ------
    DamagedFile
        If a row cannot be read.
    """
    found: defaultdict[str, list[Square]] = defaultdict(list)
    for run, kinds in _single_clients(database):
        found[run].append(_total((_square(rows, relation), count) for rows, count in kinds.items()))
    for run in _names(database, "cohorts"):
        found[run].append(_worst_of_cohorts(cohort_rows.alike(database, run), relation))
    query = "SELECT run, mu FROM bookings WHERE relation = ?"
    for run, mu in database.execute(query, (relation,)):
        if type(mu) is not float or not mu >= 0:
            raise damaged(f"a booking of {mu!r}")
        found[run].append(Fraction(mu) ** 2 if math.isfinite(mu) else math.inf)
    return {run: max(squares) for run, squares in found.items()}


def refuse_excess(database: sqlite3.Connection, limits: Mapping[Relation, float], what: str) -> None:
    """Refuse what the open transaction has just added, where all runs together pass a limit mu_B with it.

    Raises
    ------
    LifetimeExceeded
        The transaction must then end without a commit.
    """
    for relation, mu in limits.items():
        if sum(spent_by_run(database, relation).values()) > Fraction(mu) ** 2:
            raise LifetimeExceeded(
                f"refused by rule 'epsilon.{relation}' of this node's policy: with {what} all runs together would have "
                "spent more than its owner allows, so nothing of it leaves."
            )


def book(database: sqlite3.Connection, run: str, costs: Mapping[Relation, float]) -> None:
    """Keep what a whole run costs beside its rows, or the larger cost where some was kept before.

    Parameters
    ----------
    costs : mapping of Relation to float
        mu of the run's total; under a relation that is left out the run counts as infinite.
    """
    for relation in RELATIONS:
        database.execute(
            "INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET mu = max(mu, excluded.mu)",
            (run, relation, float(costs.get(relation, math.inf))),
        )


def _names(database: sqlite3.Connection, table: str) -> list[str]:
    return [run for (run,) in database.execute(f"SELECT DISTINCT run FROM {table} ORDER BY run").fetchall()]


def _single_clients(database: sqlite3.Connection) -> Iterator[tuple[str, Counter[tuple[Terms, ...]]]]:
    """Run and releases of every client that has rows of its own: their rows' terms, and how many are alike."""
    query = f"""SELECT run, client, round, attempt, step, name, {TERMS} FROM releases
                ORDER BY run, client, round, attempt, step, name, relation"""
    for (run, _), rows in groupby(database.execute(query), key=lambda row: row[:2]):
        events = groupby(rows, key=lambda row: row[:6])
        yield run, Counter(tuple(row[6:] for row in event) for _, event in events)


def _worst_of_cohorts(sent: Iterable[Alike], relation: Relation) -> Square:
    """The largest sum of mu^2 of any client; clients with the same releases are summed once."""
    kinds: defaultdict[Square, list[Alike]] = defaultdict(list)
    for one in sent:
        if one.clients.size:
            row = one.release
            terms = (row.relation, row.sensitivity, row.sigma, row.chosen, row.sampling_rate)
            kinds[_square((terms,), relation)].append(one)
    if not kinds:
        return Fraction(0)
    first = min(int(one.clients[0]) for alike in kinds.values() for one in alike)
    last = max(int(one.clients[-1]) for alike in kinds.values() for one in alike)
    times = np.zeros((len(kinds), last - first + 1), dtype=np.int64)
    for counts, alike in zip(times, kinds.values(), strict=True):
        for one in alike:
            counts[one.clients - first] += one.times
    return max(_total(zip(kinds, each.tolist(), strict=True)) for each in np.unique(times, axis=1).T)


def _total(squares: Iterable[tuple[Square, int]]) -> Square:
    made = [(square, count) for square, count in squares if count]
    if any(square == math.inf for square, _ in made):
        return math.inf
    return sum((square * count for square, count in made), Fraction(0))


@lru_cache(maxsize=4096)  # most releases are alike, and their arithmetic is exact
def _square(rows: tuple[Terms, ...], relation: Relation) -> Square:
    """mu^2 of one release under a relation, rounded up; infinite where nothing bounds it."""
    try:
        releases = [
            Release(0, 0, 0, "any", bound, sensitivity, sigma) for bound, sensitivity, sigma, _, _ in rows
        ]
    except (TypeError, ValueError) as error:
        raise damaged(error) from error
    # noise that was chosen by looking at private data proves nothing, whatever it was
    if any(chosen == "data-dependent" for _, _, _, chosen, _ in rows):
        return math.inf
    square = squared_mu(releases, relation)
    return Fraction(square) if math.isfinite(square) else math.inf
