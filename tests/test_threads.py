"""Threads are fixed for what a process has loaded, and nothing is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def shown(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_blas_is_limited_and_torch_is_not_imported() -> None:
    code = """
import sys
import numpy, threadpoolctl
from fedveil.threads import set_threads
set_threads(1)
print({pool["num_threads"] for pool in threadpoolctl.threadpool_info()}, "torch" in sys.modules)
"""
    assert shown(code) == "{1} False"


def test_torch_that_is_there_is_limited_too() -> None:
    assert (
        shown(
            "import torch; from fedveil.threads import set_threads; set_threads(1); print(torch.get_num_threads())"
        )
        == "1"
    )


def test_a_node_of_one_record_clients_imports_no_torch_and_every_name_is_there_all_the_same() -> None:
    code = """
import sys
import fedveil.clients as clients
from fedveil.clients import ModulatedCohort, VariantPlan, handle_identify_modulated, handle_message
print("torch" in sys.modules)
print([name for name in clients.__all__ if getattr(clients, name).__name__ != name or name not in dir(clients)])
print("torch" in sys.modules)
try:
    clients.nonsense
except AttributeError as error:
    print(error)
"""
    assert shown(code).splitlines() == [
        "False",
        "[]",
        "True",
        "module 'fedveil.clients' has no attribute 'nonsense'",
    ]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_reading_a_ledger_a_checkpoint_or_a_users_parquet_file_starts_no_thread(tmp_path: Path) -> None:
    """A thread that still starts when a short process ends aborts it; the last line shows that one would be seen."""
    code = """
import os, sys
from pathlib import Path
import numpy as np
import pyarrow.parquet as pq
from fedveil.artifacts import Checkpoint, RunFolder, releases_of, table_from_bytes
from fedveil.datasets.parquet import open_parquet
from fedveil.privacy import Release

rows = tuple(Release(client, 1, 0, "gradient", "record", 0.1, 0.3) for client in range(1000))
model = {"w": np.zeros((3, 2), np.float32)}
folder = RunFolder.create(sys.argv[1], "fedsva", {"seed": 1})
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
folder.save_checkpoint(Checkpoint(1, model, {}, rows, [{"round": 1}], "0" * 32, {}, ()))
assert RunFolder(folder.path).load_checkpoint().releases == rows
folder.finish(model, [{"round": 1, "loss": 0.5}], rows)
file = folder.path / "ledger.parquet"
assert len(releases_of(table_from_bytes(file.read_bytes(), file))[0]) == 1000
cells = [block.cells for block in open_parquet(file).blocks(["client", "sigma", "relation"])]
assert len(cells[0]["relation"]) == 1000
print(count() - before)
pq.read_table(file)
print(count() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    ours, arrows = done.stdout.split()
    assert ours == "0"
    assert int(arrows) > 0
