"""Checkpoints of one run, one after another: each is whole, and what has not changed is encoded once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil.artifacts import Checkpoint
from fedveil.artifacts.checkpoint import CheckpointEncoder, decode_checkpoint
from fedveil.artifacts.ledger_table import ledger_table
from fedveil.privacy import Release

BLOCK = 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four rows."""
    monkeypatch.setattr("fedveil.artifacts.checkpoint._ROWS", BLOCK)


def rows(count: int, first: int = 0) -> tuple[Release, ...]:
    return tuple(
        Release(number, 1, 0, "gradient", "record", 1 / 3, 1 / (7 + number))
        for number in range(first, first + count)
    )


def checkpoint(releases: tuple[Release, ...], assumed: tuple[Release, ...] = ()) -> Checkpoint:
    return Checkpoint(
        round=len(releases),
        arrays={"w": np.arange(3, dtype=np.float32)},
        optimizer={"momentum": np.ones(2)},
        releases=releases,
        metrics=[{"round": 1, "loss": 1 / 3}],
        config_hash="0" * 32,
        extra={"run": "a"},
        assumed=assumed,
    )


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6))
def test_every_checkpoint_is_whole_and_as_if_it_were_the_first(added: list[tuple[int, int]]) -> None:
    encoder, arrived, assumed = CheckpointEncoder(), 0, 0
    for more, others in added:
        arrived, assumed = arrived + more, assumed + others
        kept = checkpoint(rows(arrived), rows(assumed, first=500))
        data = encoder.encode(kept)
        assert data == CheckpointEncoder().encode(kept)
        found = decode_checkpoint(data, "memory")
        assert (found.releases, found.assumed) == (kept.releases, kept.assumed)
        assert (found.round, found.metrics, found.extra) == (kept.round, kept.metrics, kept.extra)


def test_rows_of_whole_blocks_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def table(releases: Iterable[Release], assumed: Iterable[Release] = ()) -> Any:
        releases, assumed = tuple(releases), tuple(assumed)
        counted.append(len(releases) + len(assumed))
        return ledger_table(releases, assumed)

    monkeypatch.setattr("fedveil.artifacts.checkpoint.ledger_table", table)
    encoder, all_rows = CheckpointEncoder(), rows(40)
    for number in range(1, 41):
        counted.clear()
        encoder.encode(checkpoint(all_rows[:number]))
        assert sum(counted) <= BLOCK, "however many rows came before"
    counted.clear()
    encoder.encode(checkpoint(all_rows))
    assert counted == []


def test_a_row_that_has_changed_is_encoded_again() -> None:
    """Another run's rows, or those of a resumed one, in the same places."""
    encoder, before = CheckpointEncoder(), rows(9)
    encoder.encode(checkpoint(before))
    after = (before[0], replace(before[1], sigma=5.0), *before[2:])
    assert decode_checkpoint(encoder.encode(checkpoint(after)), "memory").releases == after
    fewer = before[:5]
    assert decode_checkpoint(encoder.encode(checkpoint(fewer)), "memory").releases == fewer
