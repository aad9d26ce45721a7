"""Modulated learning needs no torch: it starts without the second and the 200 MB that it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
from fedveil.run import run_app
status = run_app("modulated", "in-process", json.loads(sys.argv[1]), output_dir=sys.argv[2])
print(status, sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "torchvision", "ray"}))
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"comparators": "dp-sgd,no-privacy", "standardization": "estimated"},
        {
            "strategy": "modulated-iterative",
            "participation": "all",
            "num-server-rounds": 2,
            "comparators": "none",
        },
    ],
)
def test_no_module_of_a_whole_run_imports_torch(settings: dict[str, object], tmp_path: Path):
    town = {
        "dataset": "synthetic-regression",
        "options": "dataset = {records = 200, features = 3}",
        "seed": 1,
    }
    command = [sys.executable, "-c", CODE, json.dumps({**town, **settings}), str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert list(tmp_path.glob("*/model.safetensors"))
