"""Where a node's place, its ledger and a run's folder are: what is not there, and what is closed to this user."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.artifacts import NodeLedger, RunFolder, RunFolderError
from fedveil.clients.policy import read_policy
from fedveil.config import ConfigError, FedSVAConfig
from fedveil.config.node_policy import admit_run
from fedveil.config.places import check_writable, node_ledger_path, open_resumed, place_of_node
from fedveil.config.sites import sites_on_disk
from fedveil.run.app import BadInput, find_app
from fedveil.run.doctor import _existing
from fedveil.run.plan import plan_run
from fedveil.run.policy import explain_policy
from fedveil.run.quantized import quantize_run

Close = Callable[[Path], None]


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Close:
    """Close a folder to this user, whoever runs the tests: the system says of nothing in it whether it is there."""
    system = os.stat

    def closed(folder: Path) -> None:
        def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            if not isinstance(path, int) and folder in Path(path).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return system(path, *args, **kwargs)

        monkeypatch.setattr(os, "stat", stat)

    return closed


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


# a node's number


@given(st.integers(-3, 9), st.integers(-3, 9))
def test_a_node_has_a_number_below_that_of_all_nodes_or_no_place(node: int, nodes: int):
    given_numbers = {"partition-id": node, "num-partitions": nodes}
    if 0 <= node < nodes:
        assert place_of_node(given_numbers) == (node, nodes)
        return
    with pytest.raises(
        ConfigError, match=rf"partition-id = {node} must lie between 0 and .* = {nodes - 1}\."
    ):
        place_of_node(given_numbers)


# folders that are closed


def test_an_output_folder_inside_a_closed_one_is_refused_in_words(
    tmp_path: Path, close: Close, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "root"
    root.mkdir()
    close(root)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != root)
    with pytest.raises(ConfigError, match=f"output-dir: nothing can be written to {root}; choose another"):
        check_writable(config(output_dir=str(root / "runs" / "new")))
    check_writable(config(output_dir=str(tmp_path / "runs" / "new")))


def test_a_run_in_a_closed_folder_is_not_resumed_and_that_is_said_in_words(tmp_path: Path, close: Close):
    run = RunFolder.create(tmp_path / "root", "fedsva", {"seed": 1}).path
    close(tmp_path / "root")
    with pytest.raises(RunFolderError, match="is not a folder that this user can see"):
        open_resumed(config(resume=str(run)))
    with pytest.raises(BadInput, match="is not the folder of a run"):
        plan_run("fedsva", resume=str(run))
    with pytest.raises(BadInput, match="is not the folder of a run"):
        quantize_run(str(run), schemes=None, candidates=None, app=None, say=print)


def test_a_checkpoint_that_the_system_hides_is_not_one_that_was_never_written(tmp_path: Path, close: Close):
    folder = RunFolder.create(tmp_path, "fedsva", {"seed": 1}, redact=["seed"])
    assert folder.load_checkpoint() is None
    close(folder.path / "checkpoint")
    for look in (folder.load_checkpoint, lambda: folder.secrets):
        with pytest.raises(
            RunFolderError, match=r"cannot be read \(Permission denied\): let this user read it"
        ):
            look()
    close(folder.path)
    for look in (lambda: folder.is_finished, lambda: folder.document("membership")):
        with pytest.raises(
            RunFolderError, match=r"cannot be read \(Permission denied\): let this user read it"
        ):
            look()


def test_an_app_in_a_closed_folder_is_no_app(tmp_path: Path, close: Close):
    close(tmp_path)
    with pytest.raises(BadInput, match=r"neither an app of FedVeil nor a folder with a pyproject\.toml"):
        find_app(str(tmp_path / "app"))


def test_records_of_sites_in_a_closed_folder_are_not_counted(tmp_path: Path, close: Close):
    for number in range(3):
        (tmp_path / f"{number}.csv").touch()
    sited = config(
        partition="sites",
        dataset="csv",
        target="income",
        data_schema="/public/schema.toml",
        test_path="/public/test.csv",
        data_path=str(tmp_path / "{client}.csv"),
    )
    assert sites_on_disk(sited) == 3
    close(tmp_path)
    assert sites_on_disk(sited) == 0


def test_the_innermost_folder_that_exists_is_outside_a_closed_one(tmp_path: Path, close: Close):
    close(tmp_path)
    assert _existing(tmp_path / "a" / "b") == tmp_path


def test_a_ledger_that_is_hidden_is_none_that_was_never_written(
    tmp_path: Path, close: Close, monkeypatch: pytest.MonkeyPatch
):
    policy = tmp_path / "policy.toml"
    policy.write_text("delta = 1e-5\n[epsilon]\nrecord = 1.0\n")
    assert read_policy(policy).limits
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDVEIL_POLICY", str(policy))
    NodeLedger(node_ledger_path())
    close(tmp_path / "home")
    said: list[str] = []
    with pytest.raises(RunFolderError, match=r"node-ledger\.sqlite cannot be read \(Permission denied\)"):
        explain_policy(None, say=said.append)
    assert not any("nothing has been spent" in line for line in said)
    with pytest.raises(RunFolderError, match=r"node-ledger\.sqlite cannot be read \(Permission denied\)"):
        admit_run(config(calibration="uniform", epsilon=0.5), run="r", node=0, simulated=False)
