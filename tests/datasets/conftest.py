"""Fixtures for data: files written for one test."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

_EXAMPLE = runpy.run_path(str(Path(__file__).with_name("example_table.py")))


@pytest.fixture
def example_table(tmp_path: Path) -> Path:
    """``people.csv`` of 200 rows and 5 sites, with its schema file."""
    path: Path = _EXAMPLE["write_example_table"](tmp_path)
    return path


@pytest.fixture
def write_table(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the given CSV text (or bytes) and, unless None, the schema text beside it."""

    def write(csv_text: str | bytes, schema: str | None, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(csv_text.encode() if isinstance(csv_text, str) else csv_text)
        if schema is not None:
            Path(f"{path}.schema.toml").write_text(schema, encoding="utf-8")
        return path

    return write
