"""Modulated learning where every node brings its own records: one model, whose bits no kind of engine changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from typer.testing import CliRunner

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.cli import cli
from fedveil.clients.modulated_cohort import ModulatedCohort
from fedveil.clients.modulated_request import MessageRequest
from fedveil.config import ConfigError, modulated_data
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import load_site
from fedveil.config.modulated_planning import variant_plans
from fedveil.config.sites import SiteData
from fedveil.moment_sums import block_size
from fedveil.privacy import ModulatedMoments, draw_directions, one_shot
from fedveil.run import InProcessGrid
from fedveil.strategies import FleetError
from fedveil.streams import Streams

SIZES = (150, 37, 61)
TOTAL = sum(SIZES)
SCHEMA = """\
[columns.dose]
low = 0
high = 10
baseline = 5

[columns.age]
low = 18
high = 90
baseline = 40

[columns.ward]
categories = ["a", "b", "c"]
baseline = "a"

[columns.days]
low = -5
high = 15
baseline = 5
"""
ITERATIVE = {"strategy": "modulated-iterative", "num-server-rounds": 3}
WAYS: dict[str, dict[str, Any]] = {
    "one-shot": {},
    "one-shot, private labels": {"label-privacy": True, "num-directions": 2},
    "one-shot, a sample": {"fraction-train": 0.3},
    "one-shot, estimated ranges": {"standardization": "estimated"},
    "disjoint cohorts": ITERATIVE,
    "samples, pooled": {**ITERATIVE, "participation": "sampled", "fraction-train": 0.4},
    "all, fresh": {**ITERATIVE, "participation": "all", "estimate": "fresh"},
}

Runs = Callable[..., Any]


def records(count: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    dose, age = np.round(rng.uniform(0, 10, count), 2), rng.integers(18, 91, count)
    ward = rng.choice(["a", "b", "c"], count)
    days = 2 + 0.5 * dose - 0.03 * age + (ward == "b") + rng.normal(0, 0.3, count)
    rows = [f"{d},{a},{w},{y:.3f}" for d, a, w, y in zip(dose, age, ward, days, strict=True)]
    return "\n".join(["dose,age,ward,days", *rows]) + "\n"


class Sites:
    """Three hospitals' files, a public test set and the public description, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "schema.toml").write_text(SCHEMA)
        (folder / "test.csv").write_text(records(50, 99))
        for site, count in enumerate(SIZES):
            self.file(site).write_text(records(count, site))

    def file(self, site: int) -> Path:
        return self.folder / f"site-{site}.csv"

    @property
    def simulated(self) -> dict[str, Any]:
        return {
            "dataset": "csv",
            "options": "",
            "partition": "sites",
            "target": "days",
            "data-path": str(self.folder / "site-{client}.csv"),
            "data-schema": str(self.folder / "schema.toml"),
            "test-path": str(self.folder / "test.csv"),
        }

    @property
    def deployed(self) -> dict[str, Any]:
        return {**self.simulated, "data-path": "", "seed": ""}

    @property
    def node_configs(self) -> list[dict[str, str]]:
        schema = str(self.folder / "schema.toml")
        return [{"data-path": str(self.file(site)), "data-schema": schema} for site in range(len(SIZES))]


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    (tmp_path / "town").mkdir()
    return Sites(tmp_path / "town")


@pytest.fixture
def simulate(modulated: Runs, sites: Sites) -> Runs:
    """Run a simulation of the three sites with these settings over theirs."""
    return lambda settings=None, **options: modulated(
        {**sites.simulated, **(settings or {})}, **{"nodes": 3, **options}
    )


@pytest.fixture
def deploy(modulated: Runs, sites: Sites, real_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Run the same on real nodes, each with its own file and a folder of FedVeil's of its own."""
    deliver = InProcessGrid._deliver

    def at_home(grid: InProcessGrid, message: Message) -> Message:
        number = grid._contexts[message.metadata.dst_node_id].node_config["partition-id"]
        os.environ["FEDVEIL_HOME"] = str(real_nodes / str(number))
        return deliver(grid, message)

    monkeypatch.setattr(InProcessGrid, "_deliver", at_home)
    return lambda settings=None, **options: modulated(
        {**sites.deployed, **(settings or {})},
        **{"nodes": 3, "simulated": False, "node_configs": sites.node_configs, **options},
    )


def ledger_of(real_nodes: Path, number: int) -> NodeLedger:
    return NodeLedger(real_nodes / str(number) / "node-ledger.sqlite")


# the same bits


def test_the_coefficients_are_those_of_block_sums_added_by_hand_from_the_cohorts_of_three_files(
    simulate: Runs, sites: Sites
):
    run = simulate()
    config = ModulatedConfig.from_run_config(RunFolder(run.folder).config | {"seed": 7})
    streams = Streams.seeded(config.config_hash, 7)
    wave, size = config.modulation, block_size(TOTAL)
    directions = draw_directions(
        1, 4, streams.stream("directions", round=1).normal, orthogonal_to=np.zeros(4)
    )
    totals: dict[str, Any] = dict.fromkeys(("gram", "cross", "total", "labels"), 0)
    first = 0
    for site, count in enumerate(SIZES):
        problem = load_site(config, SiteData(str(sites.file(site)), config.data_schema), f"site {site}")
        variant = variant_plans(config, problem, simulated=True)["main"]
        node = ModulatedCohort(
            problem.rows, None, count, None, {"main": variant}, streams, None, "hand", True
        )
        request = MessageRequest(
            1,
            "hand",
            "main",
            "modulated",
            np.arange(first, first + count),
            True,
            np.zeros(5),
            directions,
            first=first,
            num_clients=TOTAL,
        )
        sent = node.answer(request).arrays
        grid = variant.grid(TOTAL)
        for start in range(0, count, size):
            g, y = sent["messages"][start : start + size], sent["labels"][start : start + size]
            both = np.stack([y, np.ones(len(y))])
            for name, value in (
                ("gram", g.T @ g),
                ("cross", (both @ g)[0]),
                ("total", (both @ g)[1]),
                ("labels", (both @ y)[::-1]),
            ):
                totals[name] = totals[name] + np.rint(np.ldexp(value, grid.bits[name])).astype(np.int64)
        first += count
    assert first == TOTAL
    real = {name: np.ldexp(value.astype(float), -grid.bits[name]) for name, value in totals.items()}
    moments = ModulatedMoments.from_sums(
        real["gram"],
        real["cross"],
        real["total"],
        float(real["labels"][0]),
        float(real["labels"][1]),
        TOTAL,
        modulation=wave,
        directions=directions,
        sigma=variant.sigma,
        label_scale=None,
    )
    expected = one_shot(moments.normal_equations(), bound=problem.bound).coefficients
    assert run.coefficients.tobytes() == expected.tobytes()


def test_without_noise_real_nodes_give_the_bits_of_simulated_ones(
    simulate: Runs, deploy: Runs, real_nodes: Path, monkeypatch: pytest.MonkeyPatch
):
    policy = real_nodes / "policy.toml"
    policy.write_text('privacy = ["local", "none"]\n')
    monkeypatch.setenv("FEDVEIL_POLICY", str(policy))
    deployed = deploy({"comparators": "no-privacy"}, reverse_replies=True)
    monkeypatch.undo()
    simulated = simulate({"comparators": "no-privacy"})
    (expected,), (found,) = simulated.estimate["comparators"], deployed.estimate["comparators"]
    assert found == expected
    assert len(found["coefficients"]) == 5
    assert found["r2"] > 0.9
    assert "records leave their nodes without any noise" in deployed.output


def test_real_nodes_send_no_record_without_noise_unless_their_owners_policy_says_so(deploy: Runs):
    with pytest.raises(FleetError, match="without noise"):
        deploy({"comparators": "no-privacy"})


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_every_way_to_learn_gives_the_same_bytes_in_any_order_of_replies_and_from_single_messages(
    simulate: Runs, settings: dict[str, Any]
):
    expected = simulate(settings)
    assert expected.estimate["clients"] == TOTAL
    for again in ({}, {"reply": "each"}):
        assert simulate({**settings, **again}, reverse_replies=True).results == expected.results


def test_averages_of_each_clients_messages_work_too(simulate: Runs):
    run = simulate({**ITERATIVE, "participation": "all", "estimate": "averaged", "reply": "each"})
    assert np.isfinite(run.coefficients).all()


@pytest.mark.parametrize(
    "settings", [{}, {**ITERATIVE, "participation": "all", "standardization": "estimated"}]
)
def test_real_nodes_file_every_message_under_their_own_numbers_and_the_server_as_many(
    deploy: Runs, real_nodes: Path, settings: dict[str, Any]
):
    run = deploy(settings)
    for number, count in enumerate(SIZES):
        cohorts = ledger_of(real_nodes, number).cohort_releases()
        assert len(cohorts) == (4 if settings else 1)
        assert all(sent.clients.tolist() == list(range(count)) for sent in cohorts)
    assert len(run.rows) == TOTAL * (4 if settings else 1)
    assert len({row["client"] for row in run.rows}) == TOTAL
    assert run.guarantees["attribute"]["epsilon"] == pytest.approx(8.0, rel=1e-6)


def test_a_node_that_shares_one_data_set_opens_no_file_that_a_server_names(
    modulated: Runs, sites: Sites, real_nodes: Path
):
    settings = {**sites.simulated, "partition": "shares", "data-path": str(sites.file(0)), "seed": ""}
    with pytest.raises(FleetError, match="a real node opens no file that a server names"):
        modulated(settings, simulated=False)


# what the server learns


def test_a_node_tells_how_many_records_it_has_and_nothing_else_before_its_messages(simulate: Runs):
    run = simulate()
    answers = [reply.content for reply in run.replies if "query" in reply.metadata.message_type]
    assert [set(answer) for answer in answers] == [{"config"}] * 3
    for answer, count in zip(answers, SIZES, strict=True):
        told = dict(answer.config_records["config"])
        assert set(told) == {"partition-id", "num-partitions", "count", "schema", "library", "source"}
        assert told["count"] == count
    assert len({answer.config_records["config"]["schema"] for answer in answers}) == 1


def test_requests_number_clients_by_the_order_of_partitions(simulate: Runs):
    run = simulate()
    asked = [message.content.config_records["config"] for message in run.requests][3:]
    assert [(record["first"], record["num-clients"]) for record in asked] == [
        (0, TOTAL),
        (150, TOTAL),
        (187, TOTAL),
    ]
    assert f"3 sites bring {TOTAL} clients of one record each" in run.output


# a run that goes on


class Interrupted(Exception):
    """The server died."""


def test_an_interrupted_run_goes_on_and_ends_byte_equal(
    simulate: Runs, modulated_run: Callable[..., Any], sites: Sites, tmp_path: Path, monkeypatch: Any
):
    settings = {**ITERATIVE, "standardization": "estimated"}
    unbroken = simulate(settings)
    folder = _die_in_round(2, simulate, settings, tmp_path / "dead", monkeypatch)
    result = modulated_run({}, "--resume", folder, "--num-supernodes", 3)
    assert result.exit_code == 0, result.stderr
    found = type(unbroken)(folder, "", [], [])
    assert found.results == unbroken.results
    assert found.estimate == unbroken.estimate


def test_a_run_does_not_go_on_with_sites_that_have_other_numbers_of_records(
    simulate: Runs, modulated_run: Callable[..., Any], sites: Sites, tmp_path: Path, monkeypatch: Any
):
    folder = _die_in_round(2, simulate, ITERATIVE, tmp_path / "dead", monkeypatch)
    # one more here and one less there: all together as many as before
    for site, count in ((0, SIZES[0] + 1), (1, SIZES[1] - 1)):
        sites.file(site).write_text(records(count, site))
    modulated_data._load_whole.cache_clear()
    result = modulated_run({}, "--resume", folder, "--num-supernodes", 3)
    assert result.exit_code == 1
    assert "the number of records at each site is not what it was" in result.output.replace("\n", " ")


def _die_in_round(number: int, simulate: Runs, settings: Any, root: Path, monkeypatch: Any) -> Path:
    """Run until the checkpoint of this round is about to be written; the folder that is left."""
    save = RunFolder.save_checkpoint

    def die(folder: RunFolder, checkpoint: Any) -> None:
        if checkpoint.round == number:
            raise Interrupted
        save(folder, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", die)
        with pytest.raises(Interrupted):
            simulate(settings, output_dir=root)
    (folder,) = root.glob("*-modulated-*")
    return Path(folder)


def test_records_that_change_in_the_middle_of_a_run_are_refused_and_nothing_is_sent_for_them(
    deploy: Runs, sites: Sites, real_nodes: Path, monkeypatch: pytest.MonkeyPatch
):
    deliver = InProcessGrid._deliver
    rounds: list[str] = []

    def change(grid: InProcessGrid, message: Message) -> Message:
        if message.metadata.group_id == "2" and "2" not in rounds:
            header, *rows = sites.file(1).read_text().splitlines()
            sites.file(1).write_text("\n".join([header, *rows[::-1]]) + "\n")
            from modulated_app import client_app  # what a new process would not remember

            for cached in (client_app.host, client_app.own_records, modulated_data._load_whole):
                cached.cache_clear()
        rounds.append(message.metadata.group_id)
        return deliver(grid, message)

    monkeypatch.setattr(InProcessGrid, "_deliver", change)
    run = deploy({**ITERATIVE, "participation": "all"})
    assert "node 1: the records are not those that run" in run.output
    assert len(ledger_of(real_nodes, 1).cohort_releases()) == 1
    assert len(ledger_of(real_nodes, 0).cohort_releases()) == 3


# what is wrong with a site, by its name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "node 1: .*site-1.csv"),
        ("dose,age,ward,days\n", "node 1: .*has columns but no rows"),
        (
            "dose,age,ward,days\n5,40,a,2000\n",
            "node 1: a target is more than 64 half widths of the public range of 'days' away",
        ),
        ("dose,age,ward,days\n5,40,d,2\n", "node 1: .*column 'ward'"),
        ("dose,age,days\n5,40,2\n", "node 1: .*ward"),
        (None, "node 1: There is no data file"),
    ],
    ids=["nothing", "a header alone", "target out of range", "category", "column", "no file"],
)
def test_a_site_whose_file_cannot_be_used_is_named(
    simulate: Runs, sites: Sites, content: str | None, words: str
):
    sites.file(1).unlink()
    if content is not None:
        sites.file(1).write_text(content)
    with pytest.raises(FleetError, match=words):
        simulate()


def test_a_target_out_of_its_range_is_clipped_where_labels_are_private(simulate: Runs, sites: Sites):
    sites.file(1).write_text("dose,age,ward,days\n5,40,a,2000\n")
    run = simulate({"label-privacy": True})
    assert run.estimate["clients"] == TOTAL - SIZES[1] + 1
    assert "node 1 has one record" in run.output


@pytest.mark.parametrize(
    "change", [("high = 10", "high = 12"), ("low = -5", "low = -6"), ('["a", "b", "c"]', '["a", "c", "b"]')]
)
def test_a_site_with_another_description_is_named(deploy: Runs, sites: Sites, change: tuple[str, str]):
    (sites.folder / "other.toml").write_text(SCHEMA.replace(*change, 1))
    told = sites.node_configs
    told[2]["data-schema"] = str(sites.folder / "other.toml")
    with pytest.raises(FleetError, match="node 2 describes its records in another way than the server"):
        deploy(node_configs=told)


def test_a_real_node_without_a_path_of_its_owners_is_named(deploy: Runs, sites: Sites):
    with pytest.raises(FleetError, match="node 1: this node has no data-path"):
        deploy(node_configs=[sites.node_configs[0], {}, sites.node_configs[2]])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data-path": "/data/all.csv"}, "names one file for all"),
        ({"data-path": ""}, "in a simulation: write {client}"),
        ({"test-path": ""}, "needs test-path"),
        ({"data-schema": ""}, "needs data-schema"),
        ({"dataset": "fair", "target": ""}, "is for records in files"),
        ({**ITERATIVE, "num-server-rounds": TOTAL + 1}, f"and there are {TOTAL}; use fewer rounds"),
    ],
)
def test_settings_that_sites_cannot_have_are_refused_in_words(
    simulate: Runs, settings: dict[str, Any], words: str
):
    with pytest.raises(ValueError, match=re.escape(words)):
        simulate(settings)


def test_sites_need_a_public_range_of_the_target(simulate: Runs, sites: Sites):
    description = SCHEMA.replace("low = -5\nhigh = 15\nbaseline = 5\n", "")
    (sites.folder / "schema.toml").write_text(description)
    with pytest.raises(ConfigError, match="public range"):
        simulate()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_simulation_with_fewer_nodes_than_files_is_refused_before_anything_is_sent(
    modulated: Runs, sites: Sites, nodes: int
):
    with pytest.raises(
        ConfigError, match=f"stands for 3 sites here.*has {nodes} node.*set num-supernodes to 3"
    ):
        modulated(sites.simulated, nodes=nodes)


def test_nodes_that_were_started_with_one_number_are_named(deploy: Runs, sites: Sites):
    told: list[dict[str, Any]] = list(sites.node_configs)
    told[1] = told[1] | {"partition-id": 0}
    with pytest.raises(FleetError, match="node 0 is there twice: give every node its own partition-id"):
        deploy(node_configs=told)


@pytest.mark.parametrize("said", [1, 2])
def test_no_site_is_left_out_without_a_word(deploy: Runs, sites: Sites, said: int):
    told: list[dict[str, Any]] = list(sites.node_configs)
    told[0] = told[0] | {"num-partitions": said}
    with pytest.raises(FleetError, match=f"node 0: {said}; node 1-2: 3"):
        deploy(node_configs=told)


def test_a_plan_for_real_sites_lists_no_comparator_that_only_simulations_run(sites: Sites):
    for settings, listed in ((sites.simulated, {"main", "dp-sgd"}), (sites.deployed, {"main"})):
        said = [f'{key}="{value}"' for key, value in settings.items()]
        typed = [part for text in [*said, "epsilon=4.0"] for part in ("-c", text)]
        result = CliRunner().invoke(cli, ["plan", "modulated", *typed])
        assert result.exit_code == 0, result.output
        rows = {line.split()[0] for line in result.stdout.splitlines() if line.strip()}
        assert rows & {"main", "lambda-0", "iterative", "dp-sgd", "no-privacy"} >= listed
        assert ("dp-sgd" in rows) == ("dp-sgd" in listed)
