"""EMNIST: handwritten letters and digits of 28 x 28 pixels, as torchvision keeps them in a folder."""

from __future__ import annotations

from pathlib import Path

from fedveil.datasets.attributes import nearest
from fedveil.datasets.hub import ELSE
from fedveil.datasets.images import image_schema, scale_rows
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records

__all__ = ["SPLITS", "load", "load_emnist"]

_FETCH = (
    "on a machine with network run 'python -c \"from torchvision.datasets import EMNIST; EMNIST('FOLDER', 'balanced',"
    " download=True)\"', which fetches every split, and set data-path to that folder"
)
SPLITS = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")


def load(request: DataRequest) -> Dataset:
    """Load EMNIST as a configuration asks for it; see :func:`load_emnist`."""
    request.allow("emnist", "data-path", "options")
    unknown = [key for key in request.options if key != "split"]
    if unknown:
        raise ValueError(f"emnist has no option {unknown[0]!r}: it has split, one of {', '.join(SPLITS)}.")
    if not request.path:
        raise ValueError(f"dataset = 'emnist' is read from a folder: {_FETCH}, {ELSE}.")
    return load_emnist(request.path, request.options.get("split", "balanced"))


def load_emnist(folder: str | Path, split: str = "balanced") -> Dataset:
    """Load a split of EMNIST with its official test set as the public one.

    Parameters
    ----------
    folder : str or Path
        The folder that holds ``EMNIST/raw``, as torchvision writes it.
    split : str
        ``"byclass"`` (62 classes), ``"bymerge"`` and ``"balanced"`` (47), ``"letters"`` (26), ``"digits"`` or
        ``"mnist"`` (10).

    Returns
    -------
    Dataset
        Images of shape (1, 28, 28), upright (the files hold them transposed), bytes divided by 255; the baseline
        is black. It names no writers: take FEMNIST for natural clients.

    Raises
    ------
    ModuleNotFoundError
        If torchvision is not installed.
    ValueError
        If there is no such split, or the folder does not hold it, with how to fetch it.
    """
    if split not in SPLITS:
        raise ValueError(f"emnist has no split {split!r}; nearest: {nearest(str(split), SPLITS)}.")
    try:
        from torchvision.datasets import EMNIST
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"dataset = 'emnist' needs torchvision, which is not installed: pip install 'fedveil[simulation]', {ELSE}."
        ) from missing
    names = EMNIST.classes_split_dict[split]
    shift = int(names[0] == "N/A")  # the letters' labels begin at 1
    schema = image_schema((1, 28, 28), "character", tuple(names[shift:]))
    parts = []
    for is_train in (True, False):
        try:
            part = EMNIST(folder, split=split, train=is_train, download=False)
            pixels, labels = part.data.numpy().transpose(0, 2, 1), part.targets.numpy() - shift
            parts.append(Records(scale_rows(schema, pixels), labels))
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, AssertionError) as error:
            raise ValueError(
                f"{folder} does not hold the whole split {split!r} of EMNIST: {_FETCH}, {ELSE}."
            ) from error
    return Dataset("emnist", schema, parts[0], parts[1], scaled="pixels divided by 255")
