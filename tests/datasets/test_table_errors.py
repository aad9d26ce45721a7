"""What a user's own CSV file and its schema file may not hold, and what the errors say."""

from __future__ import annotations

import gzip
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedveil.datasets.table import load_csv

Write = Callable[..., Path]

AGE = "[columns.age]\nlow = 0\nhigh = 100\nbaseline = 50\n"
JOB = '[columns.job]\ncategories = ["a", "b"]\nbaseline = "b"\n'
Y = "[columns.y]\nclasses = [0, 1]\n"
SCHEMA = AGE + JOB + Y


def whole(path: Path) -> tuple[np.ndarray, list[int]]:
    """All records as training records, in the file's order."""
    data = load_csv(path, "y", test_fraction=0.0)
    return data.train.features, data.train.labels.tolist()


BAD_CELLS = [
    ("secret,a,0", r"line 3, column 'age' is not a finite number"),
    ("nan,a,0", r"line 3, column 'age' is not a finite number.*list its text under missing"),
    ("inf,a,0", r"line 3, column 'age' is not a finite number"),
    ("-Infinity,a,0", r"line 3, column 'age' is not a finite number"),
    ("1_000,a,0", r"line 3, column 'age' is not a finite number"),
    ("5,secret,0", r"line 3, column 'job' is not one of the categories a, b"),
    ("5,a,2", r"line 3, column 'y' is not one of the classes 0, 1"),
    ("5,a,secret", r"line 3, column 'y' is not one of the classes 0, 1"),
    ("5,a", r"line 3 has 2 cells, but the header has 3"),
    ("5,a,b,0", r"line 3 has 4 cells, but the header has 3.*double quotes"),
    ('5,"a"b,0', r"line 3 is not valid CSV"),
    ('5,"a', r"is not valid CSV"),
]


@pytest.mark.parametrize(("row", "message"), BAD_CELLS)
def test_a_bad_cell_is_named_by_line_and_column_and_never_repeated(
    write_table: Write, row: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        whole(write_table(f"age,job,y\n1,a,1\n{row}\n", SCHEMA))
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None or "secret" not in str(error.value.__cause__)


BAD_FILES = [
    ("", "is empty"),
    ("age,job,y\n", "has columns but no rows"),
    ("age,job,age,y\n1,a,2,0\n", "has columns 1 and 3 both named 'age'"),
    ("age,zip,zip,y\n1,a,2,0\n", "has columns 2 and 3 of the same name"),
    (",\n1,a\n", "only empty names of columns: the first line of the file must name the columns"),
    ("age;job;y\n1;a;0\n", "has semicolons between its cells: save it with commas"),
    ('"age";"job";"y"\n1;a;0\n', "line 1 is not valid CSV: text follows a closing quote; use commas"),
    ("age\tjob\ty\n1\ta\t0\n", "has tabs between its cells"),
    ("age,job,y\n1,a,0\n".encode("utf-16"), "is not UTF-8: save it as UTF-8"),
    ("age,job,y\n1,a,0\n".encode("utf-16-le"), "is not UTF-8 text"),
    ('age,job,y\n1,a,0\n\n2,"a,0\n3,b,1\n', "a quote opened in line 4 is never closed"),
    (
        'age,job,y\n1,a,0\n2,"a,0\n3,"b",1\n',
        "line 4 is not valid CSV: a quote opened in line 3 is not closed",
    ),
    ("age,,y\n1,a,0\n", "has no name for column 2"),
    ("age,job,yy\n1,a,0\n", r"has no target column 'y': the first line of the file must name the columns\.$"),
    ("age,job,y,extra\n1,a,0,5\n", r"columns without a public range, counted from 1: 4; .*\nlow = "),
    ("age,y\n1,0\n", r"describes the column 'job', which .* does not have"),
    (b"age,job,y\n1,a,0\n2,\xff,1\n", "is not UTF-8"),
    (gzip.compress(b"age,job,y\n1,a,0\n" * 100)[:-20], "is not a whole gzip file"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_a_bad_file_is_refused_with_what_to_do(
    write_table: Write, content: str | bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        whole(write_table(content, SCHEMA))


def test_a_missing_file_is_named(tmp_path: Path, example_table: Path) -> None:
    with pytest.raises(ValueError, match=r"no data file .*nothing\.csv"):
        load_csv(tmp_path / "nothing.csv", "y")
    with pytest.raises(ValueError, match=r"no data file .*nothing\.csv"):
        load_csv(example_table, "income", test_path=tmp_path / "nothing.csv", client_column="site")


def test_client_columns_that_cannot_be_are_refused(write_table: Write) -> None:
    path = write_table("age,job,site,y\n1,a,,0\n", SCHEMA)
    with pytest.raises(ValueError, match=r"no client column 'sites': the first line"):
        load_csv(path, "y", client_column="sites")
    with pytest.raises(ValueError, match=r"no target column 'jobs': .*; nearest in the schema file: 'job'\."):
        load_csv(path, "jobs")
    with pytest.raises(ValueError, match="both target and client column"):
        load_csv(path, "y", client_column="y")
    with pytest.raises(
        ValueError, match=r"line 2, column 'site' is missing, but must be the name of a client"
    ):
        load_csv(path, "y", client_column="site")


BAD_SCHEMAS = [
    (AGE + JOB + "[columns.y]\n", r"which classes the target 'y' has.*\[columns.y\]\nclasses = "),
    (AGE + JOB, "which classes the target 'y' has"),
    (JOB + Y + "[columns.age]\nlow = 0\n", r"\[columns.age\] has no high, no baseline.*high = 100"),
    (JOB + Y + "[columns.age]\nlow = 5\nhigh = 5\nbaseline = 5\n", "low < high"),
    (JOB + Y + "[columns.age]\nlow = 0\nhigh = 5\nbaseline = 6\n", "baseline between"),
    (JOB + Y + '[columns.age]\nlow = 0\nhigh = "9"\nbaseline = 6\n', "finite number as high"),
    (JOB + Y + "[columns.age]\nlow = 0\nhigh = inf\nbaseline = 6\n", "finite number as high"),
    (
        JOB + Y + f"[columns.age]\nlow = 0\nhigh = {'9' * 400}\nbaseline = 6\n",
        r"\[columns.age\] needs a finite number as high, got 999.*999\.$",
    ),
    (JOB + Y + f"[columns.age]\nlow = 0\nhigh = {'9' * 5000}\nbaseline = 6\n", "is not valid TOML: "),
    (JOB + Y + "[columns.age]\nlow = true\nhigh = 2\nbaseline = 2\n", "finite number as low"),
    (AGE + Y + '[columns.job]\ncategories = ["a", "b"]\n', "needs a baseline out of its categories"),
    (AGE + Y + '[columns.job]\ncategories = ["a", "a"]\nbaseline = "a"\n', "all different"),
    (AGE + Y + '[columns.job]\ncategories = "ab"\nbaseline = "a"\n', "list of texts or numbers"),
    (AGE + JOB + "[columns.y]\nthresholds = [2, 1]\n", "increasing numbers"),
    (AGE + JOB + "[columns.y]\nthresholds = []\n", "increasing numbers"),
    (AGE + JOB + "[columns.y]\nclasses = [true, false]\n", "list of texts or numbers"),
    (AGE + JOB + Y + "baseline = 7\n", "baseline that is not one of its classes"),
    (AGE.replace("high", "hihg") + JOB + Y, r"\[columns.age\] has the unknown key 'hihg'; nearest: 'high'"),
    (SCHEMA.replace("[columns.age]", "[age]"), r"unknown key 'age'.*\[columns.age\]"),
    ("ignore = 5\n" + SCHEMA, "list of texts as ignore"),
    ("columns = 5\n", r"table for each column, as in\n\n\[columns.age\]"),
    ("[columns", "is not valid TOML: "),
    ('ignore = ["age", "job"]\n' + Y, "no column beside the target"),
]


@pytest.mark.parametrize(("schema", "message"), BAD_SCHEMAS)
def test_a_bad_schema_file_is_refused_with_what_to_write(
    write_table: Write, schema: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        whole(write_table("age,job,y\n1,a,0\n", schema))


def test_a_schema_file_may_begin_with_a_byte_order_mark(write_table: Write) -> None:
    text = "age,job,y\n1,a,0\n"
    assert whole(write_table(text, "\ufeff" + SCHEMA))[1] == [0]


def test_a_column_whose_name_is_a_category_of_another_is_refused(write_table: Write) -> None:
    schema = SCHEMA + '[columns."job=a"]\nlow = 0\nhigh = 1\nbaseline = 0\n'
    with pytest.raises(ValueError, match="Two features are named 'job=a'"):
        whole(write_table("age,job,job=a,y\n1,a,1,0\n", schema))


def pasted(error: ValueError) -> str:
    """What stands below the one sentence of an error; all of it must be TOML."""
    toml = str(error).partition("\n\n")[2]
    tomllib.loads(toml)
    return toml


def test_what_the_error_says_to_write_works(write_table: Write) -> None:
    text = 'age,"height, cm",trade,id,y\n10,20,a,1,yes\n30,40,b,2,no\n'
    path = write_table(text, None)
    with pytest.raises(ValueError, match="There is no schema file") as error:
        whole(path)
    assert f"{path}.schema.toml" in str(error.value)
    said = pasted(error.value).replace("my-number", "age").replace("my-text", "trade").replace("my-id", "id")
    write_table(text, said)
    with pytest.raises(ValueError, match="without a public range, counted from 1: 2;") as error:
        whole(path)
    more = pasted(error.value)[pasted(error.value).index("[columns") :].partition("\n\n")[0]
    write_table(text, said + more.replace("my-number", '"height, cm"'))
    features, labels = whole(path)
    np.testing.assert_allclose(features, [[0.1, 1, 0, 0.2], [0.3, 0, 1, 0.4]], rtol=1e-7)
    assert labels == [1, 0]


def test_other_examples_in_errors_are_toml_as_well(write_table: Write) -> None:
    for schema in (JOB + Y + "[columns.age]\nlow = 0\n", AGE + JOB):
        with pytest.raises(ValueError, match="for example") as error:
            whole(write_table("age,job,y\n1,a,0\n", schema))
        pasted(error.value)


HEADERLESS = [
    "390001,miller,site7,low\n400002,smith,site8,high\n",
    "miller,miller,site7,low\n",
    "390001;miller;site7;low\n",
    "390001\tmiller\tsite7\tlow\n",
    "miller:$6$hash:19000:0:99999:7:::\n",
    '"miller","390001\n',
    '"miller"390001,low\n',
    "miller,,low\n",
    "age,job,y,miller\n",
    "age,job,miller,miller,y\n",
    "age,y,miller\n",
    "age,job,390001,miller,y,age\n",
]


@pytest.mark.parametrize("schema", [SCHEMA, None, "[columns"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "gzip"])
@pytest.mark.parametrize("text", HEADERLESS)
def test_no_cell_of_a_first_line_that_is_no_header_is_in_an_error(
    write_table: Write, text: str, encoding: str, schema: str | None
) -> None:
    content = gzip.compress(text.encode())[:-3] if encoding == "gzip" else text.encode(encoding)
    path = write_table(content, schema)
    good = write_table("age,job,y\n1,a,0\n", SCHEMA if schema is None else None, "good.csv")
    described = f"{good if schema is None else path}.schema.toml"
    calls: list[Callable[[], object]] = [
        lambda: load_csv(path, "y"),
        lambda: load_csv(path, "income", client_column="site"),
        lambda: load_csv(path, "y", client_column="sites"),
        lambda: load_csv(good, "y", described, test_path=path),
        lambda: load_csv(good, "y", path),
    ]
    for call in calls:
        with pytest.raises(ValueError) as error:
            call()
        said = f"{error.value} {error.value.__cause__}"
        for secret in ("miller", "390001", "site7", "hash", "19000", "99999"):
            assert secret not in said


def test_a_folder_is_told_as_one(tmp_path: Path, example_table: Path) -> None:
    with pytest.raises(ValueError, match="is a folder: give the path of a CSV file"):
        load_csv(tmp_path, "y")
    with pytest.raises(ValueError, match="is a folder: give the path of a TOML file"):
        load_csv(example_table, "income", tmp_path, client_column="site")


def test_a_fraction_says_which_part_it_leaves_empty(write_table: Write) -> None:
    path = write_table("age,job,y\n1,a,0\n2,b,1\n", SCHEMA)
    with pytest.raises(ValueError, match=r"test-fraction 0\.2 of 2 rows leaves none for testing: .*larger"):
        load_csv(path, "y", test_fraction=0.2)
    with pytest.raises(ValueError, match=r"test-fraction 0\.9 of 2 rows leaves none for training: .*smaller"):
        load_csv(path, "y", test_fraction=0.9)


def test_the_client_column_is_no_private_attribute(example_table: Path) -> None:
    schema = load_csv(example_table, "income", client_column="site").schema
    with pytest.raises(ValueError, match="'site': it is the client column, not a feature"):
        schema.columns("age,site")
