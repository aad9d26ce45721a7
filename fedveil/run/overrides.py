"""What ``-c 'key=value ...'`` says: Flower's grammar, with nothing silently dropped.

Flower reads the same strings, but skips what it cannot match and explains nothing.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["Value", "absolute_paths", "flatten", "parse_overrides"]

Value = bool | int | float | str
"""What Flower lets a run configuration hold."""

_PAIR = re.compile(r"""\s*([^\s=]+)=('[^']*'|"[^"]*"|[^\s'"]\S*)(?=\s|$)""")


def parse_overrides(texts: Iterable[str]) -> dict[str, Value]:
    """Key-value pairs of all texts; a later one wins; a text that ends in ``.toml`` names a file.

    Raises
    ------
    ValueError
        One sentence: what could not be read and how to write it.
    """
    result: dict[str, Value] = {}
    for text in texts:
        is_file = text.strip().endswith(".toml") and "=" not in text
        result |= _file(Path(text.strip()).expanduser()) if is_file else _pairs(text)
    return result


def absolute_paths(overrides: Mapping[str, Value], path_keys: Iterable[str]) -> dict[str, Value]:
    """The same overrides with paths relative to the current folder made absolute; an empty one stays."""
    keys = set(path_keys)
    return {
        key: os.path.abspath(os.path.expanduser(value))
        if key in keys and isinstance(value, str) and value
        else value
        for key, value in overrides.items()
    }


def flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Keys and values of a TOML table; nested tables become dotted keys, as in Flower."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _pairs(text: str) -> dict[str, Value]:
    result: dict[str, Value] = {}
    position = 0
    while text[position:].strip():
        match = _PAIR.match(text, position)
        if match is None:
            raise ValueError(
                f"-c: cannot read {text[position:].strip()!r}; write key=value pairs, spaces between them."
            )
        key, value = match.groups()
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise ValueError(
                f'-c: {key}={value} is not a number, true or false; a text needs quotes: {key}="{value}".'
            ) from None
        result[key] = _allowed(key, parsed)
        position = match.end()
    return result


def _file(path: Path) -> dict[str, Value]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except OSError as error:
        raise ValueError(f"-c: cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"-c: {path} is not valid TOML: {error}.") from error
    return {key: _allowed(key, value) for key, value in flatten(table)}


def _allowed(key: str, value: object) -> Value:
    if isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(
        f"-c: {key} must be a number, true or false, or a text, not {value!r}; Flower allows nothing else."
    )
