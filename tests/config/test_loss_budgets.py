"""What clients release of their losses after training: paid for from the same budget, and never twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.config import FedSVAConfig, planning
from fedveil.datasets.groups import Groups
from fedveil.privacy import LossReleases, PrivacyFilter

FIXED = {"attribute_clip_rule": "fixed"}
GROUPS = Groups(("private", "open"), "attributes", (0,), np.eye(2, dtype=np.bool_))


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


SHARED = {
    "fixed": FIXED,
    "fixed, two budgets": FIXED | {"epsilon_record": 30.0},
    "uniform": {"calibration": "uniform"},
    "paper": {"calibration": "paper", "contribution": "0"},
    "quantile": {"attribute_clip_rule": "quantile"},
    "contribution": {"epsilon": 30.0, "contribution_round": 1},
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.8])
def test_training_and_the_release_of_losses_together_pass_the_filter_and_a_second_release_does_not(
    name: str, part: float
):
    options = config(membership="federated", membership_share=part, num_server_rounds=4, **SHARED[name])
    budget = planning.local_budgets(options)
    plan = planning.client_plans(options, {0: 400}, GROUPS)[0]
    assert plan is not None
    training = PrivacyFilter(planning.training_budgets(options))
    rows: tuple[Any, ...] = ()
    for number in range(1, 5):
        rows += plan.rows(0, number, 1, measure=number == 1)
    training = training.charge(rows)
    assert not training.admits(plan.rows(0, 5, 1))
    released = LossReleases.planned(400, (2, 2, 1), (0.1, 3.0, 1.0), planning.loss_budgets(options))
    whole = PrivacyFilter(budget).charge(rows).charge(released.releases(0, 5))
    assert not whole.admits(released.releases(0, 6))


def test_without_a_release_of_losses_training_has_the_whole_budget():
    for values in SHARED.values():
        options = config(**values)
        assert planning.loss_budgets(options) == {}
        assert planning.training_budgets(options) == planning.local_budgets(options)


def test_with_a_release_of_losses_every_relation_has_a_budget_that_bounds_all_rows():
    """Those rows are chosen from earlier ones, and prove nothing without the budget of a filter."""
    options = config(membership="federated", attribute_clip_norm=0.25, **FIXED)
    limits = planning.local_budgets(options)
    assert set(limits) == {"attribute", "record"}
    assert limits["record"] == pytest.approx(limits["attribute"] / 0.25, rel=1e-5)
    assert limits["record"] > limits["attribute"] / 0.25
    assert set(planning.local_budgets(config(**FIXED))) == {"attribute"}
