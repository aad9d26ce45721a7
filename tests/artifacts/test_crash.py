"""Killed at any instant: old or new, never half, and never a folder that looks finished."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedveil.artifacts import NodeLedger, RunFolder

HERE = Path(__file__).parent


@pytest.mark.parametrize("scenario", ["replace-checkpoint", "finish", "create", "ledger"])
def test_a_kill_before_any_single_call_to_the_system_leaves_old_or_new(scenario: str, tmp_path: Path) -> None:
    command = [sys.executable, HERE / "killed_writer.py", scenario, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def killed_after(lines: int, delay: float, kind: str, target: Path) -> int:
    """Run the endless writer, SIGKILL it at some point after it wrote some lines; the last number it told."""
    command = [sys.executable, HERE / "endless_writer.py", kind, target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(lines)]
        try:
            writer.wait(delay)
        except subprocess.TimeoutExpired:
            writer.kill()
        told += writer.stdout.readlines()
    return max(int(line) for line in told if line.endswith("\n"))


def test_a_kill_at_a_random_instant_leaves_a_whole_checkpoint_no_older_than_the_last_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    from killed_writer import checkpoint, whole

    generator = np.random.default_rng(7)
    folder = RunFolder(
        RunFolder.create(tmp_path, "fedsva", {"seed": 1}).path
    )  # a view: the lock is given back
    for _ in range(4):
        folder.save_checkpoint(checkpoint(1))
        lines, delay = int(generator.integers(1, 4)), float(generator.uniform(0, 0.05))
        told = killed_after(lines, delay, "checkpoints", folder.path)
        assert told <= whole(folder.path) <= told + 1
        assert not folder.is_finished


def test_a_kill_at_a_random_instant_loses_no_row_that_was_told_and_keeps_no_half_transaction(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(8)
    for trial in range(4):
        file = tmp_path / f"{trial}.sqlite"
        told = killed_after(int(generator.integers(1, 4)), float(generator.uniform(0, 0.05)), "rows", file)
        rounds = [row.round for row in NodeLedger(file).releases()]
        assert len(rounds) == 50 * max(rounds)
        assert told <= max(rounds) <= told + 1
