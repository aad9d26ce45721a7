"""The same seed gives the same model and ledger to the byte, however the clients are spread over nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

WAYS = {
    "attribute level, momentum": {"local-steps": 2, "server-optimizer": "momentum"},
    "sampled clients, adam, mlp, skewed": {
        "fraction-train": 0.6,
        "server-optimizer": "adam",
        "server-learning-rate": 0.1,
        "model": "mlp",
        "hidden-units": 6,
        "partition": "dirichlet",
        "dirichlet-alpha": 1.0,
        "num-server-rounds": 4,
    },
    "record level, sampled records": {"calibration": "uniform", "sampling-rate": 0.5, "epsilon": 4.0},
    "released contributions, noise-aware weights": {
        "attribute-clip-rule": "contribution",
        "epsilon": 20.0,
        "contribution-share": 0.6,
        "contribution-round": 1,
        "fraction-train": 0.6,
        "aggregation-weights": "noise-aware",
    },
    "quantile": {"attribute-clip-rule": "quantile", "epsilon": 8.0},
    "retrained contributions": {
        "calibration": "paper",
        "contribution": "retrain",
        "contribution-release": "none",
        "retrain-steps": 3,
        "num-server-rounds": 2,
    },
    "sampled central noise": {"privacy": "central", "fraction-train": 0.6, "epsilon": 8.0},
    "no privacy": {"privacy": "none"},
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_the_same_seed_gives_the_same_bytes_on_any_number_of_nodes_and_in_any_order_of_replies(
    fedsva: Callable[..., Any], settings: dict[str, Any]
):
    expected = fedsva(settings, nodes=1).results
    for nodes in (2, 4):
        for reverse in (False, True):
            assert fedsva(settings, nodes=nodes, reverse_replies=reverse).results == expected, (
                nodes,
                reverse,
            )


@pytest.mark.parametrize("settings", [WAYS["attribute level, momentum"], WAYS["sampled central noise"]])
def test_another_seed_and_no_seed_give_other_models_and_the_same_ledger(
    fedsva: Callable[..., Any], settings: dict[str, Any]
):
    runs = [fedsva({**settings, "seed": seed}).results for seed in (7, 8, "", "")]
    assert len({model for model, _ in runs}) == 4
    assert len({ledger for _, ledger in runs}) == 1


def test_where_a_run_writes_and_how_long_it_waits_do_not_change_its_bytes(
    fedsva: Callable[..., Any], tmp_path
):
    expected = fedsva().results
    assert fedsva({"round-timeout": 7.0}, output_dir=tmp_path / "elsewhere").results == expected


def test_the_seed_is_nowhere_in_what_a_finished_run_leaves_or_says(fedsva: Callable[..., Any]):
    run = fedsva({"seed": 918273645})
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        assert b"918273645" not in path.read_bytes(), path
    assert "918273645" not in run.output
    assert "simulation: no privacy against who knows the seed" in run.output
