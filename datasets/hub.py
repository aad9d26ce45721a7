"""Data sets of the Hugging Face hub through flwr-datasets: from the network, its cache, or a local copy.

A repository is always read at one revision, a commit, so that everybody has the same records. Where the network
does not answer, the sentence that says what to do comes within seconds: the hub's client alone tries for half a
minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.images import as_pixels

__all__ = ["ELSE", "Repository", "image_column", "label_column"]

ELSE = "or take an embedded data set ('mnist-5k', 'digits') or your own files ('npz', 'image-folder')"
_PATIENCE = 5.0  # seconds that the hub has to answer at all
_BATCH = 1000  # images decoded at a time


@dataclass(frozen=True)
class Repository:
    """A data set of the hub.

    Parameters
    ----------
    dataset : str
        Its name in a configuration.
    name : str
        ``owner/name`` on the hub.
    revision : str
        The commit that is read.
    """

    dataset: str
    name: str
    revision: str

    @property
    def fetch(self) -> str:
        """The command that makes a local copy, on a machine with network."""
        return f"hf download {self.name} --repo-type dataset --revision {self.revision} --local-dir FOLDER"

    def splits(self, names: Sequence[str], folder: str = "") -> list[Any]:
        """Load splits, each a ``datasets.Dataset`` in the repository's order.

        Parameters
        ----------
        names : sequence of str
            The splits.
        folder : str
            A local copy of the repository, read instead of the hub where given.

        Raises
        ------
        ModuleNotFoundError
            If flwr-datasets is not installed.
        ValueError
            If the data cannot be had, with how to fetch them.
        """
        try:
            from datasets.exceptions import DatasetsError
            from flwr_datasets import FederatedDataset
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"dataset = {self.dataset!r} needs flwr-datasets, which is not installed: pip install"
                f" 'fedveil[data]', {ELSE}."
            ) from missing
        is_online = not folder and _answers()
        pinned = {} if folder else {"revision": self.revision}
        source = FederatedDataset(dataset=folder or self.name, partitioners={}, shuffle=False, **pinned)
        try:
            with _network(is_online):
                splits = [source.load_split(name) for name in names]
        except (OSError, ValueError, DatasetsError) as error:
            raise ValueError(self._absent(folder, is_online, type(error).__name__)) from error
        if not folder and not is_online:  # the cache may hold another revision, and would give that
            files = [file["filename"] for split in splits for file in split.cache_files]
            if not all(self.revision in Path(file).parts for file in files):
                raise ValueError(self._absent(folder, is_online, "another revision"))
        return splits

    def _absent(self, folder: str, is_online: bool, error: str) -> str:
        """Say that the data are not there, and how to fetch them."""
        if folder:
            what = f"{folder} is no whole copy of {self.name}"
        elif is_online:
            what = f"the hub does not give {self.name} at revision {self.revision[:12]}"
        else:
            what = f"the hub does not answer, and {self.name} at revision {self.revision[:12]} is not in its cache"
        return (
            f"dataset = {self.dataset!r}: {what} ({error}); on a machine with network run '{self.fetch}' and set"
            f" data-path to that folder, {ELSE}."
        )


def image_column(split: Any, column: str, shape: tuple[int, int, int], dataset: str) -> NDArray[np.uint8]:
    """Decode a split's column of images.

    Parameters
    ----------
    split : datasets.Dataset
        n rows.
    column : str
        The column of images.
    shape : tuple of int
        Channels, rows and columns of each.
    dataset : str
        Its name in a configuration, for errors.

    Returns
    -------
    uint8 array of shape (n, channels, rows, columns)

    Raises
    ------
    ValueError
        If there is no such column, or an image is damaged or of another size; the row is named.
    """
    if column not in split.column_names:
        raise ValueError(
            f"dataset = {dataset!r}: the records have no column {column!r}, so they are of another data set:"
            " correct data-path."
        )
    pixels = np.empty((len(split), *shape), dtype=np.uint8)
    row = 0
    try:
        for batch in split.select_columns([column]).iter(_BATCH):
            for image in batch[column]:
                decoded = as_pixels(image, shape[0])
                if decoded.shape != shape:
                    raise ValueError
                pixels[row] = decoded
                row += 1
    except (OSError, SyntaxError, ValueError, AttributeError):
        raise ValueError(
            f"dataset = {dataset!r}: an image of rows {row} to {min(row + _BATCH, len(split)) - 1} is damaged, or not"
            f" of {shape[1]} x {shape[2]} pixels: fetch the data again."
        ) from None
    return pixels


def label_column(split: Any, column: str, classes: tuple[str, ...], dataset: str) -> NDArray[np.int64]:
    """Read a split's column of labels, which must have the public classes: int64 of shape (n,).

    Raises
    ------
    ValueError
        If there is no such column, or its classes are others.
    """
    named = getattr(split.features.get(column), "names", None)
    if named is None or tuple(named) != classes:
        raise ValueError(
            f"dataset = {dataset!r}: the records have no column {column!r} of its {len(classes)} classes, so they are"
            " of another data set: correct data-path."
        )
    return np.array(split[column][:], dtype=np.int64)


def _answers() -> bool:
    """Tell whether the hub answers anything at all, through the proxies that its client would use."""
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=_PATIENCE)
    except (httpx.HTTPError, OSError):
        return False
    return True


@contextmanager
def _network(is_online: bool) -> Iterator[None]:
    """Keep the hub's client from trying, where nothing answers.

    Both packages read HF_HUB_OFFLINE when they are imported, so it is set where they keep it, and set back.
    """
    from huggingface_hub import constants

    from datasets import config

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    if not is_online:
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
