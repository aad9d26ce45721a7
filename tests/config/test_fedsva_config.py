"""What a person typed: every key explained, every mistake one sentence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedveil
from fedveil.config import ConfigError, FedSVAConfig
from fedveil.config.errors import nearest
from fedveil.run.app import find_app
from fedveil.run.settings import settings_of

APP = Path(fedveil.__file__).parent / "apps" / "fedsva"
KEYS = FedSVAConfig.keys()
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


# defaults and keys


def defaults_of_the_app() -> dict[str, Any]:
    document = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    return document["tool"]["flwr"]["app"]["config"]


def test_the_apps_defaults_are_the_configurations():
    assert FedSVAConfig.from_run_config(defaults_of_the_app()) == FedSVAConfig()
    assert defaults_of_the_app() == FedSVAConfig().to_run_config()


def test_the_app_has_every_key():
    assert sorted(defaults_of_the_app()) == sorted(KEYS)


def test_the_apps_defaults_have_the_types_of_the_configuration():
    """Flower keeps the type of a default when it reads an override."""
    for key, value in FedSVAConfig().to_run_config().items():
        assert type(defaults_of_the_app()[key]) is type(value), key


def test_every_key_has_a_meaning_a_unit_and_a_default():
    settings = settings_of(find_app("fedsva"))
    assert [setting.key for setting in settings] == list(defaults_of_the_app())
    for setting in settings:
        assert setting.meaning.endswith("."), setting.key
        assert len(setting.meaning) > 15, setting.key
        assert setting.default == defaults_of_the_app()[setting.key]
        annotation = FedSVAConfig.model_fields[setting.key.replace("-", "_")].annotation
        if annotation is not bool and ("int" in str(annotation) or "float" in str(annotation)):
            assert setting.unit or "seed" in setting.key, f"{setting.key} is a number without a unit"


def test_keys_are_kebab_case():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", key) for key in KEYS)


def test_keys_that_hold_paths_and_keys_of_the_engine_exist():
    assert set(FedSVAConfig.path_keys) <= set(KEYS)
    assert set(FedSVAConfig.engine_keys) <= set(KEYS)


def test_values_come_back_as_they_went_in():
    values = FedSVAConfig().to_run_config() | {"epsilon": 2.5, "seed": 7, "epsilon-record": 8.0}
    assert FedSVAConfig.from_run_config(values).to_run_config() == values


def test_an_empty_text_stands_for_a_value_that_is_not_given():
    empty = config(seed="", epsilon_record="", mu_release="")
    assert (empty.seed, empty.epsilon_record, empty.mu_release) == (None, None, None)
    assert empty.to_run_config()["seed"] == ""


def test_a_whole_number_will_do_for_a_real_one():
    assert config(epsilon=2) == config(epsilon=2.0)
    assert config(epsilon=2).config_hash == config(epsilon=2.0).config_hash


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        FedSVAConfig().epsilon = 100.0


def test_what_nodes_send_back_follows_from_the_privacy():
    assert config(privacy="central").reply == "each"
    assert config(privacy="none").reply == config().reply == "sum"


# wrong types and values

NUMBERS = {
    key: FedSVAConfig.model_fields[key.replace("-", "_")]
    for key in KEYS
    if not isinstance(FedSVAConfig().to_run_config()[key], (bool, str))
    or key in ("seed", "epsilon-record", "mu-release", "validation-fraction", "contribution-round")
}
INTEGERS = [key for key, field in NUMBERS.items() if "float" not in str(field.annotation)]
BOOLEANS = [key for key, value in FedSVAConfig().to_run_config().items() if isinstance(value, bool)]
TEXTS = [key for key in KEYS if key not in NUMBERS and key not in BOOLEANS]


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize(
    "value", [True, False, "5", "1.0", "x", [1], float("nan"), float("inf"), -float("inf")]
)
def test_a_number_is_a_finite_number_and_no_boolean_and_no_text(key, value):
    sentence = refusal({**UNIFORM, key: value})
    assert sentence.startswith(f"{key} = {value!r}: input should be a")


@pytest.mark.parametrize("key", INTEGERS)
def test_a_whole_number_is_no_real_one(key):
    assert refusal({key: 2.0}).startswith(f"{key} = 2.0: input should be a valid integer")


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("value", [1, True, 2.5, None, ["x"]])
def test_a_text_is_a_text(key, value):
    assert refusal({key: value}).startswith(f"{key} = {value!r}: input should be ")


@pytest.mark.parametrize("key", BOOLEANS)
@pytest.mark.parametrize("value", [0, 1, "true", "", None])
def test_a_boolean_is_a_boolean(key, value):
    assert refusal({key: value}) == f"{key} = {value!r}: input should be a valid boolean."


RANGES = {
    "num-server-rounds": ([0, -1, 10**7], [1, 10**6]),
    "fraction-train": ([0.0, -0.1, 1.0000001], [1e-9, 1.0]),
    "local-steps": ([0], [1]),
    "learning-rate": ([0.0, -1.0], [1e-9]),
    "weight-tau": ([0.0, -1.0], [1e-9]),
    "server-learning-rate": ([0.0, -1.0], [1e-9]),
    "server-momentum": ([-0.1, 1.0], [0.0, 0.999]),
    "test-fraction": ([0.0, 1.0], [0.5]),
    "num-clients": ([0, -3], [1]),
    "dirichlet-alpha": ([0.0, -1.0], [1e-3]),
    "classes-per-client": ([0], [1]),
    "min-records": ([0], [1]),
    "data-seed": ([-1], [0]),
    "contribution-round": ([0], [1, 40]),
    "contribution-share": ([0.0, 1.0], [0.5]),
    "contribution-pairs": ([-1, 100_001], [0, 2]),
    "validation-fraction": ([0.0, 1.1], [0.5, 1.0]),
    "retrain-steps": ([0, 100_001], [1]),
    "hidden-units": ([0], [1]),
    "beta": ([-0.1], [0.0, 30.0]),
    "epsilon": ([0.0, -1.0], [1e-3, 1000.0]),
    "epsilon-record": ([0.0, -1.0], [10.0]),
    "delta": ([0.0, 1.0, -1e-5], [1e-300, 0.5]),
    "clip-norm": ([0.0, -1.0], [100.0]),
    "attribute-clip-norm": ([0.0, -1.0], [0.5, 1.0]),
    "contribution-scale": ([0.0, -1.0, 1e-3, 1e7], [0.01, 1e6]),
    "attribute-clip-quantile": ([0.0, 1.0], [0.5]),
    "quantile-share": ([0.0, 1.0], [0.5]),
    "sampling-rate": ([0.0, -0.1, 1.1], [1.0]),
    "mu-release": ([0.0, -1.0], [0.1]),
    "membership-share": ([0.0, 1.0, -0.1], [0.1, 0.5]),
    "candidates": ([0, 1, 4097], [2, 4096]),
    "trajectory": ([-1, 100_001], [0, 100_000]),
    "trajectory-skip": ([-0.1, 1.0], [0.0, 0.5]),
    "seed": ([-1], [0, 2**70]),
    "threads-per-node": ([0], [1]),
    "round-timeout": ([0.0, -1.0], [0.1]),
    "min-replies": ([0, -1], [1, 1000]),
    "round-attempts": ([0, 101], [1, 100]),
}


def test_every_number_has_a_range_here():
    assert set(RANGES) == set(NUMBERS)


@pytest.mark.parametrize("key", RANGES)
def test_numbers_outside_their_range_are_refused_and_inside_taken(key):
    outside, inside = RANGES[key]
    for value in outside:
        assert refusal({key: value}).startswith(f"{key} = {value!r}: input should be ")
    base = {"membership": "federated"} if key == "membership-share" else {}
    for value in inside:
        assert FedSVAConfig.from_run_config({**base, key: value}).to_run_config()[key] == value


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("server-optimizer", "sgd", "'plain', 'momentum' or 'adam'"),
        ("partition", "iidd", "'iid', 'dirichlet', 'classes', 'natural' or 'sites'"),
        ("privacy", "lokal", "'local', 'central' or 'none'"),
        ("attribute-clip-rule", "adaptive", "'contribution', 'fixed' or 'quantile'"),
        ("contribution-release", "phi", "'shapley', 'utilities' or 'none'"),
        ("aggregation-weights", "equal", "'records' or 'noise-aware'"),
        ("small-clients", "ignore", "'error' or 'drop'"),
        ("membership", "private", "'public', 'federated' or 'study'"),
    ],
)
def test_a_wrong_choice_is_told_the_right_ones(key, value, allowed):
    assert refusal({key: value}) == f"{key} = {value!r}: input should be {allowed}."


@pytest.mark.parametrize(
    ("key", "typed", "meant"),
    [
        ("dataset", "mnist-5", "mnist-5k"),
        ("calibration", "tigth", "tight"),
        ("model", "sofmax", "softmax"),
        ("strategy", "private-average", "private-averaging"),
    ],
)
def test_a_plugin_that_is_not_installed_is_told_the_nearest_and_all(key, typed, meant):
    sentence = refusal({key: typed})
    assert sentence.startswith(f"{key} = {typed!r} is not installed; did you mean {meant!r}? installed: ")
    assert meant in sentence.partition("installed: ")[2]


def test_several_mistakes_are_counted():
    assert refusal({"epsilon": -1.0, "delta": 2.0, "num-clients": 0}) == (
        "epsilon = -1.0: input should be greater than 0. (2 more such problems.)"
        if KEYS.index("epsilon") < KEYS.index("num-clients")
        else "num-clients = 0: input should be greater than or equal to 1. (2 more such problems.)"
    )


# unknown keys


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("epsilom", "epsilon"),
        ("num_clients", "num-clients"),
        ("learning_rate", "learning-rate"),
        ("num-server-round", "num-server-rounds"),
        ("privat-attributes", "private-attributes"),
        ("Delta", "delta"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(typed, meant):
    assert refusal({typed: 1}) == f"unknown key {typed!r}; did you mean {meant!r}?"


def test_a_key_like_no_other_is_told_all():
    sentence = refusal({"zzzz": 1})
    assert all(key in sentence for key in KEYS)


@given(st.sampled_from(KEYS), st.integers(0, 40))
def test_a_key_with_one_letter_missing_is_found(key, position):
    typed = key[: position % len(key)] + key[position % len(key) + 1 :]
    if typed not in KEYS and len(key) > 4:
        assert nearest(typed, KEYS) == f"did you mean {key!r}?"
