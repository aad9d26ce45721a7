"""A node of one-record clients: the same bits on any nodes, every release paid and on disk, nothing taken on trust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.artifacts import NodeLedger, ReplayMismatch, WriteFailed
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.clients.modulated_cohort import ModulatedCohort, ModulatedResult, VariantPlan
from fedveil.clients.modulated_request import MessageRequest
from fedveil.moment_sums import LARGEST_LABEL, block_size, share_of, sum_messages
from fedveil.privacy import (
    MessagePlan,
    Modulation,
    draw_directions,
    plan_gradients,
    plan_messages,
    squared_mu,
)
from fedveil.streams import Streams

N, D, BOUND = 300, 5, 1.2
WAVE = Modulation(num_directions=2)
PLAIN = Modulation(0.3, 0.0, 0.0, 1)
RNG = np.random.default_rng(3)
X = RNG.uniform(-1, 1, (N, D)).astype(np.float32)
Y = RNG.normal(size=N)
SEEDED = Streams.seeded("c0ffee", 5)


def plan(**changes: Any) -> MessagePlan:
    told = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "bound": BOUND,
        "modulation": WAVE,
        "num_releases": 2,
        "share": 0.5,
    }
    return plan_messages(**{**told, **changes})


PLANS = {
    "main": VariantPlan("modulated", plan(), WAVE, BOUND),
    "range": VariantPlan("range", plan(modulation=PLAIN, num_releases=1, name="range-message"), PLAIN, BOUND),
    "private": VariantPlan("modulated", plan(label_privacy=True), WAVE, BOUND, label_scale=2.0),
    "lambda-0": VariantPlan("modulated", plan(modulation=PLAIN), PLAIN, BOUND),
    "dp-sgd": VariantPlan("gradient", plan_gradients(epsilon=4.0, delta=1e-5, clip_norm=1.0), WAVE, 1.0),
    "no-privacy": VariantPlan("unnoised", None, WAVE, BOUND),
}


def rows(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    return X[first:last], Y[first:last]


def node(
    index: int = 0,
    of: int = 1,
    *,
    streams: Streams = SEEDED,
    ledger: NodeLedger | MemoryLedger | None = None,
    simulated: bool = True,
    data: Any = rows,
) -> ModulatedCohort:
    first, count = share_of(index, of, N)
    return ModulatedCohort(data, first, count, N, PLANS, streams, ledger, "run", simulated)  # type: ignore[arg-type]


def request(clients: Any = range(N), *, variant: str = "main", **changes: Any) -> MessageRequest:
    mechanism = PLANS[variant].mechanism if variant in PLANS else "modulated"
    told = {
        "round": 1,
        "run": "run",
        "variant": variant,
        "mechanism": mechanism,
        "clients": np.array(clients, dtype=np.int64),
        "each": False,
        "coefficients": np.linspace(-1, 1, D + 1),
        "directions": draw_directions(2, D, SEEDED.stream("directions").normal),
    }
    return MessageRequest(**{**told, **changes})


def bits(result: ModulatedResult) -> dict[str, tuple[Any, ...]]:
    return {name: (value.dtype.str, value.shape, value.tobytes()) for name, value in result.arrays.items()}


def some() -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(9).random(N) < 0.4)


# sums


@pytest.mark.parametrize("variant", list(PLANS))
@pytest.mark.parametrize("clients", [np.arange(N), some(), np.array([77])], ids=["all", "some", "one"])
def test_sums_have_the_same_bits_on_1_node_and_on_16(variant: str, clients: np.ndarray) -> None:
    alone = node().answer(request(clients, variant=variant)).arrays
    total = {name: np.zeros_like(value) for name, value in alone.items()}
    for index in reversed(range(16)):
        first, count = share_of(index, 16, N)
        own = clients[(clients >= first) & (clients < first + count)]
        part = node(index, 16).answer(request(own, variant=variant)).arrays
        total = {name: total[name] + part[name] for name in total}
    assert {name: value.dtype for name, value in alone.items()} == dict.fromkeys(alone, np.dtype(np.int64))
    assert {name: value.tobytes() for name, value in total.items()} == {
        name: value.tobytes() for name, value in alone.items()
    }


@pytest.mark.parametrize("variant", ["main", "range", "private", "lambda-0", "no-privacy"])
def test_sums_are_those_of_the_single_messages(variant: str) -> None:
    clients = some()
    each = node().answer(request(clients, variant=variant, each=True)).arrays
    assert each["messages"].shape == (clients.size, D)
    assert each["labels"].shape == clients.shape
    sums = node().answer(request(clients, variant=variant)).arrays
    again = sum_messages(each["messages"], each["labels"], clients, PLANS[variant].grid(N))  # type: ignore[arg-type]
    assert {name: value.tobytes() for name, value in again.items()} == {
        name: value.tobytes() for name, value in sums.items()
    }


def test_sums_of_gradients_are_those_of_the_single_ones_to_half_a_step_a_block() -> None:
    def total_of(clients: Any) -> np.ndarray:
        return node().answer(request(clients, variant="dp-sgd")).arrays["gradient"]  # type: ignore[return-value]

    grid = PLANS["dp-sgd"].grid(N)
    each = sum(grid.to_real("gradient", total_of([client])) for client in range(N))
    total = grid.to_real("gradient", total_of(range(N)))
    assert total.shape == (D + 1,)
    rounded = N + -(-N // block_size(N))
    assert np.abs(total - each).max() <= rounded / 2 * 2.0 ** -grid.bits["gradient"] + 1e-11  # type: ignore[operator]


def test_a_clients_message_does_not_depend_on_who_else_is_asked() -> None:
    every = node().answer(request(each=True)).arrays["messages"]
    for clients in (some(), np.array([5])):
        own = node().answer(request(clients, each=True)).arrays["messages"]
        # BLAS rounds a row by how many there are
        assert own == pytest.approx(every[clients], rel=1e-14, abs=1e-14)  # type: ignore[index]


def test_rounds_variants_and_clients_have_noise_of_their_own() -> None:
    records = lambda first, last: (np.zeros((last - first, D), np.float32), np.zeros(last - first))  # noqa: E731
    drawn = [
        node(data=records).answer(request(variant=variant, round=round, each=True)).arrays["messages"]
        for variant in ("range", "lambda-0")
        for round in (1, 2)
    ]
    assert len(set(np.concatenate(drawn).ravel().tolist())) == 4 * N * D


def test_without_label_privacy_labels_leave_as_they_are_and_with_it_noised() -> None:
    assert node().answer(request(each=True)).arrays["labels"].tolist() == Y.tolist()
    private = node().answer(request(variant="private", each=True)).arrays["labels"]
    assert not set(private.tolist()) & set(Y.tolist())


# the ledger


def test_rows_are_on_disk_and_are_the_nodes_own_plans(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    result = node(ledger=ledger).answer(request(some()))
    (kept,) = NodeLedger(ledger.path).cohort_releases("run")
    assert result.release is not None
    assert kept.release == result.release.release == plan().release(-1, 1)
    assert kept.clients.tolist() == result.took_part.tolist() == some().tolist()


def test_nothing_leaves_when_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    class Full(NodeLedger):
        def record_cohort(self, *args: Any, **kwargs: Any) -> None:
            raise WriteFailed("the disk is full.")

    with pytest.raises(WriteFailed):
        node(ledger=Full(tmp_path / "node.sqlite")).answer(request())


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_replayed_round_gives_the_same_bytes_and_counts_once(tmp_path: Path, on_disk: bool) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite") if on_disk else MemoryLedger()
    first = node(ledger=ledger).answer(request())
    again = node(ledger=ledger).answer(request())
    assert bits(again) == bits(first)
    assert len(ledger.cohort_releases("run")) == 1


def test_a_round_may_be_replayed_on_another_number_of_nodes(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    first, count = share_of(1, 2, N)
    node(1, 2, ledger=ledger).answer(request(range(first, first + count)))
    alone = node(ledger=ledger).answer(request())
    assert bits(alone) == bits(node().answer(request()))
    assert [row.count for row in ledger.cohort_releases("run")] == [count, N - count]


def test_another_request_for_a_round_of_a_seeded_run_is_refused(tmp_path: Path) -> None:
    """With the noise of before, the difference of the two answers would be free of noise."""
    ledger = NodeLedger(tmp_path / "node.sqlite")
    node(ledger=ledger).answer(request())
    other = draw_directions(2, D, SEEDED.stream("other directions").normal)
    for changed in (request(directions=other), request(range(10)), request(range(1, N)), request(each=True)):
        with pytest.raises(ReplayMismatch):
            node(ledger=ledger).answer(changed)
    assert len(ledger.cohort_releases("run")) == 1


def test_with_the_systems_noise_every_answer_is_another_and_counts(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    own = node(streams=Streams.system(), ledger=ledger, simulated=False)
    assert bits(own.answer(request([3]))) != bits(own.answer(request([3])))
    assert len(ledger.cohort_releases("run")) == 2


def test_a_client_that_has_spent_its_budget_is_left_out_and_told(tmp_path: Path) -> None:
    # half of the budget is for 2 messages and half for 1 of the range: 4 messages fit in all
    ledger = NodeLedger(tmp_path / "node.sqlite")
    for round in range(1, 5):
        result = node(ledger=ledger).answer(request([10, 11, 12], round=round))
        assert result.out_of_budget.tolist() == []
    later = node(ledger=ledger).answer(request([9, 10, 12, 13], round=5))
    assert later.took_part.tolist() == [9, 13]
    assert later.out_of_budget.tolist() == [10, 12]
    other = node().answer(request([9, 13], round=5))
    assert bits(later) == bits(other)


def test_the_range_and_the_messages_of_a_run_share_one_budget(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    own = node(streams=Streams.system(), ledger=ledger, simulated=False)
    own.answer(request([4], variant="range", round=0))
    for round in (1, 2):
        assert own.answer(request([4], round=round)).took_part.tolist() == [4]
    assert own.answer(request([4], round=3)).out_of_budget.tolist() == [4]
    assert {row.release.name for row in ledger.cohort_releases("run")} == {
        "range-message",
        "modulated-message",
    }
    spent = squared_mu([sent.of(4) for sent in ledger.cohort_releases("run")], "attribute")
    assert spent <= plan().budget ** 2 <= spent * (1 + 1e-12)


def test_a_comparator_has_a_run_of_its_own(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    for variant in ("main", "lambda-0", "dp-sgd"):
        assert node(ledger=ledger).answer(request(variant=variant)).took_part.size == N
    for run in ("run", "run-lambda-0", "run-dp-sgd"):
        assert len(ledger.cohort_releases(run)) == 1


def test_messages_without_noise_have_no_row(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    result = node(ledger=ledger).answer(request(variant="no-privacy", each=True))
    assert result.release is None
    assert ledger.cohort_releases() == ()
    norms = np.maximum(1, np.linalg.norm(X.astype(float), axis=1) / BOUND)
    assert result.arrays["messages"] == pytest.approx(0.7 * X.astype(float) / norms[:, None], rel=1e-12)


def test_the_number_of_clipped_records_stays_in_the_ledgers_notes(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    result = node(ledger=ledger).answer(request())
    clipped = int(np.count_nonzero(np.linalg.norm(X.astype(float), axis=1) > BOUND))
    assert ledger.notes("run") == {(0, 1): f"{clipped} of {N} records were clipped to norm 1.2"}
    assert 0 < clipped < N
    assert not hasattr(result, "clipped")


def test_nobody_asked_is_an_empty_sum() -> None:
    result = node().answer(request([]))
    assert result.took_part.size == result.out_of_budget.size == 0
    assert all(not value.any() for value in result.arrays.values())
    assert node().answer(request([], each=True)).arrays["messages"].shape == (0, D)


# nothing is taken on trust


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "other"}, "of run 'other', but this node was set up for run 'run'"),
        ({"variant": "unheard-of"}, "variant 'unheard-of' is not one of this run"),
        ({"mechanism": "unnoised"}, "has mechanism 'modulated', and 'unnoised' was asked"),
        ({"directions": np.eye(D)[:1]}, "1 directions were sent, and this run has 2"),
        ({"directions": np.zeros((0, D))}, "0 directions were sent"),
    ],
)
def test_a_request_that_does_not_fit_the_nodes_own_plan_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        node().answer(request(**changes))


def test_clients_of_other_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="this node hosts"):
        node(1, 2).answer(request([0]))


@pytest.mark.parametrize("variant", ["private", "lambda-0", "dp-sgd"])
def test_a_node_that_is_not_simulated_gives_nothing_but_the_run_itself(variant: str) -> None:
    own = node(streams=Streams.system(), simulated=False)
    with pytest.raises(ValueError, match="is for simulations only"):
        own.answer(request([1], variant=variant))


def test_seeded_noise_is_for_simulations_only() -> None:
    with pytest.raises(ValueError, match="noise from a seed protects nobody"):
        node(simulated=False)


@pytest.mark.parametrize(("first", "count"), [(1, 8), (0, 5), (-4, 8), (296, 8)])
def test_a_node_hosts_whole_blocks(first: int, count: int) -> None:
    with pytest.raises(ValueError, match="are not whole blocks of 4"):
        ModulatedCohort(rows, first, count, N, PLANS, SEEDED, None, "run", True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism": "magic"}, "mechanism = 'magic' must be one of"),
        ({"bound": 0.0}, "bound = 0.0 must be a finite number above 0"),
        ({"label_scale": -1.0}, "label_scale = -1.0"),
        ({"largest_label": float("nan")}, "largest_label = nan"),
        ({"plan": None}, "does not go with plan = None"),
        ({"mechanism": "unnoised"}, "'unnoised' alone has none"),
        ({"bound": 2.0}, "is below the 2.8 of messages clipped to 2.0"),
        ({"label_scale": 1.0}, "relation 'attribute' is not that of these messages"),
        ({"plan": plan(label_privacy=True)}, "relation 'record' is not that of these messages"),
        ({"mechanism": "gradient", "bound": 0.1}, "relation 'attribute' is not that of these messages"),
        (
            {"label_scale": 1.0, "plan": plan(label_privacy=True), "largest_label": 1.0},
            "leave largest_label out",
        ),
    ],
)
def test_a_plan_that_is_not_one_of_such_messages_is_refused(changes: dict[str, Any], words: str) -> None:
    told = {"mechanism": "modulated", "plan": plan(), "modulation": WAVE, "bound": BOUND}
    with pytest.raises(ValueError, match=words):
        VariantPlan(**{**told, **changes})


def test_a_label_in_the_clear_has_a_public_bound() -> None:
    assert PLANS["main"].largest_label == LARGEST_LABEL
    assert PLANS["private"].largest_label is None
    assert VariantPlan("modulated", plan(), WAVE, BOUND, largest_label=3.0).grid(N).largest_label == 3.0
