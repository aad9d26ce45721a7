"""1,797 handwritten digits of 8 x 8 pixels, embedded in the scikit-learn wheel."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.images import image_schema
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records
from fedveil.datasets.split import split_rows

__all__ = ["load", "load_digits"]

_SIDE = 8
_COUNT = 1797


def load(request: DataRequest) -> Dataset:
    """Load the digits as a configuration asks for them; see :func:`load_digits`."""
    request.allow("digits")
    return load_digits(request.test_fraction, request.seed)


def load_digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Load the digits, with pixels divided by the public constant 16.

    Parameters
    ----------
    test_fraction : float
        Share of each digit's images in the public test set, in [0, 1).
    seed : int
        Public data seed of the split.

    Returns
    -------
    Dataset
        Images of shape (1, 8, 8) with pixel names ``r<row>c<column>``; the baseline is black (0). The split is
        stratified by digit, and the same in every process.

    Raises
    ------
    ModuleNotFoundError
        If scikit-learn is not installed.
    ValueError
        If the fraction or the seed is out of range.
    """
    pixels, labels = _digits()
    schema = image_schema((1, _SIDE, _SIDE), "digit", tuple(map(str, range(10))), high=16)
    records = Records(schema.scale(pixels), labels)
    train, test = split_rows(_COUNT, test_fraction, seed, strata=labels)
    return Dataset(
        "digits",
        schema,
        records.take(train),
        records.take(test),
        scaled="pixels divided by 16",
        private="2:6,2:6",
    )


def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pixels (1797, 64) and labels (1797,).

    Importing scikit-learn takes a second; its file is read without. Where a version keeps the file elsewhere, its
    own loader is asked.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "The data set digits comes with scikit-learn, which is not installed: pip install 'fedveil[data]'."
        )
    packed = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if packed.is_file():
        table = np.loadtxt(BytesIO(gzip.decompress(packed.read_bytes())), delimiter=",")
        pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    else:
        from sklearn.datasets import load_digits as load_embedded

        bunch = load_embedded()
        pixels, labels = np.asarray(bunch.data, dtype=np.float64), bunch.target.astype(np.int64)
    if pixels.shape != (_COUNT, _SIDE**2):
        raise ValueError(
            f"scikit-learn's digits have shape {pixels.shape}, not (1797, 64): install scikit-learn 1.5 to 1.8."
        )
    return pixels, labels
