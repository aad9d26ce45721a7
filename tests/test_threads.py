"""Threads are fixed for what a process has loaded, and nothing is loaded for it."""

from __future__ import annotations

import subprocess
import sys


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
