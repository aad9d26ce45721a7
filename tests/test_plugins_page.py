"""The page about plugins: what it shows is run, and keeps the contracts that it describes."""

from __future__ import annotations

import json
import math
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedveil.artifacts import RunFolder
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import check_records
from fedveil.models import build_learner
from fedveil.plugins import GROUPS
from fedveil.privacy import StepCalibration, StepRequest
from fedveil.quantization import decode_quantized, encode_quantized, scheme_of
from fedveil.strategies import Fleet, PrivateAveraging, ServerOptimizer, to_record
from fedveil.strategies.hooks import FinishedRun
from fedveil.streams import Streams

DOCS = Path(__file__).parents[1] / "docs" / "plugins.md"


@pytest.fixture
def examples(tmp_path: Path) -> dict[str, object]:
    """Every name that the Python of docs/plugins.md defines."""
    defined: dict[str, object] = {}
    for number, source in enumerate(
        re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    ):
        path = tmp_path / f"example_{number}.py"
        path.write_text(source, encoding="utf-8")
        defined |= runpy.run_path(str(path))
    return defined


def test_the_documented_calibration_gives_the_noise_it_says(examples: dict[str, Any]):
    request = StepRequest(50, 2.0, None, epsilon=1.0, delta=1e-5, num_releases=9)
    rho = (math.sqrt(math.log(1e5) + 1) - math.sqrt(math.log(1e5))) ** 2
    assert isinstance(examples["ZCDP"], StepCalibration)
    assert examples["ZCDP"].sigma(request) == pytest.approx(2 * 2.0 / 50 * math.sqrt(9 / (2 * rho)), rel=1e-9)


def test_the_documented_data_set_can_be_trained_on(examples: dict[str, Any]):
    data = examples["load"](DataRequest())
    for records in (data.train, data.test):
        check_records(records, data.schema, "the example")
        assert sorted(set(records.labels.tolist())) == [0, 1]
    with pytest.raises(ValueError, match="data-path"):
        examples["load"](DataRequest(path="/a/file"))


def test_the_documented_model_can_be_trained(examples: dict[str, Any]):
    learner = build_learner(examples["wide"], (1, 4, 4), 3)
    assert learner.loss is examples["smoothed"]


def test_the_documented_strategy_rounds_the_model(examples: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    stepped = to_record({"weight": np.array([0.3, 1.0], np.float32)})
    monkeypatch.setattr(PrivateAveraging, "aggregate_train", lambda *_: (stepped, MetricRecord()))
    strategy = examples["Rounded"](
        fleet=Fleet({0: 1}, {0: 10}),
        streams=Streams.seeded("a test", 1),
        optimizer=ServerOptimizer("plain"),
        plans={0: None},
        run="a-test",
        code={},
    )
    arrays, _ = strategy.aggregate_train(1, [])
    assert arrays["weight"].numpy().tolist() == [307 / 1024, 1.0]


def test_the_documented_hook_writes_the_course_of_a_run(examples: dict[str, Any], tmp_path: Path):
    folder = RunFolder.create(tmp_path, "example", {})
    models = [{"w": np.full((2, 2), value, np.float32)} for value in (0.5, 2.0)]
    folder.finish(models[-1], [], ())
    said: list[str] = []
    run = FinishedRun(
        folder=folder,
        app="example",
        config={},
        arrays=models[-1],
        trajectory=list(enumerate(models)),
        losses=lambda candidates: np.zeros((1, len(candidates["w"]))),
        figures=lambda arrays: {"mean": float(arrays["w"].mean())},
        num_records=1,
        say=said.append,
    )
    examples["course"](run)
    assert json.loads((folder.path / "course.json").read_text()) == {"0": {"mean": 0.5}, "1": {"mean": 2.0}}
    assert said == ["the course of 2 rounds is in course.json"]


def test_the_documented_quantizer_has_its_name_its_scale_and_a_file(examples: dict[str, Any]):
    scheme = examples["MAX_SIGN"]
    assert scheme.base_name == "max-sign"
    weights = np.array([[0.5, -2.0, 1.0]], np.float32)
    data = encode_quantized({"w": weights}, scheme)
    model = decode_quantized(data, "a file", (type(scheme),))
    assert model.arrays()["w"].tolist() == [[2.0, -2.0, 2.0]]
    assert scheme_of("max-sign/channel", {"max-sign": scheme}).name == "max-sign/channel"


def test_the_page_names_every_kind_and_group():
    text = DOCS.read_text(encoding="utf-8")
    assert all(f"| `{kind}` | `{group}` |" in text for kind, group in GROUPS.items())


def test_the_page_shows_the_example_package_as_it_is():
    text = DOCS.read_text(encoding="utf-8")
    points = tomllib.loads((DOCS.parent / "plugin-example" / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    assert points["fedveil.calibrations"]["zcdp"] in text
    assert points["fedveil.strategies"]["decaying-steps"] in text
