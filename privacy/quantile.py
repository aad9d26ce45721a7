"""A private quantile of the norms that the private attributes add to gradients: the adaptive choice of C_p.

In every round a client releases the share of its records whose difference d = g - g0 has a norm of at most C_p, with
noise; C_p then moves by a geometric step towards the wanted quantile (Andrew et al., arXiv 1905.03871).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedveil.privacy.domain import positive, share, whole
from fedveil.privacy.release import Relation, Release

__all__ = ["LEAST_SHARE_OF_CLIP", "QUANTILE", "QuantileRelease", "next_attribute_clip_norm"]

QUANTILE = "quantile"
"""Name of the release, in the ledger and in a reply."""

_ROUNDING = 2.0**-52  # two neighbours' shares, each a quotient of at most 1 rounded to 2^-54
_RATE = 0.2  # step in ln C_p for a share that is off by 1; the value of the publication
LEAST_SHARE_OF_CLIP = 0.01  # of C: a smaller C_p would clip away everything that the private attributes add


@dataclass(frozen=True, slots=True)
class QuantileRelease:
    """The planned release of one round: a share of n records, plus Gaussian noise.

    Parameters
    ----------
    num_records : int
        n >= 1, public.
    sigma : float
        Standard deviation > 0 of the noise on the share.
    """

    num_records: int
    sigma: float

    def __post_init__(self) -> None:
        """Check both fields."""
        whole("num_records", self.num_records, minimum=1)
        positive("sigma", self.sigma)

    @classmethod
    def planned(cls, num_records: int, mus: dict[Relation, float], num_rounds: int) -> "QuantileRelease":
        """The least noise with which `num_rounds` such releases cost no more than mu under every relation.

        Parameters
        ----------
        num_records : int
            n >= 1.
        mus : dict of relation to float
            What they may cost together.
        num_rounds : int
            At least 1.
        """
        n, rounds = whole("num_records", num_records, minimum=1), whole("num_rounds", num_rounds, minimum=1)
        unit = cls(n, 1.0)
        margin = 1 + (rounds + 8) * 2.0**-51  # sums of squares, rounded, must not pass the budget
        mu = min(positive("mu", value) for value in mus.values()) / math.sqrt(rounds)
        return cls(n, unit.sensitivity * margin / mu)

    @property
    def sensitivity(self) -> float:
        """1/n, and what rounding a share in float64 can add.

        One record's norm lies at or below C_p or above it, whatever else is in the data, so that the share moves by at
        most 1/n when the record, or its private attributes, are replaced.
        """
        return 1 / self.num_records + _ROUNDING

    def releases(self, client: int, round: int) -> tuple[Release, ...]:
        """Ledger rows of one round's release, one under each relation."""
        relations: tuple[Relation, ...] = ("attribute", "record")
        return tuple(
            Release(client, round, -1, QUANTILE, relation, self.sensitivity, self.sigma)
            for relation in relations
        )


def next_attribute_clip_norm(
    current: float, shares: Sequence[float], weights: Sequence[float], *, quantile: float, clip_norm: float
) -> float:
    """Move C_p towards the wanted quantile; a function of releases and public values.

    Parameters
    ----------
    current : float
        C_p in this round.
    shares : sequence of float
        The clients' released shares of records within C_p.
    weights : sequence of float
        Their numbers of records.
    quantile : float
        The share of records that should lie within C_p, in [0, 1].
    clip_norm : float
        C, the largest C_p.

    Returns
    -------
    float
        ``C_p exp(-0.2 (mean share - quantile))``, between 0.01 C and C; ``current`` where no share is given.
    """
    current, clip_norm = positive("attribute_clip_norm", current), positive("clip_norm", clip_norm)
    quantile = share("quantile", quantile)
    if not shares:
        return current
    mean = math.fsum(value * weight for value, weight in zip(shares, weights, strict=True)) / math.fsum(
        weights
    )
    moved = current * math.exp(-_RATE * (min(max(mean, 0.0), 1.0) - quantile))
    return min(max(moved, LEAST_SHARE_OF_CLIP * clip_norm), clip_norm)
