"""The privacy filter: refuses a release, before it happens, that would pass a client's budget.

When each mu_t may depend on earlier releases, the guarantee is the budget mu_B of a filter that keeps
sum mu_t^2 <= mu_B^2, at no extra cost (Smith & Thakurta, arXiv 2210.17520); the sum actually spent, read
afterwards, is not a guarantee. There is one filter for each neighbouring relation.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from fedveil.privacy.domain import non_negative, one_of, positive
from fedveil.privacy.release import RELATIONS, Relation, Release, rows_under

# Sums are exact multiples of 1/_UNIT, so no sequence of roundings can hide a release; each release rounds up.
_UNIT = 2**256


class BudgetExceeded(ValueError):
    """A release was refused because it would pass the privacy budget."""


@dataclass(frozen=True)
class PrivacyFilter:
    """Budgets of one client under each relation, and what its releases have spent of them.

    A value: `charge` returns a new filter. The budget holds in exact arithmetic, for every policy that picks
    the next release from earlier ones.

    Parameters
    ----------
    budgets : mapping of relation to float
        mu_B > 0 for each relation that is limited. A relation without a budget is not limited.
    spent : mapping of relation to float
        Sum of mu_t^2 of the releases before, rounded up (`squared_mu`); 0 where missing.

    Raises
    ------
    ValueError
        When a relation is unknown or a number is outside its range.
    """

    budgets: Mapping[Relation, float]
    spent: Mapping[Relation, float | Fraction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check and copy the mappings."""
        for relation in (*self.budgets, *self.spent):
            one_of("relation", relation, RELATIONS)
        budgets = {relation: positive("budget mu", mu) for relation, mu in self.budgets.items()}
        for value in self.spent.values():
            if not isinstance(value, Fraction):
                non_negative("spent mu^2", value)
        object.__setattr__(self, "budgets", budgets)
        object.__setattr__(self, "spent", {r: Fraction(value) for r, value in self.spent.items()})

    def admits(self, releases: Iterable[Release]) -> bool:
        """Whether all these releases of one client together keep every budget.

        A release with no row under a budgeted relation (nor one that bounds it) is unbounded there, so it is
        not admitted.

        Raises
        ------
        ValueError
            When a release is subsampled: no filter is valid for it (arXiv 2602.06756), only a fixed
            schedule is.
        """
        after = self._after(tuple(releases))
        return all(after[relation] <= Fraction(mu) ** 2 for relation, mu in self.budgets.items())

    def charge(self, releases: Iterable[Release]) -> "PrivacyFilter":
        """Return the filter after these releases, which must be charged before they happen.

        Raises
        ------
        BudgetExceeded
            When they would pass a budget; nothing is charged then.
        ValueError
            When a release is subsampled.
        """
        releases = tuple(releases)
        if not self.admits(releases):
            raise BudgetExceeded(
                f"{len(releases)} more ledger rows would pass the privacy budget "
                f"({', '.join(f'{relation} mu {mu:.6g}' for relation, mu in self.budgets.items())}): "
                "this client must stop taking part."
            )
        return PrivacyFilter(self.budgets, {**self.spent, **self._after(releases)})

    def remaining(self, relation: Relation) -> float:
        """Largest mu of one more release under `relation`, rounded down; inf where there is no budget."""
        one_of("relation", relation, RELATIONS)
        if relation not in self.budgets:
            return math.inf
        left = Fraction(self.budgets[relation]) ** 2 - self.spent.get(relation, 0)
        if left <= 0:
            return 0.0
        mu = math.sqrt(left)
        while Fraction(mu) ** 2 > left:
            mu = math.nextafter(mu, 0.0)
        return mu

    def _after(self, releases: tuple[Release, ...]) -> dict[Relation, Fraction | float]:
        """Sum of mu_t^2 under each budgeted relation if these releases happened."""
        return {
            relation: self.spent.get(relation, 0) + _exact(releases, relation) for relation in self.budgets
        }


def squared_mu(releases: Iterable[Release], relation: Relation) -> float:
    """Sum of mu_t^2 of these releases of one client under `relation`, rounded up: the `spent` of a filter.

    Returns
    -------
    float
        Sum in [0, inf]; inf when some release has no row that bounds it under `relation`.

    Raises
    ------
    ValueError
        When a release is subsampled or the relation is unknown.
    """
    exact = _exact(tuple(releases), relation)
    try:
        rounded = float(exact)
    except OverflowError:
        return math.inf
    return rounded if rounded >= exact else math.nextafter(rounded, math.inf)


def _exact(releases: tuple[Release, ...], relation: Relation) -> Fraction | float:
    if any(row.sampling_rate != 1 for row in releases):
        raise ValueError(
            "A subsampled release was given to a privacy filter, which is valid for full-batch Gaussian "
            "releases only: use a fixed schedule and composed_epsilon."
        )
    rows = rows_under(releases, relation)
    if rows is None:
        return math.inf
    return Fraction(sum(map(_units, rows)), _UNIT)


def _units(row: Release) -> int:
    """Square of mu = sensitivity/sigma in whole units, rounded up."""
    return math.ceil((Fraction(row.sensitivity) / Fraction(row.sigma)) ** 2 * _UNIT)
