"""CIFAR-10: 50,000 and 10,000 colour images of 32 x 32 pixels in ten classes, from the hub or from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.hub import ELSE, Repository, image_column, label_column
from fedveil.datasets.images import image_schema, scale_rows
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records

__all__ = ["CLASSES", "load", "load_cifar_10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHAPE = (3, 32, 32)
_HUB = Repository("cifar-10", "uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2")
_BATCHES = "cifar-10-batches-py"  # as the authors' archive and torchvision name it


def load(request: DataRequest) -> Dataset:
    """Load CIFAR-10 as a configuration asks for it; see :func:`load_cifar_10`."""
    request.allow("cifar-10", "data-path")
    return load_cifar_10(request.path or None)


def load_cifar_10(folder: str | Path | None = None) -> Dataset:
    """Load CIFAR-10 with its official test set as the public one.

    Parameters
    ----------
    folder : str or Path, optional
        The folder ``cifar-10-batches-py`` or the one that holds it, whose MD5 sums torchvision checks before it
        unpickles anything; or a local copy of the repository ``uoft-cs/cifar10``. The hub when not given.

    Returns
    -------
    Dataset
        Images of shape (3, 32, 32), bytes divided by 255; the baseline is black.

    Raises
    ------
    ModuleNotFoundError
        If flwr-datasets or torchvision is not installed.
    ValueError
        If the data cannot be had or are damaged, with how to fetch them.
    """
    root = None if folder is None else Path(folder).absolute()
    schema = image_schema(_SHAPE, "label", CLASSES)
    if root is not None and (root.name == _BATCHES or (root / _BATCHES).is_dir()):
        parts = _from_torchvision(root.parent if root.name == _BATCHES else root)
        origin = "the authors' archive"
    else:
        splits = _HUB.splits(("train", "test"), "" if root is None else str(root))
        parts = [_from_hub(split) for split in splits]
        origin = f"{_HUB.name}{'' if root is not None else f' at {_HUB.revision[:12]}'}"
    train, test = (Records(scale_rows(schema, pixels), labels) for pixels, labels in parts)
    return Dataset("cifar-10", schema, train, test, scaled=f"pixels divided by 255, from {origin}")


def _from_hub(split: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels = image_column(split, "img", _SHAPE, _HUB.dataset)
    return pixels, label_column(split, "label", CLASSES, _HUB.dataset)


def _from_torchvision(root: Path) -> list[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Read both parts of the authors' archive."""
    try:
        from torchvision.datasets import CIFAR10
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{root / _BATCHES} is read by torchvision, which is not installed: pip install 'fedveil[simulation]',"
            f" {ELSE}."
        ) from missing
    parts = []
    for is_train in (True, False):
        try:
            part = CIFAR10(root, train=is_train, download=False)
        except RuntimeError as error:  # a sum is wrong: nothing was unpickled
            raise ValueError(
                f"{root / _BATCHES} is not the whole CIFAR-10, or is damaged (its MD5 sums are wrong): on a machine"
                f" with network run 'python -c \"from torchvision.datasets import CIFAR10; CIFAR10('FOLDER',"
                f" download=True)\"' and set data-path to that folder, {ELSE}."
            ) from error
        parts.append((np.moveaxis(part.data, -1, 1), np.array(part.targets, dtype=np.int64)))
    return parts
