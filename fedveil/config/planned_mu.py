"""What a client's planned run costs: its steps, and everything that it releases beside them."""

from __future__ import annotations

from collections.abc import Iterable

from fedveil.config.fedsva import FedSVAConfig
from fedveil.config.planning import loss_budgets
from fedveil.privacy import NoisePlan, Relation, StepMechanism, compose_mu

__all__ = ["planned_mu"]


def planned_mu(
    config: FedSVAConfig, plan: NoisePlan, steps: Iterable[tuple[StepMechanism, int]], relation: Relation
) -> float:
    """Total mu of a planned run under one relation, of which every step has a row.

    Parameters
    ----------
    config : FedSVAConfig
    plan : NoisePlan
        The client's.
    steps : iterable of (StepMechanism, int)
        Full-batch steps and how many there are of each.
    relation : {"attribute", "record"}

    Returns
    -------
    float
        Of the steps, the contribution once, the quantile in every round, and the losses.
    """
    steps = list(steps)
    releases = [row for step, count in steps for row in step.rows(0, 1, 1) * count]
    if plan.contribution is not None:
        releases += plan.contribution.releases(0, 1)
    if plan.quantile is not None:
        rounds = sum(count for _, count in steps) // config.local_steps
        releases += plan.quantile.releases(0, 1) * rounds
    losses = min(loss_budgets(config).values(), default=0.0)  # the same under both relations
    return compose_mu([*(row.mu for row in releases if row.relation == relation), losses])
