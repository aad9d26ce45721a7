"""What all runs of a node have spent together: exact, on the private side, and never above what the owner allows."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.artifacts import DamagedFile, LifetimeExceeded, NodeLedger
from fedveil.privacy import CohortRelease, Release, gaussian_epsilon, gaussian_mu


def release(client: int, round: int, mu: float, relation: str = "record", **more: Any) -> Release:
    return Release(client, round, 0, "gradient", relation, mu, 1.0, **more)  # type: ignore[arg-type]


def send(ledger: NodeLedger, run: str, client: int, round: int, mu: float, **more: Any) -> None:
    ledger.record(run, {client: "digest"}, [release(client, round, mu, **more)], replay=False)


def send_cohort(ledger: NodeLedger, run: str, clients: list[int], round: int, mu: float) -> None:
    sent = CohortRelease(release(-1, round, mu, "attribute"), np.array(clients))
    ledger.record_cohort(run, {clients[0]: b"d" * 16}, sent, replay=False, budget={})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sqlite"


def test_each_run_counts_with_its_worst_client_whatever_its_number(path: Path) -> None:
    ledger = NodeLedger(path)
    send(ledger, "first", 0, 1, 0.5)
    send(ledger, "first", 1, 1, 0.25)
    send(ledger, "first", 1, 2, 0.25)
    send(ledger, "second", 7, 1, 0.75)
    assert ledger.spent_by_run("record") == {"first": Fraction(1, 4), "second": Fraction(9, 16)}


def test_cohorts_count_with_the_client_that_sent_most(path: Path) -> None:
    ledger = NodeLedger(path)
    send_cohort(ledger, "run", [4, 5, 6], 0, 0.5)
    send_cohort(ledger, "run", [5, 900], 1, 0.25)
    send_cohort(ledger, "run", [900], 2, 0.5)
    # client 5 and client 900 made one of each kind
    assert ledger.spent_by_run("attribute") == {"run": Fraction(1, 4) + Fraction(1, 16)}
    assert ledger.spent_by_run("record") == {"run": math.inf}


@pytest.mark.parametrize(
    ("more", "relation", "expected"),
    [
        ({}, "attribute", Fraction(1, 4)),  # a record row bounds the attributes too
        ({}, "client", math.inf),
        ({"relation": "attribute"}, "record", math.inf),
        ({"sampling_rate": 0.01}, "record", Fraction(1, 4)),  # as if all records had been used
        ({"chosen": "released"}, "record", Fraction(1, 4)),
        ({"chosen": "data-dependent"}, "record", math.inf),
    ],
)
def test_what_has_no_proven_bound_counts_as_infinite_and_a_sample_as_the_whole(
    path: Path, more: dict[str, Any], relation: Any, expected: float | Fraction
) -> None:
    ledger = NodeLedger(path)
    send(ledger, "run", 0, 1, 0.5, **more)
    assert ledger.spent_by_run(relation) == {"run": expected}


def test_a_booked_run_counts_under_the_relations_it_was_booked_for_and_once(path: Path) -> None:
    ledger = NodeLedger(path)
    for mu in (0.5, 0.25, 0.5):
        ledger.book("central", {"client": mu})
    assert ledger.spent_by_run("client") == {"central": Fraction(1, 4)}
    assert ledger.spent_by_run("record") == ledger.spent_by_run("attribute") == {"central": math.inf}
    ledger.book("central", {})
    assert ledger.spent_by_run("client") == {"central": math.inf}
    assert ledger.releases() == []


@given(
    spending=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(1e-3, 2.0)), min_size=1, max_size=12
    )
)
@settings(max_examples=15, deadline=None)
def test_the_total_is_that_of_arithmetic_with_60_digits(
    spending: list[tuple[int, int, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = NodeLedger(tmp_path_factory.mktemp("exact") / "node.sqlite")
    for number, (run, client, mu) in enumerate(spending):
        send(ledger, f"run-{run}", client, number, mu)
    with mp.workdps(60):
        of_client: dict[tuple[int, int], Any] = {}
        for run, client, mu in spending:
            of_client[run, client] = of_client.get((run, client), mp.mpf(0)) + mp.mpf(mu) ** 2
        runs = {run for run, _ in of_client}
        exact = sum(max(value for (of, _), value in of_client.items() if of == run) for run in runs)
        total = sum(ledger.spent_by_run("record").values())
        found = mp.mpf(total.numerator) / mp.mpf(total.denominator)  # type: ignore[union-attr]
        # each mu^2 is rounded up once, to a float
        assert exact <= found <= exact * (1 + mp.mpf(2) ** -51)


def test_the_total_of_runs_is_the_epsilon_that_a_library_of_its_own_composes(path: Path) -> None:
    ledger = NodeLedger(path)
    for run in range(3):
        for round in range(4):
            send(ledger, f"run-{run}", run, round, 0.125)
    total = sum(ledger.spent_by_run("record").values())
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(1 / 0.125), 12))
    assert gaussian_epsilon(math.sqrt(total), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_runs_exactly_at_the_limit_are_allowed_and_the_least_more_is_refused(path: Path) -> None:
    ledger = NodeLedger(path, limits={"record": 1.0})
    for run in range(4):
        send(ledger, f"run-{run}", run, 1, 0.5)
    assert sum(ledger.spent_by_run("record").values()) == 1
    with pytest.raises(LifetimeExceeded, match=r"refused by rule 'epsilon\.record' of this node's policy"):
        send(ledger, "run-4", 9, 1, 1e-9)
    assert len(ledger.releases()) == 4


def test_neither_reopening_nor_a_new_name_nor_other_clients_nor_another_kind_of_run_reset_it(
    path: Path,
) -> None:
    limits: Any = {"attribute": 1.0}
    send(NodeLedger(path, limits=limits), "first", 0, 1, 0.75)
    for opening in range(20):
        with pytest.raises(LifetimeExceeded):
            send(NodeLedger(path, limits=limits), f"renamed-{opening}", opening, 1, 0.75)
        with pytest.raises(LifetimeExceeded):
            send_cohort(NodeLedger(path, limits=limits), f"cohort-{opening}", [opening, 40], 0, 0.75)
    send_cohort(NodeLedger(path, limits=limits), "fits", [3], 0, 0.5)


def test_rows_from_before_a_limit_count(path: Path) -> None:
    send(NodeLedger(path), "free", 0, 1, 0.9)
    with pytest.raises(LifetimeExceeded):
        send(NodeLedger(path, limits={"record": 1.0}), "later", 0, 1, 0.5)


def test_of_a_message_that_is_refused_no_client_is_charged(path: Path) -> None:
    ledger = NodeLedger(path, limits={"record": 1.0})
    with pytest.raises(LifetimeExceeded):
        ledger.record("run", {0: "a", 1: "b"}, [release(0, 1, 0.5), release(1, 1, 1.5)], replay=False)
    assert ledger.releases() == []


def test_an_unbounded_booking_is_refused_where_there_is_a_limit(path: Path) -> None:
    with pytest.raises(LifetimeExceeded, match="with run 'bare' all runs together"):
        NodeLedger(path, limits={"record": 1e6}).book("bare", {})
    assert NodeLedger(path).spent_by_run("record") == {}


def test_a_process_killed_between_the_question_and_the_rows_has_spent_nothing(path: Path) -> None:
    code = f"""
import os, signal
from fedveil.artifacts import NodeLedger
from fedveil.privacy import Release
def die(client, past):
    os.kill(os.getpid(), signal.SIGKILL)
ledger = NodeLedger({str(path)!r}, limits={{"record": 1.0}})
ledger.record("run", {{0: "a"}}, [Release(0, 1, 0, "gradient", "record", 1.0, 1.0)], replay=False, admit=die)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    ledger = NodeLedger(path, limits={"record": 1.0})
    assert ledger.spent_by_run("record") == {}
    send(ledger, "run", 0, 1, 1.0)


@given(mus=st.lists(st.floats(0.05, 0.9), min_size=2, max_size=8), writers=st.integers(2, 4))
@settings(max_examples=6, deadline=None)
def test_writers_at_the_same_time_never_pass_the_limit(
    mus: list[float], writers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("race") / "node.sqlite"
    NodeLedger(path)
    refused: list[float] = []

    def write(writer: int) -> None:
        ledger = NodeLedger(path, limits={"record": 1.0})
        for round, mu in enumerate(mus):
            try:
                send(ledger, f"run-{writer}", writer, round, mu)
            except LifetimeExceeded:
                refused.append(mu)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = NodeLedger(path).releases()
    total = sum(Fraction(row.sensitivity) ** 2 for row in rows)
    assert total <= 1
    assert len(rows) + len(refused) == writers * len(mus)
    # what was refused did not fit: not even the smallest would by now
    assert not refused or total + Fraction(min(refused)) ** 2 > 1


def test_two_processes_at_the_same_time_never_pass_the_limit(path: Path) -> None:
    NodeLedger(path)
    code = f"""
import sys
from fedveil.artifacts import LifetimeExceeded, NodeLedger
from fedveil.privacy import Release
ledger, name, made = NodeLedger({str(path)!r}, limits={{"record": 1.0}}), sys.argv[1], 0
sys.stdin.readline()
for round in range(12):
    try:
        ledger.record(name, {{0: "d"}}, [Release(0, round, 0, "g", "record", 0.25, 1.0)], replay=False)
        made += 1
    except LifetimeExceeded:
        pass
print(made)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    made = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(made) == 16  # of 24 asked for: 16 times 0.25^2 is the limit
    assert sum(NodeLedger(path).spent_by_run("record").values()) == 1


def test_a_ledger_of_version_3_opens_and_its_rows_count(path: Path) -> None:
    send(NodeLedger(path), "old", 0, 1, 0.75)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE bookings")
        database.execute("DROP TABLE bindings")
        database.execute("PRAGMA user_version = 3")
    database.close()
    ledger = NodeLedger(path, limits={"record": 1.0})
    with pytest.raises(LifetimeExceeded):
        send(ledger, "new", 0, 1, 0.75)
    ledger.book("server", {"record": 0.5})
    assert ledger.spent_by_run("record") == {"old": Fraction(9, 16), "server": Fraction(1, 4)}


def test_a_limit_that_is_none_is_refused_when_the_ledger_is_opened(path: Path) -> None:
    with pytest.raises(ValueError, match="limit mu = -1"):
        NodeLedger(path, limits={"record": -1})
    assert not os.path.exists(path)


def test_runs_of_half_the_epsilon_fit_as_often_as_their_mu_squared_does(path: Path) -> None:
    limit, each = gaussian_mu(2.0, 1e-5), gaussian_mu(1.0, 1e-5)
    ledger, made = NodeLedger(path, limits={"record": limit}), 0
    for run in range(5):
        with contextlib.suppress(LifetimeExceeded):
            send(ledger, f"run-{run}", 0, 1, each)
            made += 1
    assert made == math.floor((limit / each) ** 2) == 3  # more than the 2 that adding epsilons would allow


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE releases SET sigma = 'abc'",
        "UPDATE releases SET sigma = -1.0",
        "UPDATE releases SET relation = 'foo'",
        "UPDATE bookings SET mu = 'abc'",
        "UPDATE bookings SET mu = -1.0",
    ],
)
def test_what_nobody_can_have_written_is_a_damaged_ledger_and_no_number(path: Path, harm: str) -> None:
    ledger = NodeLedger(path)
    ledger.record("run", {0: "d"}, [release(0, 1, 0.5)], replay=False)
    ledger.book("other", {"record": 0.5})
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(harm)
        database.commit()
    with pytest.raises(
        DamagedFile, match=r"node-ledger.sqlite, holds what FedVeil never writes .*: restore its last"
    ):
        NodeLedger(path).spent_by_run("record")
