"""What a run's folder says it guarantees, recomputed from its ledger by closed forms and by dp-accounting."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from fedveil.artifacts import RunFolder

DELTA = 1e-5


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Delta of a mu-GDP mechanism at epsilon (arXiv 1905.02383, corollary 2.13)."""
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def rows_of(run: Any, client: int, relation: str) -> list[dict[str, Any]]:
    return [row for row in run.rows if row["client"] == client and row["relation"] == relation]


def total_mu(run: Any, client: int, relation: str) -> float:
    """mu of all full-batch releases of one client under one relation."""
    rows = rows_of(run, client, relation)
    assert all(row["sampling_rate"] == 1.0 for row in rows)
    return math.sqrt(math.fsum((row["sensitivity"] / row["sigma"]) ** 2 for row in rows))


def sampled_epsilon(run: Any, client: int, relation: str) -> float:
    """Epsilon of all Poisson-sampled releases of one client (or the server), by Google's accountant alone."""
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3
    )
    for row in rows_of(run, client, relation):
        noise_multiplier = 2 * row["sigma"] / row["sensitivity"]  # a replaced one moves a clipped sum by 2 C
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(
                row["sampling_rate"], dp_accounting.GaussianDpEvent(noise_multiplier)
            )
        )
    return float(accountant.get_epsilon(DELTA))


def test_attribute_level_noise_keeps_its_epsilon_and_states_the_records_own_far_larger_one(
    fedsva: Callable[..., Any],
):
    run = fedsva({"local-steps": 2})
    stated = run.guarantees
    assert set(stated) == {"attribute", "record"}
    for relation, guarantee in stated.items():
        assert guarantee["kind"] == "proven"
        assert guarantee["delta"] == DELTA
        worst = max(total_mu(run, client, relation) for client in range(8))
        assert gaussian_delta(guarantee["epsilon"], worst) == pytest.approx(DELTA, rel=1e-6)
    assert 0.99 < stated["attribute"]["epsilon"] <= 1.0
    assert stated["record"]["epsilon"] > 5.0
    assert len(run.rows) == 8 * 3 * 2 * 2  # clients, rounds, steps, relations
    assert "attribute relation, worst-off client: epsilon 1 at delta 1e-05" in run.output
    assert re.search(r"eps\(attribute\) 1 of 1 · eps\(record\) \d+\.\d+ · out of budget 0", run.output)


def test_two_budgets_are_both_kept(fedsva: Callable[..., Any]):
    run = fedsva({"epsilon": 1.0, "epsilon-record": 2.0})
    stated = run.guarantees
    assert 1.99 < stated["record"]["epsilon"] <= 2.0
    assert stated["attribute"]["epsilon"] < 1.0
    assert {guarantee["kind"] for guarantee in stated.values()} == {"proven"}


def test_attributes_are_promised_no_less_than_the_records_that_they_are_part_of(fedsva: Callable[..., Any]):
    """Noise that follows releases is promised by the filters' budgets, and both of them hold for attributes."""
    stated = fedsva({"attribute-clip-rule": "quantile", "epsilon": 30.0, "epsilon-record": 2.0}).guarantees
    assert stated["attribute"]["epsilon"] <= stated["record"]["epsilon"] <= 2.0
    assert {guarantee["kind"] for guarantee in stated.values()} == {"proven"}


def test_record_level_noise_protects_attributes_as_records(fedsva: Callable[..., Any]):
    run = fedsva({"calibration": "uniform", "epsilon": 2.0})
    stated = run.guarantees
    assert 1.99 < stated["record"]["epsilon"] <= 2.0
    assert stated["attribute"]["epsilon"] <= stated["record"]["epsilon"]
    assert {row["relation"] for row in run.rows} == {"record"}


def test_sampled_records_are_accounted_by_privacy_loss_distributions(fedsva: Callable[..., Any]):
    run = fedsva({"calibration": "uniform", "sampling-rate": 0.5, "epsilon": 2.0})
    stated = run.guarantees["record"]
    assert stated["kind"] == "proven"
    assert stated["epsilon"] <= 2.0
    assert stated["epsilon"] == pytest.approx(sampled_epsilon(run, 0, "record"), abs=0.03)
    assert {(row["sampling_rate"], row["mu"]) for row in run.rows} == {(0.5, None)}
    full = fedsva({"calibration": "uniform", "epsilon": 2.0})
    # half the records, but noise on a sum of half the size: amplification must show in the sum's noise
    assert (
        run.rows[0]["sigma"] / run.rows[0]["sensitivity"]
        < full.rows[0]["sigma"] / full.rows[0]["sensitivity"]
    )


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_central_noise_is_one_row_a_round_of_the_server_and_keeps_its_epsilon(
    fedsva: Callable[..., Any], rate: float
):
    run = fedsva({"privacy": "central", "fraction-train": rate, "epsilon": 3.0})
    assert [(row["client"], row["round"], row["relation"]) for row in run.rows] == [
        (-1, number, "client") for number in (1, 2, 3)
    ]
    (stated,) = run.guarantees.values()
    assert (stated["relation"], stated["kind"]) == ("client", "proven")
    if rate == 1.0:
        assert gaussian_delta(stated["epsilon"], total_mu(run, -1, "client")) == pytest.approx(
            DELTA, rel=1e-6
        )
    else:
        assert stated["epsilon"] == pytest.approx(sampled_epsilon(run, -1, "client"), abs=0.03)
    assert 2.9 < stated["epsilon"] <= 3.0
    assert not (run.folder / "node-ledger.sqlite").exists()


def test_with_sampled_clients_nothing_printed_or_stored_tells_who_or_how_many_took_part(
    fedsva: Callable[..., Any],
):
    """Runs that sampled other clients, and another number of them, differ in outcome and time alone."""
    settings = {"privacy": "central", "fraction-train": 0.5, "epsilon": 3.0, "num-server-rounds": 4}
    settings |= {"hooks": "none", "trajectory": 0}  # both hold functions of the models alone
    runs = [fedsva({**settings, "seed": seed}) for seed in range(6)]
    assert len({tuple(len(clients) for clients in run.sampled) for run in runs}) >= 5
    outcomes = re.compile(r"accuracy \d\.\d+|loss \d+\.\d+|\d+\.\d+ s, \d+ s left|\d{8}-\d{6}-fedsva-\w+")
    assert len({outcomes.sub("", run.output) for run in runs}) == 1
    assert len({run.results[1] for run in runs}) == 1
    seen = {json.dumps([_without(row, "accuracy", "loss", "seconds") for row in run.metrics]) for run in runs}
    assert len(seen) == 1
    notes = [RunFolder(run.folder).load_model()[1] for run in runs]
    assert len({json.dumps(_without(note, "accuracy")) for note in notes}) == 1
    for run in runs:
        files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
        assert files == {
            "config.toml",
            "metrics.parquet",
            "ledger.parquet",
            "guarantees.json",
            "model.safetensors",
            "checkpoint/last.safetensors",
            "checkpoint/lock",
        }
        kept = RunFolder(run.folder).load_checkpoint()
        # two digests beside them, of the code and of the data under a key from the seed: the same in every round
        facts = kept.extra.pop("facts")
        assert set(facts) == {"code", "data"}
        nothing = {"contributions": {}, "rounds": {}, "attribute-clip-norm": None}
        assert kept.extra == {"out-of-budget": [], "run": run.folder.name, "knowledge": nothing}
        assert {key for row in kept.metrics for key in row} == set(run.metrics[0])
        assert len(kept.releases) == 4
        assert not kept.assumed


def _without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def test_a_round_that_happens_to_sample_nobody_still_releases_noise(fedsva: Callable[..., Any]):
    """That all six rounds ask somebody has probability (1 - 0.99^8)^6 < 1e-6."""
    run = fedsva({"privacy": "central", "fraction-train": 0.01, "num-server-rounds": 6, "epsilon": 3.0})
    assert len(run.sampled) < 6  # in some round nobody was asked
    assert [row["round"] for row in run.rows] == [1, 2, 3, 4, 5, 6]
    assert len(run.metrics) == 7
    losses = [row["loss"] for row in run.metrics]
    assert len(set(losses)) == 7  # the model moved in every round


def test_without_noise_nothing_is_claimed_and_nothing_is_in_the_ledger(fedsva: Callable[..., Any]):
    run = fedsva({"privacy": "none"})
    assert run.rows == []
    assert {(g["kind"], g["epsilon"]) for g in run.guarantees.values()} == {("none", "inf")}
    assert "privacy: none; nothing is guaranteed" in run.output
    assert "no proven guarantee under the record relation: trained without noise" in run.output


def test_dropped_attributes_are_protected_perfectly_and_the_rest_as_stated(fedsva: Callable[..., Any]):
    dropped = fedsva({"drop-private": True, "privacy": "none"}).guarantees
    assert (dropped["attribute"]["epsilon"], dropped["attribute"]["kind"]) == (0.0, "proven")
    assert (dropped["record"]["epsilon"], dropped["record"]["kind"]) == ("inf", "none")
    noised = fedsva({"drop-private": True, "calibration": "uniform", "epsilon": 2.0}).guarantees
    assert noised["attribute"]["epsilon"] == 0.0
    assert 1.99 < noised["record"]["epsilon"] <= 2.0


def test_dropped_attributes_do_not_reach_the_model(fedsva: Callable[..., Any]):
    """age and job are features 0, 2, 3 and 4 of 5; hours alone may move the first layer between the rounds."""
    settings = {"drop-private": True, "privacy": "none", "private-attributes": "age,job"}
    arrays, _ = RunFolder(fedsva(settings).folder).load_model()
    start, _ = RunFolder(fedsva({**settings, "learning-rate": 1e-12}).folder).load_model()
    (weight,) = [name for name, array in arrays.items() if array.ndim == 2]
    (bias,) = [name for name, array in arrays.items() if array.ndim == 1]
    moved = arrays[weight] - start[weight]
    # at a constant input x the gradient is the bias's times x: what a private column learns is its baseline's share
    change = (arrays[bias] - start[bias])[:, None]
    baseline = [(40 - 18) / (90 - 18), 0.0, 1.0, 0.0]
    for column, value in zip([0, 2, 3, 4], baseline, strict=True):
        assert moved[:, [column]] == pytest.approx(change * value, abs=1e-6)


WAYS = {
    "dirichlet": {"partition": "dirichlet", "dirichlet-alpha": 1.0},
    "natural": {"partition": "natural", "num-clients": 5},
    "mlp": {"model": "mlp", "hidden-units": 5},
    "adam": {"server-optimizer": "adam", "server-learning-rate": 0.1},
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_other_partitions_models_and_optimisers_keep_the_budget_of_every_client(
    fedsva: Callable[..., Any], settings: dict[str, Any]
):
    run = fedsva(settings)
    clients = settings.get("num-clients", 8)
    assert {row["client"] for row in run.rows} == set(range(clients))
    for client in range(clients):
        assert gaussian_delta(1.0, total_mu(run, client, "attribute")) <= DELTA * (1 + 1e-9)
    assert run.guarantees["attribute"]["epsilon"] <= 1.0
    assert run.metrics[-1]["accuracy"] == RunFolder(run.folder).load_model()[1]["accuracy"]


def test_a_models_own_factory_is_trained(
    fedsva: Callable[..., Any], tmp_path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n\n"
        "def narrow(input_shape, num_outputs, hidden=64):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], 3), nn.Tanh(), nn.Linear(3, num_outputs))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = fedsva({"model": "own_network:narrow"})
    arrays, note = RunFolder(run.folder).load_model()
    assert [array.shape for array in arrays.values()] == [(3, 5), (3,), (2, 3), (2,)]
    assert note["model"] == "own_network:narrow"
    assert run.guarantees["attribute"]["epsilon"] <= 1.0


def test_the_digits_are_learned_under_an_attribute_budget(fedsva: Callable[..., Any]):
    run = fedsva(
        {
            "dataset": "mnist-5k",
            "data-path": "",
            "target": "",
            "client-column": "",
            "private-attributes": "10:18,10:18",
            "num-server-rounds": 2,
        }
    )
    assert "64 of 784 attributes are private" in run.output
    assert run.metrics[-1]["accuracy"] > run.metrics[0]["accuracy"] + 0.2
    assert 0.99 < run.guarantees["attribute"]["epsilon"] <= 1.0
