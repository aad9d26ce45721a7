"""App folders to run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

APPS = Path(__file__).parents[1] / "e2e" / "apps"


@pytest.fixture
def trap() -> Path:
    """The app that fails on demand."""
    return APPS / "trap"


@pytest.fixture
def copy_of_trap(tmp_path: Path) -> Callable[[str], Path]:
    """Copies of it, each in a folder of its own."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(APPS / "trap", tmp_path / name / "trap"))

    return copy
