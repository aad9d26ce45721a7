"""What a data set for regression is: its public description, its records, and the task that asks for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.datasets import cifar, digits, emnist, femnist, image_folder, mnist
from fedveil.datasets.regression import RegressionRecords, RegressionSchema, rows_of
from fedveil.datasets.request import DataRequest

NUMBERS = st.floats(-1e6, 1e6)


def schema(**changes: object) -> RegressionSchema:
    parts: dict[str, object] = {
        "names": ("age", "share", "job=farm"),
        "low": np.array([20.0, 0.0, 0.0]),
        "high": np.array([60.0, 1.0, 1.0]),
        "baseline": np.array([30.0, 0.5, 0.0]),
        "target": "income",
        "target_low": 0.0,
        "target_high": 100.0,
        "sources": ("age", "share", "job"),
    }
    return RegressionSchema(**(parts | changes))  # type: ignore[arg-type]


def test_a_number_is_clipped_less_its_baseline_and_divided_by_half_its_range() -> None:
    got = schema().standardise([[30, 0.25, 1], [60, 2, 0], [-1, -1, 0], [50, 1, 1]])
    expected = [[0, 0.25, 1], [1.5, 1, 0], [-0.5, 0, 0], [1, 1, 1]]
    np.testing.assert_array_equal(got, np.array(expected, dtype=np.float32))
    assert got.dtype == np.float32


def test_ranges_of_0_to_1_stay_as_they_are() -> None:
    assert schema().center.tolist() == [30, 0, 0]
    assert schema().half_range.tolist() == [20, 1, 1]


def test_a_column_of_categories_counts_once_among_the_columns() -> None:
    described = schema(names=("a", "job=x", "job=y"), sources=("a", "job", "job"))
    assert (described.num_features, described.num_columns) == (3, 2)
    assert schema(sources=()).num_columns == 3


@given(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS, NUMBERS)
def test_a_features_value_depends_on_no_other_record_and_stays_within_2(
    record: list[float], low: float, width: float
) -> None:
    described = schema(
        low=np.array([low, 0.0, 0.0]),
        high=np.array([low + abs(width) + 1, 1.0, 1.0]),
        baseline=np.array([low, 0.5, 0.0]),
    )
    alone = described.standardise([record])
    among = described.standardise([[1e300, -1e300, 0], record, [0, 0, 0]])
    np.testing.assert_array_equal(alone[0], among[1])
    assert np.abs(among).max() <= 2


@given(
    st.lists(st.floats(-10, 10), min_size=4, max_size=4),
    st.tuples(st.floats(20, 60), st.floats(0, 1), st.floats(0, 1)),
)
def test_coefficients_in_own_units_predict_the_same(
    coefficients: list[float], record: tuple[float, ...]
) -> None:
    described = schema()
    standard = (np.array(record) - described.center) / described.half_range
    own = described.in_own_units(coefficients)
    expected = np.dot(standard, coefficients[:-1]) + coefficients[-1]
    assert np.dot(record, own[:-1]) + own[-1] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_coefficients_without_an_intercept_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\) are not 3 slopes and an intercept"):
        schema().in_own_units([1, 2, 3])


def test_many_records_are_standardised_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(30, 30, (1000, 3))
    whole = schema().standardise(values)
    monkeypatch.setattr("fedveil.datasets.regression_schema._BLOCK", 21)
    np.testing.assert_array_equal(schema().standardise(values), whole)


def test_records_of_another_number_of_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 4\) do not hold 3 features each"):
        schema().standardise(np.zeros((2, 4)))


def test_a_target_without_a_public_range_says_what_its_privacy_needs() -> None:
    described = schema()
    assert described.target_range() == (0, 100)
    assert (described.target_center, described.target_half_range) == (50, 50)
    assert schema(target_baseline=20.0).target_center == 20
    with pytest.raises(ValueError, match=r"'income' has no public range, .* write its low and high"):
        schema(target_low=None, target_high=None).target_range()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"names": (), "sources": ()}, "at least one feature"),
        ({"names": ("a", "a", "b")}, "Two features are named 'a'"),
        ({"sources": ("a",)}, "one source column for each"),
        ({"low": np.zeros(2)}, "low must be 3 finite float64 values"),
        ({"high": np.ones(3, dtype=np.float32)}, "high must be 3 finite float64 values"),
        ({"baseline": np.array([30, np.nan, 0])}, "baseline must be 3 finite"),
        ({"low": np.array([20, 1.0, 0])}, "range of 'share' needs low < high"),
        ({"baseline": np.array([10, 0.5, 0])}, "range of 'age' needs low < high and a baseline between"),
        (
            {"low": np.array([-1.7e308, 0, 0]), "high": np.array([1.7e308, 1, 1])},
            "'age' is too wide or too narrow",
        ),
        (
            {"low": np.array([0.0, 0, 0]), "high": np.array([5e-324, 1, 1]), "baseline": np.zeros(3)},
            "too narrow",
        ),
        ({"target_low": None}, "both ends of a finite public range"),
        ({"target_high": 0.0}, "with low < high, or none"),
        ({"target_high": np.inf}, "finite public range"),
        ({"target_baseline": 101.0}, "baseline of the target 'income' is outside its public range"),
        ({"target_baseline": np.nan, "target_low": None, "target_high": None}, "finite public range"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        schema(**changes)


def records(features: object = ((0.0,), (1.0,)), targets: object = (0.0, 1.0)) -> RegressionRecords:
    return RegressionRecords(np.array(features, dtype=np.float32), np.array(targets, dtype=np.float64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_by_row(value: float) -> None:
    with pytest.raises(ValueError, match="Row 1 has a feature that is NaN or infinite"):
        records(features=((0.5,), (value,)))
    with pytest.raises(ValueError, match="Row 0 has a target that is NaN or infinite"):
        records(targets=(value, 7.5))


def test_other_shapes_and_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Features must be float32 of shape \(n, d\), got float64"):
        RegressionRecords(np.zeros((1, 1)), np.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Targets must be 2 float64 values, one for each record"):
        records(targets=(1.0,))
    with pytest.raises(ValueError, match="got int64"):
        RegressionRecords(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64))  # type: ignore[arg-type]


def test_rows_of_clients_that_do_not_exist_are_refused() -> None:
    rows = rows_of(lambda first, last: records().take(slice(first, last)), 2)
    assert [len(rows(*ends)) for ends in ((0, 2), (1, 2), (2, 2))] == [2, 1, 0]
    for ends in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(ValueError, match="not within 0 to 2: ask for clients that there are"):
            rows(*ends)


def test_a_task_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"task = 'regresion' .*did you mean 'regression'"):
        DataRequest(task="regresion")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("mnist-5k", mnist.load),
        ("digits", digits.load),
        ("cifar-10", cifar.load),
        ("emnist", emnist.load),
        ("femnist", femnist.load),
        ("image-folder", image_folder.load),
    ],
)
def test_a_source_that_knows_classes_only_refuses_a_regression(
    name: str, load: Callable[[DataRequest], object]
) -> None:
    with pytest.raises(
        ValueError, match=f"dataset = '{name}' has classes to predict and no number.*'csv'"
    ) as caught:
        load(DataRequest(task="regression", path="/nowhere"))
    assert str(caught.value).count(". ") == 0  # one sentence
