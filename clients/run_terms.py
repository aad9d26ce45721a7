"""What a run asks of a node, as its owner's policy looks at it: computed from public settings, before any record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedveil.privacy import Relation

__all__ = ["APPS", "Noise", "RunTerms"]

APPS = ("fedsva", "modulated")
"""The apps whose runs have terms."""

Noise = Literal["local", "central", "none", "unproven"]
"""Who adds the noise: each client, the trusted server, or nobody; and whether what clients add proves nothing."""


@dataclass(frozen=True)
class RunTerms:
    """Terms of one run.

    Parameters
    ----------
    app : str
        Name of the app.
    privacy : tuple of Noise
        Who adds the noise to what the run asks for; "none" beside "local" where something is asked for without noise,
        "unproven" beside it where the noise follows from records and may be read off what it hides.
    relations : tuple of Relation
        Relations under which the run promises its epsilon; empty where it promises nothing.
    costs : mapping of Relation to float
        Largest mu of one record's total over the whole run; under a relation that is left out there is no bound.
    calibration : str, optional
        Rule for the noise of a step, where there is one.
    sensitivity : str, optional
        Rule for the sensitivity of a message, where there is one.
    """

    app: str
    privacy: tuple[Noise, ...]
    relations: tuple[Relation, ...]
    costs: Mapping[Relation, float] = field(default_factory=dict)
    calibration: str | None = None
    sensitivity: str | None = None
