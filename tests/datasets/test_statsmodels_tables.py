"""The embedded tables of statsmodels."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from fedveil.datasets import statsmodels_tables as module
from fedveil.datasets.partition import partition
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, check_records
from fedveil.datasets.statsmodels_tables import load_co2, load_fair, load_modechoice, load_randhie

Load = Callable[[DataRequest], Dataset]
LOADERS: dict[str, Load] = {
    "fair": load_fair,
    "randhie": load_randhie,
    "modechoice": load_modechoice,
    "co2": load_co2,
}


def both(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All features and labels, in one order whatever the split was."""
    features = np.concatenate([data.train.features, data.test.features])
    labels = np.concatenate([data.train.labels, data.test.labels])
    order = np.lexsort((labels, *features.T))
    return features[order], labels[order]


@pytest.mark.parametrize(
    ("name", "rows", "features", "classes"),
    [("fair", 6366, 18, 2), ("randhie", 20190, 9, 3), ("modechoice", 840, 10, 2), ("co2", 2225, 3, 4)],
)
def test_a_table_has_all_its_documented_rows_within_public_ranges(
    name: str, rows: int, features: int, classes: int
) -> None:
    data = LOADERS[name](DataRequest())
    assert (data.name, len(data.train) + len(data.test)) == (name, rows)
    assert (data.schema.num_features, data.schema.num_classes) == (features, classes)
    for part in (data.train, data.test):
        check_records(part, data.schema, name)
        assert part.features.min() >= 0
        assert part.features.max() <= 1
        assert (np.bincount(part.labels, minlength=classes) > 0).all()
    if data.private:
        assert 0 < data.schema.columns(data.private).sum() < features


def clipped(column: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.clip((column - low) / (high - low), 0, 1)


def test_the_answers_of_fair_equal_those_of_statsmodels() -> None:
    from statsmodels.datasets import fair

    frame = fair.load_pandas().data
    data = load_fair(DataRequest())
    assert data.private == "rate_marriage,religious"
    names = list(data.schema.names)
    got, labels = both(data)
    expected = np.zeros((len(frame), len(names)))
    ranges = {
        "rate_marriage": (1, 5),
        "age": (17.5, 42),
        "yrs_married": (0.5, 23),
        "children": (0, 5.5),
        "religious": (1, 4),
        "educ": (9, 20),
    }
    for column, (low, high) in ranges.items():
        expected[:, names.index(column)] = clipped(frame[column].to_numpy(), low, high)
    for column in ("occupation", "occupation_husb"):
        for code in range(1, 7):
            expected[:, names.index(f"{column}={code}")] = frame[column] == code
    affairs = (frame["affairs"] > 0).to_numpy().astype(int)
    expected = expected.astype(np.float32)
    order = np.lexsort((affairs, *expected.T))
    np.testing.assert_allclose(got, expected[order], atol=1e-7)
    np.testing.assert_array_equal(labels, affairs[order])


def test_another_target_makes_the_first_one_a_feature() -> None:
    data = load_fair(DataRequest(target="yrs_married"))
    assert "affairs" in data.schema.names
    assert "yrs_married" not in data.schema.names
    assert data.schema.classes == ("below 5", "5 to 10", "10 and above")
    # up to four years; five to ten; more: the codes 0.5, 2.5 / 6, 9 / 13, 16.5, 23
    from statsmodels.datasets import fair

    years = fair.load_pandas().data["yrs_married"].to_numpy()
    expected = [np.isin(years, codes).sum() for codes in ([0.5, 2.5], [6, 9], [13, 16.5, 23])]
    assert np.bincount(both(data)[1]).tolist() == expected


def test_visits_to_a_physician_are_none_a_few_or_many() -> None:
    from statsmodels.datasets import randhie

    visits = randhie.load_pandas().data["mdvis"].to_numpy()
    labels = both(load_randhie(DataRequest()))[1]
    assert np.bincount(labels).tolist() == [
        (visits == 0).sum(),
        ((visits > 0) & (visits < 4)).sum(),
        (visits >= 4).sum(),
    ]


def test_a_traveller_can_be_a_client() -> None:
    data = load_modechoice(DataRequest(client_column="individual"))
    assert not any("individual" in name for name in data.schema.names)
    train, test = data.train.client_ids, data.test.client_ids
    assert train is not None
    assert test is not None
    assert np.bincount(np.concatenate([train, test])).tolist() == [4] * 210
    assert len(partition(data.train, "natural")) == len(np.unique(train))
    assert load_modechoice(DataRequest()).train.client_ids is None
    with pytest.raises(ValueError, match=r"client-column = 'hinc': .* 'individual'"):
        load_modechoice(DataRequest(client_column="hinc"))


def test_one_mode_of_each_trip_was_chosen() -> None:
    assert np.bincount(both(load_modechoice(DataRequest()))[1]).tolist() == [630, 210]


def test_the_features_of_a_week_are_functions_of_its_date_alone() -> None:
    from statsmodels.datasets import co2

    series = co2.load_pandas().data["co2"].dropna()
    data = load_co2(DataRequest())
    assert data.private == ""
    got, labels = both(data)
    day = [date(d.year, d.month, d.day) for d in series.index]
    part = np.array([(d.timetuple().tm_yday - 1) / (366 if d.year % 4 == 0 else 365) for d in day])
    year = (np.array([d.year for d in day]) + part - 1958) / 44
    angle = 2 * math.pi * part
    expected = np.column_stack([year, (np.sin(angle) + 1) / 2, (np.cos(angle) + 1) / 2]).astype(np.float32)
    classes = np.searchsorted([325, 340, 355], series.to_numpy(), side="right")
    order = np.lexsort((classes, *expected.T))
    np.testing.assert_allclose(got, expected[order], atol=1e-6)
    np.testing.assert_array_equal(labels, classes[order])


@pytest.mark.parametrize("name", LOADERS)
def test_the_split_depends_on_the_number_of_rows_and_the_public_seed_alone(name: str) -> None:
    from fedveil.datasets.split import split_rows

    data, again = (LOADERS[name](DataRequest(test_fraction=0.3, seed=5)) for _ in range(2))
    np.testing.assert_array_equal(data.test.features, again.test.features)
    rows = len(data.train) + len(data.test)
    assert len(data.test) == len(split_rows(rows, 0.3, 5)[1])
    other = LOADERS[name](DataRequest(test_fraction=0.3, seed=6))
    assert not np.array_equal(data.test.features, other.test.features)


@pytest.mark.parametrize(
    ("name", "target", "possible"),
    [
        ("fair", "age", "can predict affairs, occupation, occupation_husb, yrs_married; .* for affairs"),
        ("randhie", "mdvi", "can predict mdvis;"),
        ("modechoice", "hinc", "can predict choice, gc, mode;"),
        ("co2", "date", "can predict co2;"),
    ],
)
def test_a_target_that_cannot_be_predicted_is_refused_with_those_that_can(
    name: str, target: str, possible: str
) -> None:
    with pytest.raises(ValueError, match=f"target = '{target}': dataset '{name}' {possible}"):
        LOADERS[name](DataRequest(target=target))


@pytest.mark.parametrize("name", LOADERS)
def test_settings_that_a_table_has_no_use_for_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"data-path = '/a': dataset '{name}' takes target"):
        LOADERS[name](DataRequest(path="/a"))
    if name != "modechoice":
        with pytest.raises(ValueError, match="client-column = 'id'"):
            LOADERS[name](DataRequest(client_column="id"))


@pytest.mark.parametrize("name", LOADERS)
def test_another_place_of_the_file_is_left_to_statsmodels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    column = "individual" if name == "modechoice" else ""
    expected = LOADERS[name](DataRequest(client_column=column))
    monkeypatch.setattr(module, "_packed", lambda name: Path("/nowhere.csv"))
    got = LOADERS[name](DataRequest(client_column=column))
    np.testing.assert_array_equal(got.train.features, expected.train.features)
    np.testing.assert_array_equal(got.test.labels, expected.test.labels)
    np.testing.assert_array_equal(got.train.client_ids, expected.train.client_ids)


def test_without_statsmodels_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"fair comes with statsmodels, .* pip install 'fedveil\[data\]'"
    ):
        load_fair(DataRequest())


def test_loading_the_tables_imports_neither_statsmodels_nor_pandas() -> None:
    code = (
        "import sys; from fedveil.datasets.statsmodels_tables import *;"
        "from fedveil.datasets.request import DataRequest as R;"
        "[load(R()) for load in (load_fair, load_randhie, load_modechoice, load_co2)];"
        "print(sorted({'statsmodels', 'pandas', 'sklearn', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
