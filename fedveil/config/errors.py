"""Turning validation errors into one sentence that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError

__all__ = ["ConfigError", "explain", "nearest"]


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and what is allowed."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The advice to give for an unknown name: the nearest valid one, or all of them."""
    choices = sorted(known)
    match = get_close_matches(name, choices, n=1, cutoff=0.5)
    return f"did you mean {match[0]!r}?" if match else f"known: {', '.join(choices)}."


def explain(error: ValidationError, known: Iterable[str]) -> ConfigError:
    """The first mistake of a pydantic error (and how many more there are) as one sentence."""
    first, *others = error.errors()
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        sentence = f"unknown key {key!r}; {nearest(key, known)}"
    elif key:
        sentence = f"{key} = {first['input']!r}: {_plain(first['msg'])}."
    else:
        sentence = _plain(first["msg"])
        sentence += "" if sentence.endswith("?") else "."
    more = f" ({len(others)} more such problems.)" if others else ""
    return ConfigError(sentence + more)


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:] if not message[:2].isupper() else message
