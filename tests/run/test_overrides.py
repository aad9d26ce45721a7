"""Key-value pairs as typed on the command line."""

from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fedveil.run.overrides import absolute_paths, parse_overrides


def test_pairs_are_read_as_flower_reads_them():
    text = "epsilon=2 delta=1e-6 calibration=\"attribute\" drop=true options='optimizer = {beta-1 = 0.9}'"
    assert parse_overrides([text]) == parse_config_args([text])


def test_a_later_pair_wins():
    assert parse_overrides(["rounds=1", "rounds=2 rounds=3"]) == {"rounds": 3}


def test_a_file_is_read_and_its_tables_become_dotted_keys(tmp_path: Path):
    file = tmp_path / "over.toml"
    file.write_text("rounds = 3\n[optimizer]\nbeta = 0.5\n")
    assert parse_overrides([str(file)]) == {"rounds": 3, "optimizer.beta": 0.5}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    file = tmp_path / "over.toml"
    file.write_bytes(b"\xef\xbb\xbfrounds = 3\n")
    assert parse_overrides([str(file)]) == {"rounds": 3}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("mode=ok", 'a text needs quotes: mode="ok"'),
        ("rounds", "write key=value pairs"),
        ("rounds = 3", "write key=value pairs"),
        ("rounds=3 'half", "write key=value pairs"),
        ("rounds=", "write key=value pairs"),
        ("rounds=[1,2]", "must be a number, true or false, or a text"),
        ("nowhere.toml", "cannot read nowhere.toml"),
    ],
)
def test_what_cannot_be_read_is_refused_with_advice(text: str, advice: str):
    with pytest.raises(ValueError, match="-c: ") as refusal:
        parse_overrides([text])
    assert advice in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_only_paths_that_are_keys_of_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    given = {"data-path": "a.csv", "resume": "", "output-dir": "/abs", "target": "a.csv", "rounds": 3}
    expected = given | {"data-path": str(tmp_path / "a.csv")}
    assert absolute_paths(given, ["data-path", "resume", "output-dir"]) == expected
