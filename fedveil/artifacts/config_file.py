"""The configuration of a run as TOML: every value, never a secret, and what differs between two of them."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tomli_w

__all__ = [
    "REDACTED",
    "ConfigMismatch",
    "differing_keys",
    "format_config",
    "parse_config",
    "require_same_config",
]

REDACTED = "secret"
"""What stands in the file in place of a secret value."""


class ConfigMismatch(ValueError):
    """A run is resumed with another configuration than it was started with."""


def format_config(config: Mapping[str, Any], *, redact: Collection[str] = ()) -> str:
    """Write a configuration as TOML text.

    Parameters
    ----------
    config : mapping
        Numbers, truth values, text, lists and mappings of these. TOML has no null: a value None is named in a
        comment.
    redact : collection of str
        Keys whose value is written as "secret". A key inside a table is written with dots, "table.key".

    Raises
    ------
    ValueError
        If a key to redact does not exist (a misspelt one would write the secret), or a value cannot be
        written.
    """
    values = dict(_leaves(config))
    missing = sorted(set(redact) - set(values))
    if missing:
        raise ValueError(
            f"cannot keep {', '.join(missing)} secret: the configuration has the keys {sorted(values)}."
        )
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        if any(not isinstance(item, bool | int | float | str) for item in items if value is not None):
            raise ValueError(
                f"{key} = {value!r} cannot be written as TOML: use numbers, truth values, text or lists."
            )
    unset = [key for key, value in values.items() if value is None and key not in redact]
    header = f"# not set: {', '.join(unset)}\n" if unset else ""
    return header + tomli_w.dumps(_written(config, redact))


def parse_config(text: str) -> dict[str, Any]:
    """Read a configuration from TOML text; tomllib.TOMLDecodeError, a ValueError, if it is not TOML."""
    return tomllib.loads(text)


def differing_keys(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    may_differ: Collection[str] = (),
    redact: Collection[str] = (),
) -> tuple[str, ...]:
    """List the keys whose values differ between two configurations; keys inside tables read "table.key".

    Parameters
    ----------
    old, new : mapping
        Configurations, as typed or as read back from a file. A key that is missing equals one that is None.
    may_differ : collection of str
        Keys that are not compared (a table's name stands for all of it).
    redact : collection of str
        Keys that ``new`` would write as "secret"; two secrets are never compared, since the file has none.
    """
    before, after = dict(_leaves(old)), dict(_leaves(new))
    after |= dict.fromkeys(redact, REDACTED)
    return tuple(
        key
        for key in sorted(before.keys() | after.keys())
        if not any(key == free or key.startswith(free + ".") for free in may_differ)
        and not _equal(before.get(key), after.get(key))
    )


def require_same_config(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    may_differ: Collection[str] = (),
    redact: Collection[str] = (),
) -> None:
    """Refuse a configuration that differs from the one a run was started with.

    Arguments as in :func:`differing_keys`.

    Raises
    ------
    ConfigMismatch
        Names each differing key with both values.
    """
    keys = differing_keys(old, new, may_differ=may_differ, redact=redact)
    if keys:
        before, after = dict(_leaves(old)), dict(_leaves(new)) | dict.fromkeys(redact, REDACTED)
        changes = "; ".join(
            f"{key} was {_shown(before.get(key))} and is now {_shown(after.get(key))}" for key in keys
        )
        raise ConfigMismatch(
            f"a run resumes only with its own settings: {changes}. Restore them or start a new run."
        )


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, list(value) if isinstance(value, tuple) else value


def _written(config: Mapping[str, Any], redact: Collection[str], prefix: str = "") -> dict[str, Any]:
    written: dict[str, Any] = {}
    for key, value in config.items():
        if prefix + key in redact:
            written[key] = REDACTED
        elif isinstance(value, Mapping):
            written[key] = _written(value, redact, f"{prefix}{key}.")
        elif value is not None:
            written[key] = value
    return written


def _equal(old: Any, new: Any) -> bool:
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)  # 1 is no truth value


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
