"""The release of a client's contribution: how much noise on its Shapley values, and which ledger rows it costs.

A client measures the utilities of all coalitions on m of its records, adds noise N(0, sigma^2 I) once a run to the
vector of N Shapley values (or to the 2^N utilities, where they must be shown), and everything read from the noisy
vector afterwards, the contribution rate R included, is post-processing. It holds for utilities of a model that is a
function of earlier releases, in which a record's correctness depends on that record alone; not for retrained models.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from numpy.typing import ArrayLike

from fedveil.privacy.domain import one_of, positive, whole
from fedveil.privacy.release import Relation, Release
from fedveil.privacy.shapley import (
    MAX_EXACT,
    contribution_rate,
    finite_vector,
    private_players,
    shapley_sensitivity,
    shapley_values,
)

ContributionKind = Literal["shapley", "utilities"]

CONTRIBUTION = "contribution"
"""Name of the release, in the ledger and in a reply."""

# Beyond it the noise of a Shapley value is as large as a usual difference between clients.
LARGEST_DEVIATION = 0.1

_MOST_RECORDS = 2**53  # that a plan accepts

# Values in [-1, 1] are computed to less than 16 units of 2^-53; two neighbours may err in opposite directions.
_ROUNDING = 2.0**-48

_RELATIONS: tuple[Relation, ...] = ("attribute", "record")


@dataclass(frozen=True, slots=True)
class Contribution:
    """A client's contribution as anybody may read it from the release.

    Parameters
    ----------
    values : tuple of float
        N noisy Shapley values.
    deviation : float
        Standard deviation of the noise in each of them.
    rate : float
        R in [0, 1], the share of the private groups.
    utilities : tuple of float or None
        The 2^N noisy utilities, index = bit mask of the coalition; None where only Shapley values were released.
    """

    values: tuple[float, ...]
    deviation: float
    rate: float
    utilities: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ContributionRelease:
    """The planned Gaussian release of one client's contribution.

    Parameters
    ----------
    kind : {"shapley", "utilities"}
        What is released: the N Shapley values, or the 2^N utilities (N <= 12).
    num_groups : int
        N in 1..62; beyond 12 the Shapley values are estimates over public permutations (`sampled_shapley`).
    num_private : int
        k in 1..N, number of private groups.
    num_records : int
        m >= 1, public number of records on which every utility is measured.
    sigma : float
        Standard deviation > 0 of the noise on each coordinate, computed from public values.

    Raises
    ------
    ValueError
        When a field is outside its range.
    """

    kind: ContributionKind
    num_groups: int
    num_private: int
    num_records: int
    sigma: float

    def __post_init__(self) -> None:
        """Check every field."""
        one_of("kind", self.kind, get_args(ContributionKind))
        shapley_sensitivity(
            self.num_groups, self.num_private
        )  # refuses numbers of groups outside their range
        whole("num_records", self.num_records, minimum=1)
        positive("sigma", self.sigma)
        if self.kind == "utilities" and self.num_groups > MAX_EXACT:
            raise ValueError(
                f"{self.num_groups} groups have too many coalitions to release: give at most {MAX_EXACT} groups, or "
                "release the Shapley values."
            )

    @property
    def size(self) -> int:
        """Number of coordinates of the released vector."""
        return self.num_groups if self.kind == "shapley" else 1 << self.num_groups

    def sensitivity(self, relation: Relation) -> float:
        """L2 sensitivity of the vector, in units of utility.

        Parameters
        ----------
        relation : {"record", "attribute"}
            One record replaced, or the private attributes of one record.

        Returns
        -------
        float
            ``shapley``: `shapley_sensitivity` over m. ``utilities``: sqrt(number of coalitions that can change)/m,
            those with a private group under ``attribute`` (2^N - 2^(N-k)), else all 2^N. Plus what rounding in
            float64 can add, 2^-48 a coordinate.

        Raises
        ------
        ValueError
            When the relation is another.
        """
        one_of("relation", relation, _RELATIONS)
        if self.kind == "shapley":
            change = shapley_sensitivity(
                self.num_groups, self.num_private if relation == "attribute" else None
            )
        else:
            kept = 1 << (self.num_groups - self.num_private) if relation == "attribute" else 0
            change = math.sqrt((1 << self.num_groups) - kept)
        return change / self.num_records + _ROUNDING * math.sqrt(self.size)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each Shapley value read from the release.

        sigma for ``shapley``. For ``utilities`` a value weighs the two utilities of each of C(N - 1, s) pairs of
        coalitions by 1/(N C(N - 1, s)): sigma sqrt(2 sum_s 1/C(N - 1, s))/N.
        """
        if self.kind == "shapley":
            return self.sigma
        n = self.num_groups
        return self.sigma * math.sqrt(2 * sum(1 / math.comb(n - 1, s) for s in range(n))) / n

    def releases(self, client: int, round: int) -> tuple[Release, ...]:
        """Ledger rows of the release: one under each relation, for the one noise.

        Parameters
        ----------
        client, round : int
            Whose contribution, and when.

        Returns
        -------
        tuple of Release
            An ``attribute`` and a ``record`` row, both ``fixed``.
        """
        return tuple(
            Release(
                client=client,
                round=round,
                step=-1,
                name=CONTRIBUTION,
                relation=relation,
                sensitivity=self.sensitivity(relation),
                sigma=self.sigma,
                chosen="fixed",
            )
            for relation in _RELATIONS
        )

    def read(self, vector: ArrayLike, private: Iterable[int]) -> Contribution:
        """Read the contribution from the noisy vector: post-processing, at no cost.

        Parameters
        ----------
        vector : array of shape (size,)
            What was released.
        private : iterable of int
            Indices of the k private groups.

        Returns
        -------
        Contribution

        Raises
        ------
        ValueError
            When the vector has another size or a number that is not finite, or the private groups are not k.
        """
        numbers = finite_vector("vector", vector)
        if len(numbers) != self.size:
            raise ValueError(
                f"vector has {len(numbers)} values: a release of kind {self.kind!r} with {self.num_groups} groups "
                f"has {self.size}."
            )
        chosen = private_players(private, self.num_groups)
        if len(chosen) != self.num_private:
            raise ValueError(
                f"private names {len(chosen)} groups: this release was planned for {self.num_private}."
            )
        values = numbers if self.kind == "shapley" else shapley_values(numbers)
        return Contribution(
            values=tuple(map(float, values)),
            deviation=self.deviation,
            rate=contribution_rate(values, chosen, self.deviation),
            utilities=None if self.kind == "shapley" else tuple(map(float, numbers)),
        )


def plan_contribution(
    *,
    kind: ContributionKind,
    num_groups: int,
    num_private: int,
    num_records: int,
    mus: Mapping[Relation, float],
) -> ContributionRelease:
    """Least noise with which the contribution may be released.

    Parameters
    ----------
    kind, num_groups, num_private, num_records
        As for `ContributionRelease`.
    mus : mapping of relation to float
        Largest mu = sensitivity/sigma > 0 of this release under each limited relation, ``record`` or ``attribute``;
        at least one.

    Returns
    -------
    ContributionRelease
        sigma is rounded up until sensitivity/sigma <= mu in exact arithmetic, under every relation given.

    Raises
    ------
    ValueError
        When an argument is outside its range, or the noise in a Shapley value would have a standard deviation above
        0.1: it then says how many records, or how much more mu, would do, if any number of records would.
    """
    if not mus:
        raise ValueError("mus is empty: give the mu of the release under 'record' or 'attribute'.")
    for relation in mus:
        one_of("relation", relation, _RELATIONS)
    unit = ContributionRelease(kind, num_groups, num_private, num_records, 1.0)
    sigma = max(_least_sigma(unit.sensitivity(relation), positive("mu", mu)) for relation, mu in mus.items())
    if not math.isfinite(sigma):
        raise ValueError(
            f"mu = {min(mus.values()):.3g} asks for noise on the released Shapley values beyond the largest float: "
            "give the release a larger mu, or state a public R."
        )
    release = ContributionRelease(kind, num_groups, num_private, num_records, sigma)
    factor = release.deviation / LARGEST_DEVIATION
    if factor > 1 + 1e-9:
        found = (
            f"the released Shapley values would have noise of standard deviation {release.deviation:.3g} with "
            f"{num_records} records, above {LARGEST_DEVIATION:g}"
        )
        if num_records * factor > _MOST_RECORDS:
            raise ValueError(
                f"{found}, and no number of records would do: give the release a larger mu, or state a public R."
            )
        more = math.ceil(100 * factor) / 100  # rounded up: what is advised must do
        raise ValueError(
            f"{found}: bring {math.ceil(num_records * factor)} records, give the release {more:.4g} times the mu "
            f"({math.ceil(100 * more * more) / 100:.6g} times the mu^2 share), or state a public R."
        )
    return release


def _least_sigma(sensitivity: float, mu: float) -> float:
    """Smallest float sigma found with sensitivity/sigma <= mu exactly; infinite where no float would do."""
    sigma = sensitivity / mu
    while math.isfinite(sigma) and Fraction(sensitivity) > Fraction(mu) * Fraction(sigma):
        sigma = math.nextafter(sigma, math.inf)
    return sigma
