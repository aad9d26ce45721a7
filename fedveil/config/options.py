"""Nested settings: what does not fit into the flat keys of a Flower configuration, as inline TOML in one text."""

from __future__ import annotations

import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["STRICT", "OptimizerOptions", "kebab", "parse_options"]


def kebab(name: str) -> str:
    """A field's name as a configuration spells it."""
    return name.replace("_", "-")


STRICT = ConfigDict(alias_generator=kebab, extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OptimizerOptions(BaseModel):
    """Further settings of the server optimiser ``adam``: ``options = "optimizer = {beta-1 = 0.9}"``."""

    model_config = STRICT

    beta_1: float = Field(0.9, ge=0, lt=1)
    beta_2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)


def parse_options(text: str) -> dict[str, Any]:
    """The tables of the setting ``options``, in which a line break may be written as backslash and n."""
    return tomllib.loads(text.replace("\\n", "\n"))
