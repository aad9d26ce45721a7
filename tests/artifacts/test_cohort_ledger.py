"""Rows of whole cohorts in a node's ledger: one for many clients, budgets kept for each, replays counted once."""

from __future__ import annotations

import math
import sqlite3
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.artifacts import DamagedFile, NodeLedger, ReplayMismatch, WriteFailed
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.privacy import BudgetExceeded, CohortRelease, PrivacyFilter, Release, squared_mu

BUDGET = {"attribute": 0.5}


def cohort(
    clients: object, round: int = 1, *, sigma: float = 1 / 0.3, relation: str = "attribute"
) -> CohortRelease:
    release = Release(-1, round, 0, "modulated-message", relation, 1.0, sigma)  # type: ignore[arg-type]
    return CohortRelease(release, np.array(clients, dtype=np.int64))


@pytest.fixture(params=["disk", "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> NodeLedger | MemoryLedger:
    return NodeLedger(tmp_path / "node.sqlite") if request.param == "disk" else MemoryLedger()


def record(ledger: Any, run: str, text: str, sent: CohortRelease, **told: Any) -> None:
    """Record a message of one part with a digest of the text."""
    digest = blake2b(text.encode(), digest_size=16).digest()
    ledger.record_cohort(run, {int(sent.clients[0]): digest} if sent.count else {}, sent, **told)


def same(one: CohortRelease, other: CohortRelease) -> bool:
    return one.release == other.release and one.clients.tolist() == other.clients.tolist()


def test_rows_are_there_for_another_object_when_record_returns(tmp_path: Path) -> None:
    path = tmp_path / "node.sqlite"
    sent = cohort([3, 5, 900])
    record(NodeLedger(path), "run", "a", sent, replay=False, budget=BUDGET, note="2 of 3 were clipped")
    again = NodeLedger(path)
    assert [same(row, sent) for row in again.cohort_releases("run")] == [True]
    assert again.cohort_releases("other") == ()
    assert len(again.cohort_releases()) == 1
    assert again.notes("run") == {(3, 1): "2 of 3 were clipped"}


def admitted(ledger: Any, run: str, wanted: CohortRelease, budget: float, **told: Any) -> list[bool]:
    """Which clients can make a release where mu^2 of all may add up to the budget."""
    relation = {wanted.release.relation: math.sqrt(budget)}
    return ledger.affordable(run, wanted, **{"replay": False, **told}, budget=relation).tolist()  # type: ignore[no-any-return]


def test_each_client_has_its_own_sum(ledger: NodeLedger | MemoryLedger) -> None:
    # mu^2 is 0.09 for each: the clients 0 to 3 have spent once, thrice, once, never
    for number, clients in enumerate(([0, 1], [1, 2], [1])):
        record(ledger, "run", f"d{number}", cohort(clients, number), replay=False, budget={})
    wanted = cohort(range(4), 9)
    assert admitted(ledger, "run", wanted, 0.1) == [False, False, False, True]
    assert admitted(ledger, "run", wanted, 0.2) == [True, False, True, True]
    assert admitted(ledger, "run", wanted, 0.35) == [True, False, True, True]
    assert admitted(ledger, "run", wanted, 0.37) == [True] * 4
    assert admitted(ledger, "other", wanted, 0.1) == [True] * 4
    # the rows of a round that a seeded run replays are no past
    again = cohort(range(4), 1)
    assert admitted(ledger, "run", again, 0.28) == [True, False, True, True]
    assert admitted(ledger, "run", again, 0.28, replay=True) == [True] * 4
    # and rows under the attribute relation bound nothing under the record relation
    whole = cohort(range(4), 9, relation="record")
    assert admitted(ledger, "run", whole, 1e9) == [False, False, False, True]


def test_a_sum_is_exact(ledger: NodeLedger | MemoryLedger) -> None:
    sigmas = [3 + k / 7 for k in range(25)] + [3.0] * 4
    for number, sigma in enumerate(sigmas):
        record(ledger, "run", f"d{number}", cohort([7], number, sigma=sigma), replay=False, budget={})
    exact = float(sum((1 / Fraction(sigma)) ** 2 for sigma in [*sigmas, 3.0]))
    wanted = cohort([7], 99, sigma=3.0)
    assert admitted(ledger, "run", wanted, exact * (1 + 1e-14)) == [True]
    assert admitted(ledger, "run", wanted, exact * (1 - 1e-14)) == [False]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 12)), st.sampled_from([3.0, 4.0, 7.5])), max_size=8),
    st.integers(0, 8),
)
def test_budgets_are_those_of_the_filter_client_by_client(sends, round):
    ledger = MemoryLedger()
    rows: dict[int, list[Release]] = {client: [] for client in range(13)}
    for number, (members, sigma) in enumerate(sends):
        sent = cohort(sorted(members), number, sigma=sigma)
        record(ledger, "run", f"d{number}", sent, replay=False, budget={})
        for client in members:
            rows[client].append(sent.of(client))
    wanted = cohort(range(13), round)
    for replay in (False, True):
        allowed = ledger.affordable("run", wanted, replay=replay, budget=BUDGET)
        for client in range(13):
            past = [row for row in rows[client] if not (replay and row.round == round)]
            spent = {"attribute": squared_mu(past, "attribute")}
            assert allowed[client] == PrivacyFilter(BUDGET, spent).admits([wanted.of(client)])  # type: ignore[arg-type]


def test_a_client_that_cannot_pay_is_named_and_nothing_is_added(ledger: NodeLedger | MemoryLedger) -> None:
    # 0.3^2 is paid twice from 0.5^2, and not three times
    for round in (1, 2):
        record(ledger, "run", f"d{round}", cohort([4], round), replay=False, budget=BUDGET)
    wanted = cohort([2, 4, 6], 3)
    assert ledger.affordable("run", wanted, replay=False, budget=BUDGET).tolist() == [True, False, True]
    with pytest.raises(BudgetExceeded, match="client"):
        record(ledger, "run", "d3", wanted, replay=False, budget=BUDGET, note="not kept")
    assert len(ledger.cohort_releases("run")) == 2
    assert ledger.notes("run") == {}
    record(ledger, "another", "d3", wanted, replay=False, budget=BUDGET)


def test_a_release_that_bounds_nothing_leaves_nothing_of_a_budget(ledger: NodeLedger | MemoryLedger) -> None:
    record(ledger, "run", "a", cohort([4]), replay=False, budget={})
    allowed = ledger.affordable(
        "run", cohort([4, 5], 2, relation="record"), replay=False, budget={"record": 9.0}
    )
    assert allowed.tolist() == [False, True]


def test_fresh_noise_counts_again_and_a_replay_once(ledger: NodeLedger | MemoryLedger) -> None:
    for _ in range(3):
        record(ledger, "fresh", "a", cohort([1, 2]), replay=False, budget={})
        record(ledger, "seeded", "a", cohort([1, 2]), replay=True, budget=BUDGET)
    assert len(ledger.cohort_releases("fresh")) == 3
    assert len(ledger.cohort_releases("seeded")) == 1


def test_a_replay_needs_no_second_budget(ledger: NodeLedger | MemoryLedger) -> None:
    budget = {"attribute": 0.3}
    record(ledger, "run", "a", cohort([1, 2]), replay=True, budget=budget)
    assert ledger.affordable("run", cohort([1, 2]), replay=True, budget=budget).all()
    assert not ledger.affordable("run", cohort([1, 2]), replay=False, budget=budget).any()
    assert not ledger.affordable("run", cohort([1, 2], 2), replay=True, budget=budget).any()


@pytest.mark.parametrize(
    ("digest", "other"),
    [
        ("b", cohort([1, 2])),  # other bytes
        ("a", cohort([2, 3])),  # the same noise for other clients with one in common
        ("a", cohort([1, 2], sigma=4.0)),
    ],
)
def test_a_seeded_round_sent_again_otherwise_is_refused(
    ledger: NodeLedger | MemoryLedger, digest: str, other: CohortRelease
) -> None:
    record(ledger, "run", "a", cohort([1, 2]), replay=True, budget={})
    with pytest.raises(
        ReplayMismatch, match=r"client [12] sent something else before in round 1 of run 'run'"
    ):
        record(ledger, "run", digest, other, replay=True, budget={})
    assert len(ledger.cohort_releases("run")) == 1


def test_other_clients_of_the_same_round_are_a_message_of_their_own(
    ledger: NodeLedger | MemoryLedger,
) -> None:
    """Simulated nodes share one ledger."""
    record(ledger, "run", "a", cohort([1, 2]), replay=True, budget=BUDGET)
    record(ledger, "run", "b", cohort([3, 4]), replay=True, budget=BUDGET)
    record(ledger, "run", "a", cohort([1, 2]), replay=True, budget=BUDGET)
    assert [row.clients.tolist() for row in ledger.cohort_releases("run")] == [[1, 2], [3, 4]]


def test_nobody_adds_no_row(ledger: NodeLedger | MemoryLedger) -> None:
    record(ledger, "run", "a", cohort([]), replay=False, budget=BUDGET, note="nobody")
    assert ledger.cohort_releases("run") == ()
    assert ledger.affordable("run", cohort([]), replay=False, budget=BUDGET).shape == (0,)
    assert ledger.notes("run") == {(-1, 1): "nobody"}


def test_a_run_has_rows_of_cohorts_or_of_single_clients(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    record(ledger, "cohorts", "a", cohort([1]), replay=False, budget=BUDGET)
    single = Release(1, 1, 0, "gradient", "record", 0.1, 0.7)
    with pytest.raises(ValueError, match="run 'cohorts' has rows of cohorts"):
        ledger.record("cohorts", {1: "b"}, [single], replay=False)
    ledger.record("single", {1: "b"}, [single], replay=False)
    with pytest.raises(ValueError, match="run 'single' has rows of single clients"):
        record(ledger, "single", "a", cohort([1]), replay=False, budget=BUDGET)
    assert len(ledger.cohort_releases()) == len(ledger.releases()) == 1


def test_a_run_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a run must have a name"):
        record(NodeLedger(tmp_path / "node.sqlite"), "", "a", cohort([1]), replay=False, budget=BUDGET)


@pytest.mark.parametrize("digests", [{}, {2: b"x" * 16}, {1: b"x" * 16, 3: b"y" * 16}, {1: b"short"}])
def test_every_client_is_in_a_part_with_a_digest(
    ledger: NodeLedger | MemoryLedger, digests: dict[int, bytes]
) -> None:
    with pytest.raises(ValueError, match="digest"):
        ledger.record_cohort("run", digests, cohort([1, 2]), replay=False, budget=BUDGET)
    assert ledger.cohort_releases("run") == ()


def in_parts(*texts: str) -> dict[int, bytes]:
    """Digests of parts of ten clients each, from client 0."""
    return {
        10 * place: blake2b(text.encode(), digest_size=16).digest()
        for place, text in enumerate(texts)
        if text
    }


def test_a_round_may_be_sent_again_by_another_number_of_nodes(ledger: NodeLedger | MemoryLedger) -> None:
    budget = {"attribute": 0.3}
    for clients, digests in (
        (range(10, 30), in_parts("", "b", "c")),  # one of two nodes, before the run was killed
        (range(30), in_parts("a", "b", "c")),  # one node alone, afterwards
        (range(20), in_parts("a", "b")),
        (range(20, 40), in_parts("", "", "c", "d")),
    ):
        sent = cohort(clients)
        assert ledger.affordable("run", sent, replay=True, budget=budget).all()
        ledger.record_cohort("run", digests, sent, replay=True, budget=budget)
    kept = [row.clients.tolist() for row in ledger.cohort_releases("run")]
    assert kept == [list(range(10, 30)), list(range(10)), list(range(30, 40))]
    with pytest.raises(ReplayMismatch, match="client 10 sent something else"):
        ledger.record_cohort("run", in_parts("a", "x"), cohort(range(20)), replay=True, budget=budget)


def test_without_replay_every_part_counts_again(ledger: NodeLedger | MemoryLedger) -> None:
    for _ in range(2):
        ledger.record_cohort("run", in_parts("a", "b"), cohort(range(20)), replay=False, budget={})
    assert [row.count for row in ledger.cohort_releases("run")] == [20, 20]


def test_a_million_clients_are_one_small_row(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    half = np.flatnonzero(np.random.default_rng(1).random(1_000_000) < 0.5)
    for round, clients in enumerate((np.arange(1_000_000), half, np.arange(1_000_000))):
        allowed = ledger.affordable("run", cohort(clients, round), replay=True, budget=BUDGET)
        took_part = clients[allowed]
        record(ledger, "run", f"d{round}", cohort(took_part, round), replay=True, budget=BUDGET)
    assert [row.count for row in ledger.cohort_releases()] == [1_000_000, half.size, 1_000_000 - half.size]
    assert ledger.path.stat().st_size < 500_000


def test_a_full_disk_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    connect = sqlite3.connect

    def small(*args: object, **kwargs: object) -> sqlite3.Connection:
        database = connect(*args, **kwargs)  # type: ignore[call-overload]
        database.execute("PRAGMA max_page_count = 1")
        return database  # type: ignore[no-any-return]

    half = np.flatnonzero(np.random.default_rng(1).random(1_000_000) < 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(WriteFailed, match="disk is full"):
            record(ledger, "run", "a", cohort(half), replay=False, budget=BUDGET)
    assert ledger.cohort_releases() == ()


@pytest.mark.parametrize("version", [1, 2])
def test_a_ledger_of_a_version_before_takes_cohorts(tmp_path: Path, version: int) -> None:
    path = tmp_path / "node.sqlite"
    single = Release(1, 1, 0, "gradient", "record", 0.1, 0.7)
    NodeLedger(path).record("before", {1: "b"}, [single], replay=False)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE cohorts")
        database.execute("DROP TABLE bookings")
        database.execute("DROP TABLE bindings")
        if version == 1:
            database.execute("DROP TABLE notes")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    ledger = NodeLedger(path)
    record(ledger, "run", "a", cohort([1]), replay=False, budget=BUDGET, note="kept")
    assert ledger.releases() == [single]
    assert NodeLedger(path).notes("run") == {(1, 1): "kept"}


def test_a_damaged_set_of_clients_is_a_damaged_file(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.sqlite")
    record(ledger, "run", "a", cohort([1]), replay=False, budget=BUDGET)
    with sqlite3.connect(ledger.path) as database:
        database.execute("UPDATE cohorts SET clients = x'00'")
    database.close()
    with pytest.raises(DamagedFile, match=r"node.sqlite has a cohort's row that cannot be read"):
        ledger.cohort_releases()
