"""A site numbers its own clients: whatever numbers a server gives them, each has one budget in a run, and one noise."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil import wire
from fedveil.artifacts import NodeLedger
from fedveil.clients.modulated_cohort import ModulatedCohort, VariantPlan
from fedveil.clients.modulated_replies import handle_identify_modulated, handle_message
from fedveil.clients.modulated_request import read_request
from fedveil.clients.record_digest import RecordsChanged, refuse_changed_records
from fedveil.moment_sums import block_size
from fedveil.privacy import Modulation, plan_messages
from fedveil.streams import Streams

COUNT, D = 70, 3
CODE = {"library": "0.1.0", "source": "f00d"}
PLAN = plan_messages(epsilon=2.0, delta=1e-5, bound=1.0, modulation=Modulation())
PLANS = {
    "main": VariantPlan("modulated", PLAN, Modulation(), 1.0),
    "no-privacy": VariantPlan("unnoised", None, Modulation(), 4.0),
}
X = np.random.default_rng(3).uniform(-1, 1, (COUNT, D)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=COUNT)


def site(ledger: NodeLedger | None = None, **changes: Any) -> ModulatedCohort:
    told: dict[str, Any] = {
        "rows": lambda a, b: (X[a:b], Y[a:b]),
        "first": None,
        "count": COUNT,
        "num_clients": None,
        "plans": PLANS,
        "streams": Streams.system(),
        "node_ledger": ledger,
        "run": "run",
        "simulated": False,
    }
    return ModulatedCohort(**{**told, **changes})


def seeded(**changes: Any) -> ModulatedCohort:
    return site(streams=Streams.seeded("c0ffee", 5), simulated=True, **changes)


def request(first: Any = 0, num_clients: Any = COUNT, clients: Any = None, **config: Any) -> RecordDict:
    start = first if type(first) is int and first >= 0 else 0
    told = {
        "server-round": 1,
        "run": "run",
        "reply": "sum",
        "client-mask": wire.encode_clients(np.arange(COUNT) + start if clients is None else clients),
        "mechanism": "modulated",
        "variant": "main",
        "first": first,
        "num-clients": num_clients,
        **config,
    }
    arrays = {"coefficients": Array(np.zeros(D + 1)), "directions": Array(np.eye(D)[:1])}
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "config": ConfigRecord({key: value for key, value in told.items() if value is not None}),
        }
    )


def sent_by(reply: RecordDict) -> np.ndarray:
    return wire.decode_clients(reply.config_records["ledger"]["client-mask"], 2**30)


def spent_by(reply: RecordDict) -> np.ndarray:
    return wire.decode_clients(reply.config_records["ledger"]["out-of-budget"], 2**30)


# numbers that a server gives


def test_a_site_tells_how_many_records_it_has_and_nothing_else_of_them() -> None:
    answer = handle_identify_modulated(site(), 1, 3, CODE, "d1ge57").config_records["config"]
    assert dict(answer) == {
        "partition-id": 1,
        "num-partitions": 3,
        "count": COUNT,
        "schema": "d1ge57",
        **CODE,
    }


def test_clients_are_asked_and_named_by_the_runs_numbers_and_filed_by_the_sites_own(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "ledger.sqlite")
    reply = handle_message(request(1000, 5000, [1003, 1060]), site(ledger), CODE)
    assert sent_by(reply).tolist() == [1003, 1060]
    (filed,) = ledger.cohort_releases("run")
    assert filed.clients.tolist() == [3, 60]


@pytest.mark.parametrize(
    ("first", "num_clients"), [(COUNT, 1000), (1, COUNT + 1), (0, COUNT + 1), (10**9, 10**12)]
)
def test_other_numbers_for_its_clients_find_their_budgets_spent(
    tmp_path: Path, first: int, num_clients: int
) -> None:
    ledger = NodeLedger(tmp_path / "ledger.sqlite")
    assert sent_by(handle_message(request(0, COUNT), site(ledger), CODE)).size == COUNT
    again = handle_message(
        request(first, num_clients, clients=np.arange(first, first + COUNT)), site(ledger), CODE
    )
    # nothing leaves: no client took part, every one is out of budget, and the sums are those of nobody
    assert again.metric_records["metrics"]["num-examples"] == 0
    mask = again.config_records["ledger"]["out-of-budget"]
    assert wire.decode_clients(mask, first + COUNT - 1, first).size == COUNT
    assert not any(np.any(array.numpy()) for array in again.array_records["arrays"].values())
    assert len(ledger.cohort_releases()) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.sets(st.integers(0, COUNT - 1), min_size=1)), max_size=6))
def test_no_series_of_numberings_gets_a_second_message_of_a_record(
    asked: list[tuple[int, set[int]]],
) -> None:
    node = site()  # its ledger is in memory
    seen: list[int] = []
    for number, (first, members) in enumerate(asked, start=1):
        own = np.array(sorted(members))
        reply = handle_message(
            request(first, first + COUNT + number, own + first, **{"server-round": number}), node, CODE
        )
        new = [client for client in own if client not in seen]
        assert (sent_by(reply) - first).tolist() == new
        assert (spent_by(reply) - first).tolist() == [client for client in own if client in seen]
        seen += new


def test_a_share_of_clients_that_everybody_numbers_alike_is_not_numbered_anew() -> None:
    share = site(first=0, num_clients=COUNT)
    with pytest.raises(ValueError, match="first is for sites"):
        handle_message(request(), share, CODE)
    with pytest.raises(ValueError, match="a request numbered them anew"):
        share.answer(read_request(request(), COUNT - 1, at_site=True))


@pytest.mark.parametrize("key", ["first", "num-clients"])
def test_a_site_answers_no_request_that_leaves_its_numbers_out(key: str) -> None:
    with pytest.raises(ValueError, match=f"needs '{key}'"):
        handle_message(request(**{key: None}), site(), CODE)
    unnumbered = read_request(request(**{"first": None, "num-clients": None}), COUNT - 1)
    with pytest.raises(ValueError, match="must tell their numbers"):
        site().answer(unnumbered)


@pytest.mark.parametrize("value", [-1, 2**40 + 1, True, 1.0, "0"])
@pytest.mark.parametrize("key", ["first", "num-clients"])
def test_numbers_of_clients_that_there_cannot_be_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{key} must be a whole number from [01] to 1099511627776"):
        handle_message(request(**{key: value}), site(), CODE)


@pytest.mark.parametrize(("first", "num_clients"), [(0, COUNT - 1), (1, COUNT), (5000, 5000)])
def test_a_site_that_does_not_fit_in_the_runs_clients_does_not_answer(first: int, num_clients: int) -> None:
    with pytest.raises(ValueError, match=f"70 clients from {first} are not among {num_clients} clients"):
        handle_message(request(first, num_clients), site(), CODE)


@pytest.mark.parametrize("clients", [[99], [170], [100, 170], [0, 100], [2**39]])
def test_clients_of_other_sites_are_refused_before_any_memory_is_set_aside_for_them(clients: Any) -> None:
    with pytest.raises(ValueError, match="a set of clients must"):
        handle_message(request(100, 2**40, clients), site(), CODE)


@pytest.mark.parametrize("changes", [{"count": 0}, {"first": 0}, {"num_clients": COUNT}])
def test_a_site_needs_a_record_and_has_no_numbers_of_its_own_in_the_run(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give all three, or for a site its count alone"):
        site(**changes)


# sums


def test_blocks_of_sums_begin_at_the_sites_own_first_client() -> None:
    # the numbers of the run decide the size of blocks and the grid, never where a site's blocks begin
    num_clients = 4000
    for first in (0, 17, num_clients - COUNT):
        sums = handle_message(request(first, num_clients), seeded(), CODE).array_records["arrays"]
        each = handle_message(request(first, num_clients, reply="each"), seeded(), CODE).array_records[
            "arrays"
        ]
        messages, labels = each["messages"].numpy(), each["labels"].numpy()
        grid = PLANS["main"].grid(num_clients)
        size = block_size(num_clients)
        assert 1 < size < COUNT
        gram, cross = np.zeros((D, D), np.int64), np.zeros(D, np.int64)
        for start in range(0, COUNT, size):
            block, own = messages[start : start + size], labels[start : start + size]
            gram += np.rint(np.ldexp(block.T @ block, grid.bits["gram"])).astype(np.int64)
            both = np.stack([own, np.ones(len(own))]) @ block
            cross += np.rint(np.ldexp(both[0], grid.bits["cross"])).astype(np.int64)
        assert sums["gram"].numpy().tobytes() == gram.tobytes()
        assert sums["cross"].numpy().tobytes() == cross.tobytes()


def test_clients_of_two_simulated_sites_have_different_noise_and_the_same_client_the_same() -> None:
    def messages(first: int) -> np.ndarray:
        found = handle_message(request(first, 1000, reply="each"), seeded(), CODE)
        return found.array_records["arrays"]["messages"].numpy()

    assert np.array_equal(messages(0), messages(0))
    assert not np.any(messages(0) == messages(COUNT))


def test_simulated_sites_share_a_file_and_no_budget(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "ledger.sqlite")
    for number in range(2):
        node = seeded(ledger=ledger, filed_as=f"run-site-{number}")
        reply = handle_message(request(number * COUNT, 2 * COUNT), node, CODE)
        assert reply.metric_records["metrics"]["num-examples"] == COUNT
    assert {run for run in ("run", "run-site-0", "run-site-1") if ledger.cohort_releases(run)} == {
        "run-site-0",
        "run-site-1",
    }


# records without noise


def unnoised() -> RecordDict:
    return request(mechanism="unnoised", variant="no-privacy")


def test_a_real_node_sends_records_without_noise_only_where_its_owner_says_so(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "ledger.sqlite")
    with pytest.raises(ValueError, match='list "none" under privacy in the node\'s policy file'):
        handle_message(unnoised(), site(ledger), CODE)
    reply = handle_message(unnoised(), site(ledger, allows_unnoised=True), CODE)
    assert reply.metric_records["metrics"]["num-examples"] == COUNT
    # no row can tell of it, since no noise bounds it; the node's own notes do
    assert ledger.cohort_releases() == ()
    assert ledger.notes("run-no-privacy") == {(0, 1): "70 records left without noise"}


def test_an_owner_who_allows_records_without_noise_allows_no_second_budget() -> None:
    node = site(
        plans={**PLANS, "lambda-0": PLANS["main"]},
        allows_unnoised=True,
    )
    with pytest.raises(ValueError, match="is for simulations only"):
        handle_message(request(variant="lambda-0"), node, CODE)


# records that change


@pytest.mark.parametrize(
    "changed",
    [
        (X[::-1], Y[::-1]),
        (np.concatenate([X, X[:1]]), np.append(Y, Y[0])),
        (X[1:], Y[1:]),
        (X, Y + 1e-9),
    ],
    ids=["another order", "one more", "one less", "another target"],
)
def test_records_that_changed_since_the_run_began_are_refused_for_budgets_are_filed_by_place(
    tmp_path: Path, changed: tuple[np.ndarray, np.ndarray]
) -> None:
    ledger = NodeLedger(tmp_path / "ledger.sqlite")
    for _ in range(2):
        refuse_changed_records(ledger, "run", X, Y, "node 4")
    with pytest.raises(RecordsChanged, match="node 4: the records are not those that run 'run' began with"):
        refuse_changed_records(NodeLedger(ledger.path), "run", *changed, "node 4")
    refuse_changed_records(ledger, "next-run", *changed, "node 4")


def test_of_two_first_requests_at_once_with_other_records_one_is_refused(tmp_path: Path) -> None:
    path, barrier = tmp_path / "ledger.sqlite", threading.Barrier(2)
    ledgers, outcomes = [NodeLedger(path), NodeLedger(path)], []

    bind = NodeLedger.bind

    def together(ledger: NodeLedger, run: str, what: str, digest: str) -> None:
        barrier.wait(5)  # both have digests before either is kept
        bind(ledger, run, what, digest)

    def ask(ledger: NodeLedger, targets: np.ndarray) -> None:
        try:
            refuse_changed_records(ledger, "run", X, targets, "node 4")
            outcomes.append("goes on")
        except RecordsChanged:
            outcomes.append("refused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeLedger, "bind", together)
        threads = [threading.Thread(target=ask, args=one) for one in zip(ledgers, (Y, Y + 1e-9), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outcomes) == ["goes on", "refused"]
