"""The step mechanism: its rows, and plans that spend a budget to the end and never pass it."""

import math
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    Ledger,
    PrivacyFilter,
    StepMechanism,
    budgets,
    gaussian_mu,
    plan_step,
    squared_mu,
    subsampled_epsilon,
)

DELTA = 1e-5


def plan(**changes):
    plain = {
        "num_records": 500,
        "clip_norm": 1.5,
        "calibration": "uniform",
        "epsilon": 1.0,
        "delta": DELTA,
        "num_releases": 40,
    }
    return plan_step(**{**plain, **changes})


def attribute(**changes):
    return plan(calibration="attribute", attribute_clip_norm=0.3, **changes)


def test_a_record_level_step_has_one_row_of_twice_the_clip_norm_over_n():
    (row,) = StepMechanism(num_records=50, clip_norm=2.0, sigma=0.1).releases(client=3, round=2, step=1)
    assert (row.client, row.round, row.step, row.relation) == (3, 2, 1, "record")
    assert row.sensitivity == 2 * 2.0 / 50
    assert (row.sigma, row.chosen, row.sampling_rate) == (0.1, "fixed", 1)


def test_an_attribute_level_step_has_two_rows_for_one_noise():
    step = StepMechanism(num_records=50, clip_norm=2.0, sigma=0.1, attribute_clip_norm=0.5, chosen="released")
    rows = step.releases(0, 0, 0)
    assert [(row.relation, row.sensitivity) for row in rows] == [("attribute", 0.02), ("record", 0.08)]
    assert {(row.sigma, row.chosen, row.name) for row in rows} == {(0.1, "released", "gradient")}


def test_a_subsampled_step_divides_by_the_expected_batch():
    step = StepMechanism(num_records=50, clip_norm=2.0, sigma=0.4, sampling_rate=0.1)
    (row,) = step.releases(0, 0, 0)
    assert step.denominator == 5
    assert row.sensitivity == pytest.approx(2 * 2.0 / 5)
    # Noise on the SUM over C.
    assert row.noise_multiplier == pytest.approx(0.4 * 5 / 2.0)


def test_uniform_noise_is_the_even_share_of_the_record_budget():
    expected = 2 * 1.5 / 500 * math.sqrt(40) / gaussian_mu(1.0, DELTA)
    assert plan().sigma == pytest.approx(expected, rel=1e-12)
    assert budgets(calibration="uniform", epsilon=1.0, delta=DELTA) == {"record": gaussian_mu(1.0, DELTA)}


def test_attribute_noise_is_smaller_by_the_ratio_of_the_clip_norms():
    assert attribute().sigma == pytest.approx(plan().sigma * 0.3 / 1.5, rel=1e-12)


def test_with_a_record_budget_too_the_larger_noise_is_taken():
    loose = attribute(epsilon_record=1000.0)
    assert loose.sigma == attribute().sigma
    tight = attribute(epsilon_record=2.0)
    assert tight.sigma == pytest.approx(plan(epsilon=2.0).sigma, rel=1e-12)
    assert tight.sigma > loose.sigma
    limits = budgets(calibration="attribute", epsilon=1.0, delta=DELTA, epsilon_record=2.0)
    assert limits == {"attribute": gaussian_mu(1.0, DELTA), "record": gaussian_mu(2.0, DELTA)}


def test_a_given_mu_sets_the_noise_and_the_filter_still_ends_the_run():
    step = plan(mu_release=0.1)
    state, taken = PrivacyFilter(budgets(calibration="uniform", epsilon=1.0, delta=DELTA)), 0
    assert step.releases(0, 0, 0)[0].mu == pytest.approx(0.1)
    while state.admits(step.releases(0, 0, taken)):
        state, taken = state.charge(step.releases(0, 0, taken)), taken + 1
    assert taken == math.floor((gaussian_mu(1.0, DELTA) / 0.1) ** 2)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(-3, 3).map(lambda x: 10.0**x),
    st.floats(-300, -1).map(lambda x: 10.0**x),
    st.integers(1, 60),
    st.sampled_from([1, 3, 7, 1000, 123457]),
    st.booleans(),
)
@pytest.mark.filterwarnings("ignore::fedveil.privacy.WeakDelta")
def test_every_planned_step_passes_the_filter_and_one_more_does_not(epsilon, delta, count, n, both):
    arguments = {"epsilon": epsilon, "delta": delta, "calibration": "attribute" if both else "uniform"}
    if both:
        arguments |= {"attribute_clip_norm": 0.7, "epsilon_record": epsilon * 1.7}
    step = plan(num_records=n, num_releases=count, **arguments)
    arguments.pop("attribute_clip_norm", None)
    limits = budgets(**arguments)
    state = PrivacyFilter(limits)
    for index in range(count):
        state = state.charge(step.releases(0, index, 0))
    assert not state.admits(step.releases(0, count, 0))
    ledger = Ledger(tuple(row for index in range(count) for row in step.releases(0, index, 0)))
    spent = ledger.guarantee(0, "attribute" if both else "record", delta).epsilon
    assert spent <= epsilon
    if both:
        assert ledger.guarantee(0, "record", delta).epsilon <= epsilon * 1.7
    else:
        assert spent >= epsilon * (1 - 1e-6)


def test_a_plan_also_passes_when_the_spent_sums_are_kept_in_a_database():
    count = 2000
    step = plan(num_releases=count)
    rows = [row for index in range(count) for row in step.releases(0, index, 0)]
    table = sqlite3.connect(":memory:")
    table.execute("create table rows (mu2 real)")
    table.executemany("insert into rows values (?)", [(squared_mu([row], "record"),) for row in rows[:-1]])
    (spent,) = table.execute("select sum(mu2) from rows").fetchone()
    limits = budgets(calibration="uniform", epsilon=1.0, delta=DELTA)
    assert PrivacyFilter(limits, {"record": spent}).admits(rows[-1:])


def test_a_subsampled_plan_stays_within_its_budget_and_has_no_filter():
    step = plan(sampling_rate=0.1)
    rows = tuple(row for index in range(40) for row in step.releases(0, index, 0))
    epsilon = Ledger(rows).guarantee(0, "record", DELTA).epsilon
    assert 0.99 < epsilon <= 1
    assert epsilon == pytest.approx(subsampled_epsilon(rows[0].noise_multiplier, 0.1, 40, DELTA))
    assert budgets(calibration="uniform", epsilon=1.0, delta=DELTA, sampling_rate=0.1) == {}
    assert step.num_releases == 40


def test_noise_grows_with_the_work_and_falls_with_the_budget():
    base = plan().sigma
    assert plan(num_releases=41).sigma > base
    assert plan(num_records=501).sigma < base
    assert plan(clip_norm=1.6).sigma > base
    assert plan(epsilon=1.1).sigma < base
    assert plan(delta=1e-4).sigma < base
    assert attribute(num_releases=41).sigma > attribute().sigma
