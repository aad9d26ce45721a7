"""Made-up records of a regression whose coefficients are known."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.datasets import synthetic_regression as module
from fedveil.datasets.request import DataRequest
from fedveil.datasets.synthetic_regression import SyntheticRegression, load
from fedveil.streams import Streams


def asked(**options: Any) -> DataRequest:
    return DataRequest(task="regression", options=options)


@settings(max_examples=25)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 6), st.integers(1, 400))
def test_a_record_is_the_same_to_the_bit_however_it_is_asked_for(
    first: int, count: int, features: int, words: int
) -> None:
    source = SyntheticRegression(records=200, features=features, condition=3.0, seed=1)
    whole = source.rows(0, 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", words)
        part = source.data().rows(first, first + count)
    np.testing.assert_array_equal(part.features, whole.features[first : first + count])
    np.testing.assert_array_equal(part.targets, whole.targets[first : first + count])


def test_the_records_do_not_depend_on_how_many_there_are() -> None:
    few, many = (load(asked(records=records)).rows(3, 9) for records in (10, 10_000_000_000))
    np.testing.assert_array_equal(few.features, many.features)
    np.testing.assert_array_equal(few.targets, many.targets)


def test_the_public_data_seed_is_used_where_the_options_have_none() -> None:
    own = load(DataRequest(task="regression", seed=5, options={"records": 20})).rows(0, 20)
    option = load(DataRequest(task="regression", seed=6, options={"records": 20, "seed": 5})).rows(0, 20)
    other = load(DataRequest(task="regression", seed=6, options={"records": 20})).rows(0, 20)
    np.testing.assert_array_equal(own.targets, option.targets)
    assert not np.isin(own.targets, other.targets).any()


def test_test_records_are_none_of_the_clients() -> None:
    data = load(asked(records=500))
    assert (data.num_records, len(data.test)) == (500, 100)
    assert not np.isin(data.test.targets, data.rows(0, 500).targets).any()


@pytest.mark.parametrize(
    ("records", "fraction", "expected"),
    [(1, 0.2, 1), (1_000_000, 0.2, 10_000), (100, 0.0, 0), (100, 0.25, 25)],
)
def test_the_test_set_is_a_fraction_and_at_most_ten_thousand(
    records: int, fraction: float, expected: int
) -> None:
    assert len(SyntheticRegression(records=records, features=1).data(fraction).test) == expected


def test_a_target_is_the_known_linear_function_of_the_features_without_noise() -> None:
    source = SyntheticRegression(records=300, features=5, noise=0.0, condition=10.0)
    made = source.rows(0, 300)
    expected = made.features.astype(np.float64) @ source.coefficients[:-1] + source.coefficients[-1]
    np.testing.assert_allclose(made.targets, expected, rtol=1e-12, atol=1e-12)
    assert source.coefficients[-1] == 1.0


def test_features_are_uniform_and_the_noise_normal_with_the_stated_spreads() -> None:
    """False alarm: 13 comparisons at 5 standard errors each, 1e-5 together."""
    count, noise, condition = 40_000, 0.7, 16.0
    source = SyntheticRegression(records=count, features=3, noise=noise, condition=condition, seed=2)
    made = source.rows(0, count)
    features = made.features.astype(np.float64)
    spreads = np.array([1.0, 0.5, 0.25])  # 16^0, 16^(-1/4), 16^(-1/2)
    np.testing.assert_allclose(source.spreads, spreads, rtol=1e-12)
    assert (np.abs(features) <= spreads).all()
    covariance = features.T @ features / count
    # of a uniform on [-s, s]: E x^2 = s^2/3, and Var x^2 = s^4 (1/5 - 1/9)
    error = np.sqrt(np.outer(spreads, spreads) ** 2 * np.where(np.eye(3) == 1, 1 / 5 - 1 / 9, 1 / 9) / count)
    assert (np.abs(covariance - np.diag(spreads**2) / 3) < 5 * error).all()
    rest = made.targets - features @ source.coefficients[:-1] - 1.0
    assert abs(rest.mean()) < 5 * noise / np.sqrt(count)
    assert abs(rest.var() - noise**2) < 5 * noise**2 * np.sqrt(2 / count)
    assert (np.abs(features.T @ rest / count) < 5 * noise * spreads / np.sqrt(3 * count)).all()
    signal = (source.coefficients[:-1] ** 2 * spreads**2 / 3).sum()
    assert signal == pytest.approx(1.0, rel=1e-12)


def test_the_words_of_a_record_are_a_fixed_range_of_one_stream() -> None:
    words = Streams.seeded("fedveil public data", 4).stream("synthetic-regression records").words(5 * 3)
    got = SyntheticRegression(records=5, features=2, seed=4).rows(0, 5).features
    fractions = (words.reshape(5, 3)[:, :2] >> np.uint64(12)).astype(np.float64) * 2.0**-52
    np.testing.assert_allclose(got, 2 * fractions - 1, atol=1e-6)


def test_the_description_is_public_and_holds_all_but_a_few_targets() -> None:
    data = load(asked(records=20_000, features=4, noise=0.5, condition=4.0))
    assert data.schema.names == ("x0", "x1", "x2", "x3")
    assert data.schema.center.tolist() == [0] * 4
    assert data.schema.half_range.tolist() == [1] * 4
    assert data.schema.target_center == pytest.approx(1.0)
    low, high = data.schema.target_range()
    targets = data.rows(0, 20_000).targets
    assert ((targets < low) | (targets > high)).mean() < 0.001
    assert "left as they are" in data.scaled


def test_memory_is_that_of_the_records_asked_for() -> None:
    data = load(asked(records=10_000_000, features=16))
    tracemalloc.start()
    made = data.rows(9_900_000, 10_000_000)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = made.features.nbytes + made.targets.nbytes
    assert held < 1.1 * size
    assert peak < size + 40e6  # some chunks of words and their draws


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"record": 5}, "synthetic-regression has no option 'record'; nearest: 'records'"),
        ({"records": 0}, "records = 0 is not allowed"),
        ({"records": 1.5}, "records = 1.5 is not allowed"),
        ({"records": "many"}, "records = 'many' is not allowed"),
        ({"features": 0}, "features = 0 is not allowed"),
        ({"features": 10_001}, "features = 10001 is not allowed: give 1 to 10000"),
        ({"noise": -1}, "noise = -1 is not allowed"),
        ({"condition": 0.5}, "condition = 0.5 is not allowed"),
        ({"condition": True}, "condition = True is not allowed"),
        ({"seed": -1}, "seed = -1 is not allowed"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(asked(**options))


def test_it_has_no_classes_and_no_file() -> None:
    with pytest.raises(ValueError, match="'synthetic-regression' has a number to predict and no classes"):
        load(DataRequest())
    with pytest.raises(ValueError, match="data-path = '/a': dataset 'synthetic-regression' takes options"):
        load(DataRequest(task="regression", path="/a"))
    with pytest.raises(ValueError, match="test-fraction must be at least 0 and less than 1"):
        load(DataRequest(task="regression", test_fraction=1.0))
