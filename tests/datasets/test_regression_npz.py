"""NPZ files for regression."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.datasets.npz import load, load_npz
from fedveil.datasets.npz_regression import load_npz_regression
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.request import DataRequest

Write = Callable[..., Path]
SCHEMA = "low = [0, 0]\nhigh = [1, 10]\nbaseline = [0, 4]\n[targets.y]\nlow = -1\nhigh = 3\n"
X = np.array([[0.25, 4.0], [1.5, 9.0], [1.0, -3.0]])
Y = np.array([0.5, 7.25, -2.0])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes arrays, and the schema text beside them unless None."""

    def make(schema: str | None = SCHEMA, name: str = "data.npz", **arrays: Any) -> Path:
        path = tmp_path / name
        np.savez(path, **arrays)
        if schema is not None:
            Path(f"{path}.schema.toml").write_text(schema, encoding="utf-8")
        return path

    return make


def whole(path: Path, **arguments: Any) -> RegressionData:
    return load_npz_regression(path, **{"target": "y", "test_fraction": 0.0, **arguments})


def test_numbers_are_standardised_by_public_constants_and_targets_stay_as_they_are(write: Write) -> None:
    data = whole(write(x=X, y=Y))
    made = data.rows(0, 3)
    np.testing.assert_array_equal(made.features, np.array([[0.25, 0], [1, 1], [1, -0.8]], dtype=np.float32))
    assert made.targets.tolist() == Y.tolist()
    assert (data.name, data.schema.names, data.schema.target_range()) == ("data", ("x0", "x1"), (-1, 3))
    assert "public range 0 to 10" in data.scaled
    assert data.schema.target_center == 1
    assert whole(write(SCHEMA + "baseline = 0.25\n", x=X, y=Y)).schema.target_center == 0.25


def test_whole_numbers_and_truth_values_are_numbers_too(write: Write) -> None:
    for targets in (
        np.array([1, 2, 3]),
        np.array([True, False, True]),
        np.array([1, 2, 3], dtype=np.float16),
    ):
        made = whole(write(x=X, y=targets)).rows(0, 3).targets
        assert made.dtype == np.float64
        assert made.tolist() == targets.astype(float).tolist()


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_one_feature_a_pixel_and_channel(write: Write, channels: int) -> None:
    pixels = np.arange(3 * channels * 20, dtype=np.uint8).reshape(3, channels, 4, 5)
    data = whole(write(None, x=pixels, y=Y))
    assert data.schema.names[6] == ("r1c1" if channels == 1 else "r1c1k0")
    assert data.schema.num_columns == 20
    assert data.schema.target_low is None
    expected = (pixels.reshape(3, -1) / 127.5).astype(np.float32)  # baseline 0, half of 0 to 255
    np.testing.assert_allclose(data.rows(0, 3).features, expected, rtol=1e-6)


def test_a_configuration_and_the_roles_of_the_file_say_which_arrays(write: Write) -> None:
    schema = 'features = "x"\ntarget = "y"\nclient = "who"\n' + SCHEMA
    path = write(schema, x=X, y=Y, z=2 * Y, who=[1, 1, 2])
    data = load(DataRequest(path=str(path), task="regression", test_fraction=1 / 3, seed=1))
    assert isinstance(data, RegressionData)
    assert (data.num_records, len(data.test), data.schema.target) == (2, 1, "y")
    other = load(DataRequest(path=str(path), task="regression", target="z", test_path=str(path)))
    assert isinstance(other, RegressionData)
    assert other.test.targets.tolist() == (2 * Y).tolist()
    assert other.schema.target_low is None
    with pytest.raises(ValueError, match="client-column = 'who': in a regression every record is a client"):
        load(DataRequest(path=str(path), task="regression", client_column="who"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_named_by_array_and_row(write: Write, value: float) -> None:
    features, targets = X.copy(), Y.copy()
    features[1, 0] = value
    targets[2] = value
    with pytest.raises(
        ValueError, match="array 'x', row 1 holds NaN or an infinite number: write the public baseline"
    ):
        whole(write(x=features, y=Y))
    with pytest.raises(ValueError, match="array 'y', row 2 holds NaN or an infinite number: correct it"):
        whole(write(x=X, y=targets))


def test_rows_are_looked_at_in_blocks(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveil.datasets.npz_arrays._BLOCK", 4)
    features = np.zeros((9, 2))
    features[7, 1] = np.nan
    with pytest.raises(ValueError, match="row 7 holds NaN"):
        whole(write(x=features, y=np.zeros(9)))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X, "y": np.array(["a", "secret", "b"])}, "array 'y' is of type <U6: save it as numbers"),
        ({"x": X, "y": Y[:2]}, r"array 'y' has shape \(2,\), but 'x' has 3 rows"),
        ({"x": X, "y": np.column_stack([Y, Y])}, r"array 'y' has shape \(3, 2\)"),
        ({"x": np.array([["a", "b"]]), "y": Y}, "array 'x' is of type <U1: save it as numbers"),
        ({"x": X[:0], "y": Y[:0]}, "array 'x' has no rows"),
        ({"x": X, "z": Y}, "has no array 'y' for the target: correct the name"),
        ({"x": X[0], "y": Y}, r"has shape \(2,\): write images"),
        ({"x": X[:, :0], "y": Y}, r"has shape \(3, 0\): write images"),
    ],
)
def test_arrays_that_are_no_records_are_refused(write: Write, arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        whole(write(**arrays))
    assert "secret" not in str(caught.value)


def test_test_records_unlike_the_others_are_refused(write: Write) -> None:
    path = write(x=X, y=Y)
    wide = write(None, "wide.npz", x=np.zeros((2, 3)), y=Y[:2])
    with pytest.raises(ValueError, match=r"wide.npz, array 'x' has records of shape \(3,\)"):
        whole(path, test_path=wide)
    single = write(None, "single.npz", x=X.astype(np.float32), y=Y)
    with pytest.raises(ValueError, match=r"type float32, but .* float64: bring test records like the others"):
        whole(path, test_path=single)


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        ("targets = 3\n", "needs the targets' ranges by array"),
        ("[targets]\ny = [0, 1]\n", "needs finite numbers, low, high and perhaps baseline"),
        ("[targets.y]\nlow = 0\n", "needs finite numbers"),
        ("[targets.y]\nlow = 0\nhigh = inf\n", "needs finite numbers"),
        ('[targets.y]\nlow = 0\nhigh = "1"\n', "needs finite numbers"),
        (
            "[targets.y]\nlow = 0\nhigh = 1\nbaseline = 2\n",
            "needs low < high, and a baseline between, for the target 'y'",
        ),
        ("[targets.y]\nlow = 0\nhigh = 1\nunit = 0\n", "needs finite numbers"),
        ("[targets.y]\nlow = 1\nhigh = 1\n", "needs low < high, and a baseline between, for the target 'y'"),
    ],
)
def test_a_range_of_a_target_that_is_none_is_refused(write: Write, targets: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        whole(write("low = 0\nhigh = 1\nbaseline = 0\n" + targets, x=X, y=Y))


def test_one_description_serves_classes_and_numbers(write: Write) -> None:
    path = write(SCHEMA + "[classes]\ny = 3\n", x=X, y=np.array([0, 1, 2]))
    assert load_npz(path, "y", test_fraction=0.0).train.labels.tolist() == [0, 1, 2]
    assert whole(path).rows(0, 3).targets.tolist() == [0, 1, 2]


def test_a_file_without_ranges_says_what_to_write(write: Write) -> None:
    with pytest.raises(ValueError, match=r"does not say low, high, baseline (?s:.*)\[targets.\"y\"\]"):
        whole(write(None, x=X, y=Y))
