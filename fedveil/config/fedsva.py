"""Every setting of the FedSVA app, with its unit, meaning and default."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedveil.config.errors import ConfigError, explain, nearest
from fedveil.wire import ReplyMode

__all__ = ["FedSVAConfig", "OptimizerOptions"]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def _setting(default: Any, unit: str, meaning: str, **limits: Any) -> Any:
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **limits)


# Flower's configurations have no "nothing": an empty string stands for a value that is not given.
OptionalInt = Annotated[int | None, BeforeValidator(_empty_is_none)]
OptionalFloat = Annotated[float | None, BeforeValidator(_empty_is_none)]
_STRICT = ConfigDict(alias_generator=_kebab, extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OptimizerOptions(BaseModel):
    """Further settings of the server optimiser ``adam``: ``options = "optimizer = {beta-1 = 0.9}"``."""

    model_config = _STRICT

    beta_1: float = Field(0.9, ge=0, lt=1)
    beta_2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)


class FedSVAConfig(BaseModel):
    """Settings of one FedSVA run; keys are the field names with hyphens, as in the app's ``pyproject.toml``."""

    model_config = _STRICT

    path_keys: ClassVar[tuple[str, ...]] = ("data-path", "data-schema", "test-path", "output-dir", "resume")
    """Keys that hold a path; ``fedveil run`` makes relative ones absolute before the run leaves its folder."""
    engine_keys: ClassVar[tuple[str, ...]] = ("seed", "output-dir", "resume", "round-timeout")
    """Keys that change where and how long, but not what is computed."""

    num_server_rounds: int = _setting(40, "rounds", "Rounds of training.", ge=1, le=1_000_000)
    fraction_train: float = _setting(1.0, "share of clients", "Clients sampled in each round.", gt=0, le=1)
    local_steps: int = _setting(
        1, "steps", "Noised gradient steps of a client in a round; each is a release.", ge=1, le=1_000_000
    )
    learning_rate: float = _setting(3.0, "per step", "Step size of the clients.", gt=0)
    server_optimizer: Literal["plain", "momentum", "adam"] = _setting(
        "plain", "", "What the server does with the mean update (Flower's FedAvg, FedAvgM, FedAdam)."
    )
    server_learning_rate: float = _setting(1.0, "per round", "Step size of the server.", gt=0)
    server_momentum: float = _setting(0.9, "share", "Momentum of server-optimizer momentum.", ge=0, lt=1)

    dataset: Literal["mnist-5k", "csv"] = _setting(
        "mnist-5k", "", "5,000 embedded MNIST digits, or your own CSV."
    )
    data_path: str = _setting("", "path", "The CSV file (.csv or .csv.gz).")
    data_schema: str = _setting(
        "", "path", "Public description of its columns; empty: <data-path>.schema.toml."
    )
    target: str = _setting("", "column", "The CSV's label column.")
    client_column: str = _setting("", "column", "Column that says whose record it is, for partition natural.")
    test_fraction: float = _setting(
        0.2, "share of records", "Records set apart as the public test set.", gt=0, lt=1
    )
    test_path: str = _setting(
        "", "path", "A CSV of its own as the public test set, instead of test-fraction."
    )
    partition: Literal["iid", "dirichlet", "natural"] = _setting(
        "iid", "", "How records are spread over clients."
    )
    num_clients: int = _setting(
        4,
        "clients",
        "Logical clients; the nodes share them. A natural partition has as many as the data.",
        ge=1,
    )
    dirichlet_alpha: float = _setting(0.5, "concentration", "Label skew of partition dirichlet.", gt=0)
    min_records: int = _setting(1, "records", "A client with fewer is an error.", ge=1)
    data_seed: int = _setting(0, "", "PUBLIC seed of test split, partition and initial model.", ge=0)

    private_attributes: str = _setting(
        "10:18,10:18",
        "names or pixels",
        "Column names, with commas; or rows,columns of images as half-open ranges.",
    )
    drop_private: bool = _setting(
        False,
        "",
        "Replace the private attributes by their public baseline everywhere, instead of learning from them.",
    )

    model: str = _setting("softmax", "name", "softmax, mlp, or package.module:factory of your own.")
    hidden_units: int = _setting(64, "units", "Width of the mlp.", ge=1, le=1_000_000)

    privacy: Literal["local", "central", "none"] = _setting(
        "local", "", "Who adds the noise: each client, the trusted server, nobody."
    )
    calibration: Literal["attribute", "uniform"] = _setting(
        "attribute", "", "With local privacy: protect the private attributes, or whole records."
    )
    epsilon: float = _setting(
        1.0,
        "total of a client over the run",
        "Budget under the relation attribute, record (uniform) or client (central).",
        gt=0,
        le=1e6,
    )
    epsilon_record: OptionalFloat = _setting(
        None,
        "total of a client over the run",
        "Second budget, under the record relation, with attribute.",
        gt=0,
        le=1e6,
    )
    delta: float = _setting(
        1e-5, "total of a client over the run", "Failure probability of the guarantee.", gt=0, lt=1
    )
    clip_norm: float = _setting(
        1.0, "L2 norm", "Clip of a record's gradient (C); of a client's update (central).", ge=1e-30, le=1e30
    )
    attribute_clip_norm: float = _setting(
        0.2, "L2 norm", "Clip of what the private attributes add to a gradient (C_p).", ge=1e-30, le=1e30
    )
    clip_without_noise: bool = _setting(
        False,
        "",
        "With privacy none: clip all the same, to compare with a private run that differs in noise alone.",
    )
    sampling_rate: float = _setting(
        1.0, "share of records", "Records Poisson-sampled in a step; 1: all.", gt=0, le=1
    )
    mu_release: OptionalFloat = _setting(
        None, "GDP mu", "Privacy of one release; empty: the budget spread evenly over the releases.", gt=0
    )

    seed: OptionalInt = _setting(
        None, "", "SECRET seed of noise and sampling, simulations only; empty: the system's entropy.", ge=0
    )
    output_dir: str = _setting(
        "", "path", "Where run folders go; empty: $FEDVEIL_HOME/runs, else ~/.fedveil/runs."
    )
    resume: str = _setting("", "path", "Folder of an unfinished run to go on with.")
    threads_per_node: int = _setting(
        1, "threads", "Threads of torch and BLAS; part of the result's bits.", ge=1, le=256
    )
    round_timeout: float = _setting(600.0, "seconds", "How long to wait for the replies of a round.", gt=0)
    options: str = _setting("", "inline TOML", "Nested settings: optimizer = {beta-1, beta-2, tau} for adam.")

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> Self:
        """Check a Flower run configuration.

        Raises
        ------
        ConfigError
            Naming the key, the value, what is allowed and the nearest valid name.
        """
        try:
            return cls.model_validate(dict(run_config))
        except ValidationError as error:
            raise explain(error, cls.keys()) from None

    @classmethod
    def keys(cls) -> list[str]:
        """All keys, as a run configuration spells them."""
        return [_kebab(name) for name in cls.model_fields]

    def to_run_config(self) -> dict[str, Any]:
        """All values, defaults too, as a run configuration."""
        return {key: "" if value is None else value for key, value in self.model_dump(by_alias=True).items()}

    @property
    def config_hash(self) -> str:
        """Hash of every setting that changes what is computed; part of every random stream's key."""
        values = {key: value for key, value in self.to_run_config().items() if key not in self.engine_keys}
        return blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()

    @property
    def optimizer_options(self) -> OptimizerOptions:
        """The nested settings of the server optimiser."""
        return OptimizerOptions.model_validate(_parse_options(self.options).get("optimizer", {}))

    @property
    def is_attribute_level(self) -> bool:
        """Whether the private attributes get a guarantee of their own."""
        return self.privacy == "local" and self.calibration == "attribute"

    @property
    def reply(self) -> ReplyMode:
        """What nodes send back: one sum, or each client's update where the server adds the noise."""
        return "each" if self.privacy == "central" else "sum"

    @model_validator(mode="after")
    def _contradictions(self) -> Self:
        for problem in (
            self._data_problem(),
            self._private_attributes_problem(),
            self._privacy_problem(),
            _options_problem(self.options),
            self._path_problem(),
        ):
            if problem:
                raise ValueError(problem)
        return self

    def _data_problem(self) -> str | None:
        if self.dataset == "csv":
            if not self.data_path or not self.target:
                return "dataset = 'csv' needs data-path (the file) and target (its label column)"
        else:
            for key, value in (
                ("data-path", self.data_path),
                ("data-schema", self.data_schema),
                ("target", self.target),
                ("client-column", self.client_column),
                ("test-path", self.test_path),
            ):
                if value:
                    return f"{key} = {value!r} is only for dataset = 'csv', and dataset is {self.dataset!r}"
        if self.partition == "natural" and not self.client_column:
            return "partition = 'natural' needs client-column, the column that says whose record it is"
        return None

    def _private_attributes_problem(self) -> str | None:
        if not self.private_attributes and (self.is_attribute_level or self.drop_private):
            wanted = "calibration = 'attribute'" if self.is_attribute_level else "drop-private"
            return f"{wanted} needs private attributes: name columns, or a region of images, in private-attributes"
        if self.drop_private and self.is_attribute_level:
            return "drop-private leaves nothing private to protect: use calibration = 'uniform' or privacy = 'none'"
        return None

    def _privacy_problem(self) -> str | None:
        if self.sampling_rate < 1:
            if self.is_attribute_level:
                return (
                    f"sampling-rate = {self.sampling_rate} with calibration = 'attribute': sampling records amplifies "
                    "nothing at the attribute level; use sampling-rate = 1 or calibration = 'uniform'"
                )
            if self.privacy != "local":
                return f"sampling-rate is only for privacy = 'local', and privacy is {self.privacy!r}"
            if self.mu_release is not None:
                return "mu-release needs full batches: set sampling-rate = 1 or leave mu-release empty"
        if self.clip_without_noise and self.privacy != "none":
            return f"clip-without-noise is only for privacy = 'none', and privacy is {self.privacy!r}"
        if self.epsilon_record is not None and not self.is_attribute_level:
            return "epsilon-record is a second budget beside calibration = 'attribute'; here epsilon is the only budget"
        if self.mu_release is not None and self.privacy != "local":
            return f"mu-release is only for privacy = 'local', and privacy is {self.privacy!r}"
        if self.is_attribute_level and self.attribute_clip_norm > self.clip_norm:
            return (
                f"attribute-clip-norm = {self.attribute_clip_norm} is above clip-norm = {self.clip_norm}: that "
                "protects the private attributes less than the whole record; lower it"
            )
        return None

    def _path_problem(self) -> str | None:
        values = self.to_run_config()
        for key in self.path_keys:
            if values[key] and not Path(values[key]).is_absolute():
                return (
                    f"{key} = {values[key]!r} must be an absolute path (a run does not execute in your folder); "
                    "`fedveil run` accepts relative ones"
                )
        return None


def _parse_options(text: str) -> dict[str, Any]:
    return tomllib.loads(text.replace("\\n", "\n"))


def _options_problem(text: str) -> str | None:
    try:
        tables = _parse_options(text)
    except tomllib.TOMLDecodeError as error:
        return f"options = {text!r} is not TOML: {error}"
    for name, value in tables.items():
        if name != "optimizer":
            return f"unknown table {name!r} in options; {nearest(name, ['optimizer'])}"
        if not isinstance(value, dict):
            return f"options: optimizer = {value!r} must be a table, as in optimizer = {{beta-1 = 0.9}}"
        try:
            OptimizerOptions.model_validate(value)
        except ValidationError as error:
            keys = [_kebab(field) for field in OptimizerOptions.model_fields]
            return f"options: {explain(error, keys)}".rstrip(".")
    return None


__all__ += ["ConfigError"]
