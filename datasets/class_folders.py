"""Folders of images: one sub-folder for each class, its name the class's.

An error may travel to the server, and names of files and of unknown sub-folders may be people's: it gives positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tree", "all_files", "class_labels", "class_names", "class_tree", "sub_folders"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_SHOWN = 10  # of the classes

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
    loose = [entry for entry in entries if not entry.is_dir() and entry.suffix.lower() in _SUFFIXES]
    if loose:
        raise ValueError(
            f"{root} holds an image outside its sub-folders: move each into the sub-folder of its class."
        )
    return [entry for entry in entries if entry.is_dir()]


def class_tree(root: Path) -> Tree:
    """List the images of each class; hidden files are not looked at."""
    tree = {}
    for number, folder in enumerate(sub_folders(root), 1):
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        for at, entry in enumerate(files, 1):
            if entry.is_dir():
                raise ValueError(
                    f"{root} has sub-folders in the sub-folders of its classes: leave one level of classes, or set"
                    " the option clients = true where the upper level are clients."
                )
            if entry.suffix.lower() not in _SUFFIXES:
                raise ValueError(
                    f"{root}: file {at} of sub-folder {number}, by name and from 1, is no image: move it away, or save"
                    f" it as {', '.join(_SUFFIXES)}."
                )
            if not entry.is_file():  # a pipe, for one, would be waited for without end
                raise ValueError(
                    f"{root}: file {at} of sub-folder {number}, by name and from 1, is no regular file, or a link to"
                    " none: move it away."
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
    for tree in (*trees, test):
        for number, name in enumerate(tree, 1):
            if name not in classes:
                whose = ", ".join(map(repr, classes[:_SHOWN])) if named else "the training images'"
                part = "test sub-folder" if tree is test else "sub-folder"
                raise ValueError(
                    f"{root}: {part} {number}, by name and from 1, is none of the classes ({whose}): rename it, or move"
                    " it away."
                )
    return classes


def class_labels(trees: Sequence[Tree], classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Give the class of each of :func:`all_files`."""
    counts = [(classes.index(name), len(files)) for tree in trees for name, files in tree.items()]
    return np.repeat(np.array([index for index, _ in counts], np.int64), [count for _, count in counts])
