"""The room ``datasets/`` does not hide Hugging Face ``datasets``, which flwr-datasets imports."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["datasets", "flwr_apps", "tests"])
def test_no_folder_that_a_search_path_may_hold_is_a_regular_package(folder: str):
    assert (CHECKOUT / folder).is_dir()
    assert not list((CHECKOUT / folder).rglob("__init__.py"))


def test_hugging_face_datasets_is_what_pytest_imports():
    assert "site-packages" in str(importlib.import_module("datasets").__file__)


def test_hugging_face_datasets_is_what_a_process_in_the_checkout_imports():
    """Ray's workers have their working folder first on their path."""
    code = "import sys; sys.path.insert(0, ''); import datasets; print(datasets.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, text=True, capture_output=True, check=True
    )
    assert "site-packages" in done.stdout
