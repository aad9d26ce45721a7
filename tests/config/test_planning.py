"""From a configuration to every client's plan: noise that fits the budget, whatever is released on the way."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.config import ConfigError, FedSVAConfig, planning
from fedveil.datasets.groups import Groups
from fedveil.privacy import (
    NOTHING,
    Known,
    Ledger,
    PrivacyFilter,
    gaussian_delta,
    gaussian_mu,
    shapley_sensitivity,
)

FIXED = {"attribute_clip_rule": "fixed"}


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


def groups_of(num_groups: int = 2) -> Groups:
    """Groups of one attribute each, the first of them private."""
    names = tuple(f"g{index}" for index in range(num_groups))
    return Groups(names, "attributes", (0,), np.eye(num_groups, dtype=np.bool_))


@pytest.mark.parametrize(
    ("rounds", "fraction", "steps", "expected"),
    [
        (40, 1.0, 1, 40),
        (40, 1.0, 3, 120),
        (40, 0.5, 1, 20),
        (7, 0.5, 2, 8),  # 3.5 rounds a client, rounded up
        (10, 0.1, 1, 1),
        (100, 0.07, 1, 7),  # 7.000000000000001 in floating point
        (3, 0.01, 5, 5),
        (1, 1.0, 1, 1),
    ],
)
def test_a_clients_releases_are_its_expected_share_of_the_rounds(rounds, fraction, steps, expected):
    options = config(num_server_rounds=rounds, fraction_train=fraction, local_steps=steps, **FIXED)
    assert planning.num_releases(options) == expected


# local privacy

EXAMPLES = {0: 400, 1: 1, 2: 37, 3: 400, 4: 10_000}
LOCAL = {
    "attribute": FIXED,
    "attribute, several steps": FIXED | {"local_steps": 3, "num_server_rounds": 7},
    "attribute, half the clients": FIXED | {"fraction_train": 0.5},
    "attribute, two budgets": FIXED | {"epsilon_record": 4.0},
    "attribute, a tight second budget": FIXED | {"epsilon_record": 0.5},
    "uniform": {"calibration": "uniform"},
    "uniform, weak": {"calibration": "uniform", "epsilon": 100.0},
    "uniform, one round": {"calibration": "uniform", "num_server_rounds": 1},
}


def schedule(options: FedSVAConfig, client: int, plan) -> list:
    """All rows that the client may release."""
    return [row for index in range(planning.num_releases(options)) for row in plan.rows(client, 1 + index, 1)]


@pytest.mark.parametrize("name", LOCAL)
def test_the_whole_schedule_of_every_client_spends_its_budget_and_no_more(name):
    options = config(**LOCAL[name])
    plans = planning.client_plans(options, EXAMPLES, None)
    allowed = planning.local_budgets(options)
    limits = {"attribute" if options.is_attribute_level else "record": options.epsilon}
    if options.epsilon_record is not None:
        limits["record"] = options.epsilon_record
    assert allowed == {r: gaussian_mu(epsilon, options.delta) for r, epsilon in limits.items()}
    assert list(plans) == list(EXAMPLES)
    for client, n in EXAMPLES.items():
        plan = plans[client]
        assert plan.num_records == n
        rows = schedule(options, client, plan)
        assert PrivacyFilter(allowed).admits(rows)
        spent = {
            relation: Ledger(tuple(rows)).guarantee(client, relation, options.delta).epsilon / epsilon
            for relation, epsilon in limits.items()
        }
        assert max(spent.values()) == pytest.approx(1.0, rel=1e-9)
        assert all(share <= 1.0 for share in spent.values())
        one_more = plan.rows(client, 10**6, 1)
        assert not PrivacyFilter(allowed).admits([*rows, *one_more])


def test_the_noise_is_the_closed_form():
    options = config(num_server_rounds=25, epsilon=2.0, delta=1e-6, attribute_clip_norm=0.1, **FIXED)
    step = planning.client_plans(options, {0: 400}, None)[0].mechanism(Known())
    mu = gaussian_mu(2.0, 1e-6)
    assert step.sigma == pytest.approx(2 * 0.1 / 400 * math.sqrt(25) / mu, rel=1e-9)


def test_clients_of_equal_size_share_one_plan():
    plans = planning.client_plans(config(**FIXED), EXAMPLES | {5: 400}, None)
    assert plans[0] == plans[3] == plans[5]


@pytest.mark.parametrize("privacy", ["none", "central"])
def test_clients_add_no_noise_where_privacy_is_not_theirs(privacy):
    options = config(privacy=privacy)
    assert planning.client_plans(options, EXAMPLES, None) == dict.fromkeys(EXAMPLES)
    assert planning.local_budgets(options) == {}


@pytest.mark.parametrize("values", [{"mu_release": 5.0}, {"mu_release": 0.2, "local_steps": 3}])
def test_a_first_round_over_budget_names_the_client(values):
    words = "client 7 with 400 records: its first round would pass the budget"
    with pytest.raises(ConfigError, match=words) as refused:
        planning.client_plans(config(**values, **FIXED), {7: 400, 9: 300}, None)
    assert f"mu-release = {values['mu_release']}" in str(refused.value)
    assert str(refused.value).endswith("lower mu-release or raise epsilon.")


def test_a_given_mu_is_each_releases_own():
    options = config(mu_release=0.03, **FIXED)
    plan = planning.client_plans(options, {0: 400}, None)[0]
    assert plan.rows(0, 1, 1)[0].mu == pytest.approx(0.03, rel=1e-12)
    assert len(schedule(options, 0, plan)) == 2 * 40  # and the filter ends them earlier, if need be


def test_sampled_records_have_no_filter_and_a_fixed_schedule():
    options = config(calibration="uniform", sampling_rate=0.1, num_server_rounds=20, epsilon=2.0)
    assert planning.local_budgets(options) == {}
    plan = planning.client_plans(options, {0: 4000}, None)[0]
    assert (plan.sampling_rate, plan.num_releases) == (0.1, 20)
    ledger = Ledger(tuple(schedule(options, 0, plan)))
    assert 1.99 < ledger.guarantee(0, "record", options.delta).epsilon <= 2.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("calibration", ["attribute", "uniform", "paper", "tight"])
def test_a_weak_delta_is_planned_without_a_warning_for_each_client(calibration: str):
    """The app names all such clients in one line."""
    options = config(delta=0.05, calibration=calibration, contribution="0.3", **FIXED)
    plans = planning.client_plans(options, {0: 37, 1: 38}, None)
    assert plans[1].mechanism(NOTHING).num_records == 38


# plans whose later noise depends on earlier releases


def test_contributions_are_released_after_a_warm_up_that_ends_within_the_run():
    assert config().first_release_round == 5
    assert config(num_server_rounds=6).first_release_round == 5
    assert config(num_server_rounds=5).first_release_round == 4  # its last round could not use it
    assert config(num_server_rounds=1).first_release_round == 1
    assert config(num_server_rounds=3, contribution_round=2).first_release_round == 2


WHOLE = {
    "released contribution": {"contribution_share": 0.3},
    "released contribution, two budgets": {"epsilon_record": 30.0},
    "released utilities": {"contribution_release": "utilities", "contribution_share": 0.4},
    "quantile": {"attribute_clip_rule": "quantile", "local_steps": 2},
    "paper": {"calibration": "paper"},
    "tight": {"calibration": "tight", "beta": 25.0},
    "public contribution": {"contribution": "0.3"},
}


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(WHOLE)), st.integers(1, 12), st.data())
def test_whatever_comes_out_the_whole_schedule_with_all_its_releases_keeps_every_budget(name, rounds, data):
    options = config(num_server_rounds=rounds, contribution_round=1, epsilon=8.0, **WHOLE[name])
    plan = planning.client_plans(options, {0: 2000}, groups_of())[0]
    allowed, first = planning.local_budgets(options), data.draw(st.integers(1, rounds))
    rows, known = [], Known()
    for number in range(1, rounds + 1):
        rows += plan.rows(0, number, options.local_steps, known, measure=number == first)
        if plan.contribution is not None and number >= first:
            known = known if known.contribution is not None else Known(data.draw(st.floats(0, 1)))
        if plan.quantile is not None:
            known = Known(None, data.draw(st.floats(0.01, 1.0)))
    assert PrivacyFilter(allowed).admits(rows)
    # what was promised, by the definition of privacy: its own relation, at the client's own epsilon and delta
    relation = options.step_calibration.relation
    spent = math.sqrt(math.fsum(row.mu**2 for row in rows if row.relation == relation))
    if options.calibration == "attribute":
        assert gaussian_delta(options.epsilon, spent) <= options.delta * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.01, 30).map(lambda scale: round(scale, 3)),
    st.floats(0.02, 1.0),
    st.sampled_from(["contribution", "quantile"]),
    st.data(),
)
def test_a_filter_of_attributes_alone_keeps_the_worst_case_that_is_stated_for_records(
    scale, start, rule, data
):
    """For any R and C_p that come out, the record filter never stops a client that the other has let pass."""
    values = {"contribution_scale": scale, "attribute_clip_norm": start, "attribute_clip_rule": rule}
    options = config(epsilon=8.0, contribution_round=1, num_server_rounds=6, **values)
    plan = planning.client_plans(options, {0: 3000}, groups_of())[0]
    allowed = planning.local_budgets(options)
    own, rows = PrivacyFilter({"attribute": allowed["attribute"]}), []
    for number in range(40):
        known = data.draw(
            st.builds(Known, st.floats(0, 1))
            if rule == "contribution"
            else st.builds(Known, st.none(), st.floats(0.01, 1.0))
        )
        new = plan.rows(0, number, 1, data.draw(st.sampled_from([known, Known()])), measure=number % 3 == 0)
        if not own.admits(new):
            break
        own, rows = own.charge(new), rows + list(new)
    else:
        raise AssertionError("the attribute budget is never spent")
    assert math.fsum(row.mu**2 for row in rows if row.relation == "record") <= allowed["record"] ** 2
    assert PrivacyFilter(allowed).admits(rows)


def test_the_record_budget_of_the_worst_case_is_that_of_the_smallest_clip():
    mu = gaussian_mu(1.0, 1e-5)
    # C_p is at least kappa 0.05 C, and C_p 0.2 until R is known
    assert planning.local_budgets(config(contribution_scale=0.5))["record"] == pytest.approx(
        mu / (0.5 * 0.05), rel=1e-5
    )
    assert planning.local_budgets(config(contribution_scale=10.0))["record"] == pytest.approx(
        mu * 5, rel=1e-5
    )
    quantile = planning.local_budgets(config(attribute_clip_rule="quantile"))
    assert quantile["record"] == pytest.approx(mu * 100, rel=1e-5)
    # and where it is asked for, it is what was asked for
    both = planning.local_budgets(config(epsilon_record=3.0))
    assert both == {"attribute": mu, "record": gaussian_mu(3.0, 1e-5)}


def test_the_contribution_gets_its_share_and_the_steps_the_rest():
    options = config(num_server_rounds=10, contribution_share=0.25, epsilon=4.0, contribution_scale=0.5)
    plan = planning.client_plans(options, {0: 500}, groups_of())[0]
    mu, release = gaussian_mu(4.0, 1e-5), plan.contribution
    assert release.sigma == pytest.approx(shapley_sensitivity(2, 1) / 500 / (mu * 0.5), rel=1e-9)
    attribute, record = (row.mu for row in release.releases(0, 5))
    assert attribute == pytest.approx(mu * 0.5, rel=1e-9)
    assert record == pytest.approx(mu, rel=1e-9)  # twice the attribute's
    assert plan.rows(0, 1, 1)[0].mu == pytest.approx(mu * math.sqrt(0.75 / 10), rel=1e-9)
    # C_p before and after R is known, and the noise that follows it
    before, after = plan.mechanism(Known()), plan.mechanism(Known(0.6))
    assert (before.attribute_clip_norm, before.chosen) == (0.2, "fixed")
    assert (after.attribute_clip_norm, after.chosen) == (pytest.approx(0.3), "released")
    assert after.sigma == pytest.approx(before.sigma * 1.5, rel=1e-12)


def test_a_contribution_that_would_be_mostly_noise_is_refused_with_the_records_or_budget_that_would_do():
    options = config(num_server_rounds=10)
    with pytest.raises(ConfigError) as refused:
        planning.client_plans(options, {3: 60}, groups_of())
    sentence = str(refused.value)
    assert sentence.startswith("client 3 with 60 records: ")
    for words in (
        "contribution-share = 0.1",
        "epsilon = 1",
        "attribute-clip-rule = 'fixed'",
        "contribution = '0.3'",
    ):
        assert words in sentence
    # by hand: sd = (D_N/2)/(n mu sqrt(share)), D_2 = 2
    mu = gaussian_mu(1.0, 1e-5) * math.sqrt(0.1)
    enough = math.ceil(1 / (0.1 * mu))
    assert f"bring {enough} records" in sentence
    assert planning.client_plans(options, {3: enough}, groups_of())
    with pytest.raises(ConfigError):
        planning.client_plans(options, {3: enough - 1}, groups_of())
    advised = float(re.search(r"\(([\d.]+) times the mu\^2 share\)", sentence)[1])
    assert advised == pytest.approx((1 / (0.1 * mu * 60)) ** 2, rel=0.02)
    # what is advised does
    enough_share = config(num_server_rounds=10, contribution_share=0.1 * advised)
    assert planning.client_plans(enough_share, {3: 60}, groups_of())


def test_a_contribution_that_is_neither_released_nor_public_has_a_schedule_and_no_budget():
    options = config(calibration="paper", contribution="retrain", contribution_release="none")
    assert planning.local_budgets(options) == {}
    plan = planning.client_plans(options, {0: 40}, groups_of())[0]
    assert plan.is_data_dependent
    assert (plan.contribution, plan.quantile, plan.num_releases) == (None, None, 40)
    assert {row.chosen for row in plan.rows(0, 1, 1, Known(0.4))} == {"data-dependent"}


def test_a_client_with_nothing_left_to_retrain_on_is_refused():
    options = config(
        calibration="paper", contribution="retrain", contribution_release="none", validation_fraction=0.9
    )
    with pytest.raises(
        ConfigError, match=r"client 1 with 3 records: .*leaves none of its records to retrain on"
    ):
        planning.client_plans(options, {0: 40, 1: 3}, groups_of())


def test_a_public_contribution_costs_nothing_and_needs_no_groups():
    options = config(contribution="0.3", num_server_rounds=10, contribution_scale=0.5)
    plan = planning.client_plans(options, {0: 1}, None)[0]
    step = plan.mechanism(Known())
    assert (plan.contribution, plan.share, step.chosen) == (None, 1.0, "fixed")
    assert step.attribute_clip_norm == pytest.approx(0.5 * 0.3)
    assert planning.local_budgets(options) == {"attribute": gaussian_mu(1.0, 1e-5)}


def test_utilities_are_measured_on_a_public_number_of_records():
    assert planning.num_validation(config(), 40) == 40
    assert planning.num_validation(config(validation_fraction=0.25), 40) == 10
    assert planning.num_validation(config(validation_fraction=0.001), 40) == 1
    retrained = config(calibration="paper", contribution="retrain", contribution_release="none")
    assert planning.num_validation(retrained, 40) == 10
