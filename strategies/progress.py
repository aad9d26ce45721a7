"""What a person sees while a run goes on: one line a round, and what was guaranteed at the end."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedveil.privacy import (
    BOUNDED_BY,
    CENTRAL_UPDATE,
    GRADIENT,
    Guarantee,
    Ledger,
    Relation,
    Release,
    composed_epsilon,
    gaussian_epsilon,
    rounded_up,
    rows_under,
)
from fedveil.strategies.outcome import RoundOutcome
from fedveil.strategies.time_left import time_left

__all__ = ["Progress", "weakest_guarantee"]

RELATIONS: tuple[Relation, ...] = ("attribute", "record", "client")


@dataclass
class Progress:
    """The line of each round, and the running figures behind it.

    The epsilon in a line is the largest of all clients under one relation, over the releases so far, at ``delta``,
    from the exact composition of Gaussian releases (PLD where records or clients are sampled).

    Parameters
    ----------
    num_rounds : int
    delta : float
    budgets : mapping of Relation to float
        Total epsilon allowed, where there is one; enforced by the clients' own filters or a fixed schedule.
    hides_sample : bool
        The guarantee rests on nobody knowing who was sampled, which seconds and failures of a round tell.
    say : callable
        Prints one line.
    """

    num_rounds: int
    delta: float
    budgets: Mapping[Relation, float]
    hides_sample: bool = False
    say: Callable[[str], None] = print
    _squares: dict[tuple[int, Relation], float] = field(
        default_factory=lambda: defaultdict(float), init=False
    )
    _sampled: dict[tuple[int, Relation], Counter[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(Counter), init=False
    )
    _seconds: list[float] = field(default_factory=list, init=False)

    def restore(self, releases: Iterable[Release]) -> None:
        """Take in ledger rows, those of a release all at once: of a round, or of all rounds before a resumed one."""
        by_client: dict[int, list[Release]] = defaultdict(list)
        for release in releases:
            by_client[release.client].append(release)
        for client, rows in by_client.items():
            present = {row.relation for row in rows}
            relations: tuple[Relation, ...] = (
                ("client",) if present == {"client"} else ("attribute", "record")
            )
            for relation in relations:
                self._take(client, relation, rows_under(rows, relation))

    def _take(self, client: int, relation: Relation, rows: tuple[Release, ...] | None) -> None:
        if rows is None:  # some release has no bound there
            self._squares[client, relation] = math.inf
            return
        for row in rows:
            if row.sampling_rate == 1:
                self._squares[client, relation] += row.mu**2
            else:
                self._sampled[client, relation][row.noise_multiplier, row.sampling_rate] += 1

    def epsilon(self, relation: Relation) -> float | None:
        """Largest epsilon spent by a client under one relation; None when nothing was released under it.

        Infinite where some release has no bound there. Else never above the budget: rows that were assumed for lost
        replies can pass it, and the client cannot.
        """
        spent = self._composed(relation)
        if spent is None or math.isinf(spent):
            return spent
        return min(spent, *(self.budgets.get(name, math.inf) for name in BOUNDED_BY[relation]))

    def _composed(self, relation: Relation) -> float | None:
        squares = {client: square for (client, key), square in self._squares.items() if key == relation}
        sampled = {client: steps for (client, key), steps in self._sampled.items() if key == relation}
        if math.inf in squares.values():
            return math.inf
        full = [square for client, square in squares.items() if client not in sampled]
        # clients of equal steps share one composition, which takes long
        schedules = {_schedule(squares.get(client, 0.0), steps) for client, steps in sampled.items()}
        epsilons = [composed_epsilon(schedule, self.delta) for schedule in schedules]
        if full:
            epsilons.append(gaussian_epsilon(math.sqrt(max(full)), self.delta))
        return max(epsilons, default=None)

    def round(self, outcome: RoundOutcome) -> dict[str, float]:
        """Print the round's line and return its row for ``metrics.parquet``."""
        self.restore(outcome.releases + outcome.assumed)
        self._seconds.append(outcome.seconds)
        sigmas = [row.sigma for row in outcome.releases if row.name in (GRADIENT, CENTRAL_UPDATE)]
        epsilons = {relation: self.epsilon(relation) for relation in RELATIONS}
        row: dict[str, float] = {
            "round": outcome.server_round,
            **outcome.evaluation,
            "seconds": math.nan if self.hides_sample else outcome.seconds,
            "sigma-min": min(sigmas, default=math.nan),
            "sigma-max": max(sigmas, default=math.nan),
            **{
                f"epsilon-{relation}": math.nan if value is None else value
                for relation, value in epsilons.items()
            },
            "out-of-budget": len(outcome.out_of_budget),
            "failures": math.nan if self.hides_sample else len(outcome.failures),
        }
        left = time_left(self._seconds, self.num_rounds - outcome.server_round)
        parts = [f"round {outcome.server_round:>{len(str(self.num_rounds))}}/{self.num_rounds}"]
        parts += [f"{key} {value:.4f}" for key, value in outcome.evaluation.items()]
        if not self.hides_sample:
            parts.append(f"{outcome.seconds:.2f} s, {left} left")
        if sigmas:
            low, high = f"{min(sigmas):.4g}", f"{max(sigmas):.4g}"
            parts.append(f"sigma {low}" if low == high else f"sigma {low} to {high}")
        for relation, value in epsilons.items():
            if value is not None:
                budget = f" of {rounded_up(self.budgets[relation])}" if relation in self.budgets else ""
                parts.append(f"eps({relation}) {rounded_up(value)}{budget}")
        parts.append(f"out of budget {len(outcome.out_of_budget)}")
        if outcome.failures and not self.hides_sample:
            parts.append(f"failed replies {len(outcome.failures)}")
        self.say(" · ".join(parts))
        return row


def _schedule(
    square: float, steps: Mapping[tuple[float, float], int]
) -> tuple[tuple[float, float, int], ...]:
    """Sampled steps as (noise multiplier, rate, count), and all full-batch rows as one step of the same mu."""
    full_batch = [(2 / math.sqrt(square), 1.0, 1)] if square else []
    return (*full_batch, *sorted((noise, rate, count) for (noise, rate), count in steps.items()))


def weakest_guarantee(ledger: Ledger, delta: float, relation: Relation, budget_mu: float | None) -> Guarantee:
    """What a run guarantees its worst-off client under one relation.

    That is what its ledger rows compose to (see :meth:`Ledger.guarantee`), or the budget of the client's own filter
    where rows that were assumed for lost replies would pass it.
    """
    clients = ledger.clients or (-1,)  # nothing was released: nothing is lost
    guarantees = [_guarantee(ledger, client, delta, relation, budget_mu) for client in clients]
    return max(guarantees, key=lambda guarantee: guarantee.epsilon)


def _guarantee(
    ledger: Ledger, client: int, delta: float, relation: Relation, budget_mu: float | None
) -> Guarantee:
    stated = ledger.guarantee(client, relation, delta, budget_mu)
    if budget_mu is None:
        return stated
    budget = gaussian_epsilon(budget_mu, delta)
    if stated.epsilon <= budget:
        return stated
    rows = ledger.of(client).releases
    bounded = rows_under(rows, relation) is not None
    if bounded and all(row.sampling_rate == 1 and row.chosen != "data-dependent" for row in rows):
        words = (
            f"budget mu {budget_mu:.4g} of each client's own filter; rows assumed for lost replies pass it"
        )
        return Guarantee(budget, delta, relation, "proven", words)
    return stated
