"""A node's own ledger: on disk before a message leaves, counted once or again as replay says."""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.artifacts import DamagedFile, NodeLedger, Past, ReplayMismatch, WriteFailed
from fedveil.artifacts.client_rows import insert
from fedveil.artifacts.sqlite_file import connected, transaction
from fedveil.privacy import BudgetExceeded, PrivacyFilter, Release, squared_mu


def row(client: int, round: int, step: int = 0, relation: str = "record", sigma: float = 0.7) -> Release:
    return Release(client, round, step, "gradient", relation, 0.1, sigma)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> NodeLedger:
    return NodeLedger(tmp_path / "node" / "ledger.sqlite")


def test_rows_are_there_for_another_process_when_record_returns(ledger: NodeLedger) -> None:
    rows = [row(3, 1), row(3, 1, relation="attribute", sigma=1 / 3), row(4, 1)]
    ledger.record("run", {3: "a", 4: "b"}, rows, replay=True)
    code = "import sys; from fedveil.artifacts import NodeLedger; print(NodeLedger(sys.argv[1]).releases())"
    done = subprocess.run(
        [sys.executable, "-c", code, ledger.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == repr(ledger.releases())
    assert set(ledger.releases()) == set(rows)


def test_a_commit_reaches_the_disk_and_so_does_the_end_of_its_journal(ledger: NodeLedger) -> None:
    with connected(ledger.path) as database:
        assert database.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=True)
    assert [path.name for path in ledger.path.parent.iterdir()] == ["ledger.sqlite"]


def test_the_file_is_readable_by_its_owner_alone(ledger: NodeLedger) -> None:
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_a_replayed_message_of_equal_digest_counts_once(ledger: NodeLedger) -> None:
    for _ in range(3):
        ledger.record("run", {3: "a"}, [row(3, 1), row(3, 1, step=1)], replay=True)
    assert len(ledger.releases()) == 2
    assert ledger.count("run", 3) == 2


def test_a_replayed_message_of_other_bytes_is_refused_and_nothing_of_its_transaction_stays(
    ledger: NodeLedger,
) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=True)
    with pytest.raises(ReplayMismatch, match="client 3 sent something else before in round 1 of run 'run'"):
        ledger.record("run", {2: "x", 3: "b"}, [row(2, 1), row(3, 1)], replay=True)
    assert ledger.releases() == [row(3, 1)]


def test_a_replayed_message_with_other_rows_is_refused(ledger: NodeLedger) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=True)
    with pytest.raises(ReplayMismatch):
        ledger.record("run", {3: "a"}, [row(3, 1, sigma=0.8)], replay=True)


def test_a_message_with_fresh_noise_counts_again_even_with_equal_digest(ledger: NodeLedger) -> None:
    for _ in range(3):
        ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
    assert ledger.count("run", 3) == 3
    assert ledger.spent("run", 3)["record"] == pytest.approx(3 * (0.1 / 0.7) ** 2, rel=1e-15)


def test_rounds_clients_and_runs_are_counted_apart(ledger: NodeLedger) -> None:
    for run in ("one", "two"):
        for round in (1, 2, 3):
            ledger.record(run, {3: "a", 4: "b"}, [row(3, round), row(4, round)], replay=True)
    assert ledger.count("one", 3) == 3
    assert ledger.count("one", 3, except_round=3) == 2
    assert ledger.count("one", 5) == 0
    assert ledger.spent("one", 5) == {}
    # a later round is no less spent than an earlier one, whatever order they were asked for in
    assert ledger.spent("one", 3, except_round=1)["record"] == pytest.approx(2 * (0.1 / 0.7) ** 2, rel=1e-15)
    assert ledger.spent("one", 3, except_round=9)["record"] == pytest.approx(3 * (0.1 / 0.7) ** 2, rel=1e-15)
    assert len(ledger.releases()) == 12
    assert len(ledger.releases("one")) == 6
    assert ledger.releases("two", 4) == [row(4, 1), row(4, 2), row(4, 3)]


def test_spent_is_the_exact_sum_of_squares_rounded_up_under_each_relation(ledger: NodeLedger) -> None:
    rounds = range(1, 41)
    for round in rounds:
        rows = [
            row(3, round, sigma=0.7 + round / 97),
            row(3, round, relation="attribute", sigma=2.0 + round / 89),
        ]
        ledger.record("run", {3: str(round)}, rows, replay=True)
    spent = ledger.spent("run", 3)
    for relation, sigma in (
        ("record", [0.7 + r / 97 for r in rounds]),
        ("attribute", [2.0 + r / 89 for r in rounds]),
    ):
        exact = sum((Fraction(0.1) / Fraction(value)) ** 2 for value in sigma)
        assert exact <= Fraction(spent[relation]) <= exact * (1 + Fraction(1, 2**51))  # type: ignore[index]
    assert set(spent) == {"record", "attribute"}


def test_a_record_row_counts_under_the_attribute_relation_too(ledger: NodeLedger) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=True)
    spent = ledger.spent("run", 3)
    assert spent["attribute"] == spent["record"] > 0


def test_a_release_without_a_row_that_bounds_it_leaves_nothing_of_the_budget(ledger: NodeLedger) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1, relation="attribute")], replay=True)
    assert ledger.spent("run", 3) == {"attribute": pytest.approx((0.1 / 0.7) ** 2), "record": math.inf}


def test_spent_agrees_with_the_ledger_of_the_privacy_package(ledger: NodeLedger) -> None:
    generator = np.random.default_rng(5)
    for round in range(1, 30):
        sigma = float(generator.choice([0.7, 0.9, generator.uniform(0.5, 1.0)]))
        rows = [row(3, round, step, sigma=sigma) for step in range(3)]
        ledger.record("run", {3: str(round)}, rows, replay=True)
    expected = squared_mu(ledger.releases("run", 3), "record")
    assert ledger.spent("run", 3)["record"] == pytest.approx(expected, rel=1e-14)


def test_the_servers_own_rows_count_under_the_client_relation_alone(ledger: NodeLedger) -> None:
    ledger.record("run", {-1: "a"}, [row(-1, 1, relation="client")], replay=True)
    assert set(ledger.spent("run", -1)) == {"client"}


def test_a_filter_built_on_spent_admits_as_many_rounds_as_one_that_was_never_stopped(
    ledger: NodeLedger,
) -> None:
    budgets = {"record": 0.5}
    admitted = 0
    for round in range(1, 31):
        if not PrivacyFilter(budgets, ledger.spent("run", 3)).admits([row(3, round)]):  # type: ignore[arg-type]
            break
        ledger.record("run", {3: str(round)}, [row(3, round)], replay=False)
        admitted += 1
    assert admitted == int(0.5**2 / (0.1 / 0.7) ** 2) == 12


def test_sampled_rows_have_a_count_and_no_filter(ledger: NodeLedger) -> None:
    sampled = Release(3, 1, 0, "gradient", "record", 0.1, 0.7, sampling_rate=0.1)
    ledger.record("run", {3: "a"}, [sampled], replay=True)
    assert ledger.count("run", 3) == 1
    with pytest.raises(ValueError, match="fixed schedule"):
        ledger.spent("run", 3)


def test_two_rows_of_one_release_are_one_release(ledger: NodeLedger) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1), row(3, 1, relation="attribute")], replay=True)
    assert ledger.count("run", 3) == 1


def test_rows_without_digest_twice_the_same_or_of_two_rounds_are_refused(ledger: NodeLedger) -> None:
    with pytest.raises(ValueError, match="client 3 has ledger rows but no digest"):
        ledger.record("run", {4: "a"}, [row(3, 1)], replay=True)
    with pytest.raises(ValueError, match="client 3 has two rows of one step"):
        ledger.record("run", {3: "a"}, [row(3, 1), row(3, 1)], replay=True)
    with pytest.raises(ValueError, match=r"client 3 has rows of the rounds \[1, 2\]"):
        ledger.record("run", {3: "a"}, [row(3, 1), row(3, 2)], replay=True)
    with pytest.raises(ValueError, match="a run must have a name"):
        ledger.record("", {3: "a"}, [row(3, 1)], replay=True)
    assert ledger.releases() == []


def test_several_processes_write_at_once_and_no_row_is_lost(ledger: NodeLedger) -> None:
    code = """
import sys
from fedveil.artifacts import NodeLedger
from fedveil.privacy import Release
writer = int(sys.argv[2])
ledger = NodeLedger(sys.argv[1])
for round in range(1, 16):
    own = Release(writer, round, 0, "gradient", "record", 0.1, 0.7)
    shared = Release(100, round, 0, "gradient", "record", 0.1, 0.7)
    ledger.record("fresh", {writer: "a", 100: "b"}, [own, shared], replay=False)
    ledger.record("seeded", {100: "b"}, [shared], replay=True)
"""
    file = ledger.path.with_name("shared.sqlite")  # made by whichever process comes first
    writers = [
        subprocess.Popen([sys.executable, "-c", code, file, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for process in writers:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    shared = NodeLedger(file)
    assert [shared.count("fresh", number) for number in range(4)] == [15] * 4
    assert shared.count("fresh", 100) == 60
    assert shared.count("seeded", 100) == 15


def test_a_writer_looks_at_the_ledger_only_after_another_has_finished(ledger: NodeLedger) -> None:
    errors: list[BaseException] = []

    def record() -> None:
        try:
            ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
        except BaseException as error:
            errors.append(error)

    with transaction(ledger.path) as database:
        second = threading.Thread(target=record)
        second.start()
        second.join(0.3)  # long enough for a writer that does not wait to look at an empty ledger
        insert(database, ("run", 3, 1, 0), "a", [row(3, 1)])
    second.join()
    assert errors == []
    assert ledger.count("run", 3) == 2


def test_a_file_that_is_no_node_ledger_is_named_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("x" * 5000)
    with pytest.raises(DamagedFile, match=r"notes.txt is not a node ledger"):
        NodeLedger(text)
    assert text.read_text() == "x" * 5000
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE mine (value)")
    database.close()
    with pytest.raises(DamagedFile, match=r"foreign.sqlite is not a node ledger of version 4"):
        NodeLedger(foreign)


# an empty file is no ledger


def test_an_empty_file_is_refused_and_left_alone_for_it_may_be_a_copy_that_was_cut_short(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ledger.sqlite"
    file.write_bytes(b"")
    with pytest.raises(
        DamagedFile, match=r"ledger.sqlite is empty, .* or delete it if this node has never released anything"
    ):
        NodeLedger(file)
    assert file.read_bytes() == b""
    file.unlink()
    assert NodeLedger(file).releases() == []


@pytest.mark.parametrize("kept", [1, 99, 100, 4096, 8192])
def test_a_ledger_that_was_cut_short_anywhere_is_refused(ledger: NodeLedger, kept: int) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:kept])
    with pytest.raises(DamagedFile, match=r"ledger.sqlite (lacks its end|is not a node ledger)"):
        NodeLedger(ledger.path)
    assert ledger.path.read_bytes() == whole[:kept]


@given(st.integers(1, 60), st.integers(1, 4095))
@settings(max_examples=40)
def test_a_ledger_that_lacks_any_part_of_its_last_page_is_refused(runs: int, missing: int) -> None:
    """SQLite takes what lacks for zeros: the rows there would be forgotten, and their budget whole again."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = NodeLedger(Path(folder) / "ledger.sqlite")
        for number in range(runs):
            ledger.book(f"run-{number}", {"record": 1.0})
        whole = ledger.path.read_bytes()
        assert len(NodeLedger(ledger.path).spent_by_run("record")) == runs
        ledger.path.write_bytes(whole[:-missing])
        with pytest.raises(DamagedFile, match="lacks its end"):
            NodeLedger(ledger.path)
        ledger.path.write_bytes(whole)
        assert len(NodeLedger(ledger.path).spent_by_run("record")) == runs


def test_a_database_without_tables_is_no_new_ledger(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("VACUUM")
    database.close()
    assert file.stat().st_size > 0
    with pytest.raises(DamagedFile, match="is not a node ledger of version 4"):
        NodeLedger(file)


def test_a_ledger_that_is_deleted_under_a_node_lets_nothing_leave_and_no_empty_file_is_put_there(
    ledger: NodeLedger,
) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
    ledger.path.unlink()
    with pytest.raises(
        WriteFailed, match=r"ledger.sqlite could not be used \(unable to open database file\)"
    ):
        ledger.record("run", {3: "b"}, [row(3, 2)], replay=False)
    assert list(ledger.path.parent.iterdir()) == []


@pytest.fixture(params=["links", "no links"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems without hard links, such as FAT's, and those with."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if request.param == "no links":
        monkeypatch.setattr(os, "link", refused)


@pytest.mark.usefixtures("file_system")
def test_a_ledger_that_another_makes_at_the_same_time_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, barrier = tmp_path / "ledger.sqlite", threading.Barrier(8)
    errors: list[BaseException] = []
    lexists = os.path.lexists

    def together(path: object) -> bool:
        there = lexists(path)  # type: ignore[arg-type]
        if not barrier.broken and not there:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(5)  # all have seen that there is none
            barrier.abort()
        return there

    def node(client: int) -> None:
        try:
            NodeLedger(file).record("run", {client: "a"}, [row(client, 1)], replay=False)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(os.path, "lexists", together)
    nodes = [threading.Thread(target=node, args=(client,)) for client in range(8)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join()
    assert errors == []
    assert {release.client for release in NodeLedger(file).releases()} == set(range(8))
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.usefixtures("file_system")
def test_a_path_with_any_characters_holds_a_whole_ledger_of_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "50% [of] a #node?" / "ledger *.sqlite"
    NodeLedger(file).record("run", {3: "a"}, [row(3, 1)], replay=False)
    assert NodeLedger(file).count("run", 3) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def as_version_1(path: Path) -> None:
    """What the ledger of a node was before it kept notes."""
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE notes")
        database.execute("DROP TABLE cohorts")
        database.execute("DROP TABLE bookings")
        database.execute("DROP TABLE bindings")
        database.execute("PRAGMA user_version = 1")
    database.close()


def test_a_ledger_of_the_version_before_keeps_its_rows_and_takes_notes(ledger: NodeLedger) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
    as_version_1(ledger.path)
    upgraded = NodeLedger(ledger.path)
    assert upgraded.releases() == [row(3, 1)]
    upgraded.note("run", 3, 1, "kept")
    assert upgraded.notes("run") == {(3, 1): "kept"}
    with sqlite3.connect(ledger.path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (4,)
    database.close()
    assert NodeLedger(ledger.path).count("run", 3) == 1  # and once more is no upgrade


def test_what_a_run_s_clients_are_stays_as_it_was_first(ledger: NodeLedger) -> None:
    ledger.bind("run", "the configuration", "one")
    NodeLedger(ledger.path).bind("run", "the configuration", "one")
    ledger.bind("run", "the description of records", "another")
    ledger.bind("another run", "the configuration", "another")
    with pytest.raises(ValueError, match="the configuration of run 'run' was another before"):
        NodeLedger(ledger.path).bind("run", "the configuration", "another")
    with pytest.raises(ValueError, match="the description of records of run 'run' was another before"):
        ledger.bind("run", "the description of records", "one")


def test_a_ledger_of_a_version_to_come_is_refused_and_left_alone(ledger: NodeLedger) -> None:
    with sqlite3.connect(ledger.path) as database:
        database.execute("PRAGMA user_version = 5")
    database.close()
    before = ledger.path.read_bytes()
    with pytest.raises(DamagedFile, match="is not a node ledger of version 4: choose another file"):
        NodeLedger(ledger.path)
    assert ledger.path.read_bytes() == before


def test_notes_are_kept_by_run_client_and_round_the_last_one_each(ledger: NodeLedger) -> None:
    for run, client, round, note in (
        ("run", 3, 1, "first"),
        ("run", 3, 2, "second"),
        ("run", 4, 1, "another's"),
        ("other", 3, 1, "of another run"),
        ("run", 3, 1, "again"),
    ):
        ledger.note(run, client, round, note)
    again = NodeLedger(ledger.path)
    assert again.notes("run") == {(3, 1): "again", (3, 2): "second", (4, 1): "another's"}
    assert again.notes("other") == {(3, 1): "of another run"}
    assert again.notes("none") == {}
    assert again.releases() == []


def test_a_full_disk_is_one_sentence_and_adds_nothing(
    ledger: NodeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
    connect = sqlite3.connect

    def small(*args: object, **kwargs: object) -> sqlite3.Connection:
        database = connect(*args, **kwargs)  # type: ignore[call-overload]
        database.execute("PRAGMA max_page_count = 1")
        return database  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(
            WriteFailed, match=r"ledger.sqlite could not be used \(database or disk is full\)"
        ):
            ledger.record(
                "run", {3: "a"}, [row(3, round, step=s) for round in (2,) for s in range(500)], replay=False
            )
    assert ledger.releases() == [row(3, 1)]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match=r"file/ledger.sqlite could not be written"):
        NodeLedger(tmp_path / "file" / "ledger.sqlite")
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_not_admitted_inside_the_transaction_adds_nothing(ledger: NodeLedger) -> None:
    asked = []

    def admit(client: int, past: Past) -> bool:
        asked.append((client, past.count()))
        return client != 4

    ledger.record("run", {3: "a"}, [row(3, 1)], replay=False)
    with pytest.raises(BudgetExceeded, match="client 4"):
        ledger.record("run", {3: "b", 4: "c"}, [row(3, 2), row(4, 2)], replay=False, admit=admit)
    assert asked == [(3, 1), (4, 0)]
    assert ledger.count("run", 3) == 1
