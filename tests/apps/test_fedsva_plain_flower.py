"""Flower's own strategies can use FedSVA's clients, and the nodes keep their ledger all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian

from fedveil import wire
from fedveil.artifacts import NodeLedger
from fedveil.config import ConfigError, FedSVAConfig, assembly, randomness
from fedveil.models import build_learner, evaluate, initial_arrays
from fedveil.privacy import gaussian_mu
from fedveil.run import InProcessGrid, plan_run


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian])
def test_a_plain_flower_strategy_trains_fedsva_clients(
    small: dict[str, Any], tmp_path: Path, strategy: type[FedAvg]
):
    settings = {**small, "epsilon": 20.0}  # so little noise that the loss falls with any seed
    plan = plan_run("fedsva", engine="in-process", overrides=settings, output_dir=str(tmp_path / "runs"))
    config = FedSVAConfig.from_run_config(plan.config)
    problem = assembly.load_problem(config)
    model = build_learner("softmax", problem.dataset.schema.shape, 2).module
    start = initial_arrays(model, randomness.public_streams(config).stream("initial-model"))
    with plan.app.importable():
        grid = InProcessGrid(plan.app.load(plan.app.clientapp), 4, run_config=plan.config, run_id=5)
        result = strategy(fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord({name: Array(array) for name, array in start.items()}),
            num_rounds=2,
        )
    trained = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: (a.shape, a.dtype) for name, a in trained.items()} == {
        name: (a.shape, a.dtype) for name, a in start.items()
    }
    test = problem.dataset.test
    before, after = (
        evaluate(model, arrays, test.features, test.labels, problem.dataset.schema.shape)
        for arrays in (start, trained)
    )
    assert after.loss < before.loss
    rows = NodeLedger(tmp_path / "runs" / "flower-5" / "node-ledger.sqlite").releases(run="flower-5")
    assert Counter((row.client, row.round, row.relation) for row in rows) == Counter(
        (client, number, relation)
        for client in range(8)
        for number in (1, 2)
        for relation in ("attribute", "record")
    )
    assert not grid.rounds_without_reply


def test_the_filter_holds_whatever_the_strategy_asks_for(small: dict[str, Any], tmp_path: Path):
    """A server that goes on for ever gets nothing more than the budget pays for."""
    settings = {**small, "num-server-rounds": 2}
    plan = plan_run("fedsva", engine="in-process", overrides=settings, output_dir=str(tmp_path / "runs"))
    config = FedSVAConfig.from_run_config(plan.config)
    problem = assembly.load_problem(config)
    model = build_learner("softmax", problem.dataset.schema.shape, 2).module
    start = initial_arrays(model, randomness.public_streams(config).stream("initial-model"))
    with plan.app.importable():
        grid = InProcessGrid(plan.app.load(plan.app.clientapp), 2, run_config=plan.config)
        FedAvg(fraction_evaluate=0.0, weighted_by_key="num-examples").start(
            grid=grid,
            initial_arrays=ArrayRecord({name: Array(array) for name, array in start.items()}),
            num_rounds=2,
        )
        ledger = NodeLedger(tmp_path / "runs" / "flower-1" / "node-ledger.sqlite")
        before = ledger.releases()
        with pytest.raises(ZeroDivisionError):  # Flower's own: no reply has any weight
            FedAvg(fraction_evaluate=0.0).start(
                grid=grid,
                initial_arrays=ArrayRecord({name: Array(array) for name, array in start.items()}),
                num_rounds=5,
            )
    assert {row.round for row in ledger.releases()} == {1, 2}
    assert ledger.releases() == before
    for client in range(8):
        assert ledger.spent("flower-1", client)["attribute"] <= gaussian_mu(1.0, 1e-5) ** 2


def test_weights_by_noise_need_the_strategy_that_knows_them(small: dict[str, Any], tmp_path: Path):
    """Flower's own strategies weigh a node's mean by num-examples."""
    settings = {**small, "aggregation-weights": "noise-aware"}
    plan = plan_run("fedsva", engine="in-process", overrides=settings, output_dir=str(tmp_path / "runs"))
    config = FedSVAConfig.from_run_config(plan.config)
    problem = assembly.load_problem(config)
    model = build_learner("softmax", problem.dataset.schema.shape, 2).module
    start = initial_arrays(model, randomness.public_streams(config).stream("initial-model"))
    arrays = ArrayRecord({name: Array(array) for name, array in start.items()})
    with plan.app.importable():
        grid = InProcessGrid(plan.app.load(plan.app.clientapp), 1, run_config=plan.config)
        (node,) = grid.get_node_ids()
        content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: ConfigRecord({wire.ROUND: 1})})
        (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=wire.TRAIN)])
    assert reply.has_error()
    assert "aggregation-weights = 'noise-aware' needs FedVeil's own strategy" in (reply.error.reason or "")
    assert (
        not list((tmp_path / "runs").glob("*/node-ledger.sqlite"))
        or not NodeLedger(next((tmp_path / "runs").glob("*/node-ledger.sqlite"))).releases()
    )


def test_within_a_run_of_flower_s_a_node_accepts_one_name_for_it(small: dict[str, Any], tmp_path: Path):
    """Budgets are a run's: with a new name in every message a server would never spend any."""
    plan = plan_run("fedsva", engine="in-process", overrides=small, output_dir=str(tmp_path / "runs"))
    config = FedSVAConfig.from_run_config(plan.config)
    problem = assembly.load_problem(config)
    model = build_learner("softmax", problem.dataset.schema.shape, 2).module
    start = initial_arrays(model, randomness.public_streams(config).stream("initial-model"))
    arrays = ArrayRecord({name: Array(array) for name, array in start.items()})
    with plan.app.importable():
        grid = InProcessGrid(plan.app.load(plan.app.clientapp), 1, run_config=plan.config)
        (node,) = grid.get_node_ids()

        def ask(run: str) -> Message:
            request = ConfigRecord({wire.ROUND: 1, wire.RUN: run, wire.REPLY: "sum", wire.CLIENTS: [0]})
            content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: request})
            (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=wire.TRAIN)])
            return reply

        assert ask("one").has_content()
        refused = ask("two")
        assert refused.has_error()
        assert "works for run 'one'" in (refused.error.reason or "")
    assert not (tmp_path / "runs" / "two").exists()


def test_a_strategy_that_does_not_tell_its_rounds_is_stopped_at_the_first(small: dict[str, Any]):
    """Flower's own would train to the end, and nothing of it would be in the ledger."""
    plan = plan_run("fedsva", engine="in-process", overrides=small)
    config = FedSVAConfig.from_run_config(plan.config)
    with plan.app.importable():
        from fedsva_app.record import Record, require_told

        record = Record(None)
        with pytest.raises(
            ConfigError, match=r"'private-averaging' of fedveil .* must call on_round after each"
        ):
            require_told(config, record)
        record.metrics.append({"round": 0})
        require_told(config, record)
