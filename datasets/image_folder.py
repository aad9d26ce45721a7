"""A folder of images with one sub-folder for each class, as cameras and labelling tools leave them.

    folder/cat/1.png ...            clients and test set are drawn from all of them
    folder/train/cat/..., folder/test/cat/...       the public test set is the folder's own
    folder/anna/cat/...             with option clients: anna is a client

Names of classes are public. An error gives an image's place in the order of names, and neither its name nor its class.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import nearest
from fedveil.datasets.class_folders import all_files, class_labels, class_names, class_tree, sub_folders
from fedveil.datasets.images import as_pixels, image_schema, scale_rows
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records
from fedveil.datasets.split import split_rows

__all__ = ["FolderOptions", "load", "load_image_folder"]


@dataclass(frozen=True)
class FolderOptions:
    """How the images of a folder become records of one shape; all of it is public.

    Parameters
    ----------
    size : int or pair of int, optional
        Rows and columns that every image is resized to (bilinear, each image by itself); the images' own when
        not given, which must then all be equal.
    channels : int
        3 for red, green and blue, 1 for grey. Never told from the images.
    classes : sequence of str, optional
        All classes, for a client that may lack some; the names of the sub-folders when not given.
    clients : bool
        Whether the sub-folders are clients, and theirs are the classes.

    Raises
    ------
    ValueError
        If an option is out of range.
    """

    size: int | Sequence[int] | None = None
    channels: int = 3
    classes: Sequence[str] | None = None
    clients: bool = False

    def __post_init__(self) -> None:
        """Refuse what no image could have."""
        sides = (1, 1) if self.size is None else self.sides or ()
        if len(sides) != 2 or not all(type(side) is int and 1 <= side <= 4096 for side in sides):
            raise ValueError(
                f"size = {self.size!r} is not understood: write the side of the images in pixels, or [rows, columns],"
                " each 1 to 4096."
            )
        if type(self.channels) is not int or self.channels not in (1, 3):
            raise ValueError(f"channels = {self.channels!r}: write 3 for colour or 1 for grey.")
        if not isinstance(self.clients, bool):
            raise ValueError(f"clients = {self.clients!r}: write true or false.")
        names = self.classes
        if names is not None and (isinstance(names, str) or not all(isinstance(name, str) for name in names)):
            raise ValueError(f'classes = {names!r}: write a list of names, as in ["cat", "dog"].')

    @property
    def sides(self) -> tuple[int, ...] | None:
        """Rows and columns; None for the images' own."""
        if isinstance(self.size, int):
            return (self.size, self.size)
        return tuple(self.size) if isinstance(self.size, list | tuple) else None


def load(request: DataRequest) -> Dataset:
    """Load a folder of images as a configuration asks for it; see :func:`load_image_folder`."""
    request.allow("image-folder", "data-path", "test-path", "options")
    if not request.path:
        raise ValueError("dataset = 'image-folder' needs data-path: the folder with one sub-folder a class.")
    known = tuple(FolderOptions.__dataclass_fields__)
    for key in request.options:
        if key not in known:
            raise ValueError(f"image-folder has no option {key!r}; nearest: {nearest(key, known)}.")
    return load_image_folder(
        request.path,
        FolderOptions(**request.options),
        request.test_fraction,
        request.seed,
        request.test_path or None,
    )


def load_image_folder(
    path: str | Path,
    options: FolderOptions = FolderOptions(),
    test_fraction: float = 0.2,
    seed: int = 0,
    test_path: str | Path | None = None,
) -> Dataset:
    """Load a folder of images.

    Parameters
    ----------
    path : str or Path
        The folder. If it holds the sub-folders ``train`` and ``test`` and no others, those are its parts.
    options : FolderOptions
        Size, channels, classes and clients.
    test_fraction : float
        Share of images in the public test set, in [0, 1), where there is no test folder.
    seed : int
        Public data seed of the split, which depends on the number of images and this seed only.
    test_path : str or Path, optional
        Another folder, of classes, that is the whole test set.

    Returns
    -------
    Dataset
        Images of shape (channels, rows, columns), bytes divided by 255, in the alphabetical order of their
        paths; the baseline is black. ``client_ids`` count the clients alphabetically, with ``clients``.

    Raises
    ------
    ValueError
        If a folder is missing or holds something else, classes do not agree, or an image is damaged or of
        another size.
    """
    root = Path(path).absolute()
    test_root = None if test_path is None else Path(test_path).absolute()
    if [folder.name for folder in sub_folders(root)] == ["test", "train"]:
        root, test_root = root / "train", test_root or root / "test"
    trees = [class_tree(folder) for folder in (sub_folders(root) if options.clients else [root])]
    test_tree = {} if test_root is None else class_tree(test_root)
    classes = class_names(root, trees, test_tree, options.classes)
    pixels = _pixels(root, all_files(*trees), options)
    client = "client" if options.clients else None
    schema = image_schema(pixels.shape[1:], "class", classes, client_column=client)
    owners = np.repeat(np.arange(len(trees)), [len(all_files(tree)) for tree in trees])
    labels = class_labels(trees, classes)
    records = Records(scale_rows(schema, pixels), labels, owners if options.clients else None)
    if test_root is None:
        train, test = split_rows(len(records), test_fraction, seed)
        parts = records.take(train), records.take(test)
    else:
        test_pixels = _pixels(test_root, all_files(test_tree), options, pixels.shape[1:])
        parts = records, Records(scale_rows(schema, test_pixels), class_labels([test_tree], classes))
    return Dataset(Path(path).absolute().name, schema, *parts, scaled="pixels divided by 255")


def _pixels(
    root: Path, files: Sequence[Path], options: FolderOptions, shape: tuple[int, ...] | None = None
) -> NDArray[np.uint8]:
    """Read images of one shape, the first one's unless given: (n, channels, rows, columns)."""
    if not files:
        raise ValueError(f"{root} holds no images: put some into the sub-folders of its classes.")
    pixels: NDArray[np.uint8] | None = None if shape is None else np.empty((len(files), *shape), np.uint8)
    for index, file in enumerate(files):
        where = f"{root}: image {index + 1} in the order of paths, from 1,"
        image = _image(file, where, options)
        if pixels is None:
            pixels = np.empty((len(files), *image.shape), dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            raise ValueError(
                f"{where} has {image.shape[1]} x {image.shape[2]} pixels, others {pixels.shape[2]} x"
                f" {pixels.shape[3]}: set the option size, as in size = 32, to resize every image."
            )
        pixels[index] = image
    return pixels  # type: ignore[return-value]


def _image(file: Path, where: str, options: FolderOptions) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            pixels = as_pixels(image, options.channels)
    except (
        OSError,
        EOFError,
        SyntaxError,
        ValueError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ):
        raise ValueError(
            f"{where} is damaged, or no image of 8 bits a channel: save it again, or remove it."
        ) from None
    if options.sides is None or options.sides == pixels.shape[1:]:
        return pixels
    size = options.sides[::-1]  # Pillow writes columns first
    channels = [Image.fromarray(channel).resize(size, Image.Resampling.BILINEAR) for channel in pixels]
    return np.stack([np.asarray(channel) for channel in channels])
