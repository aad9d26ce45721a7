"""The ledger: every release of a run, and what it proves for each client under each relation."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import cached_property
from typing import Literal

from fedveil.privacy.domain import positive, probability
from fedveil.privacy.filter import PrivacyFilter
from fedveil.privacy.gaussian import compose_mu, gaussian_epsilon
from fedveil.privacy.release import RELATIONS, Chosen, Relation, Release, rows_under
from fedveil.privacy.subsampled import composed_epsilon

Kind = Literal["proven", "nominal", "none"]

_SERVER = -1


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a ledger says about one client under one neighbouring relation.

    Parameters
    ----------
    epsilon : float
        Privacy loss in [0, inf]; inf when nothing holds.
    delta : float
        Failure probability in (0, 1).
    relation : {"record", "attribute", "client"}
        Neighbouring relation under which it holds.
    kind : {"proven", "nominal", "none"}
        ``proven`` by a theorem; ``nominal``, the formula of a publication without a proof for these rows; or
        ``none``.
    composition : str
        How it was derived, in words.
    """

    epsilon: float
    delta: float
    relation: Relation
    kind: Kind
    composition: str

    def describe(self) -> str:
        """One line for people, epsilon rounded up to four digits."""
        under = f"under the {self.relation} relation"
        if self.kind == "none":
            return f"no proven guarantee {under}: {self.composition}"
        line = f"epsilon {rounded_up(self.epsilon)} at delta {self.delta!r} {under}"
        if self.kind == "nominal":
            return f"no proven guarantee; nominal by the publication: {line} ({self.composition})"
        return f"{line}, proven ({self.composition})"


def rounded_up(epsilon: float) -> str:
    """Epsilon for people: four digits, never below the value."""
    shown = Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(epsilon)
    return f"{float(shown):g}"


@dataclass(frozen=True)
class Ledger:
    """Releases of a run, as a value: `add` returns a new ledger.

    Parameters
    ----------
    releases : tuple of Release
        All rows, of all clients, in order of release.
    """

    releases: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        """Store the rows as a tuple."""
        object.__setattr__(self, "releases", tuple(self.releases))

    def add(self, releases: Iterable[Release]) -> "Ledger":
        """Return the ledger with these rows at its end."""
        return Ledger((*self.releases, *releases))

    def of(self, client: int) -> "Ledger":
        """Return the ledger of one client's rows (-1: the server's)."""
        return Ledger(self._by_client.get(client, ()))

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that have rows, in increasing order (-1: the server)."""
        return tuple(sorted(self._by_client))

    def relations(self, client: int) -> tuple[Relation, ...]:
        """Relations under which a client has rows."""
        present = {row.relation for row in self._by_client.get(client, ())}
        return tuple(relation for relation in RELATIONS if relation in present)

    def guarantee(
        self, client: int, relation: Relation, delta: float, budget_mu: float | None = None
    ) -> Guarantee:
        """Prove what can be proven for a client under one relation.

        Parameters
        ----------
        client : int
            Client whose rows are composed, with the server's releases over all clients; -1 for the
            server's alone.
        relation : {"record", "attribute", "client"}
            Neighbouring relation. A release without a row under it (nor one that bounds it: a record row
            bounds the attribute relation) leaves the client unprotected there.
        delta : float
            Failure probability in (0, 1).
        budget_mu : float, optional
            mu_B of the `PrivacyFilter` that admitted each release before it happened.

        Returns
        -------
        Guarantee
            Only ``fixed`` rows: proven, the epsilon of their composition. Some ``released`` row: proven, the
            epsilon of the BUDGET, which needs `budget_mu`. Some ``data-dependent`` row: none.

        Raises
        ------
        ValueError
            When the relation is unknown or a number is outside its range.
        """
        delta = probability("delta", delta)
        budget_mu = None if budget_mu is None else positive("budget_mu", budget_mu)
        rows = self._rows_under(client, relation)
        chosen = {row.chosen for row in self._rows(client)}
        if rows is not None and chosen <= {"fixed"}:
            return Guarantee(_epsilon(rows, delta), delta, relation, "proven", _words(rows))
        if (
            rows is not None
            and budget_mu is not None
            and "data-dependent" not in chosen
            and _could_admit(rows, relation, budget_mu)
        ):
            words = f"budget mu {budget_mu:.4g} of the filter that admitted {len(rows)} Gaussian releases"
            return Guarantee(gaussian_epsilon(budget_mu, delta), delta, relation, "proven", words)
        return Guarantee(math.inf, delta, relation, "none", _why_nothing(rows, chosen, budget_mu))

    def nominal(self, client: int, relation: Relation, delta: float) -> Guarantee:
        """State the epsilon of the realised rows as if all were fixed: a publication's figure, unproven.

        Returns
        -------
        Guarantee
            Of kind ``nominal``, or ``none`` when some release has no row under `relation`.
        """
        delta = probability("delta", delta)
        rows = self._rows_under(client, relation)
        if rows is None:
            return Guarantee(math.inf, delta, relation, "none", _why_nothing(rows, set(), None))
        return Guarantee(_epsilon(rows, delta), delta, relation, "nominal", _words(rows))

    def odometer(self, client: int, relation: Relation) -> float:
        """Read the realised mu of a client's releases so far: a reading, not a guarantee.

        When releases depend on earlier ones the realised sum proves nothing; the budget of a filter does.

        Returns
        -------
        float
            sqrt(sum mu_t^2); inf when some release has no row that bounds it under `relation`.

        Raises
        ------
        ValueError
            When a release is subsampled: it has no mu.
        """
        rows = self._rows_under(client, relation)
        return math.inf if rows is None else compose_mu(row.mu for row in rows)

    def _rows(self, client: int) -> tuple[Release, ...]:
        """All rows in which a client's data was used: its own, and the server's over all clients."""
        own = self._by_client.get(client, ())
        return own if client == _SERVER else own + self._by_client.get(_SERVER, ())

    def _rows_under(self, client: int, relation: Relation) -> tuple[Release, ...] | None:
        return rows_under(self._rows(client), relation)

    @cached_property
    def _by_client(self) -> Mapping[int, tuple[Release, ...]]:
        rows: defaultdict[int, list[Release]] = defaultdict(list)
        for row in self.releases:
            rows[row.client].append(row)
        return {client: tuple(of_client) for client, of_client in rows.items()}


def _epsilon(rows: tuple[Release, ...], delta: float) -> float:
    """Epsilon of fixed rows: exact for full batches, privacy loss distributions with subsampled ones."""
    mu = compose_mu(row.mu for row in rows if row.sampling_rate == 1)
    steps = Counter((row.noise_multiplier, row.sampling_rate) for row in rows if row.sampling_rate != 1)
    if not steps:
        return gaussian_epsilon(mu, delta)
    full_batch = [(2 / mu, 1.0, 1)] if mu else []
    return composed_epsilon([*full_batch, *((z, q, count) for (z, q), count in steps.items())], delta)


def _could_admit(rows: tuple[Release, ...], relation: Relation, budget_mu: float) -> bool:
    full_batch = all(row.sampling_rate == 1 for row in rows)
    return full_batch and PrivacyFilter({relation: budget_mu}).admits(rows)


def _why_nothing(rows: tuple[Release, ...] | None, chosen: set[Chosen], budget_mu: float | None) -> str:
    if rows is None:
        return "some release of this client has no row that bounds it there"
    if "data-dependent" in chosen:
        return "the noise of some release was chosen by looking at private data"
    if budget_mu is None:
        return "releases were chosen adaptively and no filter's budget is known"
    if any(row.sampling_rate != 1 for row in rows):
        return "subsampled releases were chosen adaptively, for which no filter is valid"
    return "the releases pass the budget, so no filter can have admitted them all"


def _words(rows: tuple[Release, ...]) -> str:
    if not rows:
        return "no release in this ledger"
    subsampled = sum(row.sampling_rate != 1 for row in rows)
    full_batch = [row.mu for row in rows if row.sampling_rate == 1]
    parts = []
    if full_batch:
        parts.append(f"{len(full_batch)} Gaussian releases, mu {compose_mu(full_batch):.4g}")
    if subsampled:
        parts.append(f"{subsampled} Poisson-subsampled Gaussian releases by privacy loss distributions")
    return " and ".join(parts)
