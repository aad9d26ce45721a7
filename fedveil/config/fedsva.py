"""Every setting of the FedSVA app, with its unit, meaning and default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from fedveil.config.base import OptionalFloat, OptionalInt, RunConfig, setting
from fedveil.config.contradictions import contradiction
from fedveil.config.options import OptimizerOptions, parse_options
from fedveil.datasets.group_line import group_kind, read_items
from fedveil.plugins import find, resolve
from fedveil.privacy import CALIBRATIONS, StepCalibration
from fedveil.wire import ReplyMode

__all__ = ["FedSVAConfig", "OptimizerOptions"]


class FedSVAConfig(RunConfig):
    """Settings of one FedSVA run; keys are the field names with hyphens, as in the app's ``pyproject.toml``."""

    unhashed_defaults: ClassVar[Mapping[str, Any]] = {"membership": "public", "membership-share": 0.1}

    num_server_rounds: int = setting(40, "rounds", "Rounds of training.", ge=1, le=1_000_000)
    fraction_train: float = setting(1.0, "share of all clients", "Clients sampled in each round.", gt=0, le=1)
    local_steps: int = setting(
        1, "steps", "Noised gradient steps of a client in a round; each is a release.", ge=1, le=1_000_000
    )
    learning_rate: float = setting(3.0, "per step", "Step size of the clients.", gt=0)
    strategy: str = setting("private-averaging", "name", "Server strategy: private-averaging, or a plugin's.")
    aggregation_weights: Literal["records", "noise-aware"] = setting(
        "records", "", "Clients weigh by their records, or less where their updates carry more noise."
    )
    weight_tau: float = setting(
        0.1, "units of an update", "With noise-aware: spread of the clients' true updates (tau).", gt=0
    )
    server_optimizer: Literal["plain", "momentum", "adam"] = setting(
        "plain", "", "What the server does with the mean update (Flower's FedAvg, FedAvgM, FedAdam)."
    )
    server_learning_rate: float = setting(1.0, "per round", "Step size of the server.", gt=0)
    server_momentum: float = setting(0.9, "share", "Momentum of server-optimizer momentum.", ge=0, lt=1)

    dataset: str = setting("mnist-5k", "name", "A data set by name; `fedveil list` shows all.")
    data_path: str = setting(
        "",
        "path",
        "File or folder of csv, parquet, npz, image-folder; with sites, {client} in it is a client's number.",
    )
    data_schema: str = setting(
        "", "path", "Public description of its columns; empty: <data-path>.schema.toml."
    )
    target: str = setting("", "column", "The label column; empty: the data set's own.")
    client_column: str = setting("", "column", "Column that says whose record it is, for partition natural.")
    test_fraction: float = setting(
        0.2, "share of records", "Records set apart as the public test set.", gt=0, lt=1
    )
    test_path: str = setting(
        "", "path", "A file of its own as the public test set, instead of test-fraction."
    )
    partition: Literal["iid", "dirichlet", "classes", "natural", "sites"] = setting(
        "iid", "", "How records are spread over clients; sites: every node brings its own."
    )
    num_clients: int = setting(
        4,
        "clients",
        "Logical clients; the nodes share them. A natural partition has as many as the data.",
        ge=1,
    )
    dirichlet_alpha: float = setting(0.5, "concentration", "Label skew of partition dirichlet.", gt=0)
    classes_per_client: int = setting(2, "classes", "Classes of each client of partition classes.", ge=1)
    min_records: int = setting(1, "records", "Fewest records of a client.", ge=1)
    small_clients: Literal["error", "drop"] = setting(
        "error", "", "A client with fewer than min-records is an error, or takes no part."
    )

    private_attributes: str = setting(
        "",
        "names or pixels",
        "Column names, with commas; or rows,columns of images; empty: the data set's own.",
    )
    drop_private: bool = setting(
        False,
        "",
        "Replace the private attributes by their public baseline everywhere, instead of learning from them.",
    )

    groups: str = setting(
        "",
        "name = what; ...",
        "Groups whose contributions are compared; empty: the private attributes and the others.",
    )
    private_groups: str = setting("", "names", "With groups of records: the private ones.")
    contribution: str = setting(
        "mask",
        "",
        "How R is found: mask groups in the received model, retrain on coalitions, or a public number, as in '0.3'.",
    )
    contribution_release: Literal["shapley", "utilities", "none"] = setting(
        "shapley",
        "",
        "What a client releases to make R usable: Shapley values, or all utilities; none: nothing is proven.",
    )
    contribution_round: OptionalInt = setting(
        None,
        "round",
        "First round in which clients release their contribution; empty: 5, or the last but one.",
        ge=1,
    )
    contribution_share: float = setting(
        0.1, "share of the budget mu^2", "What releasing the contribution may cost.", gt=0, lt=1
    )
    contribution_pairs: int = setting(
        0, "pairs of permutations", "Sampled Shapley values, for more than 12 groups.", ge=0, le=100_000
    )
    validation_fraction: OptionalFloat = setting(
        None,
        "share of a client's records",
        "Records that utilities are measured on; empty: all (mask), 0.25 held out (retrain).",
        gt=0,
        le=1,
    )
    retrain_steps: int = setting(20, "steps", "Gradient steps of each auxiliary model.", ge=1, le=100_000)

    model: str = setting(
        "softmax", "name", "A model by name (`fedveil list`), or package.module:factory of your own."
    )
    hidden_units: int = setting(64, "units", "Width of the mlp.", ge=1, le=1_000_000)

    privacy: Literal["local", "central", "none"] = setting(
        "local", "", "Who adds the noise: each client, the trusted server, nobody."
    )
    calibration: str = setting(
        "attribute",
        "name",
        "Noise of a step: attribute (protects private attributes), uniform (whole records), paper, tight, a plugin.",
    )
    beta: float = setting(
        0.0, "pure number", "Lower bound on the tolerance of paper and tight (beta).", ge=0, le=1e6
    )
    epsilon: float = setting(
        1.0,
        "total of a client over the run",
        "Budget under the relation attribute, record (uniform) or client (central).",
        gt=0,
        le=1e6,
    )
    epsilon_record: OptionalFloat = setting(
        None,
        "total of a client over the run",
        "Second budget, under the record relation, with attribute.",
        gt=0,
        le=1e6,
    )
    delta: float = setting(
        1e-5, "total of a client over the run", "Failure probability of the guarantee.", gt=0, lt=1
    )
    clip_norm: float = setting(
        1.0, "L2 norm", "Clip of a record's gradient (C); of a client's update (central).", ge=1e-29, le=1e29
    )
    attribute_clip_rule: Literal["contribution", "fixed", "quantile"] = setting(
        "contribution", "", "How C_p, the clip of what private attributes add to a gradient, is chosen."
    )
    attribute_clip_norm: float = setting(
        0.2,
        "L2 norm",
        "C_p of rule fixed, and of the other rules before anything is known.",
        ge=1e-29,
        le=1e29,
    )
    contribution_scale: float = setting(
        1.0,
        "pure number",
        "Rule contribution: C_p = scale max(R, 0.05) C, at most C (kappa).",
        ge=0.01,
        le=1e6,
    )
    attribute_clip_quantile: float = setting(
        0.5, "share of records", "Rule quantile: records whose private part is not clipped.", gt=0, lt=1
    )
    quantile_share: float = setting(
        0.05, "share of the budget mu^2", "What the quantile's releases may cost together.", gt=0, lt=1
    )
    clip_without_noise: bool = setting(
        False,
        "",
        "With privacy none: clip all the same, to compare with a private run that differs in noise alone.",
    )
    sampling_rate: float = setting(
        1.0, "share of records", "Records Poisson-sampled in a step; 1: all.", gt=0, le=1
    )
    mu_release: OptionalFloat = setting(
        None, "GDP mu", "Privacy of one release; empty: the budget spread evenly over the releases.", gt=0
    )
    membership: Literal["public", "federated", "study"] = setting(
        "public",
        "",
        "Records that r_Q is told on: public ones; clients' too, released; or exact and not private, in simulations.",
    )
    membership_share: float = setting(
        0.1,
        "share of the budget mu^2",
        "With membership federated: what its release may cost.",
        ge=1e-6,
        lt=1,
    )

    options: str = setting(
        "",
        "inline TOML",
        "Nested settings: optimizer = {beta-1, beta-2, tau} for adam; dataset = {...}, strategy = {...} for theirs.",
    )

    @property
    def optimizer_options(self) -> OptimizerOptions:
        """The nested settings of the server optimiser."""
        return OptimizerOptions.model_validate(parse_options(self.options).get("optimizer", {}))

    @property
    def step_calibration(self) -> StepCalibration:
        """The calibration that the name stands for.

        Raises
        ------
        ValueError
            If there is none, or a plugin gives something else.
        """
        if self.calibration in CALIBRATIONS:
            return CALIBRATIONS[self.calibration]
        plugin, rule = find("calibration", self.calibration), resolve("calibration", self.calibration)
        if not isinstance(rule, StepCalibration):
            raise ValueError(
                f"{plugin} must be a fedveil.privacy.StepCalibration, and is of type {type(rule).__name__}"
            )
        return replace(rule, name=str(plugin))

    @property
    def is_attribute_level(self) -> bool:
        """Whether the private attributes get a guarantee of their own."""
        return self.privacy == "local" and self.step_calibration.relation == "attribute"

    @property
    def clip_rule(self) -> Literal["contribution", "fixed", "quantile"] | None:
        """How C_p is chosen; None where there is none."""
        return self.attribute_clip_rule if self.is_attribute_level else None

    @property
    def public_contribution(self) -> float | None:
        """R where it is a public number; None where it is measured."""
        return None if self.contribution in ("mask", "retrain") else float(self.contribution)

    @property
    def measures_contribution(self) -> bool:
        """Whether clients measure R, because their noise or C_p depends on it."""
        uses = self.step_calibration.uses_contribution or self.clip_rule == "contribution"
        return self.privacy == "local" and uses and self.public_contribution is None

    @property
    def releases_contribution(self) -> bool:
        """Whether clients release what they measure."""
        return self.measures_contribution and self.contribution_release != "none"

    @property
    def first_release_round(self) -> int:
        """First round in which clients release their contribution."""
        if self.contribution_round is not None:
            return self.contribution_round
        return max(1, min(5, self.num_server_rounds - 1))  # what is released in the last round is of no use

    @property
    def is_data_dependent(self) -> bool:
        """Whether noise depends on private data that are not released: nothing is proven then."""
        return self.measures_contribution and self.contribution_release == "none"

    @property
    def releases_losses(self) -> bool:
        """Whether clients release differences of losses after training."""
        return self.membership == "federated"

    @property
    def groups_records(self) -> bool:
        """Whether the groups are of records, not of attributes."""
        return any(group_kind(what) != "attributes" for what in read_items(self.groups).values())

    @property
    def validation_share(self) -> float:
        """Share of a client's records that utilities are measured on."""
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.25 if self.contribution == "retrain" else 1.0

    @property
    def reply(self) -> ReplyMode:
        """What nodes send back: one sum, or each client's update where the server adds the noise."""
        return "each" if self.privacy == "central" else "sum"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problem := contradiction(self):
            raise ValueError(problem)
        return self
