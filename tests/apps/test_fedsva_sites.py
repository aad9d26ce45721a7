"""Every node brings its own records: the same model as of one file, and the server never sees a record."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.config import ConfigError, FedSVAConfig
from fedveil.datasets import table
from fedveil.flower import in_process_node
from fedveil.strategies.fleet import FleetError

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "datasets" / "example_table.py"))
SCHEMA = EXAMPLE["SCHEMA"].replace('ignore = ["row"]', 'ignore = ["row", "site"]')
SITES = 3

NONE = {"privacy": "none", "seed": ""}
RELEASED = {
    "attribute-clip-rule": "contribution",
    "epsilon": 20.0,
    "contribution-share": 0.6,
    "contribution-round": 1,
}
RECORD_GROUPS = {
    "calibration": "paper",
    "contribution": "retrain",
    "contribution-release": "none",
    "retrain-steps": 2,
    "groups": "poor = class:low; rich = class:high",
    "private-groups": "rich",
}
WAYS: dict[str, dict[str, Any]] = {
    "no noise": NONE,
    "no noise, clipped, sampled clients": {
        "privacy": "none",
        "clip-without-noise": True,
        "fraction-train": 0.6,
    },
    "attributes, two steps, momentum": {"local-steps": 2, "server-optimizer": "momentum"},
    "attributes, quantile": {"attribute-clip-rule": "quantile", "epsilon": 8.0},
    "attributes, released contributions": RELEASED,
    "records, sampled": {"calibration": "uniform", "sampling-rate": 0.5, "epsilon": 4.0},
    "groups of records": RECORD_GROUPS,
    "trusted server": {"privacy": "central", "epsilon": 8.0},
    "private attributes dropped": {"drop-private": True, "calibration": "uniform"},
}


@dataclass(frozen=True)
class Town:
    """The records of three sites, once in one file and once in a file a site, with a public test set."""

    folder: Path

    @property
    def common(self) -> dict[str, Any]:
        return {
            "data-schema": str(self.folder / "schema.toml"),
            "test-path": str(self.folder / "test.csv"),
            "num-clients": SITES,
            "hooks": "none",
        }

    @property
    def natural(self) -> dict[str, Any]:
        return self.common | {"partition": "natural", "data-path": str(self.folder / "all.csv")}

    @property
    def sites(self) -> dict[str, Any]:
        return self.common | {
            "partition": "sites",
            "data-path": str(self.folder / "site-{client}.csv"),
            "client-column": "",
        }

    @property
    def deployed(self) -> dict[str, Any]:
        return self.sites | {"data-path": "", "seed": ""}

    def file(self, site: int) -> Path:
        return self.folder / f"site-{site}.csv"

    def node_configs(self, schema: str = "schema.toml") -> list[dict[str, Any]]:
        return [
            {"data-path": str(self.file(site)), "data-schema": str(self.folder / schema)}
            for site in range(SITES)
        ]


@pytest.fixture
def town(tmp_path: Path) -> Town:
    """Three sites of 20, 30 and 40 people, their rows mixed in the one file."""
    folder = tmp_path / "town"
    folder.mkdir()
    header, *rows = EXAMPLE["write_example_table"](folder, 90, 9, name="all.csv").read_text().splitlines()
    sizes = {0: {0, 3}, 1: {1, 4, 6}, 2: {2, 5, 7, 8}}
    of = {old: site for site, olds in sizes.items() for old in olds}
    moved = [re.sub(r"site (\d)", lambda found: f"site {of[int(found[1])]}", row) for row in rows]
    (folder / "all.csv").write_text("\n".join([header, *moved]) + "\n")
    for site in range(SITES):
        own = [row for row in moved if f"site {site}," in row]
        (folder / f"site-{site}.csv").write_text("\n".join([header, *own]) + "\n")
    EXAMPLE["write_example_table"](folder, 40, 1, seed=1, name="test.csv")
    (folder / "schema.toml").write_text(SCHEMA)
    return Town(folder)


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is drawn under a run's settings: take them out, so that two partitions draw the same."""
    monkeypatch.setattr(FedSVAConfig, "config_hash", property(lambda _: "the same"))


def text_of(error: BaseException) -> str:
    """A refusal; it is one line."""
    sentence = str(error)
    assert "\n" not in sentence
    return sentence


@pytest.mark.usefixtures("one_hash")
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_a_file_for_each_site_gives_the_bits_of_one_file_with_a_client_column(
    fedsva: Callable[..., Any], town: Town, settings: dict[str, Any]
):
    expected = fedsva(town.natural | settings, nodes=1)
    for nodes in (1, 2, 3):
        run = fedsva(town.sites | settings, nodes=nodes)
        assert run.results == expected.results, nodes
        assert [row["accuracy"] for row in run.metrics] == [row["accuracy"] for row in expected.metrics]
    assert "sites partition: 3 clients with 20 / 30 / 40 records" in run.output


@pytest.mark.usefixtures("one_hash")
def test_clients_of_sites_are_asked_for_losses_as_any_others(fedsva: Callable[..., Any], town: Town):
    asked = {
        "hooks": "quantize",
        "membership": "federated",
        "membership-share": 0.3,
        "epsilon": 8.0,
        "quantizers": "int8,int4",
    }
    expected = fedsva(town.natural | asked)
    run = fedsva(town.sites | asked)
    for file in ("model.safetensors", "ledger.parquet", "membership.json", "rq.json"):
        assert (run.folder / file).read_bytes() == (expected.folder / file).read_bytes(), file


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, str]]:
    """Every table that is opened: whether a node does it, and its file's name."""
    found: list[tuple[bool, str]] = []
    original = table.open_csv

    def watched(path: Path) -> Any:
        found.append((in_process_node.get(), path.name))
        return original(path)

    monkeypatch.setattr(table, "open_csv", watched)
    return found


def test_the_server_opens_the_test_set_alone_and_a_node_its_own_files_alone(
    fedsva: Callable[..., Any], town: Town, opened: list[tuple[bool, str]]
):
    fedsva(town.sites | RELEASED, nodes=2)
    assert {name for on_node, name in opened if not on_node} == {"test.csv"}
    assert {name for on_node, name in opened if on_node} == {f"site-{site}.csv" for site in range(SITES)}
    assert len(opened) == 1 + SITES  # each once a process


# real nodes


def allow_everything(home: Path) -> None:
    """The node's owner lets runs without noise in."""
    (home / "policy.toml").write_text('privacy = ["local", "central", "none"]\n')


def test_real_nodes_give_the_bits_of_the_simulation_of_their_files(
    fedsva: Callable[..., Any], town: Town, real_nodes: Path
):
    allow_everything(real_nodes)
    run = fedsva(town.deployed | NONE, nodes=SITES, simulated=False, node_configs=town.node_configs())
    in_process_node_set = in_process_node.set(True)
    try:
        simulated = fedsva(town.sites | NONE, nodes=2)
    finally:
        in_process_node.reset(in_process_node_set)
    assert run.results == simulated.results
    hosted = [
        reply.content["config"]["clients"]
        for reply in run.replies
        if reply.metadata.message_type == "query.identify"
    ]
    assert sorted(hosted) == [[0], [1], [2]]


def test_real_nodes_train_privately_and_keep_their_ledger_at_home(
    fedsva: Callable[..., Any], town: Town, real_nodes: Path
):
    run = fedsva(town.deployed, nodes=SITES, simulated=False, node_configs=town.node_configs())
    rows = NodeLedger(real_nodes / "node-ledger.sqlite").releases()
    assert {row.client for row in rows} == {0, 1, 2}
    assert len(rows) == len(run.rows)
    assert not (run.folder / "node-ledger.sqlite").exists()


def _without(key: str) -> Callable[[Town, list[dict[str, Any]]], None]:
    return lambda town, nodes: nodes[1].pop(key)


def _own(key: str, value: str) -> Callable[[Town, list[dict[str, Any]]], None]:
    return lambda town, nodes: nodes[1].update({key: value})


def _rewritten(file: str, change: Callable[[str], str]) -> Callable[[Town, list[dict[str, Any]]], None]:
    def rewrite(town: Town, nodes: list[dict[str, Any]]) -> None:
        path = town.folder / file
        path.write_text(change(path.read_text()))

    return rewrite


def _schema(change: Callable[[str], str]) -> Callable[[Town, list[dict[str, Any]]], None]:
    def rewrite(town: Town, nodes: list[dict[str, Any]]) -> None:
        (town.folder / "other.toml").write_text(change(SCHEMA))
        nodes[1]["data-schema"] = str(town.folder / "other.toml")

    return rewrite


REFUSED: dict[str, tuple[Callable[[Town, list[dict[str, Any]]], None], str]] = {
    "no path": (
        _without("data-path"),
        "this node has no data-path, and partition = 'sites' needs its own records",
    ),
    "an empty path": (_own("data-path", ""), "this node has no data-path"),
    "a placeholder": (
        _own("data-path", "/data/site-{client}.csv"),
        "holds {client}, which is for simulations",
    ),
    "a relative path": (
        _own("data-path", "records.csv"),
        "'records.csv' in the node's configuration must be an absolute",
    ),
    "a number": (_own("data-path", 7), "data-path = 7 in the node's configuration must be an absolute path"),
    "a relative schema": (
        _own("data-schema", "s.toml"),
        "data-schema = 's.toml' in the node's configuration",
    ),
    "no such file": (_own("data-path", "/nowhere/records.csv"), "There is no data file /nowhere/records.csv"),
    "no schema beside the data": (_without("data-schema"), "There is no schema file"),
    "columns and no rows": (
        _rewritten("site-1.csv", lambda text: text.splitlines()[0] + "\n"),
        "has columns but no rows: bring at least one record",
    ),
    "nothing at all": (_rewritten("site-1.csv", lambda text: ""), "site-1.csv"),
    "another range": (
        _schema(lambda text: text.replace("high = 90", "high = 91")),
        "node 1 describes its records in another way than the server",
    ),
    "another order": (
        _schema(
            lambda text: text.replace(
                '["farm", "office", "shop, stall"]', '["office", "farm", "shop, stall"]'
            )
        ),
        "node 1 describes its records in another way than the server",
    ),
    "classes the other way round": (
        _schema(lambda text: text.replace('["low", "high"]', '["high", "low"]')),
        "node 1 describes its records in another way than the server",
    ),
    "another baseline": (
        _schema(lambda text: text.replace("baseline = 40\n", "baseline = 41\n")),
        "node 1 describes its records in another way than the server",
    ),
    "another number of nodes": (
        _own("num-partitions", 4),
        "num-clients = 3, and this node was started as one of num-partitions = 4",
    ),
    "a number of its own twice": (_own("partition-id", 2), "client 2 is served by two nodes"),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_node_that_cannot_bring_its_records_stops_the_run_with_one_sentence(
    fedsva: Callable[..., Any],
    town: Town,
    real_nodes: Path,
    change: Callable[[Town, list[dict[str, Any]]], None],
    sentence: str,
):
    nodes = town.node_configs()
    change(town, nodes)
    with pytest.raises(FleetError) as refused:
        fedsva(town.deployed, nodes=SITES, simulated=False, node_configs=nodes)
    assert sentence in text_of(refused.value)
    assert "node" in text_of(refused.value)
    assert not list((real_nodes.parent / "runs").glob("*"))


def test_a_site_smaller_than_min_records_stops_the_run_by_its_number(
    fedsva: Callable[..., Any], town: Town, real_nodes: Path
):
    with pytest.raises(FleetError, match="client 0 has 20 records, but min-records is 21"):
        fedsva(
            town.deployed | {"min-records": 21},
            nodes=SITES,
            simulated=False,
            node_configs=town.node_configs(),
        )


@pytest.mark.parametrize("partition", ["sites", "natural"])
def test_a_real_node_opens_no_file_that_the_run_names(
    fedsva: Callable[..., Any],
    town: Town,
    real_nodes: Path,
    opened: list[tuple[bool, str]],
    partition: str,
):
    """The server's own check is gone, as if somebody had written another server."""
    settings = {"sites": town.sites, "natural": town.natural}[partition] | {"seed": ""}
    simulated_server = True  # it lets the path pass
    with pytest.raises(
        FleetError, match="was set by the run, and a real node opens no file that a server names"
    ):
        fedsva(settings, nodes=SITES, simulated=simulated_server, node_configs=town.node_configs())
    assert not {name for _, name in opened if name.startswith("site-")}


def test_the_server_refuses_a_path_of_the_run_before_it_asks_real_nodes(
    fedsva: Callable[..., Any], town: Town
):
    with pytest.raises(ConfigError, match="was set by the run, and a real node opens no file"):
        fedsva(town.sites | {"seed": ""}, simulated=False)


def test_a_simulation_without_a_placeholder_is_told_how_to_write_it(fedsva: Callable[..., Any], town: Town):
    with pytest.raises(ConfigError, match=re.escape("write {client} where the client's number stands")):
        fedsva(town.sites | {"data-path": ""})


def test_a_run_for_more_sites_than_there_are_nodes_is_refused(
    fedsva: Callable[..., Any], town: Town, real_nodes: Path
):
    with pytest.raises(
        FleetError, match="num-clients = 4, and this node was started as one of num-partitions = 3"
    ):
        fedsva(
            town.deployed | {"num-clients": 4},
            nodes=SITES,
            simulated=False,
            node_configs=town.node_configs(),
        )


# resuming


@pytest.fixture
def dead(fedsva: Callable[..., Any], town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that died after it had saved its second round."""
    save = RunFolder.save_checkpoint

    def dying(folder: RunFolder, checkpoint: Any) -> None:
        save(folder, checkpoint)
        if checkpoint.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", dying)
        with pytest.raises(KeyboardInterrupt):
            fedsva(town.sites, output_dir=tmp_path / "dead")
    (folder,) = (tmp_path / "dead").glob("*")
    return folder


def test_a_run_of_sites_goes_on_and_ends_as_if_nothing_had_happened(
    dead: Path, fedsva: Callable[..., Any], town: Town, fedveil_run: Callable[..., Result]
):
    result = fedveil_run({}, "--resume", dead, "--num-supernodes", "3")
    assert result.exit_code == 0, result.stderr
    unbroken = fedsva(town.sites)
    for file in ("model.safetensors", "ledger.parquet"):
        assert (dead / file).read_bytes() == (unbroken.folder / file).read_bytes(), file


CHANGED: dict[str, Callable[[Town], object]] = {
    "a test record": lambda town: _rewritten("test.csv", lambda text: text.replace("high", "low", 1))(
        town, []
    ),
    "a baseline that no test record has": lambda town: _rewritten(
        "schema.toml", lambda text: text.replace("baseline = 40.0", "baseline = 41.0")
    )(town, []),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_run_of_sites_does_not_go_on_with_other_public_data(
    dead: Path, town: Town, fedveil_run: Callable[..., Result], change: Callable[[Town], object]
):
    from fedveil.config import loading

    change(town)
    loading._load_problem.cache_clear()
    loading._load_site.cache_clear()
    result = fedveil_run({}, "--resume", dead)
    assert result.exit_code != 0
    assert "the data is not what it was when the run in" in result.stderr


# planning


def planned(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    from fedveil.run.app import find_app

    app = find_app("fedsva")
    with app.importable():
        from fedsva_app.plan import plan

        lines: list[str] = []
        plan(FedSVAConfig.from_run_config(app.configure(config)), lines.append)
    return "\n".join([*lines, capsys.readouterr().out])


def test_a_plan_counts_the_records_of_simulated_sites(
    small: dict[str, Any], town: Town, capsys: pytest.CaptureFixture[str]
):
    told = planned(small | town.sites, capsys)
    assert "sites partition: 3 clients with 20 / 30 / 40 records" in told
    assert [line.split()[:2] for line in told.splitlines() if line.strip()[:2] in ("20", "30", "40")] == [
        ["20", "1"],
        ["30", "1"],
        ["40", "1"],
    ]


def test_a_plan_for_real_sites_shows_sites_of_some_sizes_and_opens_no_site_file(
    small: dict[str, Any], town: Town, capsys: pytest.CaptureFixture[str], opened: list[tuple[bool, str]]
):
    told = planned(small | town.deployed, capsys)
    assert "3 clients, which say how many records they have when the run starts" in told
    rows = [line.split() for line in told.splitlines() if line.strip()[:3] == "100"]
    sigma = {int(row[0]): float(row[3]) for row in rows}
    assert set(sigma) == {100, 1000, 10000}
    # sensitivity, and with it sigma, is proportional to 1 / n; four figures are shown
    assert sigma[100] == pytest.approx(10 * sigma[1000], rel=2e-3)
    assert sigma[100] == pytest.approx(100 * sigma[10000], rel=2e-3)
    assert {name for _, name in opened} == {"test.csv"}
