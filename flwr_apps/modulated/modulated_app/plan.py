"""`fedveil plan modulated`: what a run would send and guarantee, and how precise it can get; before it starts."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_planning import MAIN, comparison_rounds, load_regression, variant_plans
from fedveil.privacy import gaussian_epsilon, rounded_up

from .statements import announce

_WIDTH = 120


def plan(config: ModulatedConfig, say: Callable[[str], None]) -> None:
    """Print the plan of a run, as a simulation would make it.

    Raises
    ------
    ConfigError
        As the run itself would, before any node is asked.
    """
    problem = load_regression(config)
    plans = variant_plans(config, problem, simulated=True)
    announce(config, problem, plans, seeded=config.seed is not None, say=say)
    table = Table(box=None, pad_edge=False)
    for heading in (
        "messages",
        "rounds",
        "of a client",
        "sensitivity",
        "sigma",
        "mu",
        "total epsilon",
        "relation",
    ):
        table.add_column(heading, justify="left" if heading in ("messages", "relation") else "right")
    for name, variant in plans.items():
        sent = variant.plan
        rounds = config.rounds if name == MAIN else comparison_rounds(name, config)
        if sent is None:
            table.add_row(name, str(rounds), "1", "", "0", "", "none", "")
            continue
        table.add_row(
            name,
            str(rounds),
            str(sent.num_releases),
            f"{sent.sensitivity:.4g}",
            f"{sent.sigma:.4g}",
            f"{sent.mu:.4g}",
            rounded_up(gaussian_epsilon(sent.budget, config.delta)),
            sent.relation,
        )
    Console(width=_WIDTH, highlight=False, markup=False).print(table)
    main = plans[MAIN].plan
    if main is None:
        return
    noise, count = main.sigma**2, problem.num_clients * messages_of_a_client(config)
    what = "messages"
    if config.method == "iterative" and config.estimate == "averaged":
        noise, count = noise * problem.num_clients / count, problem.num_clients
        what = "averages of a client's messages"
    count = max(int(count), 1)
    level = noise / config.modulation.scale**2 * (problem.num_features / count) ** 0.5
    say(
        f"noise in the estimated covariance: {level:.3g} (sigma^2/c^2 sqrt(d/K), K = {count} {what}); intervals "
        "of single coefficients need its smallest eigenvalue above about ten times that, and a record has norm at "
        f"most {problem.bound:.3g}"
    )


def messages_of_a_client(config: ModulatedConfig) -> float:
    """How many messages of the main method a client sends, on average."""
    if config.method == "one-shot":
        return config.fraction_train
    return {"all": config.rounds, "sampled": config.fraction_train * config.rounds, "cohorts": 1}[
        config.participation
    ]
