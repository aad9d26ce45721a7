"""Messages planned for a budget use it to the end and never pass it."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    Modulation,
    PrivacyFilter,
    gaussian_delta,
    gaussian_mu,
    plan_gradients,
    plan_messages,
    zcdp_epsilon,
)

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def plan(**changes):
    plain = {"epsilon": 1.0, "delta": 1e-5, "bound": 1.5, "modulation": Modulation()}
    return plan_messages(**{**plain, **changes})


def test_one_exact_message_has_the_noise_of_the_analytic_gaussian():
    for case in GOLDEN["gaussian_calibration"]:
        one = plan(epsilon=case["epsilon"], delta=case["delta"])
        assert one.sigma / one.sensitivity == pytest.approx(case["sigma_over_sensitivity"], rel=1e-9)
        assert gaussian_delta(one.epsilon, one.mu) <= one.delta


def test_at_epsilon_1_the_zcdp_of_the_publication_asks_for_a_third_more_noise():
    exact, zcdp = plan(), plan(accounting="zcdp")
    assert exact.sigma / exact.sensitivity == pytest.approx(3.73, abs=0.005)
    assert zcdp.sigma / zcdp.sensitivity == pytest.approx(4.90, abs=0.005)
    assert zcdp_epsilon(zcdp.budget**2 / 2, 1e-5) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(
    ("amplitude", "frequency", "m"), [(0.5, 1.0, 1), (0.5, 1.0, 4), (3.0, 2.0, 2), (0.0, 9.0, 1)]
)
def test_the_published_sensitivity_costs_the_slope_of_the_wave_in_noise(amplitude, frequency, m):
    modulation = Modulation(0.3, amplitude, frequency, m)
    ratio = plan(rule="paper", modulation=modulation).sigma / plan(modulation=modulation).sigma
    assert ratio == pytest.approx(1 + amplitude * frequency / (math.sqrt(m) * 0.7), rel=1e-12)


def test_alpha_is_a_unit_and_the_number_of_messages_costs_its_square_root():
    for alpha in (-3.0, 0.0, 0.9, 5.0):
        other = plan(modulation=Modulation(alpha=alpha))
        assert other.sigma / abs(1 - alpha) == pytest.approx(plan().sigma / 0.7, rel=1e-12)
    assert plan(num_releases=20).sigma == pytest.approx(plan().sigma * math.sqrt(20), rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(
    epsilon=st.floats(1e-3, 100),
    delta=st.floats(1e-12, 0.1),
    bound=st.floats(1e-3, 1e3),
    alpha=st.floats(-5, 5).filter(lambda a: abs(a - 1) > 1e-3),
    amplitude=st.floats(0, 10),
    frequency=st.floats(0, 100),
    num_releases=st.integers(1, 60),
    rule=st.sampled_from(["exact", "paper"]),
    accounting=st.sampled_from(["exact", "zcdp"]),
    label_privacy=st.booleans(),
    share=st.floats(0.01, 1),
)
def test_a_client_can_send_as_often_as_planned_and_no_more(
    epsilon, delta, bound, alpha, amplitude, frequency, num_releases, rule, accounting, label_privacy, share
):
    one = plan_messages(
        epsilon=epsilon,
        delta=delta,
        bound=bound,
        modulation=Modulation(alpha, amplitude, frequency),
        num_releases=num_releases,
        rule=rule,
        accounting=accounting,
        label_privacy=label_privacy,
        share=share,
    )
    relation = "record" if label_privacy else "attribute"
    assert one.relation == relation
    planned = [one.release(3, t) for t in range(num_releases)]
    room = PrivacyFilter({relation: one.budget * math.sqrt(share) * (1 + 2.0**-52)})
    assert room.admits(planned)
    assert PrivacyFilter({relation: one.budget}).admits(planned)
    assert not room.charge(planned).admits([one.release(3, num_releases)])
    assert one.budget <= gaussian_mu(epsilon, delta)
    assert num_releases * one.mu**2 == pytest.approx(share * one.budget**2, rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.001, 0.999), first=st.integers(1, 5), second=st.integers(1, 5))
def test_two_kinds_of_messages_can_share_one_budget(share, first, second):
    ranges = plan(share=share, num_releases=first, name="range-message", modulation=Modulation(amplitude=0.0))
    messages = plan(share=1 - share, num_releases=second)
    assert ranges.budget == messages.budget
    rows = [ranges.release(0, t) for t in range(first)] + [messages.release(0, t) for t in range(second)]
    assert PrivacyFilter({"attribute": messages.budget}).admits(rows)


def test_a_message_has_one_fixed_row():
    row = plan().release(7, 3)
    assert (row.client, row.round, row.step, row.name) == (7, 3, 0, "modulated-message")
    assert (row.relation, row.chosen, row.sampling_rate) == ("attribute", "fixed", 1.0)
    assert row.sensitivity == pytest.approx(2 * 1.5 * 0.7, rel=1e-15)
    assert row.mu == plan().mu
    cohort = plan(label_privacy=True).cohort_release([2, 5], 3)
    assert cohort.of(5) == plan(label_privacy=True).release(5, 3)


def test_a_gradient_moves_by_at_most_twice_its_clip_norm():
    one = plan_gradients(epsilon=2.0, delta=1e-6, clip_norm=0.4, num_releases=10)
    assert (one.name, one.relation, one.sensitivity) == ("gradient", "record", 0.8)
    assert one.sigma == pytest.approx(0.8 * math.sqrt(10) / gaussian_mu(2.0, 1e-6), rel=1e-12)


def test_the_grid_of_phases_in_double_precision_is_paid_with_noise():
    """Where lambda is huge beside c, the rounding of omega <x, v> + phi is no longer nothing."""
    plain, wild = plan(), plan(modulation=Modulation(amplitude=1e9, frequency=100.0))
    assert 1 + 1e-6 < wild.sigma / plain.sigma < 1 + 1e-3
    # and the ledger says so: what it states from D and sigma is what the noise was set for
    assert wild.mu == pytest.approx(plain.mu, rel=1e-12)
    with pytest.raises(ValueError, match="double precision would lose the phase"):
        plan(modulation=Modulation(frequency=1e15))
    assert plan(modulation=Modulation(frequency=1e15), rule="paper").sigma > 1e14


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"bound": 0.0}, "bound = 0.0"),
        ({"num_releases": 0}, "num_releases = 0"),
        ({"num_releases": 2.5}, "num_releases = 2.5"),
        ({"share": 0.0}, "share = 0.0"),
        ({"share": 1.1}, "share = 1.1"),
        ({"rule": "tight"}, "give one of exact, paper"),
        ({"accounting": "rdp"}, "give one of exact, zcdp"),
    ],
)
def test_arguments_outside_their_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        plan(**change)
