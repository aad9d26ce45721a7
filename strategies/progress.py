"""What a person sees while a run goes on: one line a round, and what was guaranteed at the end."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedveil.privacy import (
    Guarantee,
    Ledger,
    Relation,
    Release,
    compose_mu,
    composed_epsilon,
    gaussian_epsilon,
    rounded_up,
)
from fedveil.strategies.private_averaging import RoundOutcome

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
        The guarantee rests on nobody knowing how many clients were sampled, which the seconds of a round tell.
    say : callable
        Prints one line.
    """

    num_rounds: int
    delta: float
    budgets: Mapping[Relation, float]
    hides_sample: bool = False
    say: Callable[[str], None] = print
    _spent: dict[tuple[int, Relation], list[Release]] = field(
        default_factory=lambda: defaultdict(list), init=False
    )
    _seconds: list[float] = field(default_factory=list, init=False)

    def restore(self, releases: Iterable[Release]) -> None:
        """Take in the ledger of the rounds before a resumed one."""
        for release in releases:
            self._spent[release.client, release.relation].append(release)

    def epsilon(self, relation: Relation) -> float | None:
        """Largest epsilon spent by a client under one relation; None when nothing was released under it.

        Never above the budget: rows that were assumed for lost replies can pass it, and the client cannot.
        """
        spent = self._composed(relation)
        return None if spent is None else min(spent, self.budgets.get(relation, math.inf))

    def _composed(self, relation: Relation) -> float | None:
        known = {key for _, key in self._spent}
        if relation == "attribute" and relation not in known:
            relation = "record"  # attribute neighbours are record neighbours
        rows = [spent for (_, key), spent in self._spent.items() if key == relation]
        if not rows:
            return None
        if all(release.sampling_rate == 1 for spent in rows for release in spent):
            return gaussian_epsilon(
                max(compose_mu([release.mu for release in spent]) for spent in rows), self.delta
            )
        # clients of equal steps share one composition, which takes long
        return max(
            composed_epsilon(schedule, self.delta) for schedule in {_schedule(spent) for spent in rows}
        )

    def round(self, outcome: RoundOutcome) -> dict[str, float]:
        """Print the round's line and return its row for ``metrics.parquet``."""
        self.restore(outcome.releases + outcome.assumed)
        self._seconds.append(outcome.seconds)
        sigmas = [row.sigma for row in outcome.releases if row.name in ("gradient", "central-update")]
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
            "failures": len(outcome.failures),
        }
        left = self._seconds_left(outcome.server_round)
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
        if outcome.failures:
            parts.append(f"failed replies {len(outcome.failures)}")
        self.say(" · ".join(parts))
        return row

    def _seconds_left(self, server_round: int) -> str:
        recent = self._seconds[-5:] if len(self._seconds) < 3 else self._seconds[1:][-5:]
        seconds = (self.num_rounds - server_round) * sum(recent) / len(recent)
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def weakest_guarantee(ledger: Ledger, delta: float, relation: Relation, budget_mu: float | None) -> Guarantee:
    """What a run guarantees its worst-off client under one relation.

    That is what its ledger rows compose to (see :meth:`Ledger.guarantee`), or the budget of the client's own filter
    where rows that were assumed for lost replies would pass it.
    """
    clients = ledger.clients or (-1,)  # nothing was released: nothing is lost
    guarantees = [ledger.guarantee(client, relation, delta, budget_mu) for client in clients]
    weakest = max(guarantees, key=lambda guarantee: guarantee.epsilon)
    if budget_mu is None or weakest.kind != "proven":
        return weakest
    budget = gaussian_epsilon(budget_mu, delta)
    if weakest.epsilon <= budget:
        return weakest
    words = f"budget mu {budget_mu:.4g} of each client's own filter; rows assumed for lost replies pass it"
    return Guarantee(budget, delta, relation, "proven", words)


def _schedule(spent: list[Release]) -> tuple[tuple[float, float, int], ...]:
    """How many steps there were of each noise multiplier and sampling rate."""
    steps = Counter((release.noise_multiplier, release.sampling_rate) for release in spent)
    return tuple(sorted((noise, rate, count) for (noise, rate), count in steps.items()))
