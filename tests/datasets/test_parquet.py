"""A user's own Parquet file."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedveil.datasets.parquet import load, load_parquet
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, check_records
from fedveil.datasets.table import load_csv

Write = Callable[..., Path]

AGE = "[columns.age]\nlow = 0\nhigh = 100\nbaseline = 50\n"
JOB = '[columns.job]\ncategories = ["a", "b"]\nbaseline = "b"\n'
Y = "[columns.y]\nclasses = [0, 1]\n"
SCHEMA = AGE + JOB + Y


@pytest.fixture
def write_parquet(tmp_path: Path) -> Write:
    """A function that writes columns as a Parquet file, with the schema text beside it."""

    def write(columns: dict[str, Any], schema: str | None = SCHEMA, name: str = "data.parquet") -> Path:
        path = tmp_path / name
        pq.write_table(pa.table(columns), path)
        if schema is not None:
            Path(f"{path}.schema.toml").write_text(schema, encoding="utf-8")
        return path

    return write


def whole(path: Path, target: str = "y", **options: Any) -> tuple[np.ndarray, list[int]]:
    """All records as training records, in the file's order."""
    data = load_parquet(path, target, test_fraction=0.0, **options)
    check_records(data.train, data.schema, "the file")
    return data.train.features, data.train.labels.tolist()


def same(left: Dataset, right: Dataset) -> None:
    assert left.schema.names == right.schema.names
    for mine, other in ((left.train, right.train), (left.test, right.test)):
        np.testing.assert_array_equal(mine.features, other.features)
        np.testing.assert_array_equal(mine.labels, other.labels)
        np.testing.assert_array_equal(mine.client_ids, other.client_ids)


def typed(text: str, kinds: dict[str, Any]) -> dict[str, Any]:
    """Read CSV text with the standard library as columns of these types; an empty cell and NA are null."""
    rows = list(csv.DictReader(io.StringIO(text)))
    cells = {column: [row[column] for row in rows] for column in rows[0]}
    read = {pa.float64(): float, pa.float32(): float, pa.int64(): int}
    return {
        column: pa.array(
            [None if cell in ("", "NA") else read.get(kinds.get(column), str)(cell) for cell in values],
            kinds.get(column, pa.string()),
        )
        for column, values in cells.items()
    }


@pytest.mark.parametrize("number", [pa.float64(), pa.float32()])
def test_the_same_cells_give_the_same_data_set_as_a_csv_file(
    example_table: Path, write_parquet: Write, number: Any
) -> None:
    kinds = {"age": pa.int64(), "hours, a week": number, "row": pa.int64()}
    path = write_parquet(typed(example_table.read_text(encoding="utf-8"), kinds), None)
    described = f"{example_table}.schema.toml"
    got = load_parquet(path, "income", described, 0.25, 3, client_column="site")
    same(got, load_csv(example_table, "income", described, 0.25, 3, client_column="site"))
    assert got.name == "data"
    asked = DataRequest(str(path), described, "", "income", "site", 0.25, 3)
    same(load(asked), got)


def test_values_are_scaled_clipped_and_imputed_by_public_constants_only(write_parquet: Write) -> None:
    path = write_parquet({"age": [25.0, -7.0, 1e9, None], "job": ["a", "b", None, "NA"], "y": [0, 1, 1, 0]})
    features, labels = whole(path)
    np.testing.assert_array_equal(
        features, np.array([[0.25, 1, 0], [0, 0, 1], [1, 0, 1], [0.5, 0, 1]], np.float32)
    )
    assert labels == [0, 1, 1, 0]


NUMBERS = [pa.int8(), pa.int64(), pa.uint16(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2)]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "dictionary"])
def test_every_type_of_number_is_read(write_parquet: Write, kind: Any, packed: bool) -> None:
    is_decimal, is_half = pa.types.is_decimal(kind), kind == pa.float16()
    values: list[Any] = [5, 50, None, 120]
    if is_decimal:
        values = [None if value is None else decimal.Decimal(value) for value in values]
    elif is_half:
        values = [None if value is None else np.float16(value) for value in values]
    age = pa.array(values, kind)
    y = pa.array([0, 1, 1, 0], pa.int8())
    if packed and not is_half:  # Arrow has no dictionary of half floats
        age, y = age.dictionary_encode(), y.dictionary_encode()
    path = write_parquet({"age": age, "job": pa.array(["a", "b", "a", None]).dictionary_encode(), "y": y})
    features, labels = whole(path)
    np.testing.assert_allclose(features[:, 0], [0.05, 0.5, 0.5, 1], rtol=1e-6)
    np.testing.assert_array_equal(features[:, 2], [0, 1, 0, 1])
    assert labels == [0, 1, 1, 0]


def test_booleans_are_the_texts_true_and_false(write_parquet: Write) -> None:
    schema = AGE + '[columns.y]\nclasses = ["false", "true"]\n'
    assert whole(write_parquet({"age": [1, 2], "y": [True, False]}, schema))[1] == [1, 0]
    with pytest.raises(ValueError, match="row 1, column 'y' is not one of the classes 0, 1"):
        whole(write_parquet({"age": [1, 2], "y": [True, False]}, AGE + Y))


def test_a_column_of_nulls_is_all_baseline(write_parquet: Write) -> None:
    path = write_parquet({"age": pa.nulls(2), "job": ["a", "b"], "y": [0, 1]})
    np.testing.assert_array_equal(whole(path)[0][:, 0], np.array([0.5, 0.5], np.float32))
    with pytest.raises(ValueError, match="row 1, column 'y' is missing, but must be one of the classes"):
        whole(write_parquet({"age": [1, 2], "job": ["a", "b"], "y": pa.nulls(2)}))


def test_an_empty_text_is_missing_unless_it_is_a_category_and_a_null_is_always(write_parquet: Write) -> None:
    columns = {"age": [1, 1, 1], "job": ["", None, "a"], "y": [0, 0, 1]}
    np.testing.assert_array_equal(whole(write_parquet(columns))[0][:, 1:], [[0, 1], [0, 1], [1, 0]])
    schema = AGE + '[columns.job]\ncategories = ["a", "b", ""]\nbaseline = "b"\n' + Y
    features, _ = whole(write_parquet(columns, schema))
    np.testing.assert_array_equal(features[:, 1:], [[0, 0, 1], [0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_an_explicit_nan_or_infinity_is_no_missing_cell(
    write_parquet: Write, kind: Any, value: float
) -> None:
    path = write_parquet({"age": pa.array([1.0, value], kind), "job": ["a", "b"], "y": [0, 1]})
    with pytest.raises(ValueError, match=r"row 2, column 'age' is not a finite number.*under missing"):
        whole(path)


@pytest.mark.parametrize("listed", ["nan", "NaN", "-99", "-99.0", "-9.9e1", "0.1"])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_numbers_listed_as_missing_are_found_by_value(write_parquet: Write, listed: str, kind: Any) -> None:
    path = write_parquet(
        {"age": pa.array([10.0, float(listed)], kind), "job": ["a", "b"], "y": [0, 1]},
        f'missing = ["{listed}"]\n' + SCHEMA,
    )
    np.testing.assert_allclose(whole(path)[0][:, 0], [0.1, 0.5], rtol=1e-6)


def test_an_integer_listed_as_missing_is_found_by_value(write_parquet: Write) -> None:
    path = write_parquet({"age": [10, -99], "job": ["a", "b"], "y": [0, 1]}, 'missing = ["-99.0"]\n' + SCHEMA)
    np.testing.assert_allclose(whole(path)[0][:, 0], [0.1, 0.5], rtol=1e-6)


def test_files_of_several_row_groups_are_read_in_order_and_counted_through(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    Path(f"{path}.schema.toml").write_text(AGE + Y, encoding="utf-8")
    ages = np.arange(40_000) % 101
    table = pa.table({"age": ages, "y": ages % 2})
    pq.write_table(table, path, row_group_size=7_000)
    features, labels = whole(path)
    np.testing.assert_allclose(features[:, 0], ages / 100, rtol=1e-6)
    assert labels == (ages % 2).tolist()
    bad = np.where(np.arange(40_000) == 33_332, 7, ages % 2)
    pq.write_table(pa.table({"age": ages, "y": bad}), path, row_group_size=7_000)
    with pytest.raises(ValueError, match=r"row 33333, column 'y' is not one of the classes"):
        whole(path)


def test_integer_clients_are_in_the_order_of_the_numbers(write_parquet: Write) -> None:
    columns = {"age": [1, 1, 1, 1], "job": list("aaaa"), "site": [10, 9, 100, 9], "y": [0, 0, 1, 1]}
    data = load_parquet(write_parquet(columns), "y", test_fraction=0.0, client_column="site")
    assert data.train.client_ids is not None
    assert data.train.client_ids.tolist() == [1, 0, 2, 0]
    columns["site"] = [10, None, 100, 9]  # type: ignore[list-item]
    with pytest.raises(ValueError, match="row 2, column 'site' is missing, but must be the name of a client"):
        load_parquet(write_parquet(columns), "y", client_column="site")


def test_a_test_file_is_the_whole_test_set(write_parquet: Write) -> None:
    path = write_parquet({"age": [10, 20], "job": ["a", "b"], "site": ["n", "s"], "y": [0, 1]})
    other = write_parquet({"y": [1], "age": [30.0], "job": ["a"]}, None, "test.parquet")
    data = load_parquet(path, "y", client_column="site", test_path=other)
    assert data.train.labels.tolist() == [0, 1]
    np.testing.assert_allclose(data.test.features, [[0.3, 1, 0]], rtol=1e-7)


STRANGE = [
    (pa.array([[1], [2]]), "nested"),
    (pa.array([{"secret": 1}, {"secret": 2}]), "nested"),
    (pa.array([b"secret", b"x"]), "binary"),
    (pa.array([datetime.date(1990, 1, 1)] * 2), r"date32\[day\]"),
    (pa.array([datetime.datetime(1990, 1, 1)] * 2), "timestamp"),
]


@pytest.mark.parametrize(("column", "kind"), STRANGE)
def test_a_column_whose_cells_are_no_numbers_or_texts_is_refused_by_its_type(
    write_parquet: Write, column: Any, kind: str
) -> None:
    path = write_parquet({"age": column, "job": ["a", "b"], "y": [0, 1]})
    with pytest.raises(ValueError, match=rf"column 'age' is {kind}.*: a column must hold") as error:
        whole(path)
    assert "secret" not in str(error.value)
    assert "1990" not in str(error.value)
    ignored = write_parquet({"age": column, "job": ["a", "b"], "y": [0, 1]}, 'ignore = ["age"]\n' + JOB + Y)
    assert whole(ignored)[1] == [0, 1]


def test_a_bad_cell_is_named_by_row_and_column_and_never_repeated(write_parquet: Write) -> None:
    for age, job, y, message in (
        ([1, 2], ["a", "secret"], [0, 1], "row 2, column 'job' is not one of the categories a, b"),
        (["1", "secret"], ["a", "b"], [0, 1], "row 2, column 'age' is not a finite number"),
        ([1, 2], ["a", "b"], ["secret", "1"], "row 1, column 'y' is not one of the classes 0, 1"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            whole(write_parquet({"age": age, "job": job, "y": y}))
        assert "secret" not in f"{error.value} {error.value.__cause__}"


def test_columns_that_do_not_fit_the_description_are_refused(write_parquet: Write) -> None:
    columns = {"age": [1, 2], "job": ["a", "b"], "y": [0, 1]}
    named = "a Parquet file holds its columns' names"
    with pytest.raises(ValueError, match=rf"no target column 'z': {named}"):
        whole(write_parquet(columns), "z")
    with pytest.raises(
        ValueError, match=rf"columns without a public range, counted from 1: 4; {named}; write"
    ):
        whole(write_parquet({**columns, "extra": [1, 2]}))
    with pytest.raises(ValueError, match=r"describes the column 'job', which .* does not have"):
        whole(write_parquet({"age": [1, 2], "y": [0, 1]}))
    with pytest.raises(ValueError, match="There is no schema file"):
        whole(write_parquet(columns, None, "other.parquet"))
    doubled = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["age", "age", "y"])
    path = write_parquet(columns)
    pq.write_table(doubled, path)
    with pytest.raises(ValueError, match="columns 1 and 2 both named 'age'"):
        whole(path)


def test_a_file_without_rows_is_refused(write_parquet: Write) -> None:
    path = write_parquet(
        {"age": pa.array([], pa.int64()), "job": pa.array([], pa.string()), "y": pa.nulls(0)}
    )
    with pytest.raises(ValueError, match="has columns but no rows"):
        whole(path)


def test_damaged_files_and_other_files_are_refused_without_their_content(write_parquet: Write) -> None:
    jobs = ["secret", "b"] * 500
    schema = AGE + '[columns.job]\ncategories = ["secret", "b"]\nbaseline = "b"\n' + Y
    path = write_parquet({"age": list(range(1000)), "job": jobs, "y": [0, 1] * 500}, schema)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[4:200] = b"secret".ljust(196, b"\xff")
    damaged = [content[:-30], content[: len(content) // 2], content[:3], b"", bytes(flipped)]
    damaged += [b"age,job,y\nsecret,a,1\n", b"PAR1secretPAR1", b"secret" * 100]
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"is not a whole Parquet file: .* dataset 'csv'") as error:
            whole(path)
        assert "secret" not in str(error.value)
        assert error.value.__cause__ is None


def test_no_flipped_byte_gives_another_error_or_repeats_a_cell(write_parquet: Write) -> None:
    schema = AGE + JOB.replace('"a"', '"c"') + Y
    columns = {"age": list(range(50)), "job": ["secret"] * 50, "y": [0, 1] * 25}
    path = write_parquet(columns, schema)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        flipped = bytearray(content)
        for at in rng.integers(0, len(content), 3):
            flipped[at] = rng.integers(256)
        path.write_bytes(bytes(flipped))
        with pytest.raises(ValueError, match=f"^{path}") as error:
            whole(path)
        assert "secret" not in f"{error.value} {error.value.__cause__}"


def test_a_name_of_a_column_that_is_not_utf_8_is_refused(write_parquet: Write) -> None:
    path = write_parquet({"age": [1, 2], "job": ["a", "b"], "y": [0, 1], "zzz": [1, 2]})
    path.write_bytes(path.read_bytes().replace(b"zzz", b"z\xd2z"))
    with pytest.raises(ValueError, match="is not a whole Parquet file"):
        whole(path)


def test_a_text_that_is_not_utf_8_is_refused(write_parquet: Write) -> None:
    broken = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 6, 7], np.int32)), pa.py_buffer(b"secret\xff")
    )
    with pytest.raises(ValueError, match="is not a whole Parquet file") as error:
        whole(write_parquet({"age": [1, 2], "job": broken, "y": [0, 1]}))
    assert "secret" not in str(error.value)


def test_a_missing_file_a_folder_and_an_incomplete_request_are_told(
    tmp_path: Path, write_parquet: Write
) -> None:
    with pytest.raises(ValueError, match=r"no data file .*nothing\.parquet"):
        load_parquet(tmp_path / "nothing.parquet", "y")
    with pytest.raises(ValueError, match="is a folder: give the path of one Parquet file"):
        load_parquet(tmp_path, "y")
    path = write_parquet({"age": [1, 2], "job": ["a", "b"], "y": [0, 1]})
    with pytest.raises(ValueError, match=r"no data file .*nothing\.parquet"):
        load_parquet(path, "y", test_path=tmp_path / "nothing.parquet")
    for request, message in (
        (DataRequest(target="y"), "dataset 'parquet' needs data-path"),
        (DataRequest(path=str(path)), "dataset 'parquet' needs target"),
        (DataRequest(path=str(path), target="y", options={"a": 1}), "options"),
    ):
        with pytest.raises(ValueError, match=re.compile(message)):
            load(request)
