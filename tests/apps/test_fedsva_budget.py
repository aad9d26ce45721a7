"""Clients that have spent their budget stop, the run says so, and every ledger agrees."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fedveil.artifacts import NodeLedger
from fedveil.privacy import PrivacyFilter, Release, gaussian_mu

BUDGET = gaussian_mu(1.0, 1e-5)


def spent(rows: Iterable[Any], relation: str) -> float:
    """Sum of mu^2 of rows of either ledger."""
    table = [
        (row["relation"], row["mu"]) if isinstance(row, dict) else (row.relation, row.mu) for row in rows
    ]
    return math.fsum(mu**2 for name, mu in table if name == relation)


def of(rows: Iterable[Any], client: int) -> list[Any]:
    return [row for row in rows if (row["client"] if isinstance(row, dict) else row.client) == client]


def check_ledgers(run: Any, clients: int) -> None:
    """No client passes its budget, and the nodes' ledger says the same as the server's."""
    ledger = NodeLedger(run.folder / "node-ledger.sqlite")
    for client in range(clients):
        node, server = of(run.node_rows, client), of(run.rows, client)
        rows = [Release(**_fields(row)) for row in server]
        assert PrivacyFilter({"attribute": BUDGET}).admits(rows)
        assert len(node) == len(server)
        for relation in ("attribute", "record"):
            assert spent(node, relation) == spent(server, relation)
        total = ledger.spent(run.folder.name, client).get("attribute", 0.0)  # it may never be sampled
        assert total == pytest.approx(spent(server, "attribute"), rel=1e-12)
        assert total <= BUDGET**2


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    names = ("client", "round", "step", "relation", "sensitivity", "sigma", "chosen", "sampling_rate")
    return {"name": row["release"], **{name: row[name] for name in names}}


@pytest.mark.parametrize("seed", [7, ""])
def test_clients_that_are_sampled_more_often_than_expected_stop_at_their_budget(
    fedsva: Callable[..., Any], seed: int | str
):
    run = fedsva({"fraction-train": 0.5, "num-server-rounds": 8, "local-steps": 2, "seed": seed})
    rounds = Counter(row["client"] for row in run.rows if row["relation"] == "attribute" and row["step"] == 0)
    assert max(rounds.values()) == 4  # half of eight rounds, and not one more
    asked = Counter(client for clients in run.sampled for client in clients)
    refused = {client for client, count in asked.items() if count > rounds[client]}
    assert refused == {client for client in asked if asked[client] > 4}
    assert run.metrics[-1]["out-of-budget"] == len(refused)
    assert f"out of budget {len(refused)}\n" in run.output
    check_ledgers(run, 8)


def test_a_stopped_client_is_not_asked_again(fedsva: Callable[..., Any]):
    run = fedsva({"fraction-train": 0.5, "num-server-rounds": 30, "mu-release": BUDGET / math.sqrt(3.5)})
    asked = Counter(client for clients in run.sampled for client in clients)
    assert asked == Counter(dict.fromkeys(range(8), 4))  # three releases and one refusal
    check_ledgers(run, 8)


def test_training_ends_when_every_budget_is_spent_and_the_run_says_so(fedsva: Callable[..., Any]):
    # 1e-9 to the private side: two such releases pass, three do not
    run = fedsva({"num-server-rounds": 20, "mu-release": BUDGET / math.sqrt(2) * (1 - 1e-9)})
    assert {row["round"] for row in run.rows} == {1, 2}
    assert "round 3: every sampled client has spent its budget; the model stays" in run.output
    assert "every client has spent its budget: the run ends after round 3" in run.output
    assert len(run.metrics) == 4
    assert run.metrics[2]["loss"] == run.metrics[3]["loss"]
    assert run.metrics[3]["out-of-budget"] == 8
    assert 0.999 < run.guarantees["attribute"]["epsilon"] <= 1.0
    assert re.search(r"eps\(attribute\) 1 of 1 · .*out of budget 8", run.output)
    check_ledgers(run, 8)


def test_a_release_that_would_pass_the_budget_never_happens(fedsva: Callable[..., Any]):
    run = fedsva({"num-server-rounds": 3, "mu-release": BUDGET / math.sqrt(2) * (1 + 1e-9)})
    assert {row["round"] for row in run.rows} == {1}
    check_ledgers(run, 8)


def test_sampled_records_follow_their_fixed_schedule_and_no_further(fedsva: Callable[..., Any]):
    run = fedsva(
        {
            "calibration": "uniform",
            "sampling-rate": 0.5,
            "fraction-train": 0.5,
            "num-server-rounds": 8,
            "epsilon": 4.0,
        }
    )
    steps = Counter(row["client"] for row in run.rows)
    assert max(steps.values()) == 4
    assert run.guarantees["record"]["epsilon"] <= 4.0
    assert Counter(row.client for row in run.node_rows) == steps
