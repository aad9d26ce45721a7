"""What tests of several rooms need: distributions that are there for the length of a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from fedveil.plugins import GROUPS

Package = Callable[..., Path]

# a machine that is busy is no error of what is tested
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Put a distribution, as pip leaves one, first on the path: its entry points by kind, its modules by name."""

    def put(name: str, points: Mapping[str, Mapping[str, str]], **modules: str) -> Path:
        site = tmp_path_factory.mktemp("site")
        metadata = site / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [
            line
            for kind, references in points.items()
            for line in (f"[{GROUPS[kind]}]", *(f"{key} = {value}" for key, value in references.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for module, source in modules.items():
            (site / f"{module}.py").write_text(source)
            # registered before the import, so that the import is undone
            monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.syspath_prepend(str(site))
        return site

    return put
