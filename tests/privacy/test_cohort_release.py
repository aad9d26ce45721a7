"""A cohort's releases cost each client what its own rows would."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import CohortRelease, Release, compose_mu, participations, rows_under, worst_mu


def row(sigma=2.0, relation="attribute", client=-1, round=0, sensitivity=1.4, name="modulated-message"):
    return Release(client, round, 0, name, relation, sensitivity, sigma)


def test_a_cohort_is_the_same_row_for_each_client():
    cohort = CohortRelease(row(round=4), np.array([1, 5, 9]))
    assert (cohort.count, cohort.mu) == (3, 0.7)
    assert list(cohort) == [row(round=4, client=client) for client in (1, 5, 9)]
    assert cohort.of(5) == row(round=4, client=5)
    assert cohort.clients.dtype == np.int64
    for stranger in (0, 4, 10):
        with pytest.raises(ValueError, match=f"Client {stranger} is not in this cohort"):
            cohort.of(stranger)


def test_a_cohort_may_be_empty_and_keeps_its_own_clients():
    assert CohortRelease(row(), []).count == 0
    clients = np.array([1, 2])
    cohort = CohortRelease(row(), clients)
    clients[0] = 7
    assert cohort.clients.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        cohort.clients[0] = 7


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([2, 1], "not in order"),
        ([1, 1], "not in order"),
        ([-1, 1], "not in order"),
        ([0.5, 1], "whole numbers"),
        ([[1, 2]], "whole numbers"),
        ([True, False], "whole numbers"),
    ],
)
def test_clients_that_are_not_a_sorted_list_are_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        CohortRelease(row(), np.array(clients))


def test_a_template_that_names_a_client_is_refused():
    with pytest.raises(ValueError, match="names client 3: give it client -1"):
        CohortRelease(row(client=3), [3])


def test_participations_count_every_cohort_a_client_was_in():
    cohorts = [CohortRelease(row(round=t), clients) for t, clients in enumerate(([0, 2], [2, 3], []))]
    assert participations(cohorts, 5).tolist() == [1, 0, 2, 1, 0]
    assert participations([], 2).tolist() == [0, 0]
    with pytest.raises(ValueError, match="client 3 of 3"):
        participations(cohorts, 3)
    with pytest.raises(ValueError, match="num_clients = 0"):
        participations(cohorts, 0)


@settings(max_examples=100, deadline=None)
@given(
    cohorts=st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0, 7.0]),
            st.sampled_from(["attribute", "record"]),
            st.sets(st.integers(0, 6)),
        ),
        max_size=6,
    ),
    relation=st.sampled_from(["attribute", "record", "client"]),
)
def test_the_worst_client_is_the_one_with_the_largest_mu_of_its_own_rows(cohorts, relation):
    released = [
        CohortRelease(row(sigma, bounds, round=t), sorted(clients))
        for t, (sigma, bounds, clients) in enumerate(cohorts)
    ]
    expected = 0.0
    for client in range(7):
        rows = [cohort.of(client) for cohort in released if client in cohort.clients]
        bounding = rows_under(rows, relation)
        expected = max(expected, math.inf if bounding is None else compose_mu(one.mu for one in bounding))
    assert worst_mu(released, relation) == expected


def test_disjoint_cohorts_pay_once():
    rounds = [CohortRelease(row(round=t), np.arange(1000 * t, 1000 * (t + 1))) for t in range(5)]
    assert worst_mu(rounds, "attribute") == 0.7
    again = CohortRelease(row(round=5), np.array([10]))
    assert worst_mu([*rounds, again], "attribute") == compose_mu([0.7, 0.7])


def test_an_unknown_relation_is_refused():
    with pytest.raises(ValueError, match="relation = 'label'"):
        worst_mu([], "label")
