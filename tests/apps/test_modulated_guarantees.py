"""What a run of modulated learning says it guarantees, recomputed from its ledger by the closed form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from scipy.stats import norm

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import load_regression

DELTA = 1e-5


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Delta of a mu-GDP mechanism at epsilon (arXiv 1905.02383, corollary 2.13)."""
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def worst_mu(run: Any) -> float:
    """mu of the client that has sent most, as a person would add up its rows."""
    squares: dict[int, float] = {}
    for row in run.rows:
        squares[row["client"]] = squares.get(row["client"], 0.0) + (row["sensitivity"] / row["sigma"]) ** 2
    return math.sqrt(max(squares.values()))


def stated(run: Any) -> dict[str, dict[str, Any]]:
    """The guarantees in the model's file, which are those in estimate.json too."""
    assert run.estimate["guarantees"] == RunFolder(run.folder).load_model()[1]["guarantees"]
    return run.guarantees


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 30.0])
def test_features_are_proven_at_the_epsilon_asked_for_and_records_with_open_labels_not_at_all(
    modulated: Callable[..., Any], epsilon: float
):
    run = modulated({"epsilon": epsilon})
    found = stated(run)
    assert set(found) == {"attribute", "record"}
    assert found["attribute"]["kind"] == "proven"
    assert found["attribute"]["delta"] == DELTA
    assert gaussian_delta(found["attribute"]["epsilon"], worst_mu(run)) == pytest.approx(DELTA, rel=1e-6)
    assert 0.999 * epsilon < found["attribute"]["epsilon"] <= epsilon
    assert (found["record"]["kind"], found["record"]["epsilon"]) == ("none", "inf")
    assert "labels leave their clients in the clear (label-privacy is off)" in run.output
    assert (
        "no proven guarantee under the record relation: labels leave their clients in the clear" in run.output
    )
    assert f"total epsilon {epsilon:g} at delta 1e-05 for each client, attribute relation" in run.output


def test_with_private_labels_whole_records_are_proven(modulated: Callable[..., Any]):
    run = modulated({"label-privacy": True, "epsilon": 4.0})
    found = stated(run)
    for relation in ("attribute", "record"):  # who replaces features only replaces a part of the record
        assert found[relation]["kind"] == "proven"
        assert 3.99 < found[relation]["epsilon"] <= 4.0
    assert gaussian_delta(found["record"]["epsilon"], worst_mu(run)) == pytest.approx(DELTA, rel=1e-6)
    assert "in the clear" not in run.output
    assert re.search(r"eps\(record\) 4 of 4 ", run.output)


def test_zcdp_states_less_epsilon_than_was_asked_for_and_says_why(modulated: Callable[..., Any]):
    run = modulated({"accounting": "zcdp", "epsilon": 4.0})
    found = stated(run)["attribute"]
    assert found["epsilon"] < 3.8
    assert gaussian_delta(found["epsilon"], worst_mu(run)) == pytest.approx(DELTA, rel=1e-6)
    assert "epsilon 4 became noise by zCDP, which asks for more than the exact accounting" in run.output


def test_the_papers_rule_keeps_the_guarantee_with_more_noise(modulated: Callable[..., Any]):
    run = modulated({"sensitivity": "paper"})
    assert 7.99 < stated(run)["attribute"]["epsilon"] <= 8.0
    assert "the publication's bound, which asks for more noise than the messages need" in run.output


@pytest.mark.parametrize(
    "settings",
    [
        {"participation": "all"},
        {"participation": "sampled", "fraction-train": 0.5},
        {"participation": "all", "estimate": "averaged", "reply": "each"},
        {"participation": "cohorts", "standardization": "estimated"},
        {"participation": "all", "standardization": "estimated", "label-privacy": True},
    ],
)
def test_the_epsilon_of_an_iterative_run_is_that_of_all_its_rounds(
    modulated: Callable[..., Any], settings: dict[str, Any]
):
    run = modulated({"strategy": "modulated-iterative", "num-server-rounds": 6, **settings})
    relation = "record" if settings.get("label-privacy") else "attribute"
    found = stated(run)[relation]
    assert found["kind"] == "proven"
    assert gaussian_delta(found["epsilon"], worst_mu(run)) == pytest.approx(DELTA, rel=1e-6)
    assert 7.9 < found["epsilon"] <= 8.0
    # no line on the way shows more than the budget, and none less than the one before
    shown = [row[f"epsilon-{relation}"] for row in run.metrics]
    assert shown == sorted(shown)
    assert shown[-1] == pytest.approx(found["epsilon"], rel=1e-9)


@pytest.mark.parametrize("bound", ["", 1.0, 0.25])
def test_how_many_public_test_records_are_longer_than_the_clip_is_announced(
    modulated: Callable[..., Any], town: dict[str, Any], bound: Any
):
    run = modulated({"bound": bound})
    problem = load_regression(ModulatedConfig.from_run_config({**town, "bound": bound}))
    longer = [math.hypot(*record) > (bound or 3**0.5 / 2) for record in problem.data.test.features.tolist()]
    share = 100 * sum(longer) / len(longer)
    assert 10 < share < 100
    assert f" ({share:.0f} % of the public test records are longer); sensitivity" in run.output
    # what the clip is of is not known before ranges are estimated
    assert "are longer" not in modulated({"bound": bound, "standardization": "estimated"}).output


def test_reconstruction_is_told_beside_guessing_and_without_the_wave(modulated: Callable[..., Any]):
    run = modulated()
    found = run.estimate["reconstruction"]
    # with c = 0.7 an unbiased attacker has d sigma^2/c^2 from one message, and more with a wave along a direction
    plain = 3 * run.rows[0]["sigma"] ** 2 / 0.49
    assert found["unbiased_unmodulated"] == pytest.approx(plain, rel=1e-9)
    assert plain < found["unbiased"] < 2 * plain
    assert found["guess"] == pytest.approx(3 / 4)  # B^2, B = 0.5 sqrt(3)
    assert found["bayesian_unmodulated"] < found["bayesian"] < found["guess"]
    again = modulated({"frequency": 9.0}).estimate["reconstruction"]
    for name in ("unbiased", "unbiased_unmodulated", "bayesian", "bayesian_unmodulated", "guess"):
        assert again[name] == pytest.approx(found[name], rel=1e-9)
    assert "the frequency of the modulation changes none of these" in run.output


def test_comparators_are_told_with_what_each_of_them_guarantees(modulated: Callable[..., Any]):
    run = modulated({"comparators": "auto", "epsilon": 2.0})
    told = {entry["method"]: entry for entry in run.estimate["comparators"]}
    assert set(told) == {"lambda-0", "iterative", "dp-sgd", "no-privacy"}
    assert told["no-privacy"]["privacy"] == "none"
    assert told["dp-sgd"]["privacy"] == "epsilon 2 at delta 1e-05, record relation"
    assert told["lambda-0"]["privacy"] == "epsilon 2 at delta 1e-05, attribute relation"
    assert "study only, for each of them would spend every client's budget once more" in run.output
    for entry in told.values():
        assert f"{entry['r2']:.4f}" in run.output
    assert told["no-privacy"]["r2"] > 0.6  # at most 0.8 by its own noise
    # the guarantee is of the run itself, which the comparators are no part of
    assert 1.999 < stated(run)["attribute"]["epsilon"] <= 2.0


def test_without_a_wave_the_run_is_not_compared_with_itself_and_a_single_feature_will_do(
    modulated: Callable[..., Any],
):
    plain = {"options": "dataset = {records = 400, features = 1}", "amplitude": 0.0, "comparators": "auto"}
    for strategy in ("modulated-one-shot", "modulated-iterative"):
        run = modulated({**plain, "strategy": strategy})
        other = {"modulated-one-shot": "iterative", "modulated-iterative": "one-shot"}[strategy]
        assert {entry["method"] for entry in run.estimate["comparators"]} == {other, "dp-sgd", "no-privacy"}
        assert "(nothing is modulated)" in run.output
        assert len(run.coefficients) == 2
        assert 7.99 < stated(run)["attribute"]["epsilon"] <= 8.0
        assert run.estimate["held-out"]["r2"] > 0.3  # of at most 0.8; one feature is found easily


def test_few_clients_are_compared_with_disjoint_cohorts_of_one_client_each(modulated: Callable[..., Any]):
    few = {"options": "dataset = {records = 12, features = 3}", "dp-sgd-rounds": 50, "comparators": "auto"}
    run = modulated(few)
    ledger = NodeLedger(run.folder / "node-ledger.sqlite")
    for name in ("iterative", "dp-sgd"):
        sent = ledger.cohort_releases(f"{run.folder.name}-{name}")
        assert {cohort.release.round for cohort in sent} == set(range(1, 13))
        assert sorted(client for cohort in sent for client in cohort.clients) == list(range(12))


def test_what_is_not_finite_is_a_word_in_the_documents(modulated: Callable[..., Any]):
    text = (modulated().folder / "estimate.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
