"""For test_crash.py: write checkpoints or ledger rows without end, and print each once it is on disk."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from killed_writer import checkpoint, release

from fedveil.artifacts import NodeLedger, RunFolder


def checkpoints(folder: Path) -> None:
    run = RunFolder.open(folder)
    for number in itertools.count(2):
        run.save_checkpoint(checkpoint(number))
        print(number, flush=True)


def rows(file: Path) -> None:
    ledger = NodeLedger(file)
    for number in itertools.count(1):
        releases = [release(client, number) for client in range(50)]
        ledger.record("run", dict.fromkeys(range(50), "digest"), releases, replay=False)
        print(number, flush=True)


if __name__ == "__main__":
    {"checkpoints": checkpoints, "rows": rows}[sys.argv[1]](Path(sys.argv[2]))
