"""What a person typed for modulated learning: every key explained, every mistake one sentence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedveil
from fedveil.cli import cli
from fedveil.config import ConfigError
from fedveil.config.base import RunConfig
from fedveil.config.modulated import COMPARATORS, ModulatedConfig
from fedveil.privacy import Modulation
from fedveil.run.app import find_app
from fedveil.run.settings import settings_of

APP = Path(fedveil.__file__).parent / "apps" / "modulated"
KEYS = ModulatedConfig.keys()
ITERATIVE = {"strategy": "modulated-iterative"}


def config(**values: Any) -> ModulatedConfig:
    """A configuration; underscores stand for hyphens."""
    return ModulatedConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


def refusal(values: dict[str, Any]) -> str:
    """The sentence that refuses these values."""
    with pytest.raises(ConfigError) as refused:
        ModulatedConfig.from_run_config(values)
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
    assert ModulatedConfig.from_run_config(defaults_of_the_app()) == ModulatedConfig()
    assert defaults_of_the_app() == ModulatedConfig().to_run_config()


def test_the_app_has_every_key():
    assert sorted(defaults_of_the_app()) == sorted(KEYS)


def test_the_apps_defaults_have_the_types_of_the_configuration():
    """Flower keeps the type of a default when it reads an override."""
    for key, value in ModulatedConfig().to_run_config().items():
        assert type(defaults_of_the_app()[key]) is type(value), key


def test_every_key_has_a_meaning_a_unit_and_a_default():
    settings = settings_of(find_app("modulated"))
    assert [setting.key for setting in settings] == list(defaults_of_the_app())
    for setting in settings:
        assert setting.meaning.endswith("."), setting.key
        assert len(setting.meaning) > 15, setting.key
        assert setting.default == defaults_of_the_app()[setting.key]
        annotation = ModulatedConfig.model_fields[setting.key.replace("-", "_")].annotation
        if annotation is not bool and ("int" in str(annotation) or "float" in str(annotation)):
            assert setting.unit or "seed" in setting.key, f"{setting.key} is a number without a unit"


def test_the_command_prints_every_key_with_its_unit():
    result = CliRunner().invoke(cli, ["config", "modulated"])
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for setting in settings_of(find_app("modulated")):
        assert setting.key in text
    assert "radian" in text


def test_keys_are_kebab_case():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", key) for key in KEYS)


def test_keys_that_hold_paths_and_keys_of_the_engine_exist():
    assert set(ModulatedConfig.path_keys) <= set(KEYS)
    assert set(ModulatedConfig.engine_keys) <= set(KEYS)


def test_values_come_back_as_they_went_in():
    values = ModulatedConfig().to_run_config() | {"epsilon": 2.5, "seed": 7, "bound": 1.5}
    assert ModulatedConfig.from_run_config(values).to_run_config() == values


def test_an_empty_text_stands_for_a_value_that_is_not_given():
    empty = config(seed="", bound="", num_server_rounds="", learning_rate="", radius="", ridge="")
    assert empty == ModulatedConfig()
    assert empty.to_run_config()["seed"] == ""


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        ModulatedConfig().epsilon = 100.0


# wrong types and values

NUMBERS = [
    key
    for key in KEYS
    if any(
        word in str(ModulatedConfig.model_fields[key.replace("-", "_")].annotation)
        for word in ("int", "float")
    )
]
INTEGERS = [
    key
    for key in NUMBERS
    if "float" not in str(ModulatedConfig.model_fields[key.replace("-", "_")].annotation)
]
BOOLEANS = [key for key, value in ModulatedConfig().to_run_config().items() if isinstance(value, bool)]
TEXTS = [key for key in KEYS if key not in NUMBERS and key not in BOOLEANS]


def test_every_key_is_a_number_a_truth_value_or_a_text():
    assert BOOLEANS == ["label-privacy"]
    assert {"epsilon", "bound", "seed", "num-server-rounds", "dp-sgd-rounds"} <= set(NUMBERS)
    assert {"strategy", "estimate", "comparators", "options", "target"} <= set(TEXTS)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [True, False, "5", "x", [1], float("nan"), float("inf"), -float("inf")])
def test_a_number_is_a_finite_number_and_no_boolean_and_no_text(key: str, value: object):
    assert refusal({**ITERATIVE, key: value}).startswith(f"{key} = {value!r}: input should be a")


@pytest.mark.parametrize("key", INTEGERS)
def test_a_whole_number_is_no_real_one(key: str):
    assert refusal({key: 2.0}).startswith(f"{key} = 2.0: input should be a valid integer")


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("value", [1, True, 2.5, None, ["x"]])
def test_a_text_is_a_text(key: str, value: object):
    assert refusal({key: value}).startswith(f"{key} = {value!r}: input should be ")


@pytest.mark.parametrize("value", [0, 1, "true", "", None])
def test_a_truth_value_is_one(value: object):
    assert refusal({"label-privacy": value}) == f"label-privacy = {value!r}: input should be a valid boolean."


SAMPLED = {**ITERATIVE, "participation": "sampled"}
ONE_SHOT: dict[str, Any] = {}
RANGES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "num-server-rounds": (ITERATIVE, [0, -1, 100_001], [1, 100_000]),
    "fraction-train": (SAMPLED, [0.0, -0.1, 1.0000001], [1e-9, 1.0]),
    "learning-rate": (ITERATIVE, [0.0, -1.0], [1e-9]),
    "radius": (ITERATIVE, [0.0, -1.0], [1e-9]),
    "ridge": (ONE_SHOT, [-1e-9], [0.0, 2.5]),
    "alpha": (ONE_SHOT, [-1e7, 1e7], [-3.0, 0.0, 0.999, 2.0]),
    "amplitude": (ONE_SHOT, [-0.1, -1e-300], [0.0, 3.0]),
    "frequency": (ONE_SHOT, [-0.1, -1e-300], [0.0, 100.0]),
    "num-directions": (ONE_SHOT, [0, -1, 10_001], [1, 10_000]),
    "bound": (ONE_SHOT, [0.0, -1.0, 1e-7, 1e7], [1e-6, 1.0]),
    "range-share": (ONE_SHOT, [0.0, 1.0, -0.1], [0.05, 0.999]),
    "epsilon": (ONE_SHOT, [0.0, -1.0, 1e7], [1e-6, 1000.0]),
    "delta": (ONE_SHOT, [0.0, 1.0, -1e-5], [1e-300, 0.5]),
    "confidence": (ONE_SHOT, [0.0, 1.0], [0.5, 0.999]),
    "dp-sgd-clip-norm": (ONE_SHOT, [0.0, -1.0], [0.1]),
    "dp-sgd-rounds": (ONE_SHOT, [0], [1]),
    "dp-sgd-learning-rate": (ONE_SHOT, [0.0, -1.0], [0.1]),
    "test-fraction": (ONE_SHOT, [0.0, 1.0], [0.5]),
    "data-seed": (ONE_SHOT, [-1], [0]),
    "seed": (ONE_SHOT, [-1], [0, 2**70]),
    "threads-per-node": (ONE_SHOT, [0], [1]),
    "round-timeout": (ONE_SHOT, [0.0, -1.0], [0.1]),
    "min-replies": (ONE_SHOT, [0, -1], [1, 1000]),
    "round-attempts": (ONE_SHOT, [0, 101], [1, 100]),
}


def test_every_number_of_this_app_has_a_range_here():
    """Those that all apps share are tried in a module of their own too."""
    assert set(NUMBERS) - set(RunConfig.keys()) <= set(RANGES) <= set(NUMBERS)


@pytest.mark.parametrize("key", RANGES)
def test_numbers_outside_their_range_are_refused_and_inside_taken(key: str):
    base, outside, inside = RANGES[key]
    for value in outside:
        assert refusal({**base, key: value}).startswith(f"{key} = {value!r}: input should be ")
    for value in inside:
        assert ModulatedConfig.from_run_config({**base, key: value}).to_run_config()[key] == value


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("strategy", "one-shot", "'modulated-one-shot' or 'modulated-iterative'"),
        ("participation", "cohort", "'all', 'sampled' or 'cohorts'"),
        ("estimate", "mean", "'fresh', 'pooled' or 'averaged'"),
        ("standardization", "private", "'public' or 'estimated'"),
        ("sensitivity", "exakt", "'exact' or 'paper'"),
        ("accounting", "rdp", "'exact' or 'zcdp'"),
        ("reply", "all", "'sum' or 'each'"),
        ("interval-target", "people", "'clients' or 'population'"),
    ],
)
def test_a_wrong_choice_is_told_the_right_ones(key: str, value: str, allowed: str):
    assert refusal({key: value}) == f"{key} = {value!r}: input should be {allowed}."


# unknown names


def test_an_unknown_key_suggests_the_nearest():
    assert refusal({"lamda": 0.5}).startswith("unknown key 'lamda'; ")
    assert refusal({"num-direction": 1}) == "unknown key 'num-direction'; did you mean 'num-directions'?"
    assert refusal({"label_privacy": True}) == "unknown key 'label_privacy'; did you mean 'label-privacy'?"


def test_a_data_set_that_is_not_installed_is_told_the_nearest():
    sentence = refusal({"dataset": "mode-choice"})
    assert sentence.startswith("dataset = 'mode-choice' is not installed; did you mean 'modechoice'?")


@given(st.sampled_from(KEYS), st.integers(0, 40))
def test_a_key_with_one_letter_missing_is_found(key: str, position: int):
    typed = key[: position % len(key)] + key[position % len(key) + 1 :]
    if typed not in KEYS and len(key) > 5:
        assert refusal({typed: 1}) == f"unknown key {typed!r}; did you mean {key!r}?"


# what contradicts itself

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "alpha = 1": ({"alpha": 1.0}, "alpha = 1 leaves nothing of a record in its message"),
    "one-shot in two rounds": ({"num-server-rounds": 2}, "num-server-rounds = 2 with strategy ="),
    "a step size in one-shot": (
        {"learning-rate": 0.1},
        "learning-rate is for strategy = 'modulated-iterative'",
    ),
    "a radius in one-shot": ({"radius": 1.0}, "radius is for strategy = 'modulated-iterative'"),
    "a ridge for steps": ({**ITERATIVE, "ridge": 0.1}, "ridge is for strategy = 'modulated-one-shot'"),
    "a sample of disjoint cohorts": (
        {**ITERATIVE, "fraction-train": 0.5},
        "fraction-train = 0.5 with participation = 'cohorts'",
    ),
    "a sample of all": (
        {**ITERATIVE, "participation": "all", "fraction-train": 0.5},
        "fraction-train = 0.5 with participation = 'all'",
    ),
    "averages of sums": (
        {**ITERATIVE, "participation": "all", "estimate": "averaged"},
        "estimate = 'averaged' needs every client's message at the server: set reply = 'each'",
    ),
    "averages of one message each": (
        {**ITERATIVE, "estimate": "averaged", "reply": "each"},
        "estimate = 'averaged' with participation = 'cohorts'",
    ),
    "a file that is not named": ({"dataset": "csv"}, "dataset = 'csv' needs data-path"),
    "an array that is not named": ({"dataset": "npz"}, "dataset = 'npz' needs data-path"),
    "an unknown comparator": ({"comparators": "dp-sdg"}, "comparators = 'dp-sdg': did you mean 'dp-sgd'?"),
    "an unknown one among good ones": ({"comparators": "dp-sgd, lamda-0"}, "comparators = 'lamda-0'"),
    "all and one": ({"comparators": "auto,dp-sgd"}, "comparators = 'auto,dp-sgd': 'auto' stands alone"),
    "none and one": ({"comparators": "dp-sgd,none"}, "comparators = 'dp-sgd,none': 'none' stands alone"),
    "the method itself": ({"comparators": "one-shot"}, "comparators = 'one-shot' is the main method here"),
    "the iterative method itself": (
        {**ITERATIVE, "comparators": "dp-sgd,iterative"},
        "comparators = 'iterative' is the main method here",
    ),
    "options that are not TOML": ({"options": "dataset = {"}, "options = 'dataset = {' is not TOML"),
    "options of nobody": ({"options": "datset = {records = 5}"}, "unknown table 'datset' in options"),
    "an option that is no table": ({"options": "dataset = 5"}, "options: dataset = 5 must be a table"),
    "a path of one folder only": (
        {"dataset": "csv", "data-path": "cars.csv"},
        "data-path = 'cars.csv' must be",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_one_sentence_that_names_it(name: str):
    values, words = CONTRADICTIONS[name]
    assert words in refusal(values)


@pytest.mark.parametrize(
    "values",
    [
        {"alpha": 0.999999},
        {"alpha": 1.5},
        {"alpha": -2.0},
        {"ridge": 0.0},
        {"fraction-train": 0.5},
        {**SAMPLED, "fraction-train": 0.5},
        {**SAMPLED, "fraction-train": 0.5, "estimate": "averaged", "reply": "each"},
        {**ITERATIVE, "participation": "all", "estimate": "averaged", "reply": "each"},
        {**ITERATIVE, "comparators": "one-shot,dp-sgd"},
        {"comparators": ""},
        {"num-server-rounds": 1},
    ],
)
def test_what_is_no_contradiction_is_taken(values: dict[str, Any]):
    assert ModulatedConfig.from_run_config(values)


# what settings stand for


def test_rounds_follow_the_strategy_unless_they_are_given():
    assert ModulatedConfig().rounds == 1
    assert config(strategy="modulated-iterative").rounds == 20
    assert config(strategy="modulated-iterative", num_server_rounds=3).rounds == 3


def test_the_modulation_is_what_was_typed():
    assert config(alpha=0.5, amplitude=0.25, frequency=2.0, num_directions=3).modulation == Modulation(
        0.5, 0.25, 2.0, 3
    )


def test_comparators_are_all_other_methods_in_a_simulation_and_none_elsewhere():
    assert set(ModulatedConfig().comparators_of(simulated=True)) == set(COMPARATORS) - {"one-shot"}
    iterative = config(strategy="modulated-iterative")
    assert set(iterative.comparators_of(simulated=True)) == set(COMPARATORS) - {"iterative"}
    assert ModulatedConfig().comparators_of(simulated=False) == ()


def test_without_a_wave_the_comparator_without_one_is_the_run_itself_and_left_out():
    assert set(config(amplitude=0.0).comparators_of(simulated=True)) == set(COMPARATORS) - {
        "one-shot",
        "lambda-0",
    }
    iterative = config(strategy="modulated-iterative", amplitude=0.0)
    assert set(iterative.comparators_of(simulated=True)) == set(COMPARATORS) - {"iterative", "lambda-0"}
    assert "lambda-0" in config(amplitude=1e-9).comparators_of(simulated=True)
    # who names it has it
    assert config(amplitude=0.0, comparators="lambda-0").comparators_of(simulated=True) == ("lambda-0",)


@pytest.mark.parametrize("typed", ["none", "", " none ", ","])
def test_no_comparators_are_none_anywhere(typed: str):
    assert config(comparators=typed).comparators_of(simulated=True) == ()
    assert config(comparators=typed).comparators_of(simulated=False) == ()


def test_comparators_outside_a_simulation_are_refused_for_they_spend_the_budget_again():
    asked = config(comparators="dp-sgd, lambda-0, dp-sgd")
    assert asked.comparators_of(simulated=True) == ("dp-sgd", "lambda-0")  # once each, as typed
    with pytest.raises(
        ValueError, match="in a deployment: each would spend every client's whole budget again"
    ):
        asked.comparators_of(simulated=False)


def test_records_without_noise_are_the_one_comparator_that_real_nodes_can_be_asked_for_and_alone():
    assert config(comparators="no-privacy").comparators_of(simulated=False) == ("no-privacy",)
    with pytest.raises(ValueError, match="where every node's own policy allows records without noise"):
        config(comparators="no-privacy, dp-sgd").comparators_of(simulated=False)
    for typed, asks in (
        ("no-privacy", True),
        (" dp-sgd,no-privacy ", True),
        ("auto", False),
        ("none", False),
    ):
        assert config(comparators=typed).asks_without_noise is asks, typed


# the hash that random streams depend on


def test_sites_are_another_computation_and_shares_the_one_that_there_was():
    described = {"dataset": "csv", "target": "y", "test_path": "/t.csv", "data_schema": "/s.toml"}
    shares = config(**described, data_path="/x.csv")
    sites = config(**described, data_path="/x-{client}.csv", partition="sites")
    without = {key: value for key, value in shares.to_run_config().items() if key != "partition"}
    assert ModulatedConfig.from_run_config(without).config_hash == shares.config_hash
    assert sites.config_hash != config(**described, data_path="/x-{client}.csv").config_hash


CHANGES: dict[str, Any] = {
    "epsilon": 2.0,
    "delta": 1e-6,
    "alpha": 0.2,
    "amplitude": 0.4,
    "frequency": 2.0,
    "num-directions": 2,
    "bound": 1.0,
    "label-privacy": True,
    "standardization": "estimated",
    "range-share": 0.2,
    "sensitivity": "paper",
    "accounting": "zcdp",
    "fraction-train": 0.5,
    "dataset": "co2",
    "data-seed": 1,
    "target": "x",
    "test-fraction": 0.3,
    "options": "dataset = {records = 10}",
}


@pytest.mark.parametrize("key", CHANGES)
def test_another_setting_has_another_hash_and_so_other_noise(key: str):
    """Two settings with one seed and the same noise would cancel it."""
    assert ModulatedConfig.from_run_config({key: CHANGES[key]}).config_hash != ModulatedConfig().config_hash


@pytest.mark.parametrize(
    "values", [{"seed": 5}, {"output-dir": "/x"}, {"comparators": "none"}, {"round-timeout": 5.0}]
)
def test_what_changes_nothing_of_the_method_keeps_its_hash(values: dict[str, Any]):
    assert ModulatedConfig.from_run_config(values).config_hash == ModulatedConfig().config_hash
