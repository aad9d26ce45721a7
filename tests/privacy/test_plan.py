"""A client's plan: what it releases in a round, how each row was chosen, and that all of it keeps every budget."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    NOTHING,
    ContributionRelease,
    Known,
    Ledger,
    NoisePlan,
    PrivacyFilter,
    QuantileRelease,
    StepMechanism,
    budgets,
    gaussian_mu,
    plan_contribution,
    plan_step,
    split_budget,
)
from fedveil.privacy.plan import attribute_clip_norm

pytestmark = pytest.mark.filterwarnings("ignore::fedveil.privacy.WeakDelta")
CONTRIBUTION = ContributionRelease("shapley", 2, 1, 500, 0.05)


def plan(**changes):
    plain = {
        "num_records": 500,
        "clip_norm": 2.0,
        "calibration": "attribute",
        "epsilon": 1.0,
        "delta": 1e-5,
        "num_steps": 10,
        "clip_rule": "fixed",
        "start_attribute_clip_norm": 0.4,
        "contribution_scale": 0.5,
    }
    return NoisePlan(**{**plain, **changes})


def record_level(**changes):
    return plan(calibration="paper", clip_rule=None, **changes)


def marks(rows):
    """How the rows of each name were chosen."""
    return {name: {row.chosen for row in rows if row.name == name} for name in {row.name for row in rows}}


# C_p


def clip(rule, known, **changes):
    return attribute_clip_norm(rule, known, **{"clip_norm": 2.0, "start": 0.3, "scale": 0.5, **changes})


def test_the_rules_for_the_attribute_clip_are_their_formulas():
    both = Known(contribution=0.6, attribute_clip_norm=0.7)
    assert clip("fixed", both) == clip("fixed", NOTHING) == 0.3
    assert clip("contribution", both) == pytest.approx(0.5 * 0.6 * 2.0)
    assert clip("contribution", Known(0.0)) == clip("contribution", Known(0.05)) == pytest.approx(0.05)
    assert clip("contribution", both, scale=50.0) == 2.0
    assert clip("quantile", both) == 0.7
    assert clip("quantile", Known(attribute_clip_norm=9.0)) == 2.0


def test_before_anything_is_known_the_attribute_clip_is_where_it_starts():
    assert clip("contribution", NOTHING) == clip("quantile", NOTHING) == 0.3
    assert clip("contribution", Known(attribute_clip_norm=0.7)) == 0.3
    assert clip("quantile", Known(contribution=0.6)) == 0.3


def test_an_unknown_rule_is_told_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'quantile'"):
        clip("quantiles", NOTHING)


# rows and how they were chosen


def test_a_single_step_is_the_plan_of_that_step_for_ever():
    step = StepMechanism(50, 1.0, 0.1, attribute_clip_norm=0.2)
    assert step.mechanism(Known(0.5)) is step
    assert step.rows(3, 2, 2, Known(0.5), measure=True) == step.releases(3, 2, 0) + step.releases(3, 2, 1)
    assert (step.contribution, step.quantile, step.is_data_dependent) == (None, None, False)
    assert StepMechanism(50, 1.0, 0.1, chosen="data-dependent").is_data_dependent


def test_a_step_of_a_plan_is_the_planned_step():
    step = plan(share=0.8, epsilon_record=9.0).mechanism(NOTHING)
    assert step == plan_step(
        num_records=500,
        clip_norm=2.0,
        calibration="attribute",
        epsilon=1.0,
        delta=1e-5,
        num_releases=10,
        epsilon_record=9.0,
        attribute_clip_norm=0.4,
        share=0.8,
    )


def test_a_round_has_the_rows_of_its_steps_and_of_all_else_that_is_released_in_it():
    whole = plan(contribution=CONTRIBUTION, quantile=QuantileRelease(500, 0.1))
    rows = whole.rows(4, 7, 2, measure=True)
    assert {(row.client, row.round) for row in rows} == {(4, 7)}
    assert {(row.name, row.step, row.relation) for row in rows} == {
        (name, step, relation)
        for name, step in (("gradient", 0), ("gradient", 1), ("contribution", -1), ("quantile", -1))
        for relation in ("attribute", "record")
    }
    assert len(rows) == 8
    assert "contribution" not in marks(whole.rows(4, 7, 2))  # not in every round
    assert "quantile" in marks(whole.rows(4, 8, 1))


def test_noise_that_follows_from_releases_is_marked_as_released_and_no_other():
    adaptive = plan(clip_rule="contribution", contribution=CONTRIBUTION)
    assert marks(adaptive.rows(0, 1, 1, measure=True)) == {"gradient": {"fixed"}, "contribution": {"fixed"}}
    assert marks(adaptive.rows(0, 2, 1, Known(0.4))) == {"gradient": {"released"}}
    sized = plan(clip_rule="quantile", quantile=QuantileRelease(500, 0.1))
    assert marks(sized.rows(0, 1, 1))["gradient"] == {"fixed"}
    assert marks(sized.rows(0, 2, 1, Known(None, 0.3)))["gradient"] == {"released"}


def test_a_public_contribution_is_known_from_the_start_and_fixed():
    public = plan(clip_rule="contribution", known_contribution=0.8)
    step = public.mechanism(NOTHING)
    assert (step.chosen, step.attribute_clip_norm) == ("fixed", pytest.approx(0.5 * 0.8 * 2.0))
    assert (
        record_level(known_contribution=0.0).mechanism(NOTHING).sigma
        < record_level().mechanism(NOTHING).sigma
    )


def test_noise_that_private_data_decide_is_marked_as_such_whatever_is_known():
    secret = record_level(is_data_dependent=True)
    for known in (NOTHING, Known(0.4)):
        rows = secret.rows(0, 1, 1, known)
        assert marks(rows) == {"gradient": {"data-dependent"}}
        assert Ledger(rows).guarantee(0, "record", 1e-5).kind != "proven"


def test_with_released_rows_the_budget_is_the_guarantee_and_not_what_the_rows_come_to():
    adaptive = plan(clip_rule="contribution", contribution=CONTRIBUTION)
    rows = adaptive.rows(0, 1, 1, measure=True) + adaptive.rows(0, 2, 1, Known(0.4))
    budget = budgets(calibration="attribute", epsilon=1.0, delta=1e-5)["attribute"]
    guarantee = Ledger(rows).guarantee(0, "attribute", 1e-5, budget)
    assert guarantee.epsilon == pytest.approx(1.0, rel=1e-6)
    assert Ledger(rows).odometer(0, "attribute") < budget


def test_a_budget_is_split_by_its_square():
    limits = {"attribute": 0.5, "record": 3.0}
    parts = [split_budget(limits, part) for part in (0.1, 0.3, 0.6)]
    for relation, mu in limits.items():
        assert math.hypot(*(part[relation] for part in parts)) == pytest.approx(mu, rel=1e-12)


# the whole schedule


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["attribute", "paper", "tight"]),
    st.floats(-1, 1.5).map(lambda x: 10.0**x),
    st.integers(1, 12),
    st.integers(1, 3),
    st.floats(0.01, 0.99),
    st.booleans(),
    st.data(),
)
def test_whatever_is_released_the_whole_schedule_passes_the_exact_filter(
    calibration, epsilon, rounds, steps, part, both, data
):
    """The released contributions and clips are drawn anew in every round, as a lying server could send them."""
    own = calibration == "attribute"
    second = epsilon * 3 if both and own else None
    limits = budgets(calibration=calibration, epsilon=epsilon, delta=1e-5, epsilon_record=second)
    rule = data.draw(st.sampled_from(["contribution", "quantile"])) if own else None
    release = plan_contribution(
        kind="shapley", num_groups=3, num_private=1, num_records=10**6, mus=split_budget(limits, part)
    )
    whole = NoisePlan(
        num_records=10**6,
        clip_norm=2.0,
        calibration=calibration,
        epsilon=epsilon,
        delta=1e-5,
        num_steps=rounds * steps,
        epsilon_record=second,
        clip_rule=rule,
        start_attribute_clip_norm=0.4,
        contribution_scale=data.draw(st.floats(0.1, 3)),
        contribution=None if rule == "quantile" else release,
        quantile=QuantileRelease.planned(10**6, split_budget(limits, part), rounds)
        if rule == "quantile"
        else None,
        share=1 - part,
    )
    rows = []
    for number in range(rounds):
        known = Known(data.draw(st.none() | st.floats(0, 1)), data.draw(st.none() | st.floats(0.02, 5)))
        rows += whole.rows(0, number, steps, known, measure=number == 0)
    assert PrivacyFilter(limits).admits(rows)
    if second is None and own:
        spent = Ledger(tuple(rows)).odometer(0, "attribute")
        assert spent == pytest.approx(gaussian_mu(epsilon, 1e-5), rel=1e-6)
