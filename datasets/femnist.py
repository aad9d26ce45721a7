"""FEMNIST: 814,277 handwritten characters in 62 classes, with the writer of each, from the hub or a local copy."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from fedveil.datasets.hub import Repository, image_column, label_column
from fedveil.datasets.images import image_schema, scale_rows
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records
from fedveil.datasets.split import split_rows

__all__ = ["CLASSES", "load", "load_femnist"]

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_SHAPE = (1, 28, 28)
_HUB = Repository("femnist", "flwrlabs/femnist", "df739a2b09df2b5cc1ec93107659b9a9a8566487")


def load(request: DataRequest) -> Dataset:
    """Load FEMNIST as a configuration asks for it; see :func:`load_femnist`."""
    request.allow("femnist", "data-path", "options")
    unknown = [key for key in request.options if key != "writers"]
    if unknown:
        raise ValueError(f"femnist has no option {unknown[0]!r}: it has writers, the number of writers.")
    return load_femnist(
        request.path or None, request.options.get("writers"), request.test_fraction, request.seed
    )


def load_femnist(
    folder: str | Path | None = None,
    writers: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Load FEMNIST, each writer a natural client.

    Parameters
    ----------
    folder : str or Path, optional
        A local copy of the repository ``flwrlabs/femnist``; the hub when not given.
    writers : int, optional
        The first so many of some 3,600 writers, by name; all when not given (then 2.6 GB of memory for them).
    test_fraction : float
        Share of images in the public test set, in [0, 1).
    seed : int
        Public data seed of the split, which depends on the number of images and this seed only.

    Returns
    -------
    Dataset
        Images of shape (1, 28, 28), bytes divided by 255; the baseline is white (1), the paper. ``client_ids``
        count the writers by name.

    Raises
    ------
    ModuleNotFoundError
        If flwr-datasets is not installed.
    ValueError
        If the data cannot be had, with how to fetch them, or there are fewer writers.
    """
    if writers is not None and (type(writers) is not int or writers < 1):
        raise ValueError(f"writers = {writers!r}: write a whole number of 1 or more.")
    (split,) = _HUB.splits(("train",), "" if folder is None else str(Path(folder).absolute()))
    if "writer_id" not in split.column_names:
        raise ValueError(
            f"dataset = {_HUB.dataset!r}: the records have no column 'writer_id', so they are of another data set:"
            " correct data-path."
        )
    names, owners = np.unique(np.array(split["writer_id"][:], dtype=np.str_), return_inverse=True)
    if writers is not None:
        if writers > len(names):
            raise ValueError(f"writers = {writers}: there are {len(names)}; write at most that.")
        rows = np.flatnonzero(owners < writers)
        split, owners = split.select(rows), owners[rows]
    schema = image_schema(_SHAPE, "character", CLASSES, baseline=255, client_column="writer_id")
    labels = label_column(split, "character", CLASSES, _HUB.dataset)
    pixels = image_column(split, "image", _SHAPE, _HUB.dataset)
    records = Records(scale_rows(schema, pixels), labels, owners.astype(np.int64))
    train, test = split_rows(len(records), test_fraction, seed)
    origin = f"{_HUB.name}{'' if folder is not None else f' at {_HUB.revision[:12]}'}"
    scaled = f"pixels divided by 255, from {origin}"
    return Dataset("femnist", schema, records.take(train), records.take(test), scaled=scaled)
