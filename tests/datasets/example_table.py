"""A small CSV file with its schema file, for tests and for trying things out.

``python tests/datasets/example_table.py FOLDER`` writes both and prints the path of the CSV file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SCHEMA = """\
missing = ["NA"]
ignore = ["row"]

[columns.age]
low = 18
high = 90
baseline = 40

[columns."hours, a week"]
low = 0.0
high = 80.0
baseline = 40.0

[columns.job]
categories = ["farm", "office", "shop, stall"]
baseline = "office"

[columns.income]
classes = ["low", "high"]
"""


def write_example_table(
    folder: Path, num_rows: int = 200, num_clients: int = 5, seed: int = 0, name: str = "people.csv"
) -> Path:
    """Write ``people.csv`` and ``people.csv.schema.toml`` and return the path of the first.

    Columns: row (ignored), age, "hours, a week", job, site (the client), income (the target, which grows with
    age and hours). About one cell in twenty of age and job is missing.
    """
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, num_rows)
    hours = np.round(rng.uniform(0, 80, num_rows), 1)
    jobs = rng.choice(["farm", "office", '"shop, stall"'], num_rows)
    income = np.where(age / 90 + hours / 80 + rng.normal(0, 0.2, num_rows) > 1.1, "high", "low")
    missing = rng.uniform(size=(2, num_rows)) < 0.05
    lines = ['row,age,"hours, a week",job,site,income']
    for row in range(num_rows):
        shown_age = "" if missing[0, row] else str(age[row])
        shown_job = "NA" if missing[1, row] else str(jobs[row])
        lines.append(f"{row},{shown_age},{hours[row]},{shown_job},site {row % num_clients},{income[row]}")
    path = Path(folder) / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    Path(f"{path}.schema.toml").write_text(SCHEMA, encoding="utf-8")
    return path


if __name__ == "__main__":
    print(write_example_table(Path(sys.argv[1])))
