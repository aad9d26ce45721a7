"""Both apps on three machines' worth of containers: they end well, and with the simulation's bits."""

from __future__ import annotations

import json
import sqlite3
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.deploy


def test_without_noise_fedsva_gives_the_simulation_s_model_bit_for_bit(running: Any, scenes: ModuleType):
    config = {**scenes.FEDSVA, "privacy": "none"}
    run = running.run_app("fedsva", config).completed()
    simulated = scenes.simulate(running, "fedsva", config)
    assert (run.folder / "model.safetensors").read_bytes() == (simulated / "model.safetensors").read_bytes()


def test_without_noise_modulated_learning_gives_the_simulation_s_coefficients_bit_for_bit(
    running: Any, scenes: ModuleType
):
    config = {**scenes.MODULATED, "comparators": "no-privacy"}
    run = running.run_app("modulated", config).completed()
    simulated = scenes.simulate(running, "modulated", config)
    (found,), (expected,) = (
        json.loads((folder / "estimate.json").read_text())["comparators"]
        for folder in (run.folder, simulated)
    )
    assert found == expected
    assert found["r2"] > 0.9


def test_a_private_run_ends_on_the_host_with_its_releases_in_every_node_s_own_ledger(
    running: Any, scenes: ModuleType
):
    run = running.run_app("fedsva", scenes.FEDSVA).completed()
    assert {"config.toml", "model.safetensors", "ledger.parquet"} <= {
        path.name for path in run.folder.iterdir()
    }
    for node in (1, 2, 3):
        with sqlite3.connect(f"file:{running.ledger(node)}?mode=ro", uri=True) as ledger:
            tables = [
                name for (name,) in ledger.execute("select name from sqlite_master where type = 'table'")
            ]
            rows = [row for table in tables for row in ledger.execute(f'select * from "{table}"')]
        assert any(run.folder.name in str(row) for row in rows), node
