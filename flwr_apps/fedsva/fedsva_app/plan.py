"""`fedveil plan fedsva`: what a run would release, what that costs, and how far it can get; before it starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from fedveil.config import FedSVAConfig, assembly, planning
from fedveil.privacy import (
    LEAST_CONTRIBUTION,
    NOTHING,
    Known,
    NoisePlan,
    StepMechanism,
    StepTooLarge,
    compose_mu,
    convergence_bound,
    gaussian_epsilon,
    rounded_up,
    softmax_smoothness,
)

from .statements import announce

_WIDTH = 120
_MOST_ROWS = 12


def plan(config: FedSVAConfig, say: Callable[[str], None]) -> None:
    """Print the plan of a run.

    Raises
    ------
    ConfigError
        As the run itself would, before any node is asked.
    """
    problem = assembly.load_problem(config)
    learner = assembly.learner(config, problem.dataset)
    plans = planning.client_plans(config, problem.examples, problem.groups)
    num_parameters = sum(value.numel() for value in learner.module.parameters() if value.requires_grad)
    announce(config, problem, seeded=config.seed is not None, say=say)
    say(f"model {config.model}: {num_parameters} parameters")
    if config.privacy != "local":
        return
    _print_table(config, plans)
    _say_bound(config, problem, plans, num_parameters, say)


def _print_table(config: FedSVAConfig, plans: dict[int, NoisePlan | None]) -> None:
    """One row for each number of records and each state of knowledge."""
    of_size = {plan.num_records: plan for plan in plans.values() if plan is not None}
    counts = Counter(plan.num_records for plan in plans.values() if plan is not None)
    table = Table(box=None, pad_edge=False)
    for heading in (
        "records",
        "clients",
        "R",
        "C_p",
        "sigma",
        "mu of a step",
        "eps attribute",
        "eps record",
        "sd(phi)",
    ):
        table.add_column(heading, justify="right")
    sizes = sorted(of_size)
    shown = sizes if len(sizes) <= _MOST_ROWS else [sizes[round(k * (len(sizes) - 1) / 4)] for k in range(5)]
    for size in shown:
        plan = of_size[size]
        for label, known in _states(config):
            step = plan.mechanism(known)
            table.add_row(
                str(size),
                str(counts[size]),
                label,
                "" if step.attribute_clip_norm is None else f"{step.attribute_clip_norm:.4g}",
                f"{step.sigma:.4g}",
                f"{step.releases(0, 1, 0)[0].mu:.4g}" if step.sampling_rate == 1 else "sampled",
                _total(config, plan, step, "attribute"),
                _total(config, plan, step, "record"),
                "" if plan.contribution is None else f"{plan.contribution.deviation:.3g}",
            )
    Console(width=_WIDTH, highlight=False, markup=False).print(table)
    if len(shown) < len(sizes):
        print(f"(five of {len(sizes)} sizes, smallest to largest)")


def _states(config: FedSVAConfig) -> list[tuple[str, Known]]:
    """Values of R to show a client's noise for."""
    if config.public_contribution is not None:
        return [(f"{config.public_contribution:g}", NOTHING)]
    if not config.measures_contribution:
        return [("-", NOTHING)]
    values = (LEAST_CONTRIBUTION, 0.25, 0.5, 1.0)
    return [("unknown", NOTHING), *((f"{value:g}", Known(contribution=value)) for value in values)]


def _total(config: FedSVAConfig, plan: NoisePlan, step: StepMechanism, relation: str) -> str:
    """Epsilon of the whole schedule if all its steps had this noise."""
    if config.is_data_dependent:
        return "not proven"
    if step.sampling_rate < 1:
        return f"{config.epsilon:g}" if relation == "record" else ""
    rows = step.rows(0, 1, 1)
    if step.attribute_clip_norm is None:
        relation = "record"  # attribute neighbours are record neighbours
    extra = plan.rows(0, 1, 1, measure=True)[len(rows) :]
    mus = [row.mu for row in rows if row.relation == relation] * plan.num_steps
    rounds = plan.num_steps // config.local_steps
    mus += [row.mu for row in extra if row.relation == relation and row.name == "contribution"]
    mus += [row.mu for row in extra if row.relation == relation and row.name == "quantile"] * rounds
    return rounded_up(gaussian_epsilon(compose_mu(mus), config.delta))


def _say_bound(
    config: FedSVAConfig,
    problem: assembly.Problem,
    plans: dict[int, NoisePlan | None],
    num_parameters: int,
    say: Callable[[str], None],
) -> None:
    """The convergence bound, where its conditions hold; else which one does not."""
    plain = config.server_optimizer == "plain" and config.local_steps == 1 and config.fraction_train == 1
    if config.model != "softmax" or not plain:
        say(
            "convergence: no bound is stated; it needs a known smoothness (model softmax), one local step, all clients "
            "in each round and the plain server optimiser"
        )
        return
    schema = problem.dataset.schema
    smoothness = softmax_smoothness(schema.num_features)
    steps = [plan.mechanism(NOTHING) for plan in plans.values() if plan is not None]
    weigh = assembly.weigh(config)
    raw = [step.num_records if weigh is None else weigh([step.sigma]) for step in steps]
    step_size = config.learning_rate * config.server_learning_rate
    try:
        bound = convergence_bound(
            initial_gap=math.log(schema.num_classes),
            step_size=step_size,
            num_rounds=config.num_server_rounds,
            smoothness=smoothness,
            num_parameters=num_parameters,
            weights=[value / math.fsum(raw) for value in raw],
            sigmas=[step.sigma for step in steps],
            squared_bias=0.0,
        )
    except StepTooLarge:
        say(
            f"convergence: the bound holds for steps up to 1/L = {1 / smoothness:.3g} (softmax on "
            f"{schema.num_features} features in [0, 1]: L = {smoothness:g}), and learning-rate times "
            f"server-learning-rate is {step_size:g}"
        )
        return
    say(
        f"convergence: the mean over rounds of E|grad f|^2 is at most {bound.total:.4g} = {bound.optimization:.4g} "
        f"(way to go) + {bound.noise:.4g} (noise before anything is known of R), and the squared clipping bias on top; "
        f"L = {smoothness:g}"
    )
