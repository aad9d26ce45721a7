"""`fedveil plan modulated`: what a run would send and guarantee, and how precise it can get; before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import Regression, load_regression, load_site
from fedveil.config.modulated_planning import comparison_rounds, main_releases, variant_plans
from fedveil.config.sites import PLACEHOLDER, site_data, sites_on_disk, uses_sites
from fedveil.privacy import gaussian_epsilon, rounded_up
from fedveil.wire import MAIN

from .statements import announce

_WIDTH = 120


def plan(config: ModulatedConfig, say: Callable[[str], None]) -> None:
    """Print the plan of a run, as a simulation would make it, or a deployment where sites are named by no file.

    Raises
    ------
    ConfigError
        As the run itself would, before any node is asked.
    """
    problem = _counted(config)
    simulated = not uses_sites(config) or bool(config.data_path)
    plans = variant_plans(config, problem, simulated=simulated)
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
        rounds = config.rounds if name == MAIN else comparison_rounds(name, config, problem.num_clients)
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
    if main is None or not problem.num_clients:
        return
    wave = config.modulation
    noise = (main.sigma**2 + wave.amplitude**2 / (2 * wave.num_directions)) / wave.scale**2
    shares = shares_by_messages(config, problem.num_clients)
    times = np.arange(len(shares))
    count, per, what = problem.num_clients * float(shares @ times), "c^2", "messages"
    if config.method == "iterative" and config.estimate == "averaged":
        # errors of averages add as squares; waves of several directions leave at most this
        seen = float(shares[1:].sum())
        size = math.sqrt(seen / float(np.sum(shares[1:] / times[1:] ** 2)))
        noise, count = noise / size, problem.num_clients * seen
        per, what = "(t c^2)", f"averages of a client's t = {size:.3g} messages"
    count = max(round(count), 1)
    level = noise * math.sqrt(problem.num_features / count)
    say(
        f"noise in the estimated covariance: {level:.3g} ((sigma^2 + lambda^2/2m)/{per} "
        f"sqrt(d/K), K = {count} {what}); intervals of single coefficients need its smallest eigenvalue above about "
        f"ten times that, and a record has norm at most {problem.bound:.3g}"
    )


def _counted(config: ModulatedConfig) -> Regression:
    """The data of the run; of simulated sites the files on this machine are counted, from site 0 on."""
    problem = load_regression(config)
    if not uses_sites(config) or PLACEHOLDER not in config.data_path:
        return problem
    found = 0
    for site in range(sites_on_disk(config)):
        found += load_site(config, site_data(config, {}, site, simulated=True), f"site {site}").num_clients
    return problem.of_sites(found)


def shares_by_messages(config: ModulatedConfig, num_clients: int) -> NDArray[np.float64]:
    """Shares of the clients that send 0, 1, 2, ... messages of the main method, as expected before it starts."""
    shares = np.zeros(main_releases(config) + 1)
    if config.method == "iterative" and config.participation != "sampled":
        shares[-1] = 1.0
        return shares
    shares[0] = 1.0
    drawn = max(round(config.fraction_train * num_clients), 1) / num_clients
    for _ in range(config.rounds):
        able = float(shares[:-1].sum())  # who has sent all its messages is not drawn again
        moved = shares[:-1] * (min(1.0, drawn / able) if able else 0.0)
        shares[:-1] -= moved
        shares[1:] += moved
    return shares
