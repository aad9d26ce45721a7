"""The embedded digits of scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedveil.datasets import digits as module
from fedveil.datasets.digits import load, load_digits
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, check_records


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load(DataRequest())


def test_the_digits_are_scaled_images_with_a_stratified_public_test_set(digits: Dataset) -> None:
    assert digits.schema.shape == (1, 8, 8)
    assert digits.schema.num_classes == 10
    counts = np.bincount(digits.train.labels) + np.bincount(digits.test.labels)
    # as the documentation of the UCI test set has them
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (abs(np.bincount(digits.test.labels) - counts / 5) <= 0.5).all()
    assert digits.train.features.min() == 0
    assert digits.train.features.max() == 1
    check_records(digits.train, digits.schema, "train")


def test_the_digits_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits as embedded

    whole = load_digits(0.0)
    pixels, labels = embedded(return_X_y=True)
    np.testing.assert_array_equal(whole.train.features, (pixels / 16).astype(np.float32))
    np.testing.assert_array_equal(whole.train.labels, labels)
    assert len(whole.test) == 0


def test_another_place_of_the_file_is_left_to_scikit_learn(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    np.testing.assert_array_equal(load_digits().train.features, digits.train.features)


def test_the_default_private_attributes_are_the_16_pixels_of_the_centre(digits: Dataset) -> None:
    assert digits.schema.region(digits.private).sum() == 16


def test_the_split_follows_the_public_seed(digits: Dataset) -> None:
    np.testing.assert_array_equal(load_digits(0.2, 0).test.features, digits.test.features)
    assert not np.array_equal(load_digits(0.2, 1).test.features, digits.test.features)


def test_settings_that_mean_nothing_to_the_digits_are_refused() -> None:
    with pytest.raises(ValueError, match="target = 'age': dataset 'digits' takes none"):
        load(DataRequest(target="age"))


def test_without_scikit_learn_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"scikit-learn, .* pip install 'fedveil\[data\]'"):
        load_digits()


def test_loading_the_digits_does_not_import_scikit_learn() -> None:
    code = (
        "import sys; from fedveil.datasets.digits import load_digits; load_digits();"
        "print(sorted({'sklearn', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
