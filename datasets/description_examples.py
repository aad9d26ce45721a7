"""What to write into a schema file, for errors that say so."""

from __future__ import annotations

import json
import re

__all__ = ["OR_TEXTS", "class_example", "heading", "quantity_example", "range_example", "text_example"]

OR_TEXTS = '# or, for a column of texts: categories = ["a", "b"] and baseline = "a"'


def heading(column: str) -> str:
    """Write the TOML heading of a column's table, quoted unless the name is a bare key."""
    is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", column)
    return f"[columns.{column if is_bare else json.dumps(column, ensure_ascii=False)}]"


def range_example(column: str) -> str:
    """Show a column of numbers."""
    return (
        f"{heading(column)}\nlow = 0.0        # public range; values outside it are clipped"
        "\nhigh = 100.0\nbaseline = 50.0  # public value of a missing or private cell"
    )


def text_example(column: str) -> str:
    """Show a column of texts."""
    return (
        f'{heading(column)}\ncategories = ["a", "b"]  # for a column of texts: all of them'
        '\nbaseline = "a"          # public value of a missing or private cell'
    )


def class_example(column: str) -> str:
    """Show a target of classes."""
    return (
        f'{heading(column)}\nclasses = ["no", "yes"]  # every value of the target, as the file has it'
        "\n# or, to predict a number: low = 0.0 and high = 100.0"
    )


def quantity_example(column: str) -> str:
    """Show a target that is a number."""
    return (
        f"{heading(column)}\nlow = 0.0     # public range of the target, needed where it is to be private"
        "\nhigh = 100.0"
    )
