"""Whole runs whose sample is secret: neither output nor folder, nor how a run ends and goes on, tells who it was."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from flwr.app import Error, Message

from fedveil.artifacts import RunFolder
from fedveil.flower import ErrorCode
from fedveil.run import InProcessGrid
from fedveil.strategies import NoGoodReplies

SETTINGS = {
    "privacy": "central",
    "fraction-train": 0.5,
    "epsilon": 3.0,
    "num-server-rounds": 3,
    "hooks": "none",
}
SEEDS = range(4)
MODEL = re.compile(r"accuracy \d\.\d+|loss \d+\.\d+|\d{8}-\d{6}-fedsva-\w+|runs-\d+")


def grid_of(fault: str, *, connected: int = 10**9) -> type[InProcessGrid]:
    """Nodes of one client each whose replies are lost as said; all leave after so many looks at them."""

    class Faulty(InProcessGrid):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.requests: list[Message] = []
            self.replies: list[Message] = []
            self.looked = 0

        def get_node_ids(self) -> Any:
            self.looked += 1
            return super().get_node_ids() if self.looked <= connected else []

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.requests += messages
            names = list(super().push_messages(messages))
            victim = next(iter(super().get_node_ids()))
            for name, message in zip(names, messages, strict=True):
                is_victim = message.metadata.dst_node_id == victim
                if message.metadata.message_type != "train":
                    continue
                if fault == "others silent" and not is_victim:
                    del self._replies[name]
                elif fault == "all fail" or (fault == "the victim fails" and is_victim):
                    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "disk full")
                    self._replies[name] = Message(error, reply_to=message)
            return names

    return Faulty


def kept_in(folder: Path) -> str:
    """All that a run's folder holds but for models and what is measured on them, as one text."""
    metrics = [
        {key: value for key, value in row.items() if key not in ("accuracy", "loss")}
        for row in RunFolder(folder).load_checkpoint().metrics
    ]
    checkpoint = RunFolder(folder).load_checkpoint()
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    ledger = folder / "ledger.parquet"
    rows = pq.read_table(ledger).to_pylist() if ledger.exists() else []
    extra = {key: checkpoint.extra[key] for key in ("out-of-budget", "knowledge")}
    return json.dumps([metrics, names, rows, extra, str(checkpoint.releases), str(checkpoint.assumed)])


@pytest.mark.parametrize("fault", ["others silent", "the victim fails", "all fail"])
def test_lost_replies_leave_no_trace_in_output_or_folder(fedsva: Callable[..., Any], fault: str):
    runs: list[Any] = []
    # the draws change with the settings' hash, which covers the folder of the data: as many as it takes
    while len({0 in run.sampled[0] for run in runs}) < 2 or len(runs) < len(SEEDS):
        assert len(runs) < 40, "a client at rate 0.5 was always drawn, or never: a chance of 2^-39"
        runs.append(fedsva({**SETTINGS, "seed": len(runs)}, nodes=8, grid=grid_of(fault)))
    assert len({str(run.sampled) for run in runs}) == len(runs)
    assert len({MODEL.sub("", run.output) for run in runs}) == 1
    assert len({kept_in(run.folder) for run in runs}) == 1
    assert "disk full" not in runs[0].output
    assert [row["client"] for row in runs[0].rows] == [-1, -1, -1]
    losses = [row["loss"] for row in runs[0].metrics]
    assert len(set(losses)) == 4  # no round is skipped


@pytest.mark.parametrize("fault", ["others silent", "all fail"])
def test_a_run_ends_for_want_of_nodes_and_not_of_replies_and_its_resumed_rest_tells_no_more(
    fedsva: Callable[..., Any], fedveil_run: Callable[..., Any], tmp_path: Path, fault: str
):
    seen, outputs = set(), set()
    for seed in SEEDS:
        root = tmp_path / f"runs-{seed}"
        with pytest.raises(NoGoodReplies, match="round 2: none of the 8 nodes is connected") as ended:
            # two looks find the nodes, and one begins each round
            fedsva({**SETTINGS, "seed": seed}, nodes=8, grid=grid_of(fault, connected=3), output_dir=root)
        (folder,) = root.glob("*")
        before = kept_in(folder)
        result = fedveil_run({}, "--resume", folder, "--num-supernodes", "8")
        assert result.exit_code == 0, result.stderr
        seen.add((str(ended.value), before, kept_in(folder)))
        outputs.add(MODEL.sub("", result.stdout))
    assert len(seen) == 1
    assert len(outputs) == 1


@pytest.mark.parametrize("key", ["min-replies", "round-attempts"])
def test_settings_that_would_tell_are_refused_before_there_is_a_folder(
    fedsva: Callable[..., Any], tmp_path: Path, key: str
):
    with pytest.raises(ValueError, match=f"{key} = 2 with privacy = 'central' and fraction-train = 0.5"):
        fedsva({**SETTINGS, key: 2}, output_dir=tmp_path / "none")
    assert not list((tmp_path / "none").glob("*"))
