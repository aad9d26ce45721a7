"""What the image installs: pinned by hash, all that the package asks for, and nothing that only simulations need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)
LOCKS = ("requirements", "torch", "build")


def pinned(lock: str) -> dict[str, str]:
    text = (ROOT / f"deploy/{lock}.lock").read_text()
    return {name: version for name, version, _ in ENTRY.findall(text)}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_version_with_its_hashes(lock: str):
    text = (ROOT / f"deploy/{lock}.lock").read_text()
    assert ENTRY.sub("", text) == ""
    assert pinned(lock)


def test_the_locks_hold_what_the_package_asks_of_a_node():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    held = pinned("requirements") | pinned("torch")
    for line in [*project["dependencies"], *project["optional-dependencies"]["node"]]:
        asked = Requirement(line)
        assert asked.name in held, f"{asked.name} is not locked: lock again as docs/deploy.md says"
        assert asked.specifier.contains(held[asked.name].split("+")[0]), (
            f"{line}, and {held[asked.name]} is locked"
        )


def test_a_node_s_image_has_no_simulation_plots_or_gpu_libraries():
    held = pinned("requirements") | pinned("torch")
    assert not {"ray", "torchvision", "plotly", "statsmodels", "pandas", "triton"} & set(held)
    assert not [name for name in held if name.startswith("nvidia")]
