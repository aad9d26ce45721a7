"""What clients pay for is in the server's ledger and in the nodes' own, row for row, and within every budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedveil.artifacts import NodeLedger, cohort_table
from fedveil.privacy import compose_mu, gaussian_mu, worst_mu, zcdp_rho

ITERATIVE = {"strategy": "modulated-iterative", "num-server-rounds": 5}
ALL = {**ITERATIVE, "participation": "all"}
SAMPLED = {**ITERATIVE, "participation": "sampled", "fraction-train": 0.5}
EACH = {"reply": "each"}
WAYS: dict[str, dict[str, Any]] = {
    "one-shot": {},
    "one-shot, private labels": {"label-privacy": True},
    "one-shot, a sample": {"fraction-train": 0.25},
    "one-shot, the paper's rule by zCDP": {"sensitivity": "paper", "accounting": "zcdp"},
    "estimated ranges": {"standardization": "estimated", "range-share": 0.3},
    "cohorts, pooled": ITERATIVE,
    "cohorts, fresh": {**ITERATIVE, "estimate": "fresh"},
    "cohorts, pooled, estimated ranges": {**ITERATIVE, "standardization": "estimated"},
    "all, pooled": ALL,
    "all, fresh": {**ALL, "estimate": "fresh"},
    "all, averaged": {**ALL, **EACH, "estimate": "averaged"},
    "all, fresh, private labels": {**ALL, "estimate": "fresh", "label-privacy": True},
    "sampled, pooled": SAMPLED,
    "sampled, fresh": {**SAMPLED, "estimate": "fresh"},
    "sampled, averaged": {**SAMPLED, **EACH, "estimate": "averaged"},
    "sampled, pooled, unseeded": {**SAMPLED, "seed": ""},
}


def budget_of(settings: dict[str, Any]) -> float:
    """mu of a client's total: exact, or sqrt(2 rho) of zCDP."""
    epsilon = settings.get("epsilon", 8.0)
    exact = settings.get("accounting", "exact") == "exact"
    return gaussian_mu(epsilon, 1e-5) if exact else math.sqrt(2 * zcdp_rho(epsilon, 1e-5))


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_both_ledgers_have_the_same_rows_and_nobody_passes_the_budget(
    modulated: Callable[..., Any], settings: dict[str, Any]
):
    run = modulated(settings, nodes=3)
    own = run.node_cohorts
    written = pq.read_table(run.folder / "ledger.parquet")
    assert cohort_table(own).equals(written)
    assert run.rows
    relation = "record" if settings.get("label-privacy") else "attribute"
    assert {row["relation"] for row in run.rows} == {relation}
    assert {(row["source"], row["chosen"]) for row in run.rows} == {("reply", "fixed")}
    # as a person would add it up: the square root of a client's sum of (D/sigma)^2
    spent: dict[int, list[float]] = {}
    for row in run.rows:
        spent.setdefault(row["client"], []).append(row["sensitivity"] / row["sigma"])
    worst = max(compose_mu(mus) for mus in spent.values())
    assert worst == pytest.approx(worst_mu(own, relation), rel=1e-12)
    assert worst <= budget_of(settings) * (1 + 1e-12)


def test_disjoint_cohorts_let_every_client_pay_once(modulated: Callable[..., Any]):
    run = modulated(WAYS["cohorts, pooled"])
    assert Counter(row["client"] for row in run.rows) == Counter(dict.fromkeys(range(400), 1))
    assert Counter(row["round"] for row in run.rows) == Counter(dict.fromkeys(range(1, 6), 80))


def test_with_every_client_in_every_round_the_noise_grows_as_the_root_of_the_rounds(
    modulated: Callable[..., Any],
):
    once, often = modulated(WAYS["cohorts, pooled"]), modulated(WAYS["all, pooled"])
    assert Counter(row["client"] for row in often.rows) == Counter(dict.fromkeys(range(400), 5))
    assert often.rows[0]["sigma"] == pytest.approx(math.sqrt(5) * once.rows[0]["sigma"], rel=1e-9)


def test_sampled_clients_that_were_drawn_as_often_as_planned_are_not_asked_again(
    modulated: Callable[..., Any],
):
    run = modulated({**SAMPLED, "num-server-rounds": 12})
    counts = Counter(row["client"] for row in run.rows)
    assert max(counts.values()) == 6  # half of twelve, and not one more
    assert set(run.metrics[-1]) >= {"out-of-budget", "clients", "sigma", "epsilon-attribute"}
    assert run.metrics[-1]["epsilon-attribute"] == pytest.approx(8.0, rel=1e-6)


def test_estimated_ranges_have_a_row_of_their_own_and_their_share_of_the_budget(
    modulated: Callable[..., Any],
):
    run = modulated(WAYS["estimated ranges"])
    budget = budget_of({}) ** 2
    assert Counter((row["release"], row["round"]) for row in run.rows) == Counter(
        {("range-message", 0): 400, ("modulated-message", 1): 400}
    )
    for row in run.rows:
        share = {"range-message": 0.3, "modulated-message": 0.7}[row["release"]]
        assert row["mu"] ** 2 == pytest.approx(share * budget, rel=1e-6)
    assert "means and spreads of the features are estimated first" in run.output
    assert "30 % of the mu^2 budget, with a ledger row of its own" in run.output


def test_the_papers_rule_and_zcdp_ask_for_more_noise_and_give_no_more_privacy_than_they_state(
    modulated: Callable[..., Any],
):
    exact, both = modulated(), modulated(WAYS["one-shot, the paper's rule by zCDP"])
    paper, zcdp = modulated({"sensitivity": "paper"}), modulated({"accounting": "zcdp"})
    sigmas = [run.rows[0]["sigma"] for run in (exact, paper, zcdp, both)]
    # 2 B (|1 - alpha| + lambda omega) against 2 B |1 - alpha|, and sqrt(2 rho) against mu
    loss = budget_of({}) / budget_of({"accounting": "zcdp"})
    assert [sigma / sigmas[0] for sigma in sigmas] == pytest.approx(
        [1, 12 / 7, loss, 12 / 7 * loss], rel=1e-9
    )
    assert loss > 1.05


def test_comparators_are_in_no_ledger_of_the_run(modulated: Callable[..., Any]):
    plain, beside = modulated(), modulated({"comparators": "lambda-0,dp-sgd"})
    assert beside.rows == plain.rows
    assert len(beside.node_cohorts) == len(plain.node_cohorts)
    others = NodeLedger(beside.folder / "node-ledger.sqlite").cohort_releases()
    assert len(others) > len(beside.node_cohorts)  # the nodes keep them under names of their own


def test_how_many_records_were_clipped_stays_in_the_nodes_own_notes(modulated: Callable[..., Any]):
    run = modulated({"bound": 0.25})
    notes = NodeLedger(run.folder / "node-ledger.sqlite").notes(run.folder.name)
    assert len(notes) == 2
    assert all("records were clipped to norm 0.25" in note for note in notes.values())
    told = run.output + (run.folder / "estimate.json").read_text()
    assert "x clipped to norm 0.25 (" in told  # the public bound
    assert "were clipped" not in told
