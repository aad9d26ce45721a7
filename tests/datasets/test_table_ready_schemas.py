"""The descriptions that come with FedVeil: of embedded tables, and of public tables that a benchmark reads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedveil
from fedveil.datasets.description import read_description
from fedveil.datasets.schema import check_records
from fedveil.datasets.table import load_csv

CHECKOUT = Path(__file__).parents[2]
SHARED = CHECKOUT.parent / "shared" / "data"
EMBEDDED = sorted((Path(fedveil.__file__).parent / "datasets" / "tables").glob("*.schema.toml"))
SCHEMAS = CHECKOUT / "benchmarks" / "schemas"
READY = {
    "cps1988": ("cps1988.csv.gz", "wage", 28_155, 12, "ethnicity,education"),
    "hi": ("hi.csv.gz", "whrswk", 22_272, 23, "race,hispanic,kidslt6,husby"),
    "co2_emissions_canada": ("co2_emissions_canada.csv", "CO2 Emissions(g/km)", 7_385, 26, "Fuel Type"),
}


@pytest.mark.parametrize(
    "path", [*EMBEDDED, *(SCHEMAS / f"{name}.schema.toml" for name in READY)], ids=lambda path: path.name
)
def test_a_ready_description_is_whole_and_its_targets_and_features_are_described(path: Path) -> None:
    description = read_description(path, "", path)
    columns = description.tables
    targets = [name for name in columns if {"classes", "categories", "thresholds"} & columns[name].keys()]
    assert targets
    assert all(len(description.label(target).classes) >= 2 for target in targets)
    only_targets = [name for name in columns if not {"low", "categories"} & columns[name].keys()]
    features = description.features(list(columns), only_targets, path)
    assert len(features) == len(columns) - len(only_targets)
    for feature in features:
        assert all(low < high for low, high in zip(feature.low, feature.high, strict=True))


def test_the_embedded_descriptions_come_with_the_package() -> None:
    assert [path.name.split(".")[0] for path in EMBEDDED] == ["co2", "fair", "modechoice", "randhie"]
    packaged = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "*.toml" in packaged["tool"]["setuptools"]["package-data"]["*"]


@pytest.mark.parametrize("name", READY)
def test_a_real_table_is_read_by_its_ready_description(name: str) -> None:
    file, target, rows, features, private = READY[name]
    if not (SHARED / file).is_file():
        pytest.skip(f"real data ../shared/data/{file} is absent")
    data = load_csv(SHARED / file, target, SCHEMAS / f"{name}.schema.toml")
    assert len(data.train) + len(data.test) == rows
    assert data.schema.num_features == features
    assert 0 < data.schema.columns(private).sum() < features
    check_records(data.train, data.schema, name)
    # no class is nearly everybody or nearly nobody
    share = np.bincount(data.train.labels, minlength=data.schema.num_classes) / len(data.train)
    assert share.min() > 0.1
    assert share.max() < 0.6
