"""What clients have released of their contributions, explained: from utilities to noise, and what the noise buys."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from fedveil.config import FedSVAConfig, assembly, planning
from fedveil.config.planned_mu import planned_mu
from fedveil.privacy import (
    MAX_EXACT,
    NOTHING,
    Contribution,
    Known,
    NoisePlan,
    gaussian_epsilon,
    rounded_up,
)
from fedveil.strategies import Knowledge

_FEW = 12  # clients that get a line each
_SHOWN = 3  # groups up to which every coalition is shown


def lines_about(
    clients: Sequence[int], config: FedSVAConfig, problem: assembly.Problem, knowledge: Knowledge
) -> Iterator[str]:
    """One line for each client that has just released its contribution; a summary where there are many."""
    if len(clients) > _FEW:
        rates = [facts["contribution"] for facts in _facts(clients, config, problem, knowledge).values()]
        yield (
            f"{len(clients)} clients released their contribution: R {min(rates):.3f} to {max(rates):.3f}, median "
            f"{statistics.median(rates):.3f}; each one's will be in contributions.json"
        )
        return
    for client, facts in _facts(clients, config, problem, knowledge).items():
        yield f"client {client} released its contribution: {_line(facts, config)}"


def explanation_of(
    config: FedSVAConfig, problem: assembly.Problem, knowledge: Knowledge
) -> dict[str, Any] | None:
    """All released contributions as JSON values; None where nothing was to be released."""
    if not config.releases_contribution or problem.groups is None:
        return None
    facts = _facts(sorted(problem.examples), config, problem, knowledge)
    return {
        "groups": list(problem.groups.names),
        "private": [problem.groups.names[index] for index in problem.groups.private],
        "released": config.contribution_release,
        "calibration": config.calibration,
        "delta": config.delta,
        "clients": {str(client): values for client, values in facts.items()},
    }


def _facts(
    clients: Sequence[int], config: FedSVAConfig, problem: assembly.Problem, knowledge: Knowledge
) -> dict[int, dict[str, Any]]:
    return {
        client: _of_client(contribution, plan, knowledge.measured_in(client), config, problem)
        for client in clients
        if (contribution := knowledge.contribution(client)) is not None
        and isinstance(plan := knowledge.plans[client], NoisePlan)
    }


def _of_client(
    contribution: Contribution,
    plan: NoisePlan,
    server_round: int,
    config: FedSVAConfig,
    problem: assembly.Problem,
) -> dict[str, Any]:
    names = problem.groups.names if problem.groups else ()
    step = plan.mechanism(Known(contribution=contribution.rate))
    before = min(plan.num_steps, math.ceil(server_round * config.fraction_train) * config.local_steps)
    schedule = [(plan.mechanism(NOTHING), before), (step, plan.num_steps - before)]
    limits = planning.local_budgets(config)
    epsilons = {}
    for relation in dict.fromkeys(row.relation for row in step.rows(0, 1, 1)):
        mu = planned_mu(config, plan, schedule, relation)
        epsilons[relation] = gaussian_epsilon(min(mu, limits.get(relation, math.inf)), config.delta)
    facts: dict[str, Any] = {
        "round": server_round,
        "records": planning.num_validation(config, plan.num_records),
        "shapley": dict(zip(names, contribution.values, strict=True)),
        "deviation": contribution.deviation,
        "sampling-error-at-most": _sampling_error(config, len(names)),
        "contribution": contribution.rate,
        "sigma": step.sigma,
        "planned-epsilon-reading": epsilons,
    }
    if contribution.utilities is not None:
        facts["utilities"] = {
            _coalition(names, mask): value for mask, value in enumerate(contribution.utilities)
        }
    if step.attribute_clip_norm is not None:
        facts["attribute-clip-norm"] = step.attribute_clip_norm
    else:
        least = plan.mechanism(Known(contribution=0.0)).sigma
        facts["moved"] = step.sigma / least - 1
    return facts


def _sampling_error(config: FedSVAConfig, num_groups: int) -> float:
    """Largest standard error of sampling permutations; 0 where Shapley values are exact.

    The error itself depends on the records and is not released. A player's value in one antithetic pair lies between
    -1 and 1, so that its mean over pairs has a standard error of at most 1/sqrt(pairs).
    """
    return 0.0 if num_groups <= MAX_EXACT else 1 / math.sqrt(config.contribution_pairs)


def _coalition(names: Sequence[str], mask: int) -> str:
    """A coalition by its groups' names."""
    chosen = [name for index, name in enumerate(names) if mask >> index & 1]
    return "all" if len(chosen) == len(names) else "+".join(chosen) or "none"


def _line(facts: dict[str, Any], config: FedSVAConfig) -> str:
    parts = []
    if "utilities" in facts:
        utilities = facts["utilities"]
        shown = utilities if len(facts["shapley"]) <= _SHOWN else {k: utilities[k] for k in ("none", "all")}
        parts.append("utilities " + ", ".join(f"{name} {value:z.3f}" for name, value in shown.items()))
    values = ", ".join(f"{name} {value:z.3f}" for name, value in facts["shapley"].items())
    error = facts["sampling-error-at-most"]
    sampled = f", and at most {error:.3f} of sampled permutations" if error else ""
    parts.append(
        f"phi {values} (each +- {facts['deviation']:.3f}, the noise of its release{sampled}, on {facts['records']} "
        "records)"
    )
    parts.append(f"R {facts['contribution']:.3f}")
    if "attribute-clip-norm" in facts:
        rule = f"rule {config.attribute_clip_rule}: C_p {facts['attribute-clip-norm']:.4g}, "
    else:
        rule = f"{config.calibration}: {100 * facts['moved']:+.2f} % noise for R, "
    parts.append(f"{rule}sigma {facts['sigma']:.4g}")
    planned = facts["planned-epsilon-reading"].items()
    bought = ", ".join(f"eps({name}) {rounded_up(value)}" for name, value in planned)
    parts.append(f"with it the planned run comes to {bought} at delta {config.delta:g} (a reading)")
    return "; ".join(parts)
