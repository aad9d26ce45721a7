"""Records for a deployment's benchmarks: handwritten digits and a synthetic regression, a CSV file for each node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

DIGITS = 1500  # records of all nodes; the other 297 are the public test set


def digits(folder: Path, nodes: int) -> list[Path]:
    """Write the digits of each node, their public description and the public test set; the nodes' files."""
    bunch = load_digits()
    rows = np.column_stack([bunch.data, bunch.target]).astype(int)
    rows = rows[np.random.default_rng(1).permutation(len(rows))]
    names = [f"p{k}" for k in range(64)]
    schema = "".join(f"[columns.{name}]\nlow = 0\nhigh = 16\nbaseline = 0\n" for name in names)
    classes = ", ".join(f'"{digit}"' for digit in range(10))
    schema += f'[columns.digit]\ncategories = [{classes}]\nbaseline = "0"\n'
    return _write(folder, [*names, "digit"], np.array_split(rows[:DIGITS], nodes), rows[DIGITS:], schema)


def regression(folder: Path, nodes: int, records: int = 250, features: int = 10) -> list[Path]:
    """Write a linear regression with noise, ``records`` of them at every node; the nodes' files."""
    rng = np.random.default_rng(2)
    x = np.round(rng.uniform(0, 1, ((nodes + 1) * records, features)), 4)
    y = np.clip(x @ np.linspace(-1, 1, features) + rng.normal(0, 0.1, len(x)), -3, 3)
    names = [f"x{k}" for k in range(features)]
    schema = "".join(f"[columns.{name}]\nlow = 0\nhigh = 1\nbaseline = 0.5\n" for name in names)
    schema += "[columns.y]\nlow = -3\nhigh = 3\nbaseline = 0\n"
    *parts, test = np.array_split(np.column_stack([x, np.round(y, 4)]), nodes + 1)
    return _write(folder, [*names, "y"], parts, test, schema)


def _write(
    folder: Path, names: list[str], parts: list[NDArray[np.float64]], test: NDArray[np.float64], schema: str
) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"site-{k}.csv" for k in range(len(parts))]
    for path, rows in zip([*paths, folder / "test.csv"], [*parts, test], strict=True):
        lines = [",".join(f"{value:g}" for value in row) for row in rows]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")
        path.with_name(path.name + ".schema.toml").write_text(schema)
    (folder / "schema.toml").write_text(schema)
    return paths
