"""The app's ready configurations: valid, and their networks fit their data."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedveil.config import FedSVAConfig
from fedveil.models import build_learner
from fedveil.run.overrides import parse_overrides

APP = Path(__file__).resolve().parents[2] / "flwr_apps" / "fedsva"
SHAPES = {"cifar-10": ((3, 32, 32), 10), "femnist": ((1, 28, 28), 62)}
FILES = sorted((APP / "configs").glob("*.toml"))


def settings(file: Path) -> dict[str, Any]:
    app = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    return {**app, **parse_overrides([str(file)])}


def test_there_is_one_for_each_setting_of_the_publication() -> None:
    assert [file.name for file in FILES] == ["cifar10-resnet18.toml", "femnist-cnn.toml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_ready_configuration_is_valid_and_its_network_fits_its_data(file: Path) -> None:
    config = FedSVAConfig.from_run_config(settings(file))
    shape, classes = SHAPES[config.dataset]
    assert config.calibration == "paper"
    assert config.releases_contribution  # so the run proves what it states
    rows, columns = (tuple(map(int, side.split(":"))) for side in config.private_attributes.split(","))
    assert 0 <= rows[0] < rows[1] <= shape[1]
    assert 0 <= columns[0] < columns[1] <= shape[2]
    assert build_learner(config.model, shape, classes).module.training


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_first_trial_that_it_suggests_is_valid(file: Path) -> None:
    suggested = next(
        line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#     -c '")
    )
    config = FedSVAConfig.from_run_config(
        {**settings(file), **parse_overrides([suggested.partition("'")[2].rstrip("'")])}
    )
    assert config.num_server_rounds == 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_one_word_change_to_attribute_level_noise_is_valid_too(file: Path) -> None:
    config = FedSVAConfig.from_run_config({**settings(file), "calibration": "attribute"})
    assert config.is_attribute_level


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_authors_way_to_measure_which_its_comments_name_is_valid_and_proves_nothing(file: Path) -> None:
    line = next(
        line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#     groups")
    )
    theirs = tomllib.loads("\n".join(line.removeprefix("#").strip().split("   ")))
    config = FedSVAConfig.from_run_config({**settings(file), **theirs, "private-attributes": ""})
    assert config.is_data_dependent
