"""Groups, the players of a Shapley value: a partition of the attributes, or of the records.

A configuration writes them on one line, items separated by semicolons::

    top = 0:10,0:28; bottom = 18:28,0:28          rectangles of an image, several joined by +
    person = age,education; work = job            columns of a table
    rare = class:3,8; frequent = class:0,1        records, by the classes of the target
    north = where:site=oslo,bergen                records, by the values of one column

Attributes in no group form the groups ``private`` and ``others``, records in no group form ``others``. What a
line means depends on the public schema only: no record can move an attribute to another group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import nearest
from fedveil.datasets.group_line import OTHERS, PRIVATE, group_kind, read_items, split, unquote
from fedveil.datasets.membership import Value, covers_all, read_values
from fedveil.datasets.schema import Records, Schema

__all__ = ["MAX_GROUPS", "Groups", "parse_groups"]

MAX_GROUPS = 62  # coalitions are bit masks in int64

_RANGE = r"\s*\d+\s*:\s*\d+\s*"
_REGIONS = re.compile(rf"{_RANGE},{_RANGE}(\+{_RANGE},{_RANGE})*")


@dataclass(frozen=True, eq=False)
class Groups:
    """The players of a Shapley value.

    Parameters
    ----------
    names : tuple of str
        The N groups, 2 to 62, all different; player j is ``names[j]``.
    kind : str
        ``"attributes"`` or ``"records"``.
    private : tuple of int
        The private groups, increasing: at least one, and not all.
    masks : bool array of shape (N, p)
        The attributes of each group; every attribute is in exactly one. Shape (0, p) for records.
    values : tuple of N tuples of Value
        Of groups of records, the public values that put a record into each; ``others`` has none and takes the
        rest.

    Raises
    ------
    ValueError
        If there is nothing to compare, or attributes are in no group or in two.
    """

    names: tuple[str, ...]
    kind: Literal["attributes", "records"]
    private: tuple[int, ...]
    masks: NDArray[np.bool_]
    values: tuple[tuple[Value, ...], ...] = ()

    def __post_init__(self) -> None:
        """Refuse groups that cannot be compared."""
        if len(self.names) < 2:
            raise ValueError(
                f"groups: {self.names[0]!r} is the only group and holds all {self.kind}, so there is nothing to"
                " compare it with: divide it, or name in private-attributes some but not all attributes."
            )
        if len(self.names) > MAX_GROUPS:
            raise ValueError(f"groups: {len(self.names)} groups are more than {MAX_GROUPS}: join some.")
        key = "private-attributes" if self.kind == "attributes" else "private-groups"
        if not self.private:
            raise ValueError(
                f"groups: none of the groups {', '.join(self.names)} is private: name in {key} what is."
            )
        if len(self.private) == len(self.names):
            raise ValueError(
                f"groups: all groups ({', '.join(self.names)}) are private, so their contribution is always all:"
                f" leave at least one out of {key}."
            )
        if self.kind == "attributes" and not (self.masks.sum(axis=0) == 1).all():
            raise ValueError("The masks of groups must hold every attribute exactly once: correct them.")

    def owner(self, records: Records, schema: Schema) -> NDArray[np.int64]:
        """Give the group of each record.

        Parameters
        ----------
        records : Records
            n records, described by the schema.
        schema : Schema
            The schema that the groups were parsed with.

        Returns
        -------
        int64 array of shape (n,)
            An index into ``names``. A function of each record alone.

        Raises
        ------
        ValueError
            If the groups are groups of attributes, or the records are not of this schema.
        """
        if self.kind != "records":
            raise ValueError("Groups of attributes hold parts of every record: use their masks.")
        if records.features.shape[1] != schema.num_features or self.masks.shape[1] != schema.num_features:
            raise ValueError(
                f"Records of {records.features.shape[1]} features do not fit groups of {self.masks.shape[1]}:"
                " take both from one data set."
            )
        group = np.full(len(records), len(self.names) - 1, dtype=np.int64)
        for index, values in enumerate(self.values):
            for value in values:
                group[value.held_by(records)] = index
        return group


def parse_groups(
    text: str, schema: Schema, private: NDArray[np.bool_] | None = None, private_groups: str = ""
) -> Groups:
    """Read the configuration keys ``groups`` and ``private-groups``.

    Parameters
    ----------
    text : str
        Items ``name = what`` separated by semicolons, as at the top of this module; a name of a column, class
        or value that holds one of ``, ; = + "`` is in double quotes. Empty: the two groups ``private`` and
        ``others``.
    schema : Schema
        Public description of a record.
    private : bool array of shape (p,), optional
        The private attributes; of no meaning to groups of records.
    private_groups : str
        Names of the private groups with commas between, for groups of records only, which need it.

    Returns
    -------
    Groups
        The named groups in the order of the text, then ``private``, then ``others``, where something is left
        for them. A group of attributes is private when all its attributes are.

    Raises
    ------
    ValueError
        If the text cannot be read, names something unknown, mixes attributes and records, groups overlap, a
        group is partly private, or there is nothing to compare.
    """
    items = read_items(text)
    kinds = {group_kind(what) for what in items.values()}
    if "attributes" in kinds and len(kinds) > 1:
        raise ValueError(
            "groups: attributes and records cannot be mixed: write columns and regions, or records."
        )
    if kinds - {"attributes"}:
        return _record_groups(items, schema, private_groups)
    if private_groups.strip():
        raise ValueError(
            f"private-groups = {private_groups!r} is for groups of records: a group of attributes is private when"
            " private-attributes holds it; leave private-groups empty."
        )
    return _attribute_groups(items, schema, private)


def _attribute_groups(items: dict[str, str], schema: Schema, private: NDArray[np.bool_] | None) -> Groups:
    hidden = np.zeros(schema.num_features, dtype=np.bool_) if private is None else private
    if hidden.shape != (schema.num_features,):
        raise ValueError(
            f"A private mask of shape {hidden.shape} does not fit {schema.num_features} attributes: take it"
            " from the same schema."
        )
    masks = {name: _attributes(name, what, schema) for name, what in items.items()}
    for (first, one), (second, other) in combinations(masks.items(), 2):
        if (one & other).any():
            shared = schema.names[int(np.argmax(one & other))]
            raise ValueError(
                f"groups: {first!r} and {second!r} overlap, both hold {shared!r}: give each attribute to one group."
            )
    for name, mask in masks.items():
        if (mask & hidden).any() and (mask & ~hidden).any():
            raise ValueError(
                f"groups: {name!r} is partly private ({(mask & hidden).sum()} of its {mask.sum()} attributes are"
                " private): split it into a private and a public group."
            )
    left = ~np.logical_or.reduce([np.zeros_like(hidden), *masks.values()])
    masks |= {name: rest for name, rest in ((PRIVATE, left & hidden), (OTHERS, left & ~hidden)) if rest.any()}
    inside = tuple(index for index, mask in enumerate(masks.values()) if (mask & hidden).any())
    return Groups(tuple(masks), "attributes", inside, np.array(list(masks.values())))


def _attributes(name: str, what: str, schema: Schema) -> NDArray[np.bool_]:
    """Mark the attributes of one item."""
    if _REGIONS.fullmatch(what):
        return np.logical_or.reduce([schema.region(region.strip()) for region in what.split("+")])
    columns = [unquote(column) for column in split(what, ",")]
    for column in columns:
        if column not in schema.names and column not in schema.sources:
            cure = f"nearest: {nearest(column, (*schema.sources, *schema.names))}"
            if column == schema.target:
                cure = "it is the target, write class: and names of classes to group records"
            elif column == schema.client_column:
                cure = "it is the client column, not a feature"
            elif len(schema.shape) > 1:
                cure = "write a rectangle of the image as rows,columns, as in '0:14,0:28'"
            raise ValueError(f"groups: {name!r} has the unknown column {column!r}: {cure}.")
    return schema.columns(columns)


def _record_groups(items: dict[str, str], schema: Schema, private_groups: str) -> Groups:
    values: dict[str, tuple[Value, ...]] = {}
    first_by: dict[str | None, str] = {}  # the first group of each column, None for the target
    for name, what in items.items():
        try:
            column, values[name] = read_values(what, schema)
        except ValueError as error:
            raise ValueError(f"groups: {name!r} is not understood, since {error}.") from None
        first_by.setdefault(column, name)
    if len(first_by) > 1:
        first, second = list(first_by.values())[:2]
        raise ValueError(
            f"groups: {first!r} and {second!r} go by different columns, so that a record could be in both: group"
            " all records by class, or all by the values of one column."
        )
    for (first, one), (second, other) in combinations(values.items(), 2):
        if set(one) & set(other):
            raise ValueError(f"groups: {first!r} and {second!r} overlap: give each value to one group.")
    if not covers_all([value for group in values.values() for value in group], schema, *first_by):
        values[OTHERS] = ()
    names = tuple(values)
    wanted = [unquote(name) for name in split(private_groups, ",")] if private_groups.strip() else []
    for name in wanted:
        if name not in names:
            raise ValueError(f"private-groups: there is no group {name!r}; nearest: {nearest(name, names)}.")
    inside = tuple(index for index, name in enumerate(names) if name in wanted)
    no_masks = np.zeros((0, schema.num_features), dtype=np.bool_)
    return Groups(names, "records", inside, no_masks, tuple(values.values()))
