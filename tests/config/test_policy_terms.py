"""What a run asks of a node: never less than its ledger's rows come to, and who adds the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fedveil.config import FedSVAConfig, assembly, planning
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_planning import variant_plans
from fedveil.config.policy_terms import terms_of
from fedveil.privacy import Known, compose_mu, gaussian_epsilon, gaussian_mu, rows_under

DIGITS = {"dataset": "digits", "num-clients": 4, "num-server-rounds": 6, "local-steps": 2}


def fedsva(**settings: Any) -> FedSVAConfig:
    named = {key.replace("_", "-"): value for key, value in settings.items()}
    return FedSVAConfig.from_run_config({**DIGITS, "private-attributes": "0:4,0:8", **named})


def modulated(**settings: Any) -> ModulatedConfig:
    named = {key.replace("_", "-"): value for key, value in settings.items()}
    return ModulatedConfig.from_run_config({"dataset": "fair", **named})


def composed(config: FedSVAConfig, known: Known, relation: Any) -> float:
    """Total mu of a client that makes every planned step, by the rows of its ledger, samples counted as all records."""
    problem = assembly.load_problem(config)
    plan = planning.client_plans(config, problem.examples, problem.groups)[0]
    assert plan is not None
    rows = plan.rows(0, 1, 1, known)
    steps = rows_under([replace(row, sampling_rate=1.0) for row in rows if row.name == "gradient"], relation)
    assert steps is not None
    return compose_mu([row.mu for row in steps] * planning.num_releases(config))


@pytest.mark.parametrize("relation", ["attribute", "record"])
@pytest.mark.parametrize(
    ("settings", "slack"),
    [
        ({"attribute_clip_rule": "fixed"}, 1e-5),
        (
            {"attribute_clip_rule": "fixed", "epsilon_record": 5.0},
            10.0,
        ),  # noise is that of the tighter budget
        ({"calibration": "uniform"}, 1e-5),
        ({"calibration": "uniform", "sampling_rate": 0.25}, 1e-5),
        (
            {"calibration": "tight", "contribution": "0.3"},
            10.0,
        ),  # the budget is that of the least noise, at R = 0
    ],
)
def test_a_run_costs_what_its_rows_come_to_and_no_less(
    settings: dict[str, Any], slack: float, relation: Any
) -> None:
    config = fedsva(**settings)
    rows, stated = composed(config, Known(), relation), terms_of(config).costs[relation]
    assert rows <= stated <= rows * (1 + slack)


def test_attributes_cost_no_more_than_the_records_that_they_are_part_of() -> None:
    costs = terms_of(fedsva(epsilon=30.0, epsilon_record=2.0)).costs
    assert costs["attribute"] == costs["record"] == gaussian_mu(2.0, 1e-5)


def test_noise_that_follows_releases_costs_the_worst_that_may_come_out() -> None:
    config = fedsva(contribution="0.0")  # C_p = 0.05 C: whole records cost 20 times their attributes
    costs = terms_of(config).costs
    assert costs["attribute"] == gaussian_mu(1.0, 1e-5)
    assert costs["record"] == pytest.approx(20 * costs["attribute"], rel=1e-5)


def test_sampled_records_cost_far_more_than_the_run_states() -> None:
    config = fedsva(calibration="uniform", sampling_rate=0.1, epsilon=1.0)
    assert gaussian_epsilon(terms_of(config).costs["record"], 1e-5) > 5


@pytest.mark.parametrize(
    ("settings", "privacy", "relations", "costs"),
    [
        ({"attribute_clip_rule": "fixed"}, ("local",), ("attribute",), {"attribute", "record"}),
        (
            {"epsilon_record": 20.0, "attribute_clip_rule": "fixed"},
            ("local",),
            ("attribute", "record"),
            {"attribute", "record"},
        ),
        ({"calibration": "uniform"}, ("local",), ("record",), {"attribute", "record"}),
        ({"privacy": "central"}, ("central",), ("client",), {"client"}),
        ({"privacy": "none"}, ("none",), (), set()),
        ({"calibration": "paper", "contribution_release": "none"}, ("local", "unproven"), (), set()),
        ({"calibration": "tight", "contribution_release": "none"}, ("local", "unproven"), (), set()),
        ({"calibration": "tight", "contribution": "0.3"}, ("local",), ("record",), {"attribute", "record"}),
    ],
)
def test_who_adds_noise_and_what_is_promised(
    settings: dict[str, Any], privacy: tuple[str, ...], relations: tuple[str, ...], costs: set[str]
) -> None:
    terms = terms_of(fedsva(**settings))
    assert (terms.app, terms.privacy, terms.relations, set(terms.costs)) == (
        "fedsva",
        privacy,
        relations,
        costs,
    )


def test_the_calibration_is_told_where_clients_add_noise_and_only_there() -> None:
    assert terms_of(fedsva(calibration="uniform")).calibration == "uniform"
    assert terms_of(fedsva(privacy="central")).calibration is None
    assert terms_of(modulated()).sensitivity == "exact"


def test_a_central_run_costs_what_its_epsilon_is_and_sampled_clients_count_as_all() -> None:
    stated = terms_of(fedsva(privacy="central", epsilon=2.0)).costs["client"]
    assert stated == pytest.approx(gaussian_mu(2.0, 1e-5), rel=1e-9)
    assert stated <= gaussian_mu(2.0, 1e-5)
    sampled = terms_of(fedsva(privacy="central", epsilon=2.0, fraction_train=0.5)).costs["client"]
    assert sampled > stated


@pytest.mark.parametrize(
    "more", [{}, {"accounting": "zcdp"}, {"sensitivity": "paper"}, {"standardization": "estimated"}]
)
def test_a_modulated_run_costs_the_budget_that_its_clients_keep(more: Mapping[str, Any]) -> None:
    for private in (False, True):
        config = modulated(label_privacy=private, **more)
        costs = terms_of(config).costs
        from fedveil.config.modulated_data import load_regression

        for plan in variant_plans(config, load_regression(config), simulated=False).values():
            assert {relation: costs[relation] for relation in plan.budget} == plan.budget
        assert set(costs) == ({"record", "attribute"} if private else {"attribute"})


def test_messages_without_noise_leave_the_whole_run_without_a_bound() -> None:
    terms = terms_of(modulated(comparators="no-privacy"))
    assert (terms.privacy, terms.relations, terms.costs) == (("local", "none"), (), {})
    assert terms_of(modulated(comparators="none")).privacy == ("local",)
    assert math.isfinite(terms_of(modulated(comparators="auto")).costs["attribute"])
