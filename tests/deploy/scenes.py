"""Records of three sites, their public description and a public test set, and the settings that learn from them."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = (150, 160, 170)
SCHEMA = """\
[columns.dose]
low = 0
high = 10
baseline = 5

[columns.age]
low = 18
high = 90
baseline = 40

[columns.days]
low = 0
high = 12
baseline = 6

[columns.ward]
categories = ["day", "night"]
baseline = "day"
"""
PUBLIC: dict[str, Any] = {
    "dataset": "csv",
    "partition": "sites",
    "data-schema": "/data/schema.toml",
    "test-path": "/data/test.csv",
    "hooks": "none",
}
FEDSVA = PUBLIC | {
    "target": "ward",
    "num-clients": len(SIZES),
    "private-attributes": "age",
    "calibration": "uniform",
    "epsilon": 8.0,
    "num-server-rounds": 2,
}
MODULATED = PUBLIC | {"target": "days", "comparators": "none"}


def records(count: int, seed: int) -> str:
    """A CSV of patients."""
    rng = np.random.default_rng(seed)
    dose, age = np.round(rng.uniform(0, 10, count), 2), rng.integers(18, 91, count)
    days = np.clip(1 + 0.8 * dose + 0.02 * age + rng.normal(0, 0.3, count), 0, 12)
    ward = np.where(dose + rng.normal(0, 1, count) > 5, "night", "day")
    rows = [f"{d},{a},{y:.3f},{w}" for d, a, y, w in zip(dose, age, days, ward, strict=True)]
    return "\n".join(["dose,age,days,ward", *rows]) + "\n"


def furnish(stack: Any) -> None:
    """Give every node of a stack its records, and the server what is public."""
    for node in range(1, stack.nodes + 1):
        furnish_folder(stack, stack.node_folder(node), node - 1)
    stack.give(stack.server_data / "schema.toml", SCHEMA)
    stack.give(stack.server_data / "test.csv", records(100, 99))


def furnish_folder(stack: Any, folder: Any, site: int) -> None:
    """Give the node with this folder the records of a site."""
    stack.give(folder / "data/records.csv", records(SIZES[site], site))
    stack.give(folder / "data/records.csv.schema.toml", SCHEMA)


def simulate(stack: Any, app: str, config: dict[str, Any]) -> Any:
    """The same run simulated in a container of the same image; its folder on this machine."""
    files = stack.folder / "simulated"
    for site, count in enumerate(SIZES):
        stack.give(files / f"site-{site}.csv", records(count, site))
    stack.give(files / "schema.toml", SCHEMA)
    stack.give(files / "test.csv", records(100, 99))
    out = stack.folder / f"simulated-{app}"
    out.mkdir()
    out.chmod(0o777)
    files.chmod(0o755)
    stack.folder.chmod(0o755)
    settings = config | {"data-path": "/data/site-{client}.csv"}
    words = [f"{key}={_toml(value)}" for key, value in settings.items()]
    stack.engine.docker(
        *("run", "--rm", "--read-only", "--network", "none", "--tmpfs", "/tmp:mode=1777"),
        *("--tmpfs", "/state:mode=1777", "-v", f"{files}:/data:ro", "-v", f"{out}:/fedveil"),
        *(stack.settings["FEDVEIL_IMAGE"], "fedveil", "run", app, "--engine", "in-process"),
        *("--num-supernodes", str(len(SIZES)), "-c", " ".join(words)),
    )
    (folder,) = (out / "runs").iterdir()
    return folder


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
