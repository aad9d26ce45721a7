"""The same seed gives the same coefficients and ledger to the byte, however clients are spread and replies come."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

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


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_the_same_seed_gives_the_same_bytes_on_any_number_of_nodes_and_in_any_order_of_replies(
    modulated: Callable[..., Any], settings: dict[str, Any]
):
    expected = modulated(settings, nodes=1)
    for nodes, reverse in ((2, True), (16, False)):
        run = modulated(settings, nodes=nodes, reverse_replies=reverse)
        assert run.results == expected.results, (nodes, reverse)
        assert run.estimate == expected.estimate


def test_averages_of_each_clients_messages_have_the_same_bits_too(modulated: Callable[..., Any]):
    settings = {**ITERATIVE, "participation": "all", "estimate": "averaged", "reply": "each"}
    expected = modulated(settings, nodes=1).results
    assert modulated(settings, nodes=16, reverse_replies=True).results == expected


@pytest.mark.parametrize("name", ["one-shot", "one-shot, private labels", "samples, pooled"])
def test_single_messages_give_the_coefficients_of_their_sums(modulated: Callable[..., Any], name: str):
    sums, each = modulated(WAYS[name]), modulated({**WAYS[name], "reply": "each"}, nodes=16)
    assert each.results == sums.results
    sent = [set(run.replies[-1].content["arrays"]) for run in (sums, each)]
    assert sent == [{"gram", "cross", "total", "labels"}, {"messages", "labels"}]


@pytest.mark.parametrize("name", ["one-shot", "disjoint cohorts"])
def test_another_seed_and_no_seed_give_other_coefficients(modulated: Callable[..., Any], name: str):
    runs = [modulated({**WAYS[name], "seed": seed}).results for seed in (7, 8, "", "")]
    assert len({model for model, _ in runs}) == 4
    if name == "one-shot":  # the ledger says who sent what noise, which no seed changes
        assert len({ledger for _, ledger in runs}) == 1


def test_where_a_run_writes_what_runs_beside_it_and_how_long_it_waits_change_no_bit(
    modulated: Callable[..., Any], tmp_path
):
    expected = modulated()
    for settings in ({"round-timeout": 7.0}, {"comparators": "dp-sgd,no-privacy"}):
        run = modulated(settings, output_dir=tmp_path / "elsewhere")
        assert run.coefficients.tobytes() == expected.coefficients.tobytes()
        assert run.results[1] == expected.results[1]


def test_the_seed_is_nowhere_in_what_a_finished_run_leaves_or_says(modulated: Callable[..., Any]):
    run = modulated({"seed": 918273645})
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) >= 6
    for path in files:
        assert b"918273645" not in path.read_bytes(), path
    assert "918273645" not in run.output + json.dumps(run.estimate)
    assert "simulation: no privacy against who knows the seed" in run.output


def test_an_unseeded_run_does_not_warn_of_a_seed(modulated: Callable[..., Any]):
    assert "who knows the seed" not in modulated({"seed": ""}).output
