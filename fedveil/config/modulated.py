"""Every setting of the modulated app, with its unit, meaning and default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from fedveil.config.base import OptionalFloat, OptionalInt, RunConfig, setting
from fedveil.config.errors import nearest
from fedveil.config.options import parse_options
from fedveil.config.sites import sites_problem, uses_sites
from fedveil.plugins import find
from fedveil.privacy import Modulation

__all__ = ["COMPARATORS", "NO_PRIVACY", "ModulatedConfig"]

NO_PRIVACY = "no-privacy"
"""The comparator whose messages have no noise; nodes file what it takes under the run's name and this one."""
COMPARATORS = ("lambda-0", "one-shot", "iterative", "dp-sgd", NO_PRIVACY)
"""Other methods on the same records, each at the same total budget (the last at none)."""

_STRATEGIES = {"modulated-one-shot": "one-shot", "modulated-iterative": "iterative"}


class ModulatedConfig(RunConfig):
    """Settings of one run of modulated learning: private regression, one record a client."""

    unhashed_defaults: ClassVar[Mapping[str, Any]] = {**RunConfig.unhashed_defaults, "partition": "shares"}
    # what runs beside a method changes nothing of it, and sums have the bits of single messages
    engine_keys: ClassVar[tuple[str, ...]] = (*RunConfig.engine_keys, "comparators", "reply")

    strategy: Literal["modulated-one-shot", "modulated-iterative"] = setting(
        "modulated-one-shot", "", "One round that solves for the coefficients, or many rounds of gradients."
    )
    num_server_rounds: OptionalInt = setting(
        None, "rounds", "Rounds; empty: 1 (one-shot), 20 (iterative).", ge=1, le=100_000
    )
    participation: Literal["all", "sampled", "cohorts"] = setting(
        "cohorts", "", "Iterative: every client in every round, a sample, or each client in one round only."
    )
    fraction_train: float = setting(
        1.0, "share of all clients", "Clients of the one round (one-shot) or of each (sampled).", gt=0, le=1
    )
    estimate: Literal["fresh", "pooled", "averaged"] = setting(
        "pooled",
        "",
        "Iterative: gradients of this round's messages alone (as published), of all so far, of each client's mean.",
    )
    learning_rate: OptionalFloat = setting(
        None, "per step", "Step of the iterative form; empty: 1 over the largest eigenvalue.", gt=0, le=1e6
    )
    radius: OptionalFloat = setting(
        None, "L2 norm", "Ball that the slopes are projected to; empty: from the known noise.", gt=0
    )
    ridge: OptionalFloat = setting(
        None,
        "squared feature",
        "Ridge of the one-shot form, added to every eigenvalue; empty: from the known noise.",
        ge=0,
    )

    alpha: float = setting(
        0.3, "pure number", "Share of the record that is left out; c = 1 - alpha.", ge=-1e6, le=1e6
    )
    amplitude: float = setting(0.5, "feature", "Amplitude of the modulation (lambda).", ge=0, le=1e6)
    frequency: float = setting(
        1.0, "radian per feature", "Frequency of the modulation (omega).", ge=0, le=1e6
    )
    num_directions: int = setting(
        1, "directions", "Modulated directions (m), fewer than features.", ge=1, le=10_000
    )
    bound: OptionalFloat = setting(
        None, "L2 norm", "Clip of a standardised record (B); empty: 0.5 sqrt(columns).", ge=1e-6, le=1e6
    )
    label_privacy: bool = setting(
        False, "", "Protect the label too; off: labels leave their clients in the clear."
    )
    standardization: Literal["public", "estimated"] = setting(
        "public", "", "Features scaled by public ranges, or by means and spreads that clients release first."
    )
    range_share: float = setting(
        0.1, "share of the budget mu^2", "What estimating means and spreads may cost.", gt=0, lt=1
    )

    epsilon: float = setting(
        8.0,
        "total of a client over the run",
        "Budget of each client, added by the client itself.",
        gt=0,
        le=1e6,
    )
    delta: float = setting(
        1e-5, "total of a client over the run", "Failure probability of the guarantee.", gt=0, lt=1
    )
    sensitivity: Literal["exact", "paper"] = setting(
        "exact", "", "How much a record can move a message: the exact law, or the publication's bound."
    )
    accounting: Literal["exact", "zcdp"] = setting(
        "exact", "", "How epsilon and delta become noise: exactly, or by zCDP as in the publication."
    )
    reply: Literal["sum", "each"] = setting(
        "sum", "", "What nodes send: sums of messages, or every client's message."
    )
    confidence: float = setting(0.95, "probability", "Level of the intervals.", gt=0, lt=1)
    interval_target: Literal["clients", "population"] = setting(
        "clients",
        "",
        "What intervals are about: least squares of these clients' records, or of a population.",
    )

    comparators: str = setting(
        "auto",
        "names",
        "Other methods to run beside, with commas: "
        + ", ".join(COMPARATORS)
        + "; auto: all in a simulation; none.",
    )
    dp_sgd_clip_norm: float = setting(0.3, "L2 norm", "Comparator dp-sgd: clip of a gradient.", gt=0, le=1e6)
    dp_sgd_rounds: int = setting(
        20, "rounds", "Comparator dp-sgd: disjoint cohorts of clients.", ge=1, le=100_000
    )
    dp_sgd_learning_rate: float = setting(1.0, "per step", "Comparator dp-sgd: step size.", gt=0)

    dataset: str = setting("fair", "name", "A regression data set by name; `fedveil list` shows all.")
    partition: Literal["shares", "sites"] = setting(
        "shares",
        "",
        "Nodes share the records of one data set; or each is a site with records of its own, unseen by the server.",
    )
    data_path: str = setting(
        "",
        "path",
        "File of csv, parquet, npz; of sites, in simulations only, with {client} for a site's number.",
    )
    data_schema: str = setting(
        "", "path", "Public description of its columns; empty: <data-path>.schema.toml."
    )
    target: str = setting("", "column", "The number to predict; empty: the data set's own.")
    test_fraction: float = setting(
        0.2, "share of records", "Records set apart as the public test set.", gt=0, lt=1
    )
    test_path: str = setting(
        "", "path", "A file of its own as the public test set, instead of test-fraction; needed with sites."
    )

    @property
    def modulation(self) -> Modulation:
        """What clients do to their records before they add noise."""
        return Modulation(self.alpha, self.amplitude, self.frequency, self.num_directions)

    @property
    def rounds(self) -> int:
        """Rounds of the main method."""
        if self.num_server_rounds is not None:
            return self.num_server_rounds
        return 1 if self.strategy == "modulated-one-shot" else 20

    @property
    def method(self) -> str:
        """The main method, as a table names it."""
        return _STRATEGIES[self.strategy]

    def comparators_of(self, *, simulated: bool) -> tuple[str, ...]:
        """The comparators to run.

        Raises
        ------
        ValueError
            If a name is none of them, or one is asked for outside a simulation: each spends the whole budget again,
            but for :data:`NO_PRIVACY`, which the owner of every node has to allow.
        """
        names = self._named
        if names in ([], ["none"]):
            return ()
        if names == ["auto"]:
            left_out = {self.method} | (set() if self.amplitude else {"lambda-0"})  # the run itself
            return tuple(name for name in COMPARATORS if name not in left_out) if simulated else ()
        for name in names:
            if name in ("auto", "none"):
                raise ValueError(
                    f"comparators = {self.comparators!r}: {name!r} stands alone, without other names."
                )
            if name not in COMPARATORS:
                raise ValueError(f"comparators = {name!r}: {nearest(name, (*COMPARATORS, 'auto', 'none'))}")
        if self.method in names:
            raise ValueError(f"comparators = {self.method!r} is the main method here; leave it out.")
        if not simulated and names != [NO_PRIVACY]:
            raise ValueError(
                f"comparators = {self.comparators!r} in a deployment: each would spend every client's whole budget "
                f"again; use 'none', or {NO_PRIVACY!r} where every node's own policy allows records without noise."
            )
        return tuple(dict.fromkeys(names))

    @property
    def asks_without_noise(self) -> bool:
        """Whether real nodes are asked for records without noise too, which "auto" never does."""
        return NO_PRIVACY in self._named

    @property
    def _named(self) -> list[str]:
        return [name.strip() for name in self.comparators.split(",") if name.strip()]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problem := _contradiction(self):
            raise ValueError(problem)
        return self


def _contradiction(config: ModulatedConfig) -> str | None:
    find("dataset", config.dataset)  # says what is wrong
    if problem := sites_problem(config):
        return problem
    config.comparators_of(simulated=True)
    if config.alpha == 1:
        return "alpha = 1 leaves nothing of a record in its message (c = 1 - alpha = 0); choose another alpha"
    if config.strategy == "modulated-one-shot":
        if config.rounds != 1:
            return (
                f"num-server-rounds = {config.rounds} with strategy = 'modulated-one-shot', which has one round: leave "
                "it empty, or use 'modulated-iterative'"
            )
        for key in ("learning_rate", "radius"):
            if getattr(config, key) is not None:
                return f"{key.replace('_', '-')} is for strategy = 'modulated-iterative' only; leave it empty"
    elif config.ridge is not None:
        return "ridge is for strategy = 'modulated-one-shot' only; leave it empty"
    elif config.fraction_train < 1 and config.participation != "sampled":
        return (
            f"fraction-train = {config.fraction_train:g} with participation = {config.participation!r}: use "
            "participation = 'sampled', or leave fraction-train at 1"
        )
    elif config.estimate == "averaged" and config.reply == "sum":
        return "estimate = 'averaged' needs every client's message at the server: set reply = 'each'"
    elif config.estimate == "averaged" and config.participation == "cohorts":
        return (
            "estimate = 'averaged' with participation = 'cohorts', where no client sends twice: use 'pooled'"
        )
    if config.dataset in ("csv", "parquet", "npz") and not (config.data_path or uses_sites(config)):
        return f"dataset = {config.dataset!r} needs data-path, the file"
    return _options_problem(config) or config.path_problem() or config.hook_problem()


def _options_problem(config: ModulatedConfig) -> str | None:
    try:
        tables = parse_options(config.options)
    except tomllib.TOMLDecodeError as error:
        return f"options = {config.options!r} is not TOML: {error}"
    for name, value in tables.items():
        if name != "dataset":
            return f"unknown table {name!r} in options; {nearest(name, ['dataset'])}"
        if not isinstance(value, dict):
            return f"options: {name} = {value!r} must be a table, as in dataset = {{records = 1000}}"
    return None
