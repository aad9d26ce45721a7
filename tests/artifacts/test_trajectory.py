"""The models of a run's last rounds: which stay, in which order, to which bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.artifacts import DamagedFile, RunFolderError, encode_arrays
from fedveil.artifacts.trajectory import keep_model, kept_models

MIB = 1 << 20
HALF_A_GIGABYTE = 512 * MIB


def course(rounds: range) -> dict[int, dict[str, np.ndarray[Any, Any]]]:
    generator = np.random.default_rng(5)
    return {round: {"w": generator.normal(size=(2, 3)).astype(np.float32)} for round in rounds}


def rounds_in(place: Path) -> list[int]:
    return [round for round, _ in kept_models(place)]


def test_the_models_of_the_last_rounds_stay_in_order_and_to_the_bit(tmp_path: Path) -> None:
    place = tmp_path / "trajectory"
    assert kept_models(place) == []
    saved = course(range(12))
    for round, arrays in saved.items():
        keep_model(place, round, arrays, keep=5)
    found = kept_models(place)
    assert [round for round, _ in found] == [7, 8, 9, 10, 11]
    for round, arrays in found:
        assert arrays["w"].tobytes() == saved[round]["w"].tobytes()
    assert len(list(place.iterdir())) == 5


def test_a_round_that_is_made_again_replaces_its_model(tmp_path: Path) -> None:
    for round, arrays in course(range(4)).items():
        keep_model(tmp_path, round, arrays, keep=10)
    again = {"w": np.ones((2, 3), np.float32)}
    keep_model(tmp_path, 3, again, keep=10)
    found = kept_models(tmp_path)
    assert [round for round, _ in found] == [0, 1, 2, 3]
    np.testing.assert_array_equal(found[-1][1]["w"], again["w"])


@pytest.fixture
def sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that hold a round and no array: what counts is how large a model would be."""

    def small(arrays: Any, note: Any) -> bytes:
        return encode_arrays({"w": np.zeros(1, np.float32)}, note)

    monkeypatch.setattr("fedveil.artifacts.trajectory.encode_arrays", small)


def model_of(size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Two arrays of so many bytes together, in no memory."""
    first = size // 8
    return {
        "a": np.broadcast_to(np.float32(0), (first,)),
        "b": np.broadcast_to(np.float32(0), (size // 4 - first,)),
    }


@pytest.mark.usefixtures("sizes_alone")
@pytest.mark.parametrize(
    ("size", "stay"),
    [
        (MIB, 7),  # as many as were asked for
        (100 * MIB, 5),
        (128 * MIB, 4),  # half a gigabyte exactly
        (128 * MIB + 4, 3),
        (300 * MIB, 2),  # one would be no course
        (2 * HALF_A_GIGABYTE, 2),
    ],
)
def test_of_large_models_as_many_stay_as_half_a_gigabyte_holds_and_two_at_least(
    tmp_path: Path, size: int, stay: int
) -> None:
    for round in range(9):
        keep_model(tmp_path, round, model_of(size), keep=7)
    assert rounds_in(tmp_path) == list(range(9))[-stay:]


@pytest.mark.usefixtures("sizes_alone")
def test_the_limit_never_keeps_more_than_was_asked_for(tmp_path: Path) -> None:
    for round in range(4):
        keep_model(tmp_path, round, model_of(2 * HALF_A_GIGABYTE), keep=1)
    assert rounds_in(tmp_path) == [3]


@settings(deadline=None, max_examples=30)
@given(
    keep=st.integers(1, 6),
    rounds=st.lists(st.integers(0, 120_000) | st.integers(999_990, 1_000_010), min_size=1, max_size=8),
)
def test_the_largest_numbers_of_rounds_stay_whatever_their_order(
    tmp_path_factory: pytest.TempPathFactory, keep: int, rounds: list[int]
) -> None:
    place = tmp_path_factory.mktemp("course")
    stay: list[int] = []
    for round in rounds:
        keep_model(place, round, {"w": np.zeros(1, np.float32)}, keep=keep)
        stay = sorted({*stay, round})[-keep:]
    assert rounds_in(place) == stay


def test_the_millionth_round_comes_after_the_one_before(tmp_path: Path) -> None:
    for round in range(999_997, 1_000_002):
        keep_model(tmp_path, round, {"w": np.zeros(1, np.float32)}, keep=3)
    assert rounds_in(tmp_path) == [999_999, 1_000_000, 1_000_001]
    assert (tmp_path / "round-999999.safetensors").is_file()
    assert (tmp_path / "round-1000000.safetensors").is_file()


def test_a_file_of_another_kind_in_the_folder_is_neither_removed_nor_read_as_a_model(tmp_path: Path) -> None:
    own = tmp_path / "round-best.safetensors"
    own.write_bytes(b"mine")
    for round, arrays in course(range(4)).items():
        keep_model(tmp_path, round, arrays, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "round-000002.safetensors",
        "round-000003.safetensors",
        "round-best.safetensors",
    ]
    with pytest.raises(DamagedFile, match=re.escape(str(own))):
        kept_models(tmp_path)


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    keep_model(tmp_path, 0, course(range(1))[0], keep=3)
    file = tmp_path / "round-000000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=re.escape(str(file))):
        kept_models(tmp_path)


def test_a_model_under_another_rounds_name_is_refused(tmp_path: Path) -> None:
    keep_model(tmp_path, 1, course(range(1))[0], keep=3)
    (tmp_path / "round-000001.safetensors").rename(tmp_path / "round-000002.safetensors")
    with pytest.raises(DamagedFile, match="is not the model after the round that it is named for"):
        kept_models(tmp_path)


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "round-000001.safetensors").mkdir()
    with pytest.raises(RunFolderError, match=r"round-000001\.safetensors cannot be read"):
        kept_models(tmp_path)
