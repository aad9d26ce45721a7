"""The configuration of a run as TOML, and what differs between two."""

from __future__ import annotations

import tomllib

import pytest

from fedveil.artifacts import ConfigMismatch, differing_keys, require_same_config
from fedveil.artifacts.config_file import format_config, parse_config

CONFIG = {
    "num-server-rounds": 40,
    "learning-rate": 0.1,
    "private-columns": ["age", 'a "quoted" name'],
    "centre": (10, 18),
    "resume": "",
    "nested": {"on": True, "secret-key": "k"},
    "epsilon-record": None,
}


def test_every_value_comes_back_as_it_was_written() -> None:
    read = parse_config(format_config(CONFIG))
    assert differing_keys(CONFIG, read) == ()
    assert read["learning-rate"] == 0.1
    assert read["private-columns"] == ["age", 'a "quoted" name']


def test_a_value_that_is_not_set_is_named_in_a_comment() -> None:
    assert format_config(CONFIG).startswith("# not set: epsilon-record\n")


def test_a_secret_is_never_written() -> None:
    text = format_config(
        {"seed": 20231, "options": {"key": "k3y"}, "rounds": 3}, redact={"seed", "options.key"}
    )
    assert "20231" not in text
    assert "k3y" not in text
    assert parse_config(text) == {"seed": "secret", "options": {"key": "secret"}, "rounds": 3}


def test_a_misspelt_secret_is_refused_before_it_is_written() -> None:
    with pytest.raises(ValueError, match=r"cannot keep sede secret"):
        format_config({"seed": 20231}, redact={"sede"})


def test_a_value_that_toml_cannot_hold_is_named() -> None:
    with pytest.raises(ValueError, match="model = <object"):
        format_config({"model": object()})


def test_text_that_is_not_toml_is_a_value_error() -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_config("a = ")
    assert issubclass(tomllib.TOMLDecodeError, ValueError)


def test_differing_keys_are_named_and_free_ones_are_not() -> None:
    new = CONFIG | {"num-server-rounds": 50, "learning-rate": 0.2, "nested": {"on": False, "secret-key": "k"}}
    assert differing_keys(CONFIG, new) == ("learning-rate", "nested.on", "num-server-rounds")
    assert differing_keys(CONFIG, new, may_differ={"num-server-rounds", "nested"}) == ("learning-rate",)


def test_a_missing_key_equals_one_that_is_not_set_and_nothing_else() -> None:
    assert differing_keys({}, {"epsilon-record": None}) == ()
    assert differing_keys({}, {"epsilon-record": 0.0}) == ("epsilon-record",)


def test_one_and_true_differ() -> None:
    assert differing_keys({"flag": True}, {"flag": 1}) == ("flag",)
    assert differing_keys({"epsilon": 1}, {"epsilon": 1.0}) == ()


def test_a_redacted_key_is_not_compared_with_its_true_value() -> None:
    old = parse_config(format_config({"seed": 1, "rounds": 3}, redact={"seed"}))
    assert differing_keys(old, {"seed": 2, "rounds": 3}, redact={"seed"}) == ()
    assert differing_keys(old, {"seed": "", "rounds": 3}) == ("seed",)


def test_a_run_resumed_with_other_settings_hears_which_and_both_values() -> None:
    with pytest.raises(ConfigMismatch) as caught:
        require_same_config(
            {"epsilon": 1.0, "rounds": 3}, {"epsilon": 2.0, "rounds": 4}, may_differ={"rounds"}
        )
    assert "epsilon was 1.0 and is now 2.0" in str(caught.value)
    assert "rounds" not in str(caught.value)
    require_same_config({"rounds": 3}, {"rounds": 4}, may_differ={"rounds"})
