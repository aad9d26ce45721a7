"""A release: what left a client or the server, how it was noised, and how that noise was chosen."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from fedveil.privacy.domain import one_of, positive, rate, whole

Relation = Literal["record", "attribute", "client"]
Chosen = Literal["fixed", "released", "data-dependent"]

RELATIONS: tuple[Relation, ...] = get_args(Relation)

GRADIENT, CENTRAL_UPDATE = "gradient", "central-update"
"""Names in the ledger of what training releases: a client's noised gradient, and the trusted server's noised update."""

# Neighbours under a relation are neighbours under every relation to its right: a row of those bounds it too.
BOUNDED_BY: dict[Relation, tuple[Relation, ...]] = {
    "attribute": ("attribute", "record"),
    "record": ("record",),
    "client": ("client",),
}


@dataclass(frozen=True, slots=True)
class Release:
    """One row of the ledger: a Gaussian release under one neighbouring relation.

    Rows that share client, round, step and name describe the same release under different relations.

    Parameters
    ----------
    client : int
        Logical client whose records were used; -1 for the server's release over all clients.
    round, step : int
        When it was released; -1 where it does not apply.
    name : str
        What was released, for example ``"gradient"``.
    relation : {"record", "attribute", "client"}
        Neighbouring relation of `sensitivity`: one record replaced, the private attributes of one record
        replaced, or all data of one client replaced. n is public and equal on both sides.
    sensitivity : float
        L2 sensitivity D > 0 of the released quantity, in its own unit.
    sigma : float
        Standard deviation > 0 of the Gaussian noise on each coordinate, in the same unit.
    chosen : {"fixed", "released", "data-dependent"}
        What sensitivity, sigma and the decision to release were computed from: public values only;
        public values and earlier releases of this ledger; or private data, which proves nothing.
    sampling_rate : float
        Poisson sampling rate in (0, 1]; 1 means the full batch.

    Raises
    ------
    ValueError
        When a field is outside its range.
    """

    client: int
    round: int
    step: int
    name: str
    relation: Relation
    sensitivity: float
    sigma: float
    chosen: Chosen = "fixed"
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        """Check every field and store plain Python numbers."""
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name = {self.name!r} is not allowed: give the name of what is released.")
        one_of("relation", self.relation, RELATIONS)
        one_of("chosen", self.chosen, get_args(Chosen))
        for field in ("client", "round", "step"):
            object.__setattr__(self, field, whole(field, getattr(self, field), minimum=-1))
        for field in ("sensitivity", "sigma"):
            object.__setattr__(self, field, positive(field, getattr(self, field)))
        object.__setattr__(self, "sampling_rate", rate("sampling_rate", self.sampling_rate))

    @property
    def mu(self) -> float:
        """Gaussian privacy parameter sensitivity/sigma of a full-batch release, under `relation`.

        Raises
        ------
        ValueError
            When the release is subsampled: it then has no single mu.
        """
        if self.sampling_rate != 1:
            raise ValueError(
                f"A release with sampling_rate = {self.sampling_rate:g} has no mu; "
                "use noise_multiplier and composed_epsilon."
            )
        return self.sensitivity / self.sigma

    @property
    def noise_multiplier(self) -> float:
        """Noise over clip norm, 2 sigma/sensitivity: replacing one record moves a clipped sum by 2 C."""
        return 2 * self.sigma / self.sensitivity


def gradient_rows(releases: Iterable[Release]) -> tuple[Release, ...]:
    """One row of each noised gradient step among the rows, in order of steps: those under the record relation."""
    steps = [row for row in releases if row.name == GRADIENT and row.relation == "record"]
    return tuple(sorted(steps, key=lambda row: row.step))


def rows_under(releases: Iterable[Release], relation: Relation) -> tuple[Release, ...] | None:
    """Return one row for each release that bounds it under `relation`, or None when some release has none.

    A record row also bounds the attribute relation, since two datasets that differ in the private
    attributes of one record differ in that record; where a release has both, the stronger row counts.

    Parameters
    ----------
    releases : iterable of Release
        Rows of one client, or of the server.
    relation : {"record", "attribute", "client"}
        Neighbouring relation asked for.

    Returns
    -------
    tuple of Release or None
        None means that nothing is proven under `relation`.

    Raises
    ------
    ValueError
        When the relation is unknown.
    """
    one_of("relation", relation, RELATIONS)
    events: defaultdict[tuple[int, int, int, str], defaultdict[Relation, list[Release]]]
    events = defaultdict(lambda: defaultdict(list))
    for row in releases:
        events[row.client, row.round, row.step, row.name][row.relation].append(row)
    chosen: list[Release] = []
    for rows in events.values():
        # A repeated send has the same key: a relation covers the event only if every repetition has its row.
        repeats = max(map(len, rows.values()))
        covers = [rows[bound] for bound in BOUNDED_BY[relation] if len(rows.get(bound, ())) == repeats]
        if not covers:
            return None
        chosen += min(covers, key=lambda rows: math.hypot(*(row.sensitivity / row.sigma for row in rows)))
    return tuple(chosen)
