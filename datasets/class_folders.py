"""Folders of images: one sub-folder for each class, its name the class's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import nearest

__all__ = ["Tree", "all_files", "class_labels", "class_names", "class_tree", "sub_folders"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")

Tree = Mapping[str, Sequence[Path]]
"""The images of each class folder."""


def sub_folders(root: Path) -> list[Path]:
    """List the sub-folders alphabetically; hidden ones and files that are no images are not looked at."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise ValueError(
            f"The image folder {root} {what}: give the path of a folder with one sub-folder a class."
        )
    entries = sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    loose = [entry for entry in entries if entry.is_file() and entry.suffix.lower() in _SUFFIXES]
    if loose:
        raise ValueError(
            f"{root} holds the image {loose[0].name!r} outside its sub-folders: move it into the sub-folder of its"
            " class."
        )
    return [entry for entry in entries if entry.is_dir()]


def class_tree(root: Path) -> Tree:
    """List the images of each class; hidden files are not looked at."""
    tree = {}
    for folder in sub_folders(root):
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        for entry in files:
            if entry.is_dir():
                raise ValueError(
                    f"{root} has sub-folders in the sub-folders of its classes: leave one level of classes, or set"
                    " the option clients = true where the upper level are clients."
                )
            if entry.suffix.lower() not in _SUFFIXES:
                raise ValueError(
                    f"{root}: {entry.name!r} among the images of a class is none: move it away, or save it as"
                    f" {', '.join(_SUFFIXES)}."
                )
        tree[folder.name] = files
    return tree


def all_files(*trees: Tree) -> list[Path]:
    """List the images of several folders: folder by folder, class by class."""
    return [file for tree in trees for files in tree.values() for file in files]


def class_names(
    root: Path, trees: Sequence[Tree], test: Tree, named: Sequence[str] | None
) -> tuple[str, ...]:
    """Give the classes: those of the option, or the names of the training sub-folders."""
    found = sorted({name for tree in trees for name in tree})
    classes = tuple(found if named is None else named)
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise ValueError(
            f"{root} has {len(set(classes))} classes: make a sub-folder for each of two or more, or list all, each"
            " once, in the option classes."
        )
    for name in (*found, *test):
        if name not in classes:
            raise ValueError(
                f"The sub-folder {name!r} is none of the classes of {root}; nearest: {nearest(name, classes)}."
            )
    return classes


def class_labels(trees: Sequence[Tree], classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Give the class of each of :func:`all_files`."""
    counts = [(classes.index(name), len(files)) for tree in trees for name, files in tree.items()]
    return np.repeat(np.array([index for index, _ in counts], np.int64), [count for _, count in counts])
