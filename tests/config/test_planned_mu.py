"""The cost of a planned run is what the ledger of such a run comes to, whatever is released beside its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedveil.config import FedSVAConfig, planning
from fedveil.config.planned_mu import planned_mu
from fedveil.datasets.groups import Groups
from fedveil.privacy import NOTHING, Known, Ledger, compose_mu, plan_contribution

RELEASES = {
    "steps alone": {"attribute-clip-rule": "fixed"},
    "a contribution": {"attribute-clip-rule": "contribution"},
    "quantiles": {"attribute-clip-rule": "quantile"},
    "quantiles, two steps a round": {"attribute-clip-rule": "quantile", "local-steps": 2},
    "record level": {"calibration": "uniform"},
    "losses": {"attribute-clip-rule": "fixed", "membership": "federated"},
}
GROUPS = Groups(("g0", "g1"), "attributes", (0,), np.eye(2, dtype=np.bool_))


@pytest.mark.parametrize("both", [False, True], ids=["", "and a contribution"])
@pytest.mark.parametrize("settings", RELEASES.values(), ids=RELEASES)
def test_the_planned_cost_is_the_ledgers(settings: dict[str, Any], both: bool) -> None:
    config = FedSVAConfig.from_run_config({"num-server-rounds": 5, "epsilon": 20.0, **settings})
    plan = planning.client_plans(config, {0: 4000}, GROUPS)[0]
    if both:  # a calibration of one's own may use it under any rule
        measured = plan_contribution(
            kind="shapley", num_groups=2, num_private=1, num_records=800, mus={"record": 0.5}
        )
        plan = replace(plan, contribution=measured)
    known = Known(contribution=0.5)
    steps = config.local_steps
    rows = [
        row
        for number in range(1, 6)
        for row in plan.rows(0, number, steps, NOTHING if number < 3 else known, measure=number == 2)
    ]
    ledger = Ledger(tuple(rows))
    schedule = [(plan.mechanism(NOTHING), 2 * steps), (plan.mechanism(known), 3 * steps)]
    losses = min(planning.loss_budgets(config).values(), default=0.0)
    for relation in ledger.relations(0):
        own = [row.mu for row in rows if row.relation == relation]
        assert planned_mu(config, plan, schedule, relation) == compose_mu([*own, losses])
    assert losses > 0 or "membership" not in settings
