"""A user's own CSV file."""

from __future__ import annotations

import gzip
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedveil.datasets.partition import partition
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import check_records
from fedveil.datasets.table import load, load_csv

Write = Callable[..., Path]
DOCS = Path(__file__).parents[2] / "docs" / "data.md"
SHARED = Path(__file__).parents[2].parent / "shared" / "data"

AGE = "[columns.age]\nlow = 0\nhigh = 100\nbaseline = 50\n"
JOB = '[columns.job]\ncategories = ["a", "b"]\nbaseline = "b"\n'
Y = "[columns.y]\nclasses = [0, 1]\n"
SCHEMA = AGE + JOB + Y


def whole(path: Path, **options: object) -> tuple[np.ndarray, list[int]]:
    """All records as training records, in the file's order."""
    data = load_csv(path, "y", test_fraction=0.0, **options)  # type: ignore[arg-type]
    check_records(data.train, data.schema, "the file")
    return data.train.features, data.train.labels.tolist()


def test_cells_are_scaled_clipped_and_imputed_by_public_constants_only(write_table: Write) -> None:
    path = write_table("age,job,y\n25,a,0\n-7,b,1\n1e9,a,1\n,NA,0\n", SCHEMA)
    features, labels = whole(path)
    np.testing.assert_array_equal(
        features, np.array([[0.25, 1, 0], [0, 0, 1], [1, 1, 0], [0.5, 0, 1]], np.float32)
    )
    assert labels == [0, 1, 1, 0]


def test_one_cell_changes_its_own_record_and_nothing_else(write_table: Write) -> None:
    rows = ["30,a,0", "40,b,1", "50,a,1", "60,b,0", "70,a,1"]
    before, _ = whole(write_table("\n".join(["age,job,y", *rows]), SCHEMA))
    for cell in ("", "99999", "-99999", "12.5"):
        changed = [*rows[:2], f"{cell},a,1", *rows[3:]]
        after, labels = whole(write_table("\n".join(["age,job,y", *changed]), SCHEMA))
        assert after.shape == before.shape
        assert labels == [0, 1, 1, 0, 1]
        np.testing.assert_array_equal(np.delete(after, 2, axis=0), np.delete(before, 2, axis=0))


def test_the_split_does_not_depend_on_any_cell(write_table: Write) -> None:
    def ages_in_test(jobs: str, labels: str) -> np.ndarray:
        rows = [f"{age},{job},{y}" for age, job, y in zip(range(20), jobs, labels, strict=True)]
        data = load_csv(write_table("\n".join(["age,job,y", *rows]), SCHEMA), "y", test_fraction=0.3, seed=5)
        return data.test.features[:, 0]

    some = ages_in_test("ab" * 10, "01" * 10)
    assert len(some) == 6
    np.testing.assert_array_equal(some, ages_in_test("a" * 20, "1" * 20))


def test_features_are_in_the_order_of_the_schema_file(write_table: Write) -> None:
    left = load_csv(write_table("age,job,y\n25,a,0\n35,b,1\n", SCHEMA), "y", test_fraction=0.0)
    right = load_csv(write_table("y,job,age\n0,a,25\n1,b,35\n", SCHEMA), "y", test_fraction=0.0)
    assert left.schema.names == right.schema.names == ("age", "job=a", "job=b")
    np.testing.assert_array_equal(left.train.features, right.train.features)
    assert left.schema.columns(["job"]).tolist() == [False, True, True]
    np.testing.assert_array_equal(left.schema.baseline, np.array([0.5, 0, 1], np.float32))
    assert left.schema.target == "y"
    assert left.schema.classes == ("0", "1")


@pytest.mark.parametrize("label", ["1", "1.0", " 1 ", "1e0"])
def test_a_class_that_is_a_number_is_found_by_value(write_table: Write, label: str) -> None:
    assert whole(write_table(f"age,job,y\n5,a,{label}\n6,a,0\n", SCHEMA))[1] == [1, 0]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_commas_byte_order_mark_and_line_ends_are_read(write_table: Write, end: str) -> None:
    schema = AGE + Y + '[columns."job, or trade"]\ncategories = ["a, b", "c\\"d"]\nbaseline = "a, b"\n'
    text = end.join(["\ufeff" + 'age,"job, or trade",y', '10,"a, b",0', '20, "c""d",1', ""])
    features, labels = whole(write_table(text, schema))
    np.testing.assert_allclose(features, [[0.1, 1, 0], [0.2, 0, 1]], rtol=1e-7)
    assert labels == [0, 1]


def test_a_gzipped_file_is_read_like_a_plain_one(write_table: Write, example_table: Path) -> None:
    packed = write_table(gzip.compress(example_table.read_bytes()), None, "packed.csv.gz")
    schema = f"{example_table}.schema.toml"
    plain = load_csv(example_table, "income", client_column="site")
    other = load_csv(packed, "income", schema_path=schema, client_column="site")
    np.testing.assert_array_equal(plain.train.features, other.train.features)
    np.testing.assert_array_equal(plain.test.labels, other.test.labels)
    assert (plain.name, other.name) == ("people", "packed")


def test_a_target_can_be_cut_at_public_thresholds(write_table: Write) -> None:
    schema = AGE + "[columns.y]\nthresholds = [10, 20]\nbaseline = 15\n"
    path = write_table("age,y\n1,9.9\n1,10\n1,19\n1,20\n1,-5\n1,\n", schema)
    data = load_csv(path, "y", test_fraction=0.0)
    assert data.train.labels.tolist() == [0, 1, 1, 2, 0, 1]
    assert data.schema.classes == ("below 10", "10 to 20", "20 and above")


def test_a_missing_target_becomes_its_public_baseline_where_there_is_one(write_table: Write) -> None:
    text = "age,job,y\n1,a,\n2,b,0\n"
    assert whole(write_table(text, AGE + JOB + Y + "baseline = 1\n"))[1] == [1, 0]
    with pytest.raises(
        ValueError, match=r"line 2, column 'y' is missing, but must be one of the classes 0, 1"
    ):
        whole(write_table(text, SCHEMA))


def test_texts_listed_as_missing_are_imputed_unless_they_are_categories(write_table: Write) -> None:
    schema = 'missing = ["?", "-1", "a"]\n' + SCHEMA
    features, _ = whole(write_table("age,job,y\n-1,a,0\n?,?,1\n", schema))
    np.testing.assert_array_equal(features, np.array([[0.5, 1, 0], [0.5, 0, 1]], np.float32))


def test_the_client_column_is_no_feature_and_makes_natural_clients(example_table: Path) -> None:
    data = load_csv(example_table, "income", client_column="site", test_fraction=0.2, seed=1)
    assert not any("site" in name or "row" in name for name in data.schema.names)
    parts = partition(data.train, "natural")
    assert len(parts) == 5
    assert data.train.client_ids is not None
    assert [set(data.train.client_ids[part]) for part in parts] == [{0}, {1}, {2}, {3}, {4}]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(160))


def test_clients_with_numbers_are_in_the_order_of_the_numbers(write_table: Write) -> None:
    text = "age,job,site,y\n1,a,10,0\n1,a,9,0\n1,a,100,1\n1,a,9,1\n"
    ids = load_csv(write_table(text, SCHEMA), "y", test_fraction=0.0, client_column="site").train.client_ids
    assert ids is not None
    assert ids.tolist() == [1, 0, 2, 0]


def test_a_test_file_is_the_whole_test_set_and_needs_no_client_column(write_table: Write) -> None:
    path = write_table("age,job,site,y\n10,a,n,0\n20,b,s,1\n", SCHEMA)
    other = write_table("y,age,job\n1,30,a\n", None, "test.csv")
    data = load_csv(path, "y", client_column="site", test_path=other)
    assert data.train.labels.tolist() == [0, 1]
    np.testing.assert_allclose(data.test.features, [[0.3, 1, 0]], rtol=1e-7)
    assert data.test.client_ids is None


def test_blank_lines_are_no_records_and_long_files_are_read_in_pieces(write_table: Write) -> None:
    rows = [f"{row % 101},{'ab'[row % 2]},{row % 2}" for row in range(40_000)]
    features, labels = whole(write_table("age,job,y\n\n" + "\n".join(rows) + "\n\n\n", SCHEMA))
    assert labels == [row % 2 for row in range(40_000)]
    np.testing.assert_allclose(features[:, 0], np.arange(40_000) % 101 / 100.0, rtol=1e-6)
    with pytest.raises(ValueError, match=r"line 40003, column 'age' is not a finite number"):
        whole(write_table("age,job,y\n\n" + "\n".join(rows) + "\noops,a,0\n", SCHEMA))


def test_a_request_loads_what_the_function_loads(example_table: Path, tmp_path: Path) -> None:
    schema = tmp_path / "elsewhere.toml"
    Path(f"{example_table}.schema.toml").rename(schema)
    asked = DataRequest(
        path=str(example_table),
        schema_path=str(schema),
        target="income",
        client_column="site",
        test_fraction=0.3,
        seed=4,
    )
    got, expected = load(asked), load_csv(example_table, "income", schema, 0.3, 4, "site")
    np.testing.assert_array_equal(got.train.features, expected.train.features)
    np.testing.assert_array_equal(got.test.labels, expected.test.labels)
    np.testing.assert_array_equal(got.train.client_ids, expected.train.client_ids)
    given = load(DataRequest(str(example_table), str(schema), str(example_table), "income", "site"))
    assert len(given.train) == len(given.test) == 200


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DataRequest(target="y"), "dataset 'csv' needs data-path"),
        (DataRequest(path="/data/a.csv"), "dataset 'csv' needs target"),
        (DataRequest(path="/data/a.csv", target="y", options={"side": 3}), "options"),
    ],
)
def test_a_request_without_a_file_or_with_strange_settings_is_refused(
    request_: DataRequest, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(request_)


def test_the_example_of_the_documentation_is_right(tmp_path: Path) -> None:
    blocks: dict[str, str] = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL):
        blocks.setdefault(language, block)  # the page begins with the example
    path = tmp_path / "people.csv"
    path.write_text(blocks["csv"], encoding="utf-8")
    Path(f"{path}.schema.toml").write_text(blocks["toml"], encoding="utf-8")
    tomllib.loads(blocks["toml"])
    data = load_csv(path, "income", client_column="site", test_fraction=0.25)
    assert str(data.schema.names) in blocks["python"]
    assert data.train.features.shape == (3, 5)
    everything = load_csv(path, "income", client_column="site", test_fraction=0.0).train
    expected = [
        [(39 - 18) / 72, 0.5, 0, 1, 0],
        [(40 - 18) / 72, 50.5 / 80, 1, 0, 0],
        [1, 13 / 80, 0, 0, 1],
        [(28 - 18) / 72, 1, 0, 1, 0],
    ]
    np.testing.assert_allclose(everything.features, expected, rtol=1e-6)
    assert everything.labels.tolist() == [0, 1, 0, 1]
    assert everything.client_ids is not None
    assert everything.client_ids.tolist() == [0, 0, 1, 1]


@pytest.mark.skipif(not (SHARED / "nlswork.csv.gz").is_file(), reason="real data ../shared/data is absent")
def test_a_real_panel_of_4711_women_is_read_with_its_missing_cells(tmp_path: Path) -> None:
    schema = tmp_path / "nlswork.toml"
    flags = "".join(
        f"[columns.{name}]\ncategories = [0, 1]\nbaseline = 0\n" for name in ("msp", "collgrad", "south")
    )
    ignored = [
        "rownames",
        "year",
        "birth_yr",
        "nev_mar",
        "not_smsa",
        "c_city",
        "ind_code",
        "occ_code",
        "wks_ue",
    ]
    schema.write_text(
        f"ignore = {[*ignored, 'wks_work']}\n"
        "[columns.age]\nlow = 14\nhigh = 50\nbaseline = 30\n"
        "[columns.race]\ncategories = [1, 2, 3]\nbaseline = 1\n"
        "[columns.grade]\nlow = 0\nhigh = 18\nbaseline = 12\n"
        "[columns.ttl_exp]\nlow = 0\nhigh = 30\nbaseline = 6\n"
        "[columns.tenure]\nlow = 0\nhigh = 25\nbaseline = 3\n"
        "[columns.hours]\nlow = 0\nhigh = 80\nbaseline = 40\n"
        "[columns.union]\ncategories = [0, 1]\nbaseline = 0\n"
        "[columns.ln_wage]\nthresholds = [1.65]\n" + flags
    )
    data = load_csv(SHARED / "nlswork.csv.gz", "ln_wage", schema, 0.2, 0, client_column="idcode")
    assert len(data.train) + len(data.test) == 28_534
    assert data.schema.num_features == 16
    check_records(data.train, data.schema, "nlswork")
    assert data.train.features.min() >= 0
    assert data.train.features.max() <= 1
    assert data.train.client_ids is not None
    assert data.test.client_ids is not None
    assert len(np.unique(np.concatenate([data.train.client_ids, data.test.client_ids]))) == 4_711
    parts = partition(data.train, "natural")
    assert sum(map(len, parts)) == len(data.train)
    assert 0.3 < data.train.labels.mean() < 0.7


@pytest.mark.skipif(
    not (SHARED / "co2_emissions_canada.csv").is_file(), reason="real data ../shared/data is absent"
)
def test_real_column_names_with_brackets_and_spaces_are_read(tmp_path: Path) -> None:
    schema = tmp_path / "co2.toml"
    schema.write_text(
        'ignore = ["Make", "Model", "Vehicle Class", "Transmission", "Fuel Consumption Comb (mpg)"]\n'
        '[columns."Engine Size(L)"]\nlow = 0\nhigh = 10\nbaseline = 3\n'
        "[columns.Cylinders]\nlow = 2\nhigh = 16\nbaseline = 6\n"
        '[columns."Fuel Type"]\ncategories = ["X", "Z", "D", "E", "N"]\nbaseline = "X"\n'
        + "".join(
            f'[columns."Fuel Consumption {road} (L/100 km)"]\nlow = 0\nhigh = 30\nbaseline = 10\n'
            for road in ("City", "Hwy", "Comb")
        )
        + '[columns."CO2 Emissions(g/km)"]\nthresholds = [200, 250, 300]\n'
    )
    data = load_csv(SHARED / "co2_emissions_canada.csv", "CO2 Emissions(g/km)", schema)
    assert len(data.train) + len(data.test) == 7_385
    assert data.schema.num_classes == 4
    assert data.schema.columns("Fuel Type").sum() == 5
    assert np.bincount(data.train.labels, minlength=4).min() > 0
