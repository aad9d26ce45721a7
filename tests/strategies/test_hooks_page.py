"""The page about hooks: its example runs, and its tables are complete."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.config import FedSVAConfig
from fedveil.strategies.hooks import FinishedRun

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
Finished = runpy.run_path(str(Path(__file__).with_name("finished_scene.py")))["Finished"]


@pytest.fixture
def average(tmp_path: Path) -> Any:
    """The hook of the page."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "example.py"
    file.write_text(source, encoding="utf-8")
    return runpy.run_path(str(file))["average"]


def test_the_example_compares_the_mean_of_the_last_five_models(average: Any, tmp_path: Path):
    finished = Finished(tmp_path / "runs")
    average(finished.run())
    mean = {name: np.mean([model[name] for model in finished.models[-5:]], axis=0) for name in finished.final}
    losses = finished.figures(finished.final)["loss"], finished.figures(mean)["loss"]
    assert finished.said == [f"mean loss {losses[0]:.4f}, of the mean of the last 5 models {losses[1]:.4f}"]


def test_the_example_refuses_a_run_without_a_course(average: Any, tmp_path: Path):
    with pytest.raises(ValueError, match="set trajectory above 1"):
        average(Finished(tmp_path / "runs").run(trajectory=[]))


def test_everything_that_a_hook_is_given_stands_on_the_page():
    given = PAGE.partition("## What a hook is given")[2].partition("```")[0]
    for item in fields(FinishedRun):
        assert re.search(rf"`{item.name}[`(]", given), item.name


def test_the_settings_on_the_page_have_their_defaults():
    defaults = FedSVAConfig().to_run_config()
    rows = dict(
        re.findall(r"^\| `(\w+)` \| `?([\w,-]+)`? \|", PAGE.partition("## `quantize`")[0], re.MULTILINE)
    )
    assert rows == {key: str(defaults[key]) for key in ("hooks", "trajectory", "quantizers", "candidates")}
