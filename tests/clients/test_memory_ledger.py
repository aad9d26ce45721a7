"""The ledger in memory counts what the ledger on disk counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedveil.artifacts import NodeLedger, ReplayMismatch
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.privacy import Release, StepMechanism

STEPS = {
    "record": StepMechanism(10, 1.0, 0.5),
    "attribute": StepMechanism(10, 1.0, 0.7, attribute_clip_norm=0.1),
    "sampled": StepMechanism(10, 1.0, 0.5, sampling_rate=0.5, num_releases=9),
}


def rows(kind: str, client: int, round: int) -> list[Release]:
    return [row for step in range(2) for row in STEPS[kind].releases(client, round, step)]


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("kind", list(STEPS))
def test_it_counts_what_the_ledger_on_disk_counts(kind: str, replay: bool, tmp_path: Path) -> None:
    ledgers = MemoryLedger(), NodeLedger(tmp_path / "node.db")
    for round in np.random.default_rng(1).integers(1, 4, 8):  # rounds come again
        for ledger in ledgers:
            both = rows(kind, 1, int(round)) + rows(kind, 2, int(round))
            ledger.record("run", {1: f"a{round}", 2: f"b{round}"}, both, replay=replay)
    for run, client in (("run", 1), ("run", 2), ("run", 3), ("other", 1)):
        for before in (None, 1, 2, 3):
            memory, disk = (ledger.count(run, client, except_round=before) for ledger in ledgers)
            assert memory == disk
            if kind != "sampled":
                spent, on_disk = (ledger.spent(run, client, except_round=before) for ledger in ledgers)
                assert {relation: spent[relation] for relation in on_disk} == on_disk
            elif memory:
                with pytest.raises(ValueError, match="subsampled"):
                    ledgers[0].spent(run, client, except_round=before)


def test_a_seeded_round_sent_again_with_another_digest_is_refused_and_adds_nothing() -> None:
    ledger = MemoryLedger()
    ledger.record("run", {1: "a"}, rows("record", 1, 1), replay=True)
    with pytest.raises(ReplayMismatch, match="client 1"):
        ledger.record("run", {0: "x", 1: "b"}, rows("record", 0, 1) + rows("record", 1, 1), replay=True)
    assert ledger.count("run", 0) == 0
    assert ledger.count("run", 1) == 2
