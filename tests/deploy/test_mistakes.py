"""What goes wrong where nobody attacks: a broken file, a broken policy, two nodes that say they are the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.deploy

SECRET = "patient-4711"


@pytest.fixture
def in_place_of(hurt: Any) -> Iterator[Callable[[Path, str], None]]:
    """Give a node another text for one of its files; each is as it was after the test."""
    kept: dict[Path, str] = {}

    def replace(path: Path, text: str) -> None:
        kept.setdefault(path, path.read_text())
        hurt.give(path, text)

    yield replace
    for path, text in kept.items():
        hurt.give(path, text)


@pytest.mark.parametrize("app", ["fedsva", "modulated"])
def test_a_broken_file_ends_the_run_with_the_node_and_the_mistake_and_nothing_of_a_record(
    hurt: Any, scenes: ModuleType, in_place_of: Callable[[Path, str], None], app: str
):
    lines = scenes.records(scenes.SIZES[1], 1).splitlines()
    lines[40] = f"1.5,{SECRET},3.0,day"
    in_place_of(hurt.node_folder(2) / "data/records.csv", "\n".join(lines) + "\n")
    run = hurt.run_app(app, scenes.FEDSVA if app == "fedsva" else scenes.MODULATED)
    assert run.status == "finished:failed"
    assert "records.csv" in run.log
    assert "'age'" in run.log
    assert SECRET not in run.log
    assert SECRET not in hurt.logs("superlink") + hurt.logs("superexec-server")


def test_a_broken_policy_serves_no_run_and_its_owner_alone_reads_why(
    hurt: Any, scenes: ModuleType, in_place_of: Callable[[Path, str], None]
):
    in_place_of(hurt.node_folder(3) / "policy.toml", "largest-epsilon = 3\n")
    run = hurt.run_app("fedsva", scenes.FEDSVA)
    assert run.status == "finished:failed"
    assert "policy" in run.log
    assert "largest-epsilon" not in run.log
    assert "unknown key 'largest-epsilon'" in hurt.logs("superexec-client-3")


def test_two_nodes_that_bring_the_same_partition_are_refused(
    new_stack: Callable[..., Any], scenes: ModuleType, tmp_path: Path, deploy: ModuleType
):
    composed = yaml.safe_load((deploy.ROOT / "docker-compose.yml").read_text())
    *command, settings = composed["services"]["supernode-2"]["command"]
    twice = settings.replace("partition-id=1", "partition-id=0")
    assert twice != settings
    override = tmp_path / "twice.yml"
    override.write_text(yaml.safe_dump({"services": {"supernode-2": {"command": [*command, twice]}}}))
    stack = new_stack(nodes=2, overrides=[override])
    scenes.furnish(stack)
    stack.up()
    for app, config in (("fedsva", {**scenes.FEDSVA, "num-clients": 2}), ("modulated", scenes.MODULATED)):
        run = stack.run_app(app, config)
        assert run.status == "finished:failed"
        assert "give every node its own partition-id" in run.log
