"""Calibrations of a step: T steps with their noise are one release, and no R makes them cost more than the budget."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    CALIBRATIONS,
    Ledger,
    PrivacyFilter,
    StepCalibration,
    StepRequest,
    budgets,
    calibrate_noise,
    compose_mu,
    contribution_effect,
    gaussian_epsilon,
    gaussian_mu,
    plan_step,
)

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["fedsva_sigma"]
RECORD_LEVEL = ["paper", "tight", "uniform"]
pytestmark = pytest.mark.filterwarnings("ignore::fedveil.privacy.WeakDelta")


def request(**changes):
    plain = {
        "num_records": 400,
        "clip_norm": 1.5,
        "attribute_clip_norm": None,
        "epsilon": 1.0,
        "delta": 1e-5,
        "num_releases": 1,
    }
    return StepRequest(**{**plain, **changes})


def noise(name, **changes):
    return CALIBRATIONS[name].sigma(request(**changes))


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"epsilon {row['epsilon']} n {row['num_records']}")
def test_a_single_published_step_has_the_golden_noise(row):
    given = {key: row[key] for key in ("epsilon", "num_records", "delta", "contribution", "beta")}
    assert noise("paper", clip_norm=row["clip"], **given) == pytest.approx(row["sigma"], rel=1e-9)


@pytest.mark.parametrize("name", RECORD_LEVEL)
@pytest.mark.parametrize("contribution", [0.0, 0.3, 1.0])
def test_a_step_is_one_release_of_the_whole_budget_times_root_of_steps_over_share(name, contribution):
    one = calibrate_noise(
        clip_norm=1.5, epsilon=1.0, num_records=400, delta=1e-5, contribution=contribution, calibration=name
    ).sigma
    assert noise(name, contribution=contribution) == pytest.approx(one, rel=1e-12)
    many = noise(name, contribution=contribution, num_releases=40, share=0.9)
    assert many == pytest.approx(one * math.sqrt(40 / 0.9), rel=1e-12)


def test_an_attribute_step_is_the_analytic_gaussian_for_the_private_part():
    sigma = noise("attribute", attribute_clip_norm=0.3, num_releases=40, share=0.9)
    assert sigma == pytest.approx(2 * 0.3 / 400 / gaussian_mu(1.0, 1e-5) * math.sqrt(40 / 0.9), rel=1e-12)
    one = calibrate_noise(
        clip_norm=1.5,
        epsilon=1.0,
        num_records=400,
        delta=1e-5,
        calibration="attribute",
        attribute_clip_norm=0.3,
    )
    assert noise("attribute", attribute_clip_norm=0.3) == pytest.approx(one.sigma, rel=1e-12)


@pytest.mark.parametrize("name", RECORD_LEVEL)
def test_all_steps_compose_to_the_one_release(name):
    steps = 40
    one = calibrate_noise(
        clip_norm=1.5, epsilon=2.0, num_records=400, delta=1e-5, contribution=0.4, calibration=name
    )
    step = plan_step(
        num_records=400,
        clip_norm=1.5,
        calibration=name,
        epsilon=2.0,
        delta=1e-5,
        num_releases=steps,
        contribution=0.4,
        chosen="released",
    )
    rows = [row for index in range(steps) for row in step.releases(0, index, 0)]
    assert compose_mu(row.mu for row in rows) == pytest.approx(one.mu, rel=1e-9)
    assert {row.chosen for row in rows} == {"released"}
    if name != "paper":
        # what the noise of one release was made for is what the steps add up to
        spent = gaussian_epsilon(compose_mu(row.mu for row in rows), one.delta_nominal)
        assert spent == pytest.approx(2.0, rel=1e-6)


@settings(deadline=None)
@given(
    st.sampled_from(["paper", "tight"]),
    st.floats(-2, 1.5).map(lambda x: 10.0**x),
    st.floats(-12, -0.3).map(lambda x: 10.0**x),
    st.floats(0, 60),
    st.integers(1, 30),
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
)
def test_whatever_the_contributions_are_the_steps_keep_the_budget_of_the_least_noise(
    name, epsilon, delta, beta, steps, contributions
):
    given_ = {"calibration": name, "epsilon": epsilon, "delta": delta, "beta": beta}
    (relation, budget), *more = budgets(**given_).items()
    assert (relation, more) == ("record", [])
    rows = [
        row
        for index in range(steps)
        for row in plan_step(
            **given_,
            num_records=70,
            clip_norm=2.0,
            num_releases=steps,
            contribution=contributions[index % len(contributions)],
        ).releases(0, index, 0)
    ]
    assert PrivacyFilter({"record": budget}).admits(rows)
    least = calibrate_noise(
        clip_norm=1.0,
        epsilon=epsilon,
        num_records=1,
        delta=delta,
        contribution=0.0,
        beta=beta,
        calibration=name,
    )
    assert budget == pytest.approx(least.mu, rel=1e-12)


@pytest.mark.parametrize("name", ["uniform", "attribute"])
def test_contribution_and_beta_do_not_move_noise_that_does_not_use_them(name):
    norm = 0.4 if name == "attribute" else None
    assert not CALIBRATIONS[name].uses_contribution
    drawn = {
        noise(name, attribute_clip_norm=norm, contribution=rate, beta=beta)
        for rate in (0.0, 1.0)
        for beta in (0.0, 50.0)
    }
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("delta", "beta", "effect"),
    [(1e-5, 0.0, 0.021), (0.02, 0.0, 0.062), (1e-9, 0.0, 0.012), (1e-5, 24.1, 0.0), (1e-5, 100.0, 0.0)],
)
def test_the_effect_of_a_contribution_is_the_ratio_of_the_real_noises(delta, beta, effect):
    low, high = (noise("paper", delta=delta, beta=beta, contribution=rate) for rate in (0.0, 1.0))
    assert contribution_effect(delta, beta) == pytest.approx(high / low - 1, abs=1e-12)
    assert contribution_effect(delta, beta) == pytest.approx(effect, abs=6e-4)


def test_a_beta_between_the_two_tolerances_moves_the_noise_from_where_it_begins():
    least = 2 * math.log(1e5)
    assert contribution_effect(1e-5, least + 0.5) == pytest.approx(
        math.sqrt((least + 1) / (least + 0.5)) - 1, rel=1e-12
    )
    assert 0 < contribution_effect(1e-5, least + 0.5) < contribution_effect(1e-5)


def test_a_share_leaves_the_rest_of_the_budget_for_other_releases():
    step = plan_step(
        num_records=50,
        clip_norm=1.0,
        calibration="uniform",
        epsilon=1.0,
        delta=1e-5,
        num_releases=10,
        share=0.8,
    )
    rows = [row for index in range(10) for row in step.releases(0, index, 0)]
    mu = gaussian_mu(1.0, 1e-5)
    state = PrivacyFilter({"record": mu}).charge(rows)
    assert state.remaining("record") == pytest.approx(mu * math.sqrt(0.2), rel=1e-9)
    assert state.remaining("record") >= mu * math.sqrt(0.2)


# calibrations of one's own


def test_a_calibration_of_ones_own_is_asked_with_public_values_and_pays_for_what_it_gives():
    asked = []

    def half(given):
        asked.append(given)
        return given.sensitivity / 0.01 * given.steps_per_release

    rule = StepCalibration("record", half)
    step = plan_step(
        num_records=50,
        clip_norm=1.0,
        calibration=rule,
        epsilon=1.0,
        delta=1e-5,
        num_releases=4,
        contribution=0.3,
    )
    assert asked == [StepRequest(50, 1.0, None, 1.0, 1e-5, 4, contribution=0.3)]
    rows = tuple(row for index in range(4) for row in step.releases(0, index, 0))
    assert Ledger(rows).odometer(0, "record") == pytest.approx(0.01, rel=1e-9)
    # it has no say in the budget
    assert budgets(calibration=rule, epsilon=1.0, delta=1e-5) == {"record": gaussian_mu(1.0, 1e-5)}


def test_a_calibration_that_gives_too_little_noise_is_stopped_by_the_filter():
    rule = StepCalibration("record", lambda given: given.sensitivity / 0.1)
    step = plan_step(
        num_records=50, clip_norm=1.0, calibration=rule, epsilon=1.0, delta=1e-5, num_releases=40
    )
    state, taken = PrivacyFilter(budgets(calibration=rule, epsilon=1.0, delta=1e-5)), 0
    while state.admits(step.releases(0, taken, 0)):
        state, taken = state.charge(step.releases(0, taken, 0)), taken + 1
    assert taken == math.floor((gaussian_mu(1.0, 1e-5) / 0.1) ** 2) < 40


def fails(given):
    raise KeyError("table")


@pytest.mark.parametrize(
    ("sigma", "words"),
    [
        (lambda given: 0.0, "mine gave sigma = 0.0 for 50 records"),
        (lambda given: -1.0, "mine gave sigma = -1.0"),
        (lambda given: math.nan, "mine gave sigma = nan"),
        (lambda given: math.inf, "mine gave sigma = inf"),
        (lambda given: None, "mine gave sigma = None"),
        (lambda given: "0.3", "mine gave sigma = '0.3'"),
        (lambda given: True, "mine gave sigma = True"),
        (lambda given: [0.3] * 10**6, r"mine gave sigma = \[0.3, 0.3"),
        (fails, r"mine failed \(KeyError: 'table'\): correct it"),
        (lambda given: gaussian_mu(-1.0, 0.5), "mine: epsilon = -1.0"),
    ],
)
def test_a_calibration_without_usable_noise_is_named_in_one_sentence(sigma, words):
    rule = StepCalibration("record", sigma, name="mine")
    with pytest.raises(ValueError, match=words) as refused:
        plan_step(num_records=50, clip_norm=1.0, calibration=rule, epsilon=1.0, delta=1e-5, num_releases=4)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 250
