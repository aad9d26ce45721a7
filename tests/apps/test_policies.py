"""Policies at work: a real node refuses before it reads, and keeps its owner's total over runs, names and apps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.artifacts import NodeLedger
from fedveil.clients import cohort, modulated_cohort
from fedveil.datasets import table
from fedveil.privacy import Release, gaussian_mu
from fedveil.strategies.fleet import FleetError

COLUMNS = """\
[columns.age]
low = 18
high = 90
baseline = 40

[columns.hours]
low = 0.0
high = 80.0
baseline = 40.0
"""
SECRET = "77.0625"  # hours of somebody, and of nobody else
ATTRIBUTES = {"calibration": "attribute", "attribute_clip_rule": "fixed"}
TOTAL = "delta = 1e-5\nepsilon = {record = 1.2}\n"


@dataclass(frozen=True)
class Site:
    """One real node with records of its own, and what both apps are told to learn from them."""

    folder: Path
    home: Path

    @property
    def node(self) -> dict[str, Any]:
        return {"data-path": str(self.folder / "own.csv"), "data-schema": str(self.folder / "classes.toml")}

    @property
    def ledger(self) -> NodeLedger:
        return NodeLedger(self.home / "node-ledger.sqlite")

    def fedsva(self, **settings: Any) -> dict[str, Any]:
        return self._common("classes.toml", "label") | {
            "num-clients": 1,
            "num-server-rounds": 2,
            "client-column": "",
            "private-attributes": "age",
            "calibration": "uniform",
            **{key.replace("_", "-"): value for key, value in settings.items()},
        }

    def modulated(self, **settings: Any) -> dict[str, Any]:
        return self._common("numbers.toml", "pay") | {
            "options": "",
            "label-privacy": True,
            "epsilon": 1.0,
            **{key.replace("_", "-"): value for key, value in settings.items()},
        }

    def _common(self, schema: str, target: str) -> dict[str, Any]:
        return {
            "dataset": "csv",
            "data-path": "",
            "data-schema": str(self.folder / schema),
            "test-path": str(self.folder / "test.csv"),
            "target": target,
            "partition": "sites",
            "seed": "",
            "hooks": "none",
        }

    def has(self, policy: str) -> None:
        """What the owner writes into the node's policy."""
        (self.home / "policy.toml").write_text(policy)


@pytest.fixture
def site(tmp_path: Path, real_nodes: Path) -> Site:
    """40 people: two features, a class and a number to predict."""
    rng = np.random.default_rng(0)
    for name, count in (("own.csv", 40), ("test.csv", 20)):
        lines = ["age,hours,label,pay"]
        for row in range(count):
            hours = SECRET if name == "own.csv" and row == 0 else f"{rng.uniform(0, 70):.3f}"
            lines.append(f"{rng.integers(18, 90)},{hours},{'ab'[row % 2]},{rng.uniform(0, 9):.3f}")
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    classes = f'ignore = ["pay"]\n{COLUMNS}\n[columns.label]\nclasses = ["a", "b"]\n'
    numbers = f'ignore = ["label"]\n{COLUMNS}\n[columns.pay]\nlow = 0.0\nhigh = 10.0\nbaseline = 5.0\n'
    (tmp_path / "classes.toml").write_text(classes)
    (tmp_path / "numbers.toml").write_text(numbers)
    return Site(tmp_path, real_nodes)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tables that are opened."""
    found: list[str] = []
    original = table.open_csv

    def watched(path: Path) -> Any:
        found.append(path.name)
        return original(path)

    monkeypatch.setattr(table, "open_csv", watched)
    return found


@pytest.fixture
def train(site: Site, fedsva: Callable[..., Any]) -> Callable[..., Any]:
    """Run FedSVA on the one real node."""

    def run(**settings: Any) -> Any:
        return fedsva(site.fedsva(**settings), nodes=1, simulated=False, node_configs=[site.node])

    return run


@pytest.fixture
def regress(site: Site, modulated: Callable[..., Any]) -> Callable[..., Any]:
    """Run modulated learning on the one real node."""

    def run(**settings: Any) -> Any:
        node = site.node | {"data-schema": str(site.folder / "numbers.toml")}
        return modulated(site.modulated(**settings), nodes=1, simulated=False, node_configs=[node])

    return run


@pytest.mark.parametrize(
    ("policy", "settings", "refusal"),
    [
        ('apps = ["modulated"]', {}, "rule 'apps'"),
        ('privacy = ["central"]', {}, "rule 'privacy'"),
        ("", {"privacy": "none"}, "rule 'privacy'"),
        (None, {"privacy": "none"}, "rule 'privacy'"),
        ('relations = ["attribute"]', {}, "rule 'relations'"),
        ('calibrations = ["attribute", "paper"]', {}, "rule 'calibrations'"),
        ('columns = ["age", "label"]', {}, "rule 'columns'"),
        ('columns = ["age", "hours"]', {}, "rule 'columns'"),
        ('private-attributes = ["hours"]', ATTRIBUTES, "rule 'private-attributes'"),
        ("delta = 1e-5\nepsilon = {record = 0.99}", {}, "rule 'epsilon.record'"),
        (TOTAL, ATTRIBUTES, "rule 'epsilon.record'"),
        (TOTAL, {"privacy": "central"}, "rule 'epsilon.record'"),
        ('privacy = ["none"]\n' + TOTAL, {"privacy": "none"}, "rule 'epsilon.record'"),
        (TOTAL, {"sampling_rate": 0.5}, "rule 'epsilon.record'"),
        ("relation = ['record']", {}, "this node's policy file cannot be used, so it serves no run"),
    ],
)
def test_a_run_that_asks_for_more_is_refused_before_any_record_is_read(
    train: Callable[..., Any],
    site: Site,
    opened: list[str],
    policy: str | None,
    settings: dict[str, Any],
    refusal: str,
) -> None:
    if policy is not None:
        site.has(policy)
    with pytest.raises(FleetError) as refused:
        train(**settings)
    assert refusal in str(refused.value)
    assert "own.csv" not in opened
    assert str(site.home) not in str(refused.value)
    assert not (site.home / "node-ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("policy", "settings", "refusal"),
    [
        ('sensitivities = ["exact"]', {"sensitivity": "paper"}, "rule 'sensitivities'"),
        ('relations = ["record"]', {"label_privacy": False}, "rule 'relations'"),
        ('columns = ["age", "hours", "label"]', {}, "rule 'columns'"),
        ('private-attributes = ["pay"]', {"label_privacy": False}, "rule 'private-attributes'"),
        (TOTAL, {"label_privacy": False}, "rule 'epsilon.record'"),
        (TOTAL, {"epsilon": 1.3}, "rule 'epsilon.record'"),
        ('privacy = ["local"]', {"comparators": "no-privacy"}, "rule 'privacy'"),
        (None, {"comparators": "no-privacy"}, "rule 'privacy'"),
    ],
)
def test_modulated_learning_is_refused_alike(
    regress: Callable[..., Any],
    site: Site,
    opened: list[str],
    policy: str | None,
    settings: dict[str, Any],
    refusal: str,
) -> None:
    if policy is not None:
        site.has(policy)
    with pytest.raises(FleetError, match=refusal):
        regress(**settings)
    assert "own.csv" not in opened


def test_too_few_records_are_refused_before_one_is_used_and_their_number_is_not_told(
    train: Callable[..., Any], regress: Callable[..., Any], site: Site
) -> None:
    site.has("min-records = 41")
    for run, whose in ((train, "client 0"), (regress, "this node")):
        with pytest.raises(FleetError, match=f"rule 'min-records' .* asks for {whose}") as refused:
            run()
        assert not re.search(r"\b40\b", str(refused.value))
        assert SECRET not in str(refused.value)
    site.has("min-records = 40")
    train()
    regress()


def test_a_run_within_every_rule_is_served(train: Callable[..., Any], site: Site) -> None:
    site.has(
        'apps = ["fedsva"]\nprivacy = ["local"]\nrelations = ["record"]\ncalibrations = ["uniform"]\nmin-records = 40\n'
        'columns = ["age", "hours", "label"]\ndelta = 1e-5\nepsilon = {record = 1.0}\n'  # exactly the run's
    )
    train()
    (spent,) = site.ledger.spent_by_run("record").values()
    assert Fraction(0.999 * gaussian_mu(1.0, 1e-5)) ** 2 < spent <= Fraction(gaussian_mu(1.0, 1e-5)) ** 2


def test_a_run_that_protects_at_least_the_owners_attributes_is_served(
    train: Callable[..., Any], regress: Callable[..., Any], site: Site
) -> None:
    site.has('private-attributes = ["age"]')
    train(**ATTRIBUTES)
    train()  # whole records are all their attributes
    regress(label_privacy=False)
    regress()


def test_the_total_outlives_runs_in_both_apps(
    train: Callable[..., Any], regress: Callable[..., Any], site: Site
) -> None:
    site.has(TOTAL)
    train()
    before = site.ledger.spent_by_run("record")
    for run in (train, regress, train, regress):
        with pytest.raises(
            FleetError, match=r"may cost epsilon 1 at delta 1e-05; allowed: 1\.2 for all runs"
        ):
            run()
    assert site.ledger.spent_by_run("record") == before
    regress(epsilon=0.5)  # what is left is enough for it
    assert len(site.ledger.spent_by_run("record")) == 2
    with pytest.raises(FleetError, match=r"rule 'epsilon\.record'"):
        train(epsilon=0.5)


def test_modulated_learning_spends_of_what_fedsva_may(
    train: Callable[..., Any], regress: Callable[..., Any], site: Site
) -> None:
    site.has(TOTAL)
    regress()
    with pytest.raises(FleetError, match=r"rule 'epsilon\.record'"):
        train()


def test_a_run_that_gets_in_between_leaves_nothing_for_the_message_under_way(
    train: Callable[..., Any], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were asked when there was enough for each; the ledger's transaction decides."""
    site.has(TOTAL)
    original, limit = cohort.local_update, gaussian_mu(1.2, 1e-5)

    def slow(*given: Any, **named: Any) -> Any:
        if named["round"] == 2:
            (own,) = site.ledger.spent_by_run("record").values()
            rest = math.sqrt(Fraction(limit) ** 2 - own) * (1 - 1e-9)
            row = Release(0, 1, 0, "gradient", "record", rest, 1.0)
            NodeLedger(site.ledger.path, limits={"record": limit}).record("b", {0: "d"}, [row], replay=False)
        return original(*given, **named)

    monkeypatch.setattr(cohort, "local_update", slow)
    with pytest.raises(RuntimeError, match=r"refused by rule 'epsilon\.record'"):
        train()
    totals = site.ledger.spent_by_run("record")
    assert sum(totals.values()) <= Fraction(limit) ** 2
    assert [row.round for row in site.ledger.releases() if row.sigma != 1.0] == [1]


def test_a_run_that_gets_in_between_leaves_nothing_for_messages_under_way(
    regress: Callable[..., Any], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.has(TOTAL)
    original = modulated_cohort.encode_messages

    def slow(*given: Any) -> Any:
        row = Release(0, 1, 0, "gradient", "record", gaussian_mu(1.1, 1e-5), 1.0)
        site.ledger.record("other", {0: "d"}, [row], replay=False)
        return original(*given)

    monkeypatch.setattr(modulated_cohort, "encode_messages", slow)
    with pytest.raises(RuntimeError, match=r"refused by rule 'epsilon\.record'"):
        regress()
    assert set(site.ledger.spent_by_run("record")) == {"other"}
    assert site.ledger.cohort_releases() == ()


def test_the_word_of_a_trusted_server_is_booked_once_a_run_and_counts(
    train: Callable[..., Any], site: Site
) -> None:
    site.has('privacy = ["central"]\ndelta = 1e-5\nepsilon = {client = 1.2}')
    train(privacy="central")
    (spent,) = site.ledger.spent_by_run("client").values()
    assert float(spent) == pytest.approx(gaussian_mu(1.0, 1e-5) ** 2, rel=1e-9)
    with pytest.raises(FleetError, match=r"rule 'epsilon\.client'"):
        train(privacy="central")


def test_a_run_without_noise_counts_for_ever(
    train: Callable[..., Any], regress: Callable[..., Any], site: Site
) -> None:
    site.has('privacy = ["local", "none"]')
    train(privacy="none")
    site.has(TOTAL)
    for run in (train, regress):
        with pytest.raises(FleetError, match="nothing is left"):
            run(epsilon=0.1)


def test_a_comparator_without_noise_counts_for_ever_too(regress: Callable[..., Any], site: Site) -> None:
    site.has('privacy = ["local", "none"]')
    regress(comparators="no-privacy")
    assert [square == float("inf") for square in site.ledger.spent_by_run("attribute").values()].count(
        True
    ) == 1


def test_a_node_without_a_policy_says_so_once_a_run(train: Callable[..., Any]) -> None:
    assert train().output.count("this node has no policy: every run is served") == 1


def test_simulated_nodes_have_no_policy(
    fedsva: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.toml").write_text('apps = ["none"]')
    monkeypatch.setenv("FEDVEIL_POLICY", str(tmp_path / "policy.toml"))
    fedsva({"privacy": "none"})
