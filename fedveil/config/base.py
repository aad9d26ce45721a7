"""What the settings of every app share: checked values, keys as Flower spells them, and a hash of what is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from fedveil.config.errors import explain
from fedveil.config.options import STRICT, kebab, parse_options
from fedveil.strategies.hooks import hook_names
from fedveil.strategies.hooks.quantize import DEFAULT_SCHEMES, schemes_of

__all__ = ["OptionalFloat", "OptionalInt", "RunConfig", "setting"]


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def setting(default: Any, unit: str, meaning: str, **limits: Any) -> Any:
    """A field with what ``fedveil config`` prints: unit, meaning and default."""
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **limits)


# Flower's configurations have no "nothing": an empty string stands for a value that is not given.
OptionalInt = Annotated[int | None, BeforeValidator(_empty_is_none)]
OptionalFloat = Annotated[float | None, BeforeValidator(_empty_is_none)]


class RunConfig(BaseModel):
    """Settings of one run; keys are the field names with hyphens, as in the app's ``pyproject.toml``."""

    model_config = STRICT

    path_keys: ClassVar[tuple[str, ...]] = ("data-path", "data-schema", "test-path", "output-dir", "resume")
    """Keys that hold a path; ``fedveil run`` makes relative ones absolute before the run leaves its folder."""
    engine_keys: ClassVar[tuple[str, ...]] = (
        *("seed", "output-dir", "resume", "round-timeout", "min-replies", "round-attempts"),
        *("hooks", "quantizers", "candidates", "trajectory", "trajectory-skip"),
    )
    """Keys that change where, how long and what is done with the result, but not what is computed."""

    unhashed_defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of keys at which a run computes what it did before there were such keys; the hash leaves them out then."""

    data_seed: int = setting(0, "", "PUBLIC seed of test split, partition and initial model.", ge=0)
    hooks: str = setting(
        "quantize", "names", "What is done with a finished run, with commas (`fedveil list`); none."
    )
    quantizers: str = setting(
        DEFAULT_SCHEMES, "names", "Hook quantize: quantizers, with commas; see docs/quantization.md."
    )
    candidates: int = setting(
        64,
        "models",
        "Hook quantize: models of the trajectory that r_Q compares, those of least loss.",
        ge=2,
        le=4096,
    )
    trajectory: int = setting(
        64, "rounds", "Models of the last rounds that stay in the run's folder; 0: none.", ge=0, le=100_000
    )
    trajectory_skip: float = setting(
        0.5,
        "share of the trajectory",
        "Hook quantize: first models that are no candidates of r_Q.",
        ge=0,
        lt=1,
    )
    seed: OptionalInt = setting(
        None, "", "SECRET seed of noise and sampling, simulations only; empty: the system's entropy.", ge=0
    )
    output_dir: str = setting(
        "", "path", "Where run folders go; empty: $FEDVEIL_HOME/runs, else ~/.fedveil/runs."
    )
    resume: str = setting("", "path", "Folder of an unfinished run to go on with.")
    threads_per_node: int = setting(
        1, "threads", "Threads of torch and BLAS; part of the result's bits.", ge=1, le=256
    )
    round_timeout: float = setting(
        600.0, "seconds", "How long to wait for the replies of a round, in each of its attempts.", gt=0
    )
    min_replies: int = setting(
        1, "nodes", "Fewest good replies that a round is averaged from; with fewer it is skipped.", ge=1
    )
    round_attempts: int = setting(
        1,
        "attempts",
        "How often a node is asked in a round if it fails, is silent or sends a bad reply; each may cost budget.",
        ge=1,
        le=100,
    )
    options: str = setting("", "inline TOML", "Nested settings.")

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
        return [kebab(name) for name in cls.model_fields]

    def to_run_config(self) -> dict[str, Any]:
        """All values, defaults too, as a run configuration."""
        return {key: "" if value is None else value for key, value in self.model_dump(by_alias=True).items()}

    @property
    def config_hash(self) -> str:
        """Hash of every setting that changes what is computed; part of every random stream's key."""
        values = {
            key: value
            for key, value in self.to_run_config().items()
            if key not in self.engine_keys
            and not (key in self.unhashed_defaults and value == self.unhashed_defaults[key])
        }
        return blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()

    def options_of(self, table: str) -> dict[str, Any]:
        """The nested settings under one name."""
        return dict(parse_options(self.options).get(table, {}))

    def hook_problem(self) -> str | None:
        """A hook or a quantizer that there is not; None where all are there."""
        try:
            if "quantize" in hook_names(self.hooks):
                schemes_of(self.quantizers)
        except ValueError as error:
            return str(error).rstrip(".")
        return None

    def path_problem(self) -> str | None:
        """A path that no system has, or that means another place on every machine; None where there is none."""
        values = self.to_run_config()
        for key in self.path_keys:
            if "\0" in str(values[key]):
                return f"{key} = {values[key]!r} holds a NUL character, which no path may: write it without"
            if values[key] and not Path(values[key]).is_absolute():
                return (
                    f"{key} = {values[key]!r} must be an absolute path (a run does not execute in your folder); "
                    "`fedveil run` accepts relative ones"
                )
        return None
