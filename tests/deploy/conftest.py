"""What tests of a deployment share: an engine, images, and stacks that are taken down whatever happens."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"fedveil_deploy_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


stack_module = _load("stack")


@pytest.fixture(scope="session")
def deploy() -> ModuleType:
    """The module stack.py: Engine, Stack, run, wait_for, free_port."""
    return stack_module


@pytest.fixture(scope="session")
def engine() -> Any:
    """A container engine with both images, built from this checkout."""
    try:
        found = stack_module.Engine.find()
    except stack_module.DeploymentError as error:
        pytest.fail(str(error), pytrace=False)
    found.build()
    return found


@pytest.fixture(scope="module")
def new_stack(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Make stacks, not yet up: ``new_stack(nodes=3, overrides=[...], settings={...})``; all end with the module."""
    made = []

    def make(**options: Any) -> Any:
        made.append(stack_module.Stack(engine, tmp_path_factory.mktemp("stack"), **options))
        return made[-1]

    yield make
    for stack in made:
        stack.down()


@pytest.fixture(scope="session")
def running(engine: Any, scenes: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three nodes with their records, up, whose owners also allow runs without noise: for tests that hurt nothing."""
    stack = stack_module.Stack(engine, tmp_path_factory.mktemp("running"))
    scenes.furnish(stack)
    for node in (1, 2, 3):
        stack.give(stack.node_folder(node) / "policy.toml", 'privacy = ["local", "none"]\n')
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="session")
def hurt(engine: Any, scenes: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three nodes with their records, up, for tests that break parts of it and see it whole again."""
    stack = stack_module.Stack(engine, tmp_path_factory.mktemp("hurt"))
    scenes.furnish(stack)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="session")
def accounts() -> ModuleType:
    """The module accounts.py: ``accounts(folder, ledgers, sizes)``, ``node_rows(path, run)``."""
    return _load("accounts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stacks that last until the end of the session come last: an engine has networks for about three at a time."""
    items.sort(key=lambda item: [name in getattr(item, "fixturenames", ()) for name in ("running", "hurt")])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the containers' last words to a failed test's report."""
    report = yield
    if report.when == "call" and report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, stack_module.Stack):
                report.sections.append(("containers", value.all_logs()))
    return report


scenes_module = _load("scenes")


@pytest.fixture(scope="session")
def scenes() -> ModuleType:
    """The module scenes.py: records of three sites, settings, ``furnish(stack)``, ``simulate(stack, app, config)``."""
    return scenes_module
