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
    "natural clients without a column": (
        CSV | {"partition": "natural"},
        "partition = 'natural' needs client-column",
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
    "sampled records with the published noise": (
        {"calibration": "paper", "sampling-rate": 0.5},
        "sampling-rate = 0.5 needs calibration = 'uniform', and calibration is 'paper'",
    ),
    "a given mu with the published noise": (
        {"calibration": "tight", "mu-release": 0.1},
        "mu-release is for calibration 'uniform' or 'attribute', and calibration is 'tight'",
    ),
    "a given mu with quantiles": (
        {"attribute-clip-rule": "quantile", "mu-release": 0.1},
        "mu-release with attribute-clip-rule = 'quantile': leave mu-release empty",
    ),
    "a second budget beside the published noise": (
        {"calibration": "paper", "epsilon-record": 2.0},
        "here epsilon is the only budget",
    ),
    "a contribution that is a word": (
        {"contribution": "masc"},
        "contribution = 'masc' must be 'mask', 'retrain' or a public number from 0 to 1, as in '0.3'; did you mean "
        "'mask'?",
    ),
    **{
        f"a contribution of {number}": (
            {"contribution": number},
            f"contribution = '{number}' must be 'mask', 'retrain' or a public number from 0 to 1",
        )
        for number in ("1.01", "-0.1", "nan", "inf", "")
    },
    "one pair of permutations": ({"contribution-pairs": 1}, "contribution-pairs = 1 gives no standard error"),
    "a retrained contribution that is released": (
        {"calibration": "paper", "contribution": "retrain"},
        "contribution = 'retrain' cannot be released, since one record changes every prediction",
    ),
    "a retrained contribution of attributes": (
        {"contribution": "retrain", "contribution-release": "none"},
        "calibration = 'attribute' with a contribution that is not released proves nothing",
    ),
    "attributes and a contribution that is not released": (
        {"contribution-release": "none"},
        "calibration = 'attribute' with a contribution that is not released proves nothing: release it",
    ),
    "groups of records that are masked": (
        {"calibration": "paper", "groups": "rare = class:3", "private-groups": "rare"},
        "groups of records cannot be masked in a model: use contribution = 'retrain'",
    ),
    "groups of records by a column that are masked": (
        {"calibration": "tight", "groups": "north = where:site=oslo", "private-groups": "north"},
        "groups of records cannot be masked in a model",
    ),
    "groups of records and private attributes": (
        {"groups": "rare = class:3", "private-groups": "rare", "attribute-clip-rule": "fixed"},
        "groups of records with calibration = 'attribute': what is private there are attributes",
    ),
    "a contribution after the end": (
        {"num-server-rounds": 4, "contribution-round": 5},
        "contribution-round = 5 is after the last round, num-server-rounds = 4: lower it or run more rounds",
    ),
    "nothing left to retrain on": (
        {
            "calibration": "paper",
            "contribution": "retrain",
            "contribution-release": "none",
            "validation-fraction": 1.0,
        },
        "validation-fraction = 1 leaves no records to retrain on",
    ),
    "weights by noise without noise": (
        {"aggregation-weights": "noise-aware", "privacy": "none"},
        "aggregation-weights = 'noise-aware' is only for privacy = 'local', and privacy is 'none'",
    ),
    "weights by noise for a trusted server": (
        {"aggregation-weights": "noise-aware", "privacy": "central"},
        "aggregation-weights = 'noise-aware' is only for privacy = 'local', and privacy is 'central'",
    ),
    "weights by noise that private data decide": (
        {"aggregation-weights": "noise-aware", "calibration": "paper", "contribution-release": "none"},
        "aggregation-weights = 'noise-aware' would show the noise of every client",
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
    "a share of a release that is not made": (
        {"membership-share": 0.2},
        "membership-share = 0.2 is only for membership = 'federated', and membership is 'public'",
    ),
    "a share of a release for study": (
        {"membership": "study", "membership-share": 0.2},
        "membership-share = 0.2 is only for membership = 'federated', and membership is 'study'",
    ),
    "a secret sample and rounds that may be skipped": (
        {"privacy": "central", "fraction-train": 0.5, "min-replies": 2},
        "min-replies = 2 with privacy = 'central' and fraction-train = 0.5: the guarantee needs that nobody knows who "
        "was sampled",
    ),
    "a secret sample and nodes that are asked again": (
        {"privacy": "central", "fraction-train": 0.5, "round-attempts": 3},
        "round-attempts = 3 with privacy = 'central' and fraction-train = 0.5",
    ),
    "a secret sample and both": (
        {"privacy": "central", "fraction-train": 0.999, "min-replies": 2, "round-attempts": 3},
        "min-replies = 2 and round-attempts = 3 with privacy = 'central' and fraction-train = 0.999",
    ),
    "losses released under central noise": (
        {"membership": "federated", "privacy": "central"},
        "membership = 'federated' is a release of clients that add their own noise, and privacy is 'central'",
    ),
    "losses released without privacy": (
        {"membership": "federated", "privacy": "none"},
        "membership = 'federated' is a release of clients that add their own noise, and privacy is 'none'",
    ),
    "losses released beside sampled records": (
        UNIFORM | {"membership": "federated", "sampling-rate": 0.5},
        "membership = 'federated' needs a privacy filter, and sampled records (sampling-rate = 0.5) have none",
    ),
    "losses released beside noise that private data choose": (
        {"membership": "federated", "calibration": "paper", "contribution-release": "none"},
        "membership = 'federated' cannot be paid for where the noise is chosen from private data",
    ),
    "losses released beside a given mu": (
        UNIFORM | {"membership": "federated", "mu-release": 0.01},
        "takes a share of the budget, which mu-release = 0.01 would not leave",
    ),
    "more shares than a whole": (
        {"membership": "federated", "membership-share": 0.5, "contribution-share": 0.5},
        "membership-share = 0.5 and the other releases' 0.5 leave no budget to training",
    ),
    "losses that no hook tells": (
        {"membership": "federated", "hooks": "none"},
        "membership = 'federated' is told by the hook quantize, and hooks = 'none'",
    ),
    "losses of models that are not kept": (
        {"membership": "study", "trajectory": 0},
        "membership = 'study' compares the models of the trajectory, and trajectory = 0",
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
    **{
        f"a NUL in {key}": (
            (CSV if key in ("data-path", "data-schema", "test-path") else {}) | {key: "/here/\0x"},
            f"{key} = '/here/\\x00x' holds a NUL character",
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
        {"private-attributes": ""},
        {"privacy": "central", "fraction-train": 0.2},
        {"privacy": "central", "min-replies": 2, "round-attempts": 3},
        {"fraction-train": 0.2, "min-replies": 2, "round-attempts": 3},
        {"privacy": "none", "fraction-train": 0.2, "min-replies": 2, "round-attempts": 3},
        {"epsilon-record": 8.0, "mu-release": 0.01},
        {"attribute-clip-rule": "fixed", "num-server-rounds": 1},
        {"attribute-clip-rule": "quantile", "num-server-rounds": 1},
        {"contribution": "0.3", "num-server-rounds": 1},
        {"contribution": "1"},
        {"contribution-release": "utilities", "contribution-round": 40},
        {"calibration": "paper", "contribution": "retrain", "contribution-release": "none", "beta": 30.0},
        {"calibration": "tight", "contribution-release": "none"},
        {"calibration": "paper", "aggregation-weights": "noise-aware"},
        UNIFORM | {"groups": "rare = class:3", "contribution": "retrain"},
        {"partition": "classes", "small-clients": "drop"},
        CSV | {"private-attributes": "age,job"},
        CSV | {"partition": "natural", "client-column": "site", "test-path": "/data/test.csv"},
        {"server-optimizer": "adam", "options": "optimizer = {beta-1 = 0.5, tau = 1e-2}"},
        {"options": "dataset = {columns = 3}\nstrategy = {}"},
        {"output-dir": "/runs", "resume": "/runs/one"},
        {"membership": "federated"},
        UNIFORM | {"membership": "federated", "membership-share": 0.9},
        {"membership": "federated", "attribute-clip-rule": "quantile", "membership-share": 0.9},
        {"membership": "study"},
        {"membership": "study", "privacy": "central"},
        UNIFORM | {"membership": "study", "sampling-rate": 0.5},
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
