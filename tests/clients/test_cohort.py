"""Cohorts: the same bits however clients are grouped, budgets before data, rows before results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedveil.artifacts import NodeLedger, ReplayMismatch
from fedveil.clients import (
    ClientData,
    Cohort,
    CohortResult,
    LocalStepFailed,
    local_update,
    record_gradients,
)
from fedveil.models import Learner, build_learner, initial_arrays
from fedveil.privacy import BudgetExceeded, Plan, StepMechanism, budgets, plan_step
from fedveil.streams import Streams
from fedveil.wire import to_fixed

LEARNER = build_learner("softmax", (6,), 3)
STREAMS = Streams.seeded("test", 0)
ARRAYS = initial_arrays(LEARNER.module, STREAMS.stream("model"))
STEPS = 2


def client_data(client: int) -> ClientData:
    rng = np.random.default_rng(client)
    n = 5 + client
    features = rng.random((n, 6), dtype=np.float32)
    baseline = features.copy()
    baseline[:, :2] = 0.0
    return ClientData(features, rng.integers(0, 3, n), baseline)


def mechanism(client: int, rounds: int = 3, **options: Any) -> StepMechanism:
    return plan_step(
        num_records=5 + client,
        clip_norm=1.0,
        calibration="attribute",
        epsilon=2.0,
        delta=1e-5,
        num_releases=rounds * STEPS,
        attribute_clip_norm=0.3,
        **options,
    )


def cohort(
    clients: Sequence[int],
    *,
    data: Callable[[int], ClientData] = client_data,
    plans: Mapping[int, Plan | None] | None = None,
    streams: Streams = STREAMS,
    ledger: NodeLedger | None = None,
    learning_rate: float = 0.5,
    epsilon_record: float | None = None,
) -> Cohort:
    return Cohort(
        LEARNER,
        data,
        plans if plans is not None else {client: mechanism(client) for client in clients},
        budgets=budgets(calibration="attribute", epsilon=2.0, delta=1e-5, epsilon_record=epsilon_record),
        streams=streams,
        node_ledger=ledger,
        run="run",
        steps=STEPS,
        learning_rate=learning_rate,
    )


def added(results: Sequence[CohortResult]) -> dict[str, NDArray[np.int64]]:
    return {name: np.sum([result.totals[name] for result in results], axis=0) for name in ARRAYS}


@pytest.mark.parametrize("private", [True, False])
def test_any_grouping_and_any_order_gives_the_same_bits(private: bool) -> None:
    clients = list(range(8))
    plans: dict[int, Plan | None] = {c: mechanism(c) if private else None for c in clients}

    def totals(groups: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int64]]:
        return added(
            [cohort(group, plans={c: plans[c] for c in group}).train(1, ARRAYS, group) for group in groups]
        )

    one = totals([clients])
    assert all(np.any(total != 0) for total in one.values())
    for groups in (
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[7, 5, 3, 1], [0, 2, 4, 6]],
        [[6, 2], [0], [5, 7, 1], [3, 4]],
    ):
        for name, total in totals(groups).items():
            np.testing.assert_array_equal(total, one[name])
            assert total.dtype == np.int64


def test_the_totals_are_the_fixed_point_sums_of_the_weighted_updates() -> None:
    result = cohort([2, 4]).train(3, ARRAYS, [4, 2])
    kept = cohort([2, 4]).train(3, ARRAYS, [4, 2], keep_updates=True)
    updates = {
        client: local_update(
            LEARNER,
            ARRAYS,
            client_data(client),
            mechanism=mechanism(client),
            steps=STEPS,
            learning_rate=0.5,
            noise=STREAMS.stream("noise", round=3, client=client),
            round=3,
            client=client,
        )
        for client in (2, 4)
    }
    assert result.took_part == (4, 2)
    assert result.out_of_budget == ()
    assert result.num_examples == 7 + 9
    assert result.releases == updates[4].releases + updates[2].releases
    assert result.updates is None
    assert kept.updates is not None
    for name in ARRAYS:
        expected = to_fixed(9 * updates[4].delta[name]) + to_fixed(7 * updates[2].delta[name])
        np.testing.assert_array_equal(result.totals[name], expected)
        stacked = np.stack([updates[4].delta[name], updates[2].delta[name]])
        np.testing.assert_array_equal(kept.updates[name], stacked)


def test_the_order_of_the_arrays_sent_does_not_matter() -> None:
    forward = cohort([1]).train(1, ARRAYS, [1]).totals
    backward = cohort([1]).train(1, dict(reversed(ARRAYS.items())), [1]).totals
    assert list(forward) == list(backward)
    for name in ARRAYS:
        np.testing.assert_array_equal(forward[name], backward[name])


@pytest.mark.parametrize("with_ledger", [True, False])
@pytest.mark.parametrize("streams", [STREAMS, Streams.system()])
def test_a_client_out_of_budget_takes_no_part_and_its_records_are_not_looked_at(
    with_ledger: bool, streams: Streams, tmp_path: Path
) -> None:
    touched: list[int] = []

    def data(client: int) -> ClientData:
        touched.append(client)
        return client_data(client)

    ledger = NodeLedger(tmp_path / "node.db") if with_ledger else None
    plans: dict[int, Plan | None] = {1: mechanism(1, rounds=2), 2: mechanism(2, rounds=3)}
    node = cohort([1, 2], data=data, plans=plans, streams=streams, ledger=ledger)
    took_part = [node.train(round, ARRAYS, [1, 2]).took_part for round in (1, 2)]
    assert took_part == [(1, 2), (1, 2)]
    touched.clear()
    third = node.train(3, ARRAYS, [1, 2])
    assert third.took_part == (2,)
    assert third.out_of_budget == (1,)
    assert third.num_examples == 7
    assert {row.client for row in third.releases} == {2}
    assert touched == [2]
    last = node.train(4, ARRAYS, [1, 2])
    assert last.took_part == ()
    assert last.num_examples == 0
    assert touched == [2]
    assert all(not total.any() for total in last.totals.values())


def test_a_second_budget_under_the_record_relation_holds_too() -> None:
    loose = cohort([1], epsilon_record=1000.0).train(1, ARRAYS, [1])
    tight = cohort([1], epsilon_record=0.01).train(1, ARRAYS, [1])
    assert loose.took_part == (1,)
    assert tight.out_of_budget == (1,)


def test_budgets_survive_the_process_in_the_node_ledger(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    for round in (1, 2, 3):
        assert cohort([1], ledger=NodeLedger(path)).train(round, ARRAYS, [1]).took_part == (1,)
    assert cohort([1], ledger=NodeLedger(path)).train(4, ARRAYS, [1]).out_of_budget == (1,)


def test_rows_are_on_disk_when_a_result_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    result = cohort([1, 3], ledger=NodeLedger(path)).train(1, ARRAYS, [1, 3])
    assert set(NodeLedger(path).releases("run")) == set(result.releases)
    assert len(result.releases) == 2 * STEPS * 2


def test_no_result_is_returned_when_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    class Full(NodeLedger):
        def record(self, *_: Any, **__: Any) -> None:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        cohort([1], ledger=Full(tmp_path / "node.db")).train(1, ARRAYS, [1])


def test_a_seeded_round_can_be_repeated_and_counts_once(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.db")
    node = cohort([1], ledger=ledger)
    first = [node.train(round, ARRAYS, [1]) for round in (1, 2, 3)]
    again = [node.train(round, ARRAYS, [1]) for round in (3, 1)]
    for name in ARRAYS:
        np.testing.assert_array_equal(again[0].totals[name], first[2].totals[name])
        np.testing.assert_array_equal(again[1].totals[name], first[0].totals[name])
    assert ledger.count("run", 1) == 3 * STEPS


def test_a_seeded_round_sent_with_another_model_is_refused(tmp_path: Path) -> None:
    # the same noise on two means would cancel in their difference
    node = cohort([1], ledger=NodeLedger(tmp_path / "node.db"))
    node.train(1, ARRAYS, [1])
    with pytest.raises(ReplayMismatch):
        node.train(1, {name: value + 1 for name, value in ARRAYS.items()}, [1])


def test_a_round_repeated_with_fresh_noise_counts_again(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.db")
    node = cohort([1], streams=Streams.system(), ledger=ledger)
    results = [node.train(1, ARRAYS, [1]) for _ in range(4)]
    assert [result.took_part for result in results] == [(1,), (1,), (1,), ()]
    assert np.any(results[0].totals["1.weight"] != results[1].totals["1.weight"])
    assert ledger.count("run", 1) == 3 * STEPS


def test_a_step_that_diverged_is_in_the_ledger_all_the_same(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.db")
    with pytest.raises(ValueError, match=r"client 1, parameter '1\.weight': .*diverged"):
        cohort([1], ledger=ledger, learning_rate=1e30).train(1, ARRAYS, [1])
    assert ledger.count("run", 1) == STEPS


def test_sums_that_would_leave_int64_are_an_error() -> None:
    clients = range(9)
    plain: dict[int, Plan | None] = dict.fromkeys(clients)
    node = cohort(clients, data=lambda _: client_data(0), plans=plain, learning_rate=1.5e8)
    assert node.train(1, ARRAYS, [0]).took_part == (0,)  # one alone fits
    with pytest.raises(ValueError, match="leaves int64"):
        node.train(1, ARRAYS, clients)


def test_sampled_steps_follow_their_fixed_schedule() -> None:
    options = {"calibration": "uniform", "epsilon": 2.0, "delta": 1e-5, "sampling_rate": 0.5}
    step = plan_step(num_records=6, clip_norm=1.0, num_releases=2 * STEPS, **options)  # type: ignore[arg-type]
    node = Cohort(
        LEARNER,
        client_data,
        {1: step},
        budgets=budgets(**options),  # type: ignore[arg-type]
        streams=STREAMS,
        node_ledger=None,
        run="run",
        steps=STEPS,
        learning_rate=0.5,
    )
    outcomes = [node.train(round, ARRAYS, [1]).took_part for round in (1, 2, 3)]
    assert outcomes == [(1,), (1,), ()]
    endless = StepMechanism(6, 1.0, 1.0, sampling_rate=0.5)
    with pytest.raises(ValueError, match="client 1 samples its records and has no fixed schedule"):
        cohort([1], plans={1: endless})


def test_a_request_that_this_node_cannot_answer_is_refused() -> None:
    node = cohort([1, 2])
    wrong_shape = {name: value[:1] for name, value in ARRAYS.items()}
    for arrays, clients, message in (
        (ARRAYS, [1, 9], "client 9 is not on this node, which hosts 2 clients, 1 to 2"),
        (ARRAYS, [1, 1], "named twice"),
        (wrong_shape, [1], "must build the same model"),
        ({**ARRAYS, "extra": np.zeros(1)}, [1], "must build the same model"),
    ):
        with pytest.raises(ValueError, match=message):
            node.train(1, arrays, clients)


def test_a_model_that_mixes_records_is_refused() -> None:
    mixing = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="BatchNorm1d"):
        Cohort(
            Learner(mixing),
            client_data,
            {},
            budgets={},
            streams=STREAMS,
            node_ledger=None,
            run="run",
            steps=1,
            learning_rate=1.0,
        )


def test_clients_rounds_and_runs_draw_different_noise() -> None:
    def noise_of(round: int, client: int, config: str) -> NDArray[np.float64]:
        node = cohort(
            [client],
            data=lambda _: client_data(0),
            plans={client: mechanism(0)},
            streams=Streams.seeded(config, 0),
        )
        updates = node.train(round, ARRAYS, [client], keep_updates=True).updates
        assert updates is not None
        return updates["1.weight"]

    drawn = [
        noise_of(round, client, config) for round in (1, 2) for client in (0, 1) for config in ("a", "b")
    ]
    assert all(np.all(one != other) for one, other in itertools.combinations(drawn, 2))


def test_one_diverging_update_does_not_take_the_others_with_it_where_the_server_adds_the_noise() -> None:
    """Otherwise one client's records would move the server's sum by more than that client's clip."""
    learner = build_learner("mlp", (4,), 2, 8)
    arrays = initial_arrays(learner.module, Streams.seeded("x", 0).stream("m"))
    calm = ClientData(np.zeros((5, 4), np.float32), np.array([0, 1, 0, 1, 0]))
    wild = ClientData(np.ones((5, 4), np.float32), np.array([1, 1, 1, 1, 1]))
    results = []
    for last in (calm, wild):
        cohort = Cohort(
            learner,
            {0: calm, 1: calm, 2: last},
            dict.fromkeys(range(3)),
            budgets={},
            streams=Streams.seeded("c", 1),
            node_ledger=None,
            run="r",
            steps=20,
            learning_rate=1.15e38,
        )
        results.append(cohort.train(1, arrays, [0, 1, 2], keep_updates=True))
    assert results[0].took_part == results[1].took_part == (0, 1, 2)
    for name in arrays:
        first, second = (result.updates[name] for result in results)
        assert np.array_equal(first[:2], second[:2])
        assert np.all(np.isfinite(first))
        assert np.all(np.isfinite(second))


@pytest.mark.parametrize("private", [False, True])
def test_a_failing_local_step_is_zeros_and_leaves_the_others_as_they_are_where_the_server_adds_the_noise(
    private: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """One client's records decide that its step fails; the server's sum moves by that client's update and no other."""
    wild = client_data(1)
    wild.features[:] = np.float32(1e38)

    def strict(
        change: NDArray[np.float64], gradients: tuple[NDArray[np.float64], ...], learning_rate: float
    ) -> NDArray[np.float64]:
        if not np.all(np.abs(gradients[-1]) < 1e30):
            raise FloatingPointError("the gradient is not finite")
        return change - learning_rate * gradients[-1]

    def train(data: Mapping[int, ClientData]) -> CohortResult:
        node = Cohort(
            replace(LEARNER, local_step=strict),
            data,
            {client: mechanism(client) if private and client != 1 else None for client in data},
            budgets=budgets(calibration="attribute", epsilon=2.0, delta=1e-5),
            streams=STREAMS,
            node_ledger=None,
            run="run",
            steps=STEPS,
            learning_rate=0.5,
        )
        return node.train(1, ARRAYS, list(data), keep_updates=True)

    calm = {client: client_data(client) for client in range(3)}
    usual, failed = train(calm), train({**calm, 1: wild})
    assert "client 1" in capsys.readouterr().out
    for name in ARRAYS:
        np.testing.assert_array_equal(failed.updates[name][[0, 2]], usual.updates[name][[0, 2]])
        assert np.any(usual.updates[name][1])
        assert failed.updates[name].dtype == usual.updates[name].dtype
        assert not np.any(failed.updates[name][1])
    told = ("num_examples", "took_part", "out_of_budget", "releases", "released")
    assert [getattr(failed, name) for name in told] == [getattr(usual, name) for name in told]


class Table(nn.Module):
    """A row of scores for each value of a record's first feature, 0 to 3; another value is an IndexError of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 3)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Scores of shape (n, 3)."""
        return self.rows(records[:, 0].long())


def of_table(first: float) -> ClientData:
    """Four records, the last one with this first feature."""
    features = np.array([[0], [1], [2], [first]], np.float32)
    return ClientData(features, np.array([0, 1, 2, 1]))


def train_tables(data: Mapping[int, ClientData], plan: StepMechanism | None, **options: Any) -> CohortResult:
    """A first round of a cohort whose model is a Table."""
    learner = Learner(Table())
    node = Cohort(
        learner,
        data,
        dict.fromkeys(data, plan),
        budgets=budgets(calibration="uniform", epsilon=2.0, delta=1e-5) if plan else {},
        streams=STREAMS,
        node_ledger=None,
        run="run",
        steps=STEPS,
        learning_rate=0.5,
    )
    return node.train(1, {"rows.weight": np.zeros((4, 3), np.float32)}, list(data), **options)


def test_a_model_that_raises_on_one_client_s_record_leaves_the_others_as_they_are_where_the_server_adds_the_noise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = train_tables({0: of_table(3), 1: of_table(0), 2: of_table(1)}, None, keep_updates=True)
    failed = train_tables({0: of_table(3), 1: of_table(4711), 2: of_table(1)}, None, keep_updates=True)
    for name in usual.updates:
        np.testing.assert_array_equal(failed.updates[name][[0, 2]], usual.updates[name][[0, 2]])
        assert np.any(usual.updates[name][1])
        assert not np.any(failed.updates[name][1])
    assert failed.took_part == usual.took_part
    assert failed.num_examples == usual.num_examples
    assert "IndexError" in capsys.readouterr().err  # for the node's owner


def test_of_a_model_that_raises_on_a_record_the_kind_of_error_is_told_and_nothing_of_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_gradients, "_CHUNK", 1)  # record by record, as for a large network
    with pytest.raises(LocalStepFailed) as failure:
        train_tables({1: of_table(4711)}, StepMechanism(4, 1.0, 9.0))
    assert str(failure.value) == (
        "client 1: the model or its loss raised IndexError on a record: let them take every record of the "
        "description's shape and range; the node's own log has the rest."
    )
    assert failure.value.releases == ()


def test_a_failing_local_step_is_an_error_where_the_clients_add_the_noise(tmp_path: Path) -> None:
    def broken(*_: Any) -> NDArray[np.float64]:
        raise FloatingPointError("no")

    ledger = NodeLedger(tmp_path / "node.db")
    node = Cohort(
        replace(LEARNER, local_step=broken),
        client_data,
        {1: mechanism(1)},
        budgets=budgets(calibration="attribute", epsilon=2.0, delta=1e-5),
        streams=STREAMS,
        node_ledger=ledger,
        run="run",
        steps=STEPS,
        learning_rate=0.5,
    )
    with pytest.raises(LocalStepFailed, match="client 1: local step"):
        node.train(1, ARRAYS, [1])
    assert ledger.count("run", 1) == 1


@pytest.mark.parametrize("streams", [STREAMS, Streams.system()])
def test_rounds_asked_for_in_falling_order_spend_the_budget_like_any_others(streams: Streams) -> None:
    node = cohort([0], streams=streams)
    assert [node.train(round, ARRAYS, [0]).took_part for round in (9, 7, 5, 3, 1)] == [(0,)] * 3 + [()] * 2


def test_requests_served_at_the_same_time_cannot_each_take_the_last_of_a_budget(tmp_path: Path) -> None:
    """Each cohort admits the client before the other has recorded its round; only one of them may send."""
    path = tmp_path / "node.sqlite"
    first, second = (cohort([0], streams=Streams.system(), ledger=NodeLedger(path)) for _ in range(2))
    for round in (1, 2):
        first.train(round, ARRAYS, [0])
    second_round = second._answer

    def interrupted(*arguments: Any) -> Any:
        assert first.train(3, ARRAYS, [0]).took_part == (0,)
        return second_round(*arguments)

    second._answer = interrupted  # type: ignore[method-assign]
    with pytest.raises(BudgetExceeded, match="client 0"):
        second.train(4, ARRAYS, [0])
    assert NodeLedger(path).count(first.run, 0) == 3 * STEPS
