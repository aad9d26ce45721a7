"""Who takes part: cohorts are disjoint and complete, samples are fresh, and nobody pays more often than planned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.strategies.attendance import Attendance
from fedveil.streams import Streams

SEEDED = Streams.seeded("c0ffee", 3)


@given(num_clients=st.integers(1, 200), data=st.data())
def test_cohorts_are_disjoint_and_complete_and_differ_by_one_client_at_most(num_clients, data):
    rounds = data.draw(st.integers(1, num_clients))
    attendance = Attendance(num_clients, "cohorts", SEEDED)
    cohorts = [attendance.draw(number, rounds) for number in range(1, rounds + 1)]
    assert sorted(np.concatenate(cohorts).tolist()) == list(range(num_clients))
    sizes = [len(cohort) for cohort in cohorts]
    assert max(sizes) - min(sizes) <= 1
    assert all(np.all(np.diff(cohort) > 0) for cohort in cohorts)


def test_cohorts_are_drawn_at_random_from_the_seed():
    first, again = (Attendance(100, "cohorts", SEEDED).draw(1, 4).tolist() for _ in range(2))
    other = Attendance(100, "cohorts", Streams.seeded("c0ffee", 4)).draw(1, 4).tolist()
    assert first == again
    assert first != other
    assert first != list(range(25))


def test_more_cohorts_than_clients_are_refused():
    with pytest.raises(
        ValueError, match="4 rounds of disjoint cohorts need as many clients, and there are 3"
    ):
        Attendance(3, "cohorts", SEEDED).draw(1, 4)


def test_everyone_takes_part_until_the_planned_releases_are_spent():
    attendance = Attendance(5, "all", SEEDED, num_releases=2)
    for number in (1, 2):
        clients = attendance.draw(number, 3)
        assert clients.tolist() == [0, 1, 2, 3, 4]
        attendance.paid(clients)
    assert not attendance.able().any()
    assert attendance.draw(3, 3).size == 0


def test_a_sample_has_its_share_and_is_fresh_each_round():
    attendance = Attendance(40, "sampled", SEEDED, fraction=0.25)
    samples = [attendance.draw(number, 8).tolist() for number in range(1, 9)]
    assert all(len(sample) == 10 and sample == sorted(set(sample)) for sample in samples)
    assert len({tuple(sample) for sample in samples}) == 8


def test_a_sample_passes_over_who_is_spent_or_has_stopped():
    attendance = Attendance(8, "sampled", SEEDED, num_releases=1, fraction=0.5)
    attendance.stop(np.array([2]))
    seen = []
    while (clients := attendance.draw(len(seen) + 1, 9)).size:
        attendance.paid(clients)
        seen.append(clients)
    assert sorted(np.concatenate(seen).tolist()) == [0, 1, 3, 4, 5, 6, 7]
    assert [len(clients) for clients in seen] == [4, 3]


def test_even_the_smallest_share_is_somebody():
    assert Attendance(10, "sampled", SEEDED, fraction=1e-6).draw(1, 1).size == 1


@pytest.mark.parametrize("participation", ["all", "cohorts"])
def test_a_share_of_the_clients_needs_sampling(participation):
    with pytest.raises(ValueError, match=r"fraction_train = 0\.5 contradicts participation"):
        Attendance(10, participation, SEEDED, fraction=0.5)


def test_an_unknown_participation_is_refused():
    with pytest.raises(ValueError, match="did you mean 'cohorts'"):
        Attendance(10, "cohort", SEEDED)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, float("nan")])
def test_a_share_outside_its_range_is_refused(fraction):
    with pytest.raises(ValueError, match="fraction_train"):
        Attendance(10, "sampled", SEEDED, fraction=fraction)


def test_cohorts_of_the_systems_entropy_outlive_an_interruption():
    attendance = Attendance(60, "cohorts", Streams.system(), num_releases=1)
    first = attendance.draw(1, 3)
    attendance.paid(first)
    resumed = Attendance(60, "cohorts", Streams.system(), num_releases=1)
    resumed.restore(attendance.state())
    rest = [resumed.draw(number, 3) for number in (2, 3)]
    assert sorted(np.concatenate([first, *rest]).tolist()) == list(range(60))


def test_a_state_of_other_clients_is_refused():
    with pytest.raises(ValueError, match="the saved state is of 4 clients, and the run has 5"):
        Attendance(5, "all", SEEDED).restore(Attendance(4, "all", SEEDED).state())
