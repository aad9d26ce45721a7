"""A user's own NPZ file: images or numbers, their labels, and whose they are, each an array of one file.

Every row is one record, in the file's order; nothing is computed from the records to scale them. What is
pickled is not read. Errors name file, array and row, never a value, since a client's error may travel to the
server.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.arrays import ArrayDescription, read_array_description
from fedveil.datasets.attributes import nearest
from fedveil.datasets.images import scale_rows
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records
from fedveil.datasets.split import split_rows

__all__ = ["load", "load_npz"]


def load(request: DataRequest) -> Dataset:
    """Load an NPZ file as a configuration asks for it; see :func:`load_npz`."""
    request.allow("npz", "data-path", "data-schema", "test-path", "target", "client-column")
    if not request.path:
        raise ValueError("dataset = 'npz' needs data-path: the file with the arrays.")
    return load_npz(
        request.path,
        request.target or None,
        request.schema_path or None,
        request.test_fraction,
        request.seed,
        request.client_column or None,
        request.test_path or None,
    )


def load_npz(
    path: str | Path,
    target: str | None = None,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    client_column: str | None = None,
    test_path: str | Path | None = None,
) -> Dataset:
    """Load an NPZ file for classification.

    Parameters
    ----------
    path : str or Path
        A file of :func:`numpy.savez` or :func:`numpy.savez_compressed`, without pickled objects.
    target : str, optional
        The array of labels; what the schema file says when not given.
    schema_path : str or Path, optional
        The public description; ``<path>.schema.toml`` when not given, which may be missing where nothing in it
        is needed.
    test_fraction : float
        Share of rows in the public test set, in [0, 1); not used where ``test_path`` is given.
    seed : int
        Public data seed of the split, which depends on the number of rows and this seed only.
    client_column : str, optional
        The array that says whose a record is; what the schema file says when not given, else there is none.
    test_path : str or Path, optional
        Another file of the same arrays (it needs no client) that is the whole test set.

    Returns
    -------
    Dataset
        Images of shape (channels, rows, columns), or p numbers named ``<array><index>``, scaled to [0, 1].
        ``client_ids`` are 0, 1, ... in the order of the different names, numbers by size and texts
        alphabetically.

    Raises
    ------
    ValueError
        If a file is missing or damaged, an array is missing, pickled or of another length, a feature is not a
        finite number, or a label is none of the public classes.
    """
    source = Path(path).absolute()
    described = Path(f"{source}.schema.toml") if schema_path is None else Path(schema_path).absolute()
    description = read_array_description(described, is_needed=schema_path is not None)
    names = _names(source, description, target, client_column)
    train = _read(source, description, *names)
    schema = description.schema(names[0], train.features, names[1], train.classes, names[2])
    records = Records(scale_rows(schema, train.features), train.labels, train.owners)
    if test_path is None:
        rows, test_rows = split_rows(len(records), test_fraction, seed)
        parts = records.take(rows), records.take(test_rows)
    else:
        other = Path(test_path).absolute()
        test = _read(other, description, *names[:2], None)
        shapes = [part.features.shape[1:] for part in (test, train)]
        if shapes[0] != shapes[1] or test.features.dtype != train.features.dtype:
            raise ValueError(
                f"{other}, array {names[0]!r} has records of shape {shapes[0]} and type {test.features.dtype}, but"
                f" {source} has {shapes[1]} and {train.features.dtype}: bring test records like the others."
            )
        parts = records, Records(scale_rows(schema, test.features), test.labels)
    low, high = float(schema.low.min()), float(schema.high.max())
    scaled = f"public range {low:g} to {high:g} mapped to [0, 1], values outside clipped"
    return Dataset(source.stem, schema, *parts, scaled=scaled)


@dataclass(frozen=True, eq=False)
class _Arrays:
    """The arrays of one file: features arranged, in their own units."""

    features: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    owners: NDArray[np.int64] | None


def _names(
    source: Path, description: ArrayDescription, target: str | None, client: str | None
) -> tuple[str, str, str | None]:
    """Choose the arrays of features, labels and clients; the configuration wins over the schema file."""
    with _opened(source) as file:
        found = list(file)
    target, client = target or description.roles.get("target"), client or description.roles.get("client")
    if target is None:
        raise ValueError(
            f"Which array of {source} holds the labels is not said: set target, or write target = into"
            f" {description.path}; there are {', '.join(found)}."
        )
    _check_there(source, target, "target", found)
    _check_there(source, client, "client", found)
    others = [name for name in found if name not in (target, client)]
    features = description.roles.get("features") or (others[0] if len(others) == 1 else None)
    if features is None:
        raise ValueError(
            f'Which array of {source} holds the features is not said: write features = "x" into'
            f" {description.path}; there are {', '.join(found)}."
        )
    if len({features, target, client}) < 3:
        raise ValueError(
            f"{source}: features {features!r}, target {target!r} and client {client!r} must be different arrays."
        )
    return features, target, client


def _opened(source: Path) -> Any:
    """Open an NPZ file; its arrays are read when they are asked for."""
    if not source.is_file():
        what = f"{source} is a folder" if source.is_dir() else f"There is no data file {source}"
        raise ValueError(f"{what}: give the path of an NPZ file.")
    if not zipfile.is_zipfile(source):
        raise ValueError(
            f"{source} is not a whole NPZ file: write it with numpy.savez, or copy it again if it was one."
        )
    return np.load(source, allow_pickle=False)


def _check_there(source: Path, name: str | None, role: str, found: Sequence[str]) -> None:
    if name is not None and name not in found:
        raise ValueError(f"{source} has no array {name!r} for the {role}; nearest: {nearest(name, found)}.")


def _array(source: Path, name: str, role: str, kinds: str, allowed: str) -> NDArray[Any]:
    """Read one array, of these kinds of type only."""
    with _opened(source) as file:
        _check_there(source, name, role, file.files)
        try:
            values = np.asarray(file[name])
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            raise ValueError(
                f"{source}, array {name!r} is damaged or holds pickled objects, which are not read: save it again"
                f" as {allowed}."
            ) from None
    if values.dtype.kind not in kinds:
        raise ValueError(f"{source}, array {name!r} is of type {values.dtype}: save it as {allowed}.")
    return values


def _read(
    source: Path, description: ArrayDescription, features: str, target: str, client: str | None
) -> _Arrays:
    """Read the arrays of one file by their names."""
    values = _array(source, features, "features", "biuf", "numbers")
    labels = _array(source, target, "target", "biufUS", "whole numbers or texts")
    owners = None if client is None else _array(source, client, "client", "biuUS", "whole numbers or texts")
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"{source}, array {features!r} has no rows: bring at least one record.")
    for name, column in ((target, labels), (client, owners)):
        if column is not None and column.shape != (len(values),):
            raise ValueError(
                f"{source}, array {name!r} has shape {column.shape}, but {features!r} has {len(values)} rows: write"
                " one value for each."
            )
    values = description.arrange(values, f"{source}, array {features!r}")
    if values.dtype.kind == "f":
        _check_finite(values, f"{source}, array {features!r}")
    choice = description.choice(target)
    where = f"{source}, array {target!r}"
    names, index = np.unique(labels, return_inverse=True)
    codes = np.full(len(names), -1, dtype=np.int64)
    for at, text in enumerate(_texts(names, where)):
        try:
            codes[at] = choice.index(text)
        except ValueError:
            row = int(np.argmax(index == at))
            raise ValueError(
                f"{where}, row {row} is not one of the {len(choice.names)} classes: correct it, or the classes in"
                f" {description.path}."
            ) from None
    ids = None if owners is None else _client_ids(owners, f"{source}, array {client!r}")
    return _Arrays(values, codes[index], choice.names, ids)


def _check_finite(values: NDArray[Any], where: str) -> None:
    for row, record in enumerate(values):
        if not np.isfinite(record).all():
            raise ValueError(
                f"{where}, row {row} holds NaN or an infinite number: write the public baseline where a value is"
                " missing."
            )


def _texts(names: NDArray[Any], where: str) -> list[str]:
    """Write values as texts, numbers as Python does; bytes are UTF-8."""
    if names.dtype.kind == "b":
        return [str(int(name)) for name in names]
    if names.dtype.kind == "S":
        try:
            return [bytes(name).decode() for name in names]
        except UnicodeDecodeError:
            raise ValueError(f"{where} holds texts that are not UTF-8: save it as texts of NumPy.") from None
    return [str(name) for name in names.tolist()]


def _client_ids(owners: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Number the clients 0, 1, ... in an order that does not depend on where their rows stand."""
    names, index = np.unique(owners, return_inverse=True)
    texts = _texts(names, where)
    if not all(text.strip() for text in texts):
        blank = [not text.strip() for text in texts].index(True)
        raise ValueError(
            f"{where}, row {int(np.argmax(index == blank))} is empty: write whose the record is."
        )
    rank = np.empty(len(texts), dtype=np.int64)
    rank[_order(texts)] = np.arange(len(texts))
    return rank[index]


def _order(texts: Iterable[str]) -> list[int]:
    """Order numbers by size, texts alphabetically."""
    named = list(enumerate(texts))
    try:
        ranked = sorted((float(text), text, at) for at, text in named)
        return [at for _, _, at in ranked]
    except ValueError:
        return [at for _, at in sorted((text, at) for at, text in named)]
