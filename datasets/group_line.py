"""The line of a configuration that divides into groups: its items, their names, and double quotes."""

from __future__ import annotations

import re

__all__ = ["OTHERS", "PRIVATE", "group_kind", "read_items", "split", "unquote"]

PRIVATE, OTHERS = "private", "others"  # what is in no group of the line

_EXAMPLE = "'top = 0:9,0:28; bottom = 20:28,0:28', 'person = age,sex' or 'rare = class:3,8'"


def split(line: str, mark: str) -> list[str]:
    """Split a line at a mark outside double quotes; the pieces keep their quotes and blanks.

    Raises
    ------
    ValueError
        If a quote is never closed.
    """
    pieces, is_inside = [""], False
    for sign in line:
        is_inside ^= sign == '"'
        if sign == mark and not is_inside:
            pieces.append("")
        else:
            pieces[-1] += sign
    if is_inside:
        raise ValueError(f"{line.strip()!r} opens a double quote that is never closed: close it.")
    return pieces


def unquote(piece: str) -> str:
    """Strip blanks, then the double quotes around a name; a doubled quote inside them is one."""
    name = piece.strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        return name[1:-1].replace('""', '"')
    return name


def read_items(text: str) -> dict[str, str]:
    """Read the items ``name = what`` of a line; an empty line has none.

    Raises
    ------
    ValueError
        If an item is malformed, or its name is taken.
    """
    items: dict[str, str] = {}
    for item in split(text, ";") if text.strip() else []:
        name, *rest = split(item, "=")
        name, what = name.strip(), "=".join(rest).strip()
        if not rest or not name or re.search(r'[,:+"]', name):
            raise ValueError(
                f"groups: {item.strip()!r} is not understood: write name = what with semicolons between, as in"
                f" {_EXAMPLE}."
            )
        if not what:
            raise ValueError(
                f"groups: the group {name!r} covers nothing: name its columns, region or records."
            )
        if name in (PRIVATE, OTHERS):
            raise ValueError(
                f"groups: the name {name!r} is kept for what is in no group: choose another name."
            )
        if name in items:
            raise ValueError(f"groups: two groups are named {name!r}: choose another name for one.")
        items[name] = what
    return items


def group_kind(what: str) -> str:
    """Tell what an item groups by from how it is written: ``attributes``, ``class`` or ``where``."""
    prefix, colon, _ = what.partition(":")
    return prefix.strip() if colon and prefix.strip() in ("class", "where") else "attributes"
