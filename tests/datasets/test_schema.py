"""Schema, records, masks and baselines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.datasets.schema import Records, Schema, check_records, with_baseline


def table_schema(**changes: Any) -> Schema:
    parts: dict[str, Any] = {
        "names": ("age", "job=a", "job=b", "hours"),
        "shape": (4,),
        "low": np.array([10, 0, 0, 0], dtype=np.float32),
        "high": np.array([90, 1, 1, 80], dtype=np.float32),
        "baseline": np.array([0.5, 0, 1, 0.25], dtype=np.float32),
        "target": "income",
        "classes": ("low", "high"),
        "sources": ("age", "job", "job", "hours"),
    }
    return Schema(**{**parts, **changes})


def image_schema(shape: tuple[int, ...] = (2, 4, 5)) -> Schema:
    count = int(np.prod(shape))
    zeros = np.zeros(count, dtype=np.float32)
    names = tuple(f"pixel {i}" for i in range(count))
    return Schema(names, shape, zeros, zeros + 255, zeros, "digit", ("0", "1"))


def records(num: int = 3) -> Records:
    return Records(np.full((num, 4), 0.5, dtype=np.float32), np.zeros(num, dtype=np.int64))


def test_scaling_maps_the_public_range_to_zero_and_one_and_clips_what_is_outside() -> None:
    values = [[10, 0, 0, 0], [90, 1, 1, 80], [50, 0, 1, 20], [-5, 2, -1, np.inf]]
    expected = [[0, 0, 0, 0], [1, 1, 1, 1], [0.5, 0, 1, 0.25], [0, 1, 0, 1]]
    scaled = table_schema().scale(np.array(values))
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, np.array(expected, dtype=np.float32))


def test_a_nan_survives_scaling_so_that_the_check_finds_it() -> None:
    assert np.isnan(table_schema().scale([np.nan, 0, 0, 0])[0])


@given(st.lists(st.floats(-1e30, 1e30), min_size=4, max_size=4), st.floats(-1e30, 1e30))
def test_scaling_one_record_does_not_depend_on_another(row: list[float], other: float) -> None:
    schema = table_schema()
    together = schema.scale([row, [other] * 4])
    np.testing.assert_array_equal(together[0], schema.scale(row))
    assert together.min() >= 0
    assert together.max() <= 1


def test_a_column_name_selects_all_its_features() -> None:
    schema = table_schema()
    assert schema.columns(["job"]).tolist() == [False, True, True, False]
    assert schema.columns("age, hours").tolist() == [True, False, False, True]
    assert schema.columns(["job=b"]).tolist() == [False, False, True, False]
    assert schema.columns([]).tolist() == [False] * 4
    assert schema.columns("").tolist() == [False] * 4


def test_a_column_name_with_a_comma_is_written_in_quotes() -> None:
    names = ("age", "hours, a week")
    schema = table_schema(
        names=names,
        sources=names,
        shape=(2,),
        low=np.zeros(2, np.float32),
        high=np.ones(2, np.float32),
        baseline=np.zeros(2, np.float32),
    )
    assert schema.columns('"hours, a week"').tolist() == [False, True]
    assert schema.columns(["hours, a week"]).tolist() == [False, True]


def test_an_unknown_private_column_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"Unknown private column 'ages'.*nearest: 'age'"):
        table_schema().columns("ages")
    with pytest.raises(ValueError, match=r"'zzzz'.*'age', 'job', 'hours'"):
        table_schema().columns(["zzzz"])
    with pytest.raises(ValueError, match="it is the target"):
        table_schema().columns(["income"])


@pytest.mark.parametrize("text", [",", "age,", "age,,hours", " , "])
def test_an_empty_private_column_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hold an empty name: write names with one comma between"):
        table_schema().columns(text)


def test_private_columns_on_two_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        table_schema().columns("age\nhours")


@pytest.mark.parametrize("text", ["10:18", "centre"])
def test_what_is_no_region_on_images_is_refused_with_the_syntax(text: str) -> None:
    with pytest.raises(ValueError, match=rf"'{text}': name a rectangle .*'10:18,10:18'"):
        image_schema().columns(text)


def test_a_region_marks_the_rectangle_in_every_channel() -> None:
    mask = image_schema().region("1:3, 2:5").reshape(2, 4, 5)
    expected = np.zeros((4, 5), dtype=bool)
    expected[1:3, 2:5] = True
    assert (mask == expected).all()
    assert image_schema((4, 5)).region("0:4,0:5").all()


@pytest.mark.parametrize("text", ["1:5,0:2", "0:2,0:6", "2:2,0:1", "3:1,0:1"])
def test_a_region_that_is_empty_or_leaves_the_image_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"outside the image.*within 0:4.*within 0:5"):
        image_schema().region(text)


@pytest.mark.parametrize("text", ["", "1:2", "a:b,c:d", "-1:2,0:2", "1:2,3:4,5:6", "10-18,10-18"])
def test_a_malformed_region_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="10:18,10:18"):
        image_schema().region(text)


def test_a_region_on_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"table.*name columns"):
        table_schema().region("0:1,0:1")


def test_the_baseline_copy_hides_the_private_attributes_and_nothing_else() -> None:
    schema = table_schema()
    mask = schema.columns("job")
    rng = np.random.default_rng(1)
    features = rng.uniform(size=(6, 4)).astype(np.float32)
    neighbour = features.copy()
    neighbour[3, mask] = rng.uniform(size=2)
    before = features.copy()
    hidden = with_baseline(features, mask, schema.baseline)
    np.testing.assert_array_equal(hidden, with_baseline(neighbour, mask, schema.baseline))
    np.testing.assert_array_equal(hidden[:, ~mask], features[:, ~mask])
    np.testing.assert_array_equal(hidden[:, mask], np.tile([0, 1], (6, 1)))
    np.testing.assert_array_equal(features, before)
    assert hidden.dtype == np.float32


def test_a_mask_of_another_length_is_refused() -> None:
    schema = table_schema()
    with pytest.raises(ValueError, match="do not fit"):
        with_baseline(np.zeros((2, 3), np.float32), schema.columns("job"), schema.baseline)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("age", "age", "job=b", "hours")}, "names that all differ"),
        ({"shape": (5,)}, "shape"),
        ({"low": np.zeros(4)}, "low must be 4 finite float32"),
        ({"high": np.array([90, 1, np.inf, 80], np.float32)}, "high must be 4 finite float32"),
        ({"low": np.array([10, 0, 0, 80], np.float32)}, "'hours' is empty"),
        ({"baseline": np.array([40, 0, 1, 0.25], np.float32)}, r"\[0, 1\]"),
        ({"classes": ("one",)}, "at least two classes"),
    ],
)
def test_a_schema_whose_parts_do_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_schema(**changes)


def test_good_records_pass_the_check() -> None:
    check_records(records(), table_schema(), "client 3")


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_a_feature_that_is_not_finite_names_owner_row_and_column(value: float, word: str) -> None:
    bad = records()
    bad.features[1, 3] = value
    with pytest.raises(ValueError, match=rf"client 3: row 1, column 'hours' is {word}"):
        check_records(bad, table_schema(), "client 3")


@pytest.mark.parametrize("label", [-1, 2, 777])
def test_a_label_out_of_range_names_owner_and_row_but_not_the_label(label: int) -> None:
    bad = records()
    bad.labels[2] = label
    with pytest.raises(ValueError, match=r"client 3: row 2 .*'income'.* 0 to 1") as error:
        check_records(bad, table_schema(), "client 3")
    assert "777" not in str(error.value)


def test_an_empty_owner_is_named() -> None:
    with pytest.raises(ValueError, match="client 3 has no records"):
        check_records(records(0), table_schema(), "client 3")


def test_another_number_of_features_is_refused() -> None:
    other = Records(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="client 3 has 3 features a record, but the schema describes 4"):
        check_records(other, table_schema(), "client 3")


def test_records_of_another_dtype_or_length_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        Records(np.zeros((2, 3)), np.zeros(2, np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="labels must be 2 int64"):
        Records(np.zeros((2, 3), np.float32), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="client_ids must be 2 int64"):
        Records(np.zeros((2, 3), np.float32), np.zeros(2, np.int64), np.zeros(2, np.int32))


def test_taking_rows_keeps_their_order_and_their_clients() -> None:
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    everything = Records(features, np.arange(4), np.array([5, 6, 7, 8]))
    some = everything.take(np.array([2, 0]))
    assert len(some) == 2
    assert some.labels.tolist() == [2, 0]
    assert some.client_ids is not None
    assert some.client_ids.tolist() == [7, 5]
    some.features[:] = -1
    assert features.min() == 0
