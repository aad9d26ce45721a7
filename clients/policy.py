"""A node's policy: what its owner allows, in a file that no app, run or server can change.

Every rule is checked before records are read (the number of records: before any is used). An absent key is no rule; a
file that cannot be understood lets nothing through. Refusals travel to the server: they name the rule, what was asked
and what is allowed, all of it public, and never a value of a record or a path of the node's.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Mapping
from decimal import ROUND_FLOOR, Context
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedveil.clients.run_terms import APPS, Noise, RunTerms
from fedveil.privacy import PrivacyFilter, Relation, gaussian_epsilon, gaussian_mu, rounded_up
from fedveil.privacy.domain import probability

__all__ = ["BadPolicy", "Policy", "PolicyRefusal", "read_policy"]

UNPROVEN = (
    "asks for noise that proves nothing, since it follows from a contribution that is measured on records and not "
    "released (contribution-release = 'none')"
)
"""What such a run does, in a refusal."""

_SHOWN = 20  # of the columns that are allowed
_EXAMPLES = {"epsilon": "a table, as in epsilon = {record = 4.0}", "privacy": 'a list, as in ["local"]'}


class PolicyRefusal(ValueError):
    """A run asks for more than the node's owner allows."""


class BadPolicy(ValueError):
    """A policy file that cannot be used; its node serves no run until it is mended."""


def _listed(value: object) -> object:
    """TOML's lists and tables as values that cannot be changed."""
    if isinstance(value, list):
        if not value:
            raise ValueError(
                "is empty, which would allow nothing: name what is allowed, or leave the key out"
            )
        return tuple(value)
    return value


def _paired(value: object) -> object:
    if isinstance(value, dict):
        if not value:
            raise ValueError("is empty: name a relation with its largest total, or leave the table out")
        if "delta" in value:
            raise ValueError("delta is one for all totals: write it at the top of the file, above [epsilon]")
        return tuple(sorted(value.items()))
    return value


def _kebab(name: str) -> str:
    return name.replace("_", "-")


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]
Limit = Annotated[float, Field(gt=0, le=1e6)]


class Policy(BaseModel):
    """What a node's owner allows; see ``docs/policy.md`` for every key.

    Parameters
    ----------
    apps, calibrations, sensitivities, columns : tuple of str, optional
        What may be used; None: no rule.
    privacy : tuple of Noise, optional
        Who may add the noise. Without noise nothing is allowed unless "none" stands here, and under noise that proves
        nothing unless "unproven" does.
    relations : tuple of Relation, optional
        Relations of which a run must promise its epsilon under at least one.
    private_attributes : tuple of str, optional
        Columns that every run must protect at least, whose bound is one of the attribute relation.
    min_records : int, optional
        Fewest records of a client.
    epsilon : tuple of (Relation, float), optional
        Largest total of one record EVER, over all runs of this node, under each relation that is limited.
    delta : float, optional
        Failure probability of these totals.
    """

    model_config = ConfigDict(
        alias_generator=_kebab, extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )

    apps: Names | None = None
    privacy: Annotated[tuple[Noise, ...], BeforeValidator(_listed)] | None = None
    relations: Annotated[tuple[Relation, ...], BeforeValidator(_listed)] | None = None
    calibrations: Names | None = None
    sensitivities: Annotated[tuple[Literal["exact", "paper"], ...], BeforeValidator(_listed)] | None = None
    min_records: int | None = Field(None, ge=1)
    columns: Names | None = None
    private_attributes: Names | None = None
    epsilon: Annotated[tuple[tuple[Relation, Limit], ...], BeforeValidator(_paired)] | None = None
    delta: float | None = None

    @field_validator("apps")
    @classmethod
    def _known(cls, apps: Names | None) -> Names | None:
        for app in apps or ():
            if app not in APPS:
                near = get_close_matches(app, APPS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(APPS)}"
                raise ValueError(f"there is no app {app!r}; {hint}")
        return apps

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.delta is not None:
            probability("delta", self.delta)
        limited = {relation for relation, _ in self.epsilon or ()}
        if limited and self.delta is None:
            raise ValueError("epsilon needs a delta beside it, as in delta = 1e-5 at the top")
        if self.delta is not None and not limited:
            raise ValueError("delta is for the totals of a table [epsilon], and there is none")
        if "client" in limited and "central" not in (self.privacy or ()):
            raise ValueError(
                "epsilon.client counts noise that the server adds, which no node can check: list 'central' under "
                "privacy to say that this node trusts its server, or leave epsilon.client out"
            )
        if "client" in limited and len(limited) > 1:
            raise ValueError(
                f"epsilon.client beside epsilon.{min(limited - {'client'})} would refuse every run, since noise of the "
                "server's bounds no record against it, and noise of a node's bounds no client: keep one of them"
            )
        return self

    @property
    def limits(self) -> dict[Relation, float]:
        """mu_B of the total of all runs under each relation that is limited, rounded down."""
        if self.epsilon is None or self.delta is None:
            return {}
        return {relation: gaussian_mu(epsilon, self.delta) for relation, epsilon in self.epsilon}

    @property
    def allows_unnoised(self) -> bool:
        """Whether records may leave without any noise."""
        return "none" in (self.privacy or ())

    def check(self, terms: RunTerms) -> None:
        """Check a run by itself, whatever has been spent before.

        Raises
        ------
        PolicyRefusal
            Naming the rule, what was asked and what is allowed.
        """
        _check_listed("apps", (terms.app,), self.apps)
        listed = self.privacy or ()
        if "unproven" in terms.privacy and "unproven" not in listed:
            allowed = _allowed(listed) if listed else "noise that proves its epsilon"
            raise refusal(
                "privacy", UNPROVEN, f'{allowed}; to allow it too, list "local" and "unproven" there'
            )
        _check_listed("privacy", terms.privacy, self.privacy)
        if "none" in terms.privacy and not self.allows_unnoised:
            raise refusal("privacy", "asks for records without noise", "'none' is not listed there")
        if self.relations is not None and not set(terms.relations) & set(self.relations):
            asked = _words(terms.relations) if terms.relations else "no relation at all"
            raise refusal("relations", f"promises its epsilon under {asked}", _allowed(self.relations))
        if terms.calibration is not None:
            _check_listed("calibrations", (terms.calibration,), self.calibrations)
        if terms.sensitivity is not None:
            _check_listed("sensitivities", (terms.sensitivity,), self.sensitivities)
        self.check_lifetime(terms, {})

    def check_lifetime(self, terms: RunTerms, spent: Mapping[Relation, Fraction | float]) -> None:
        """Check that the whole budget of a run fits beside what other runs have spent.

        Parameters
        ----------
        terms : RunTerms
        spent : mapping of Relation to Fraction or float
            Sum of mu^2 of one record over all other runs; 0 where missing, perhaps infinite.

        Raises
        ------
        PolicyRefusal
            Naming the rule, what the run may cost and what is left.
        """
        for relation, mu in self.limits.items():
            rule, cost, before = f"epsilon.{relation}", terms.costs.get(relation), spent.get(relation, 0)
            total = dict(self.epsilon or ())[relation]
            allowed = f"{total:g} for all runs together, of which {self.left(relation, before)}"
            if cost is None:
                raise refusal(rule, f"has no bound under the {relation} relation", allowed)
            if Fraction(cost) ** 2 + before > Fraction(mu) ** 2:
                asked = rounded_up(gaussian_epsilon(cost, self.delta or 1.0))
                raise refusal(rule, f"may cost epsilon {asked} at delta {self.delta!r}", allowed)

    def left(self, relation: Relation, spent: Fraction | float) -> str:
        """Say which epsilon one more run may have under a limited relation."""
        if spent == 0:
            return f"{dict(self.epsilon or ())[relation]:g} is left for one more"
        mu = 0.0 if spent == math.inf else PrivacyFilter(self.limits, {relation: spent}).remaining(relation)
        epsilon = gaussian_epsilon(mu, self.delta or 1.0)
        # rounded down: what is said to be left must be left
        shown = Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(epsilon * (1 - 1e-9))
        return f"{float(shown):g} is left for one more" if epsilon > 0 else "nothing is left"

    def check_columns(self, columns: Iterable[str]) -> None:
        """Check the columns that a run uses: features, private ones too, and the target.

        Raises
        ------
        PolicyRefusal
            Naming the columns that are not allowed.
        """
        if self.columns is not None:
            asked = [column for column in dict.fromkeys(columns) if column not in self.columns]
            if asked:
                raise refusal("columns", f"uses {_words(asked[:_SHOWN])}", _allowed(self.columns))

    def check_private(self, protected: Collection[str]) -> None:
        """Check the columns that a bound under the attribute relation is about.

        Runs that protect different attributes have no total in common, so each must protect those of the policy.

        Raises
        ------
        PolicyRefusal
            Naming the columns that the run leaves out.
        """
        missing = [column for column in self.private_attributes or () if column not in protected]
        if missing:
            raise refusal(
                "private-attributes",
                f"does not protect {_words(missing)} as private attributes",
                f"runs that protect {_allowed(self.private_attributes or ())}",
            )

    def check_records(self, examples: Mapping[str, int]) -> None:
        """Check the numbers of records, by whose they are.

        Raises
        ------
        PolicyRefusal
            Naming the first with too few; not how many there are, which a refused server need not know.
        """
        if self.min_records is not None:
            few = [whose for whose, count in examples.items() if count < self.min_records]
            if few:
                raise refusal(
                    "min-records",
                    f"asks for {few[0]}, which has fewer records",
                    f"{self.min_records} or more",
                )


def refusal(rule: str, asked: str, allowed: str) -> PolicyRefusal:
    """A refusal in one sentence."""
    return PolicyRefusal(
        f"refused by rule {rule!r} of this node's policy: the run {asked}; allowed: {allowed}."
    )


def read_policy(path: Path) -> Policy:
    """Read a policy file.

    Raises
    ------
    BadPolicy
        If it is missing, unreadable, not TOML, or has an unknown key or a wrong value.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadPolicy(f"the policy file {path} cannot be read ({error.strerror}): restore it.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPolicy(f"the policy file {path} is not TOML ({error}): correct it.") from None
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        raise BadPolicy(f"the policy file {path} cannot be used: {_explained(error)}.") from None


def _explained(error: ValidationError) -> str:
    """The first mistake, in words."""
    first = error.errors()[0]
    place = [part for part in first["loc"] if isinstance(part, str)]
    if first["type"] == "extra_forbidden":
        known = [_kebab(name) for name in Policy.model_fields]
        near = get_close_matches(place[0], known, n=1, cutoff=0.5)
        return f"unknown key {place[0]!r}; " + (
            f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        )
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] == "tuple_type":
        message = f"give {_EXAMPLES.get(place[0], 'a list of texts')}"
    if not place:
        return message
    return f"{place[0]} = {_shown(first['input'])}: {message[:1].lower()}{message[1:]}"


def _shown(value: Any) -> str:
    return repr(dict(value) if isinstance(value, tuple) and value and isinstance(value[0], tuple) else value)


def _check_listed(rule: str, asked: Iterable[str], allowed: tuple[str, ...] | None) -> None:
    if allowed is not None:
        refused = [word for word in asked if word not in allowed]
        if refused:
            raise refusal(rule, f"asks for {_words(refused)}", _allowed(allowed))


def _allowed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")


def _words(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))
