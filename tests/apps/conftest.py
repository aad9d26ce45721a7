"""Whole runs of FedVeil's apps on the in-process engine, and everything that can be seen of them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import Result
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray
from typer.testing import CliRunner

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.cli import cli
from fedveil.privacy import CohortRelease, Release
from fedveil.run import InProcessGrid, plan_run
from fedveil.threads import set_threads

_TABLE = Path(__file__).parents[1] / "datasets" / "example_table.py"

Settings = Mapping[str, Any]


@pytest.fixture(autouse=True, scope="package")
def threads() -> Iterator[None]:
    """The app sets the number of threads of its process, which is this one; give back what was set."""
    before = torch.get_num_threads()
    yield
    set_threads(before)


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 200 people at 5 sites: 160 for training, 40 for testing."""
    path: Path = runpy.run_path(str(_TABLE))["write_example_table"](tmp_path_factory.mktemp("people"))
    return path


@pytest.fixture(scope="session")
def small(people: Path) -> dict[str, Any]:
    """Settings of a run that takes a blink: 8 clients of 20 records each, 3 rounds."""
    return {
        "dataset": "csv",
        "data-path": str(people),
        "target": "income",
        "client-column": "site",
        "private-attributes": "age,job",
        "attribute-clip-rule": "fixed",
        "num-clients": 8,
        "num-server-rounds": 3,
        "seed": 7,
    }


@pytest.fixture(scope="session")
def town() -> dict[str, Any]:
    """Settings of a run of modulated learning that takes a blink: 400 made-up clients with three features each."""
    return {
        "dataset": "synthetic-regression",
        "options": "dataset = {records = 400, features = 3}",
        "comparators": "none",
        "dp-sgd-rounds": 3,
        "seed": 7,
    }


@pytest.fixture
def real_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nodes of the in-process engine take themselves for real ones; gives the folder of FedVeil on "their" machine."""
    # nobody asks this variable, so that the one which nodes are told by stays false
    monkeypatch.setattr("fedveil.run.in_process.in_process_node", ContextVar("nobody", default=False))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("FEDVEIL_HOME", str(home))
    return home


class WatchedGrid(InProcessGrid):
    """An in-process Grid that keeps every message."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.requests: list[Message] = []
        self.replies: list[Message] = []

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        self.requests += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        self.replies += replies
        return replies


@dataclass
class Run:
    """A finished run: its folder, what it printed, and every message."""

    folder: Path
    output: str
    requests: list[Message]
    replies: list[Message]

    @property
    def results(self) -> tuple[bytes, bytes]:
        """The model and the ledger, byte for byte."""
        return (self.folder / "model.safetensors").read_bytes(), (self.folder / "ledger.parquet").read_bytes()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the ledger."""
        rows: list[dict[str, Any]] = pq.read_table(self.folder / "ledger.parquet").to_pylist()
        return rows

    @property
    def node_rows(self) -> list[Release]:
        """The rows of the nodes' own ledger."""
        return NodeLedger(self.folder / "node-ledger.sqlite").releases()

    @property
    def node_cohorts(self) -> tuple[CohortRelease, ...]:
        """Messages of whole cohorts in the nodes' own ledger, those of comparators left out."""
        return NodeLedger(self.folder / "node-ledger.sqlite").cohort_releases(self.folder.name)

    @property
    def estimate(self) -> dict[str, Any]:
        """The file of coefficients, intervals and guarantees."""
        found: dict[str, Any] = json.loads((self.folder / "estimate.json").read_text())
        return found

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """The fitted model: slopes of standardised features, then the intercept."""
        return RunFolder(self.folder).load_model()[0]["coefficients"]

    @property
    def notes(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What clients have measured, as the nodes' own ledger keeps it, by client and round."""
        kept = NodeLedger(self.folder / "node-ledger.sqlite").notes(self.folder.name)
        return {key: json.loads(note) for key, note in kept.items()}

    @property
    def contributions(self) -> dict[str, Any]:
        """The file of released contributions."""
        found: dict[str, Any] = json.loads((self.folder / "contributions.json").read_text())
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row a round."""
        rows: list[dict[str, Any]] = pq.read_table(self.folder / "metrics.parquet").to_pylist()
        return rows

    @property
    def guarantees(self) -> dict[str, dict[str, Any]]:
        """What the model's file and guarantees.json say was guaranteed, by relation."""
        stated = RunFolder(self.folder).load_model()[1]["guarantees"]
        document = json.loads((self.folder / "guarantees.json").read_text())
        assert document["guarantees"] == stated
        assert document["of"] == "the worst-off client"
        return {guarantee["relation"]: guarantee for guarantee in stated}

    @property
    def sampled(self) -> list[list[int]]:
        """The clients that were asked to train, round by round."""
        rounds: dict[int, list[int]] = {}
        for message in self.requests:
            config = message.content.config_records["config"]
            if message.metadata.message_type == "train":
                rounds.setdefault(config["server-round"], []).extend(config["clients"])
        return [sorted(rounds[number]) for number in sorted(rounds)]


def runner(small: Settings, folder: Path, app: str = "fedsva") -> Callable[..., Run]:
    """A function that runs an app with these settings over the small ones, and looks at what it left."""

    def run(
        settings: Settings | None = None,
        *,
        nodes: int = 2,
        reverse_replies: bool = False,
        simulated: bool = True,
        output_dir: Path | None = None,
        grid: type[WatchedGrid] = WatchedGrid,
        node_configs: Sequence[Settings] = (),
    ) -> Run:
        root = output_dir or folder / "runs"
        before = set(root.glob("*"))
        plan = plan_run(
            app,
            engine="in-process",
            overrides={**small, **(settings or {})},
            num_nodes=nodes,
            output_dir=str(root),
        )
        output = StringIO()
        with plan.app.importable(), redirect_stdout(output):
            watched = grid(
                plan.app.load(plan.app.clientapp),
                nodes,
                run_config=plan.config,
                reverse_replies=reverse_replies,
            )
            watched.in_process = simulated
            for started, own in zip(watched._contexts.values(), node_configs, strict=False):
                started.node_config.update(own)
            context = Context(1, 1, {}, state=RecordDict(), run_config=dict(plan.config))
            plan.app.load(plan.app.serverapp)(watched, context)
        (created,) = set(root.glob("*")) - before
        return Run(created, output.getvalue(), watched.requests, watched.replies)

    return run


@pytest.fixture
def fedsva(small: Settings, tmp_path: Path) -> Callable[..., Run]:
    """Run the app with these settings over the small ones, and look at what it left."""
    return runner(small, tmp_path)


@pytest.fixture(scope="module")
def fedsva_of_module(small: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """The same for runs that the tests of a module share."""
    return runner(small, tmp_path_factory.mktemp("shared"))


@pytest.fixture
def modulated(town: Settings, tmp_path: Path) -> Callable[..., Run]:
    """Run modulated learning with these settings over the town's, and look at what it left."""
    return runner(town, tmp_path, "modulated")


@pytest.fixture(scope="module")
def modulated_of_module(town: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """The same for runs that the tests of a module share."""
    return runner(town, tmp_path_factory.mktemp("shared"), "modulated")


def as_options(settings: Settings) -> list[str]:
    """Settings as a person types them."""
    # JSON writes numbers, texts and truth values as TOML does
    return [part for key, value in settings.items() for part in ("-c", f"{key}={json.dumps(value)}")]


def command(app: str) -> Callable[..., Result]:
    """``fedveil run APP --engine in-process`` with settings and further options."""

    def run(settings: Settings | None = None, *options: str | Path) -> Result:
        arguments = ["run", app, "--engine", "in-process", *as_options(settings or {})]
        return CliRunner().invoke(cli, [*arguments, *map(str, options)])

    return run


@pytest.fixture
def fedveil_run() -> Callable[..., Result]:
    """``fedveil run fedsva --engine in-process`` with these settings and further options."""
    return command("fedsva")


@pytest.fixture
def modulated_run() -> Callable[..., Result]:
    """``fedveil run modulated --engine in-process`` with these settings and further options."""
    return command("modulated")
