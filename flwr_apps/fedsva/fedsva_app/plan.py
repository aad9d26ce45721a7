"""`fedveil plan fedsva`: what a run would release, what that costs, and how far it can get; before it starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedveil.config import ConfigError, FedSVAConfig, assembly, planning
from fedveil.config.planned_mu import planned_mu
from fedveil.config.randomness import public_streams
from fedveil.config.sites import PLACEHOLDER, site_data, uses_sites
from fedveil.models import initial_arrays
from fedveil.plugins import resolve
from fedveil.privacy import (
    CALIBRATIONS,
    LEAST_CONTRIBUTION,
    NOTHING,
    Known,
    NoisePlan,
    Relation,
    StepMechanism,
    StepTooLarge,
    convergence_bound,
    gaussian_epsilon,
    rounded_up,
    softmax_smoothness,
)

from .statements import announce

_WIDTH = 120
_MOST_ROWS = 12
_SIZES = (
    100,
    1_000,
    10_000,
)  # records of made-up sites, where real ones have not said yet how many they have


def plan(config: FedSVAConfig, say: Callable[[str], None]) -> None:
    """Print the plan of a run.

    Raises
    ------
    ConfigError
        As the run itself would, before any node is asked.
    """
    problem = _counted(config)
    learner = assembly.learner(config, problem.dataset)
    plans = planning.client_plans(config, problem.examples, problem.groups)
    resolve("strategy", config.strategy)
    start = initial_arrays(learner.module, public_streams(config).stream("initial-model"))
    announce(config, problem, seeded=config.seed is not None, say=say)
    say(f"model {config.model}: {sum(value.size for value in start.values())} parameters")
    if config.privacy != "local":
        return
    if not plans:
        say("for sites of some sizes; what counts is the number of records that each says it has")
        plans = _of_sizes(config, problem, say)
        _print_table(config, plans, made_up=True)
        return
    _print_table(config, plans)
    _say_bound(config, problem, plans, start, say)


def _counted(config: FedSVAConfig) -> assembly.Problem:
    """The data of the run; the files of simulated sites are on this machine, and are counted."""
    problem = assembly.load_problem(config)
    if not uses_sites(config) or PLACEHOLDER not in config.data_path:
        return problem
    places = {client: site_data(config, {}, client, simulated=True) for client in range(config.num_clients)}
    return problem.met(assembly.load_sites(config, places).examples)


def _of_sizes(
    config: FedSVAConfig, problem: assembly.Problem, say: Callable[[str], None]
) -> dict[int, NoisePlan | None]:
    """Plans of made-up sites; one that is too small for any is told."""
    plans: dict[int, NoisePlan | None] = {}
    for size in _SIZES:
        try:
            plans |= {size: planning.client_plans(config, {size: size}, problem.groups)[size]}
        except ConfigError as error:
            say(f"a site of {size} records could take no part: {str(error).partition(' records: ')[2]}")
    return plans


def _print_table(config: FedSVAConfig, plans: dict[int, NoisePlan | None], *, made_up: bool = False) -> None:
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
                "" if made_up else str(counts[size]),
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


def _total(config: FedSVAConfig, plan: NoisePlan, step: StepMechanism, relation: Relation) -> str:
    """Epsilon of the whole schedule if all its steps had this noise."""
    if config.is_data_dependent:
        return "not proven"
    if step.sampling_rate < 1:
        return f"{config.epsilon:g}" if relation == "record" else ""
    if step.attribute_clip_norm is None:
        relation = "record"  # attribute neighbours are record neighbours
    mu = planned_mu(config, plan, [(step, plan.num_steps)], relation)
    return rounded_up(gaussian_epsilon(mu, config.delta))


def _say_bound(
    config: FedSVAConfig,
    problem: assembly.Problem,
    plans: dict[int, NoisePlan | None],
    start: dict[str, NDArray[np.float32]],
    say: Callable[[str], None],
) -> None:
    """The convergence bound, where its conditions hold; else which one does not."""
    plain = config.server_optimizer == "plain" and config.local_steps == 1 and config.fraction_train == 1
    known_noise = config.calibration in CALIBRATIONS and config.mu_release is None
    fixed_weights = config.aggregation_weights == "records" or not planning.adapts_noise(config)
    if not (config.model == "softmax" and plain and known_noise and fixed_weights):
        say(
            "convergence: no bound is stated; it needs a known smoothness (model softmax), one local step, all clients "
            "in each round, the plain server optimiser, a built-in calibration without mu-release, and weights that do "
            "not follow released noise"
        )
        return
    schema = problem.dataset.schema
    smoothness = softmax_smoothness(schema.num_features)
    sigmas = [_most_noise(config, plan) for plan in plans.values() if plan is not None]
    weigh = assembly.weigh(config)
    records = [plan.num_records for plan in plans.values() if plan is not None]
    raw = records if weigh is None else [weigh([sigma]) for sigma in sigmas]
    step_size = config.learning_rate * config.server_learning_rate
    try:
        bound = convergence_bound(
            initial_gap=_largest_loss(*start.values()),
            step_size=step_size,
            num_rounds=config.num_server_rounds,
            smoothness=smoothness,
            num_parameters=sum(value.size for value in start.values()),
            weights=[value / math.fsum(raw) for value in raw],
            sigmas=sigmas,
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
        f"(way to go) + {bound.noise:.4g} (noise, whatever R or C_p turn out to be), and the squared clipping bias on "
        f"top; L = {smoothness:g}"
    )


def _most_noise(config: FedSVAConfig, plan: NoisePlan) -> float:
    """Noise of a step at the R or C_p for which a built-in calibration gives the most: R = 1, or C_p = C."""
    states = [NOTHING]
    if config.measures_contribution:
        states.append(Known(contribution=1.0))
    if config.clip_rule == "quantile":
        states.append(Known(attribute_clip_norm=config.clip_norm))
    return max(plan.mechanism(known).sigma for known in states)


def _largest_loss(weights: NDArray[np.float32], biases: NDArray[np.float32]) -> float:
    """The largest cross-entropy that any record with features in [0, 1] can have: a bound on f_0 - f*, as f* >= 0.

    For class y it is at most the logarithm of sum_k exp(the largest of s_k - s_y), a sum of positive parts.
    """
    rows, shifts = weights.astype(np.float64), biases.astype(np.float64)
    return max(
        float(np.logaddexp.reduce(np.maximum(rows - rows[y], 0).sum(axis=1) + shifts - shifts[y]))
        for y in range(len(rows))
    )
