"""Settings that contradict each other: each pair is one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.config import ConfigError, FedSVAConfig

CSV = {"dataset": "csv", "data-path": "/data/people.csv", "target": "income"}
UNIFORM = {"calibration": "uniform"}


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


def refusal(values: dict[str, Any]) -> str:
    """The sentence that refuses these values."""
    with pytest.raises(ConfigError) as refused:
        FedSVAConfig.from_run_config(values)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?", ".)", "?)"))
    assert "pydantic" not in sentence.lower()
    return sentence


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a table without a file": ({"dataset": "csv", "target": "y"}, "dataset = 'csv' needs data-path"),
    "a table without a target": (
        {"dataset": "csv", "data-path": "/a.csv"},
        "needs data-path (the file) and target (its label column)",
    ),
    "a file for the digits": ({"data-path": "/a.csv"}, "data-path = '/a.csv' is only for dataset = 'csv'"),
    "a schema for the digits": (
        {"data-schema": "/a.toml"},
        "data-schema = '/a.toml' is only for dataset = 'csv'",
    ),
    "a target for the digits": ({"target": "y"}, "target = 'y' is only for dataset = 'csv'"),
    "a client column for the digits": (
        {"client-column": "who"},
        "client-column = 'who' is only for dataset = 'csv'",
    ),
    "a test file for the digits": (
        {"test-path": "/t.csv"},
        "test-path = '/t.csv' is only for dataset = 'csv'",
    ),
    "natural clients without a column": (
        CSV | {"partition": "natural"},
        "partition = 'natural' needs client-column",
    ),
    "nothing private to protect": (
        {"private-attributes": ""},
        "calibration = 'attribute' needs private attributes",
    ),
    "nothing private to drop": (
        {"private-attributes": "", "drop-private": True, "privacy": "none"},
        "drop-private needs private attributes",
    ),
    "dropped and protected": ({"drop-private": True}, "drop-private leaves nothing private to protect"),
    "attributes with sampled records": (
        {"sampling-rate": 0.5},
        "sampling-rate = 0.5 with calibration = 'attribute': sampling records amplifies nothing",
    ),
    "sampled records for a trusted server": (
        {"sampling-rate": 0.5, "privacy": "central"},
        "sampling-rate is only for privacy = 'local', and privacy is 'central'",
    ),
    "sampled records without privacy": (
        {"sampling-rate": 0.5, "privacy": "none"},
        "sampling-rate is only for privacy = 'local', and privacy is 'none'",
    ),
    "sampled records at a given mu": (
        UNIFORM | {"sampling-rate": 0.5, "mu-release": 0.1},
        "mu-release needs full batches: set sampling-rate = 1",
    ),
    "a second budget beside none": (
        UNIFORM | {"epsilon-record": 2.0},
        "epsilon-record is a second budget beside calibration = 'attribute'",
    ),
    "a second budget for a trusted server": (
        {"privacy": "central", "epsilon-record": 2.0},
        "here epsilon is the only budget",
    ),
    "a given mu for a trusted server": (
        {"privacy": "central", "mu-release": 0.1},
        "mu-release is only for privacy = 'local', and privacy is 'central'",
    ),
    "a given mu without privacy": (
        {"privacy": "none", "mu-release": 0.1},
        "mu-release is only for privacy = 'local', and privacy is 'none'",
    ),
    "clipping without noise with noise": (
        {"clip-without-noise": True},
        "clip-without-noise is only for privacy = 'none', and privacy is 'local'",
    ),
    "attributes that weigh more than their record": (
        {"attribute-clip-norm": 1.5},
        "attribute-clip-norm = 1.5 is above clip-norm = 1.0",
    ),
    "options that are no TOML": ({"options": "optimizer = {"}, "options = 'optimizer = {' is not TOML"),
    "options of another table": (
        {"options": "optimiser = {beta-1 = 0.5}"},
        "unknown table 'optimiser' in options; did you mean 'optimizer'?",
    ),
    "options with another key": (
        {"options": "optimizer = {beta1 = 0.5}"},
        "options: unknown key 'beta1'; did you mean 'beta-1'?",
    ),
    "options with another type": (
        {"options": "optimizer = {beta-1 = true}"},
        "options: beta-1 = True: input should be a valid number",
    ),
    "options out of range": (
        {"options": "optimizer = {tau = 0.0}"},
        "options: tau = 0.0: input should be greater",
    ),
    "options without a number": (
        {"options": "optimizer = {tau = nan}"},
        "options: tau = nan: input should be a finite",
    ),
    "options that are no table": ({"options": "optimizer = 3"}, "options: optimizer = 3 must be a table"),
    **{
        f"a relative {key}": (
            (CSV if key in ("data-path", "data-schema", "test-path") else {}) | {key: "here/x"},
            f"{key} = 'here/x' must be an absolute path",
        )
        for key in FedSVAConfig.path_keys
    },
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_told_in_one_sentence(name):
    values, words = CONTRADICTIONS[name]
    assert words in refusal(values)


@pytest.mark.parametrize(
    "values",
    [
        {},
        UNIFORM,
        UNIFORM | {"private-attributes": ""},
        UNIFORM | {"sampling-rate": 0.1},
        UNIFORM | {"attribute-clip-norm": 50.0},
        UNIFORM | {"drop-private": True},
        {"privacy": "none", "drop-private": True},
        {"privacy": "none", "clip-without-noise": True},
        {"privacy": "none", "private-attributes": ""},
        {"privacy": "central", "fraction-train": 0.2},
        {"epsilon-record": 8.0, "mu-release": 0.01},
        CSV | {"private-attributes": "age,job"},
        CSV | {"partition": "natural", "client-column": "site", "test-path": "/data/test.csv"},
        {"server-optimizer": "adam", "options": "optimizer = {beta-1 = 0.5, tau = 1e-2}"},
        {"output-dir": "/runs", "resume": "/runs/one"},
    ],
)
def test_what_fits_together_is_taken(values):
    assert FedSVAConfig.from_run_config(values).to_run_config().items() >= values.items()


def test_nested_options_reach_the_optimizer():
    assert config().optimizer_options.beta_1 == 0.9
    for text in (
        "optimizer = {beta-1 = 0.5, tau = 0.01}",
        "[optimizer]\nbeta-1 = 0.5\ntau = 0.01",
        "[optimizer]\\nbeta-1 = 0.5\\ntau = 0.01",  # as a shell hands it over
    ):
        options = config(options=text).optimizer_options
        assert (options.beta_1, options.beta_2, options.tau) == (0.5, 0.99, 0.01)
