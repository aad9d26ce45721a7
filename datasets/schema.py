"""What a data set is here: a public description of one record (Schema) and the records it describes.

Everything in a Schema is public: written down before anybody looked at a record, and the same for every
client. Scaling, clipping and imputation use nothing else, so no feature of a record depends on another
record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.datasets.attributes import column_mask, region_mask, with_baseline

__all__ = ["Dataset", "Records", "Schema", "check_records", "with_baseline"]


@dataclass(frozen=True, eq=False)
class Schema:
    """The public description of one record: its features, their ranges, and the classes of its target.

    Parameters
    ----------
    names : tuple of str
        Names of the p features, all different. A category column is one feature for each category, named
        ``column=category``.
    shape : tuple of int
        Shape of one record's features, of product p: ``(1, 28, 28)`` for an image, ``(p,)`` for a table.
    low, high : float32 arrays of shape (p,)
        Public range of each feature, in the feature's own units; values outside are clipped to it.
    baseline : float32 array of shape (p,)
        Public value that stands for "unknown", on the scale of ``Records.features``, in [0, 1]: it replaces
        private attributes (see :func:`with_baseline`) and missing values.
    target : str
        Name of the column to predict; it is not a feature.
    classes : tuple of str
        Names of the target's classes; a label is an index into them.
    sources : tuple of str, optional
        The column each feature comes from; the names themselves when not given.
    client_column : str, optional
        The column that says whose a record is; it is not a feature.

    Raises
    ------
    ValueError
        If the parts do not fit together.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    baseline: NDArray[np.float32]
    target: str
    classes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    client_column: str | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        if not self.sources:
            object.__setattr__(self, "sources", self.names)
        count = len(self.names)
        if count == 0 or len(set(self.names)) != count or len(self.sources) != count:
            raise ValueError(
                "A schema needs features, with names that all differ and one source column each."
            )
        if int(np.prod(self.shape)) != count:
            raise ValueError(
                f"A record of shape {self.shape} does not hold {count} features: correct the shape."
            )
        for part in ("low", "high", "baseline"):
            value = getattr(self, part)
            if value.shape != (count,) or value.dtype != np.float32 or not np.all(np.isfinite(value)):
                raise ValueError(
                    f"A schema's {part} must be {count} finite float32 values, one for each feature."
                )
        if not np.all(self.low < self.high):
            name = self.names[int(np.argmin(self.low < self.high))]
            raise ValueError(f"The public range of {name!r} is empty: low must be less than high in float32.")
        if not np.all((self.baseline >= 0) & (self.baseline <= 1)):
            raise ValueError(
                "A schema's baseline is on the scale of the features, [0, 1]: scale it like them."
            )
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"The target {self.target!r} needs at least two classes, all different.")

    @property
    def num_features(self) -> int:
        """Number p of features of one record."""
        return len(self.names)

    @property
    def num_classes(self) -> int:
        """Number of classes of the target."""
        return len(self.classes)

    def scale(self, values: ArrayLike) -> NDArray[np.float32]:
        """Map values to [0, 1] by the public ranges: ``clip((x - low)/(high - low), 0, 1)``.

        Parameters
        ----------
        values : array of shape (n, p) or (p,)
            Features in their own units. NaN stays NaN, so that :func:`check_records` finds it.

        Returns
        -------
        float32 array of the same shape
            Each value depends on that value and on public constants only.
        """
        low = self.low.astype(np.float64)
        scaled = (np.asarray(values, dtype=np.float64) - low) / (self.high.astype(np.float64) - low)
        return np.clip(scaled, 0.0, 1.0).astype(np.float32)

    def columns(self, names: str | Iterable[str]) -> NDArray[np.bool_]:
        """Mark the features that come from the named columns.

        Parameters
        ----------
        names : str or iterable of str
            Column or feature names, or one comma-separated line of them (a name that holds a comma in double
            quotes). A category column stands for all its features.

        Returns
        -------
        bool array of shape (p,)

        Raises
        ------
        ValueError
            If a name is empty or no feature's; the sentence gives the nearest names.
        """
        others = {self.target: "the target"}
        if self.client_column is not None:
            others[self.client_column] = "the client column"
        return column_mask(names, self.names, self.sources, others, is_image=len(self.shape) > 1)

    def region(self, text: str) -> NDArray[np.bool_]:
        """Mark the pixels of a rectangle, in every channel.

        Parameters
        ----------
        text : str
            ``"rows,columns"`` as half-open ranges from 0: ``"10:18,10:18"`` is the centre 8 x 8 of 28 x 28
            pixels.

        Returns
        -------
        bool array of shape (p,)

        Raises
        ------
        ValueError
            If the records are no images, or the rectangle is malformed, empty or not inside the image.
        """
        return region_mask(text, self.shape)


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one owner, or of all owners before they are partitioned.

    Parameters
    ----------
    features : float32 array of shape (n, p)
        Features already scaled to [0, 1] by the schema's public ranges.
    labels : int64 array of shape (n,)
        Index of each record's class.
    client_ids : int64 array of shape (n,), optional
        The client each record belongs to, where the data says so.

    Raises
    ------
    ValueError
        If a shape or a dtype is another.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    client_ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Refuse arrays of another shape or dtype."""
        if self.features.ndim != 2 or self.features.dtype != np.float32:
            raise ValueError(
                f"Features must be float32 of shape (n, p), got {self.features.dtype} of"
                f" {self.features.shape}."
            )
        for name, value in (("labels", self.labels), ("client_ids", self.client_ids)):
            if value is not None and (value.shape != (len(self.features),) or value.dtype != np.int64):
                raise ValueError(
                    f"The {name} must be {len(self.features)} int64 values, one for each record, got"
                    f" {value.dtype} of shape {value.shape}."
                )

    def __len__(self) -> int:
        """Count the records."""
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> Records:
        """Copy the records at these rows, in this order."""
        ids = None if self.client_ids is None else self.client_ids[indices]
        return Records(self.features[indices], self.labels[indices], ids)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: its public description, the clients' records, and the server's public test set.

    Parameters
    ----------
    name : str
        Name for people.
    schema : Schema
        Public description of one record.
    train : Records
        The records that clients hold.
    test : Records
        Public records that the server evaluates; empty where it has a test set of its own.
    scaled : str
        How the features were scaled, in words that hold public constants only.
    private : str
        The attributes that are private where a configuration names none, as it would name them; empty for none.
    """

    name: str
    schema: Schema
    train: Records
    test: Records
    scaled: str = ""
    private: str = ""


def check_records(records: Records, schema: Schema, owner: str) -> None:
    """Refuse records that training could not use, naming owner, row and column but never a value.

    The value stays out of the sentence because a client's error may travel to the server.

    Parameters
    ----------
    records : Records
        Records to check; rows are counted from 0.
    schema : Schema
        What they must agree with.
    owner : str
        Whose records they are, for example ``"client 3"``.

    Raises
    ------
    ValueError
        If there is no record, the number of features is another, a feature is NaN or infinite, or a label is
        not the index of a class.
    """
    if len(records) == 0:
        raise ValueError(f"{owner} has no records: give it at least one, or leave it out.")
    if records.features.shape[1] != schema.num_features:
        raise ValueError(
            f"{owner} has {records.features.shape[1]} features a record, but the schema describes"
            f" {schema.num_features}: load the records with this schema."
        )
    finite = np.isfinite(records.features)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        kind = "NaN" if np.isnan(records.features[row, column]) else "infinite"
        raise ValueError(
            f"{owner}: row {row}, column {schema.names[column]!r} is {kind}, but every feature must be a"
            " finite number: correct it, or leave the cell empty to get the public baseline."
        )
    wrong = (records.labels < 0) | (records.labels >= schema.num_classes)
    if wrong.any():
        raise ValueError(
            f"{owner}: row {int(np.argmax(wrong))} has a label out of range for the target {schema.target!r}:"
            f" labels must be 0 to {schema.num_classes - 1}."
        )
