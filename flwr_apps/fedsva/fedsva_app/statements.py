"""What a run says about its privacy: beforehand, round by round, and at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict

from fedveil import __version__
from fedveil.config import FedSVAConfig, assembly
from fedveil.privacy import (
    Guarantee,
    Ledger,
    Relation,
    Release,
    compose_mu,
    gaussian_epsilon,
    rounded_up,
)
from fedveil.strategies import weakest_guarantee


def announce(
    config: FedSVAConfig, problem: assembly.Problem, *, seeded: bool, say: Callable[[str], None]
) -> None:
    """Say what will run and what it will guarantee, before it starts; and, by name, where delta is weak."""
    dataset = problem.dataset
    say(f"FedVeil {__version__}, FedSVA on {dataset.name}: {dataset.scaled}")
    if problem.private is not None:
        say(f"{int(problem.private.sum())} of {dataset.schema.num_features} attributes are private")
    if config.privacy == "none":
        say("privacy: none; nothing is guaranteed")
    else:
        relation, replaced = {
            "attribute": ("attribute", "the private attributes of one record"),
            "uniform": ("record", "one record"),
            "central": ("client", "all records of one client"),
        }["central" if config.privacy == "central" else config.calibration]
        say(
            f"privacy: {config.privacy}, total epsilon {config.epsilon:g} at delta {config.delta:g} for each client, "
            f"{relation} relation (neighbours: {replaced} replaced), composed over the whole run"
        )
    mechanisms = assembly.local_mechanisms(config, problem.examples)
    if config.is_attribute_level:
        mechanism = next(iter(mechanisms.values()))
        rows = mechanism.releases(0, 1, 0) if mechanism else ()
        mu = compose_mu([row.mu for row in rows if row.relation == "record"] * assembly.num_releases(config))
        say(
            f"the same noise gives whole records epsilon {rounded_up(gaussian_epsilon(mu, config.delta))} at delta "
            f"{config.delta:g} (record relation) when all planned releases are made"
        )
    if config.privacy != "none":
        say(
            f"below, eps(relation) is the largest epsilon that a client has spent so far, at delta {config.delta:g}, "
            "proven, composed from the rows of its ledger"
        )
    weak = [client for client, n in problem.examples.items() if config.delta > 1 / n]
    if weak and config.privacy == "local":
        say(
            f"warning: delta = {config.delta:g} is above 1/n_i for client(s) {', '.join(map(str, weak))}: such a "
            "delta allows to publish a record outright; choose delta below 1/n_i"
        )
    if seeded:
        say("simulation: no privacy against who knows the seed")


def printed_budgets(config: FedSVAConfig) -> dict[Relation, float]:
    """Total epsilon of each relation that has a budget."""
    if config.privacy == "none":
        return {}
    if config.privacy == "central":
        return {"client": config.epsilon}
    if not config.is_attribute_level:
        return {"record": config.epsilon}
    record: dict[Relation, float] = {} if config.epsilon_record is None else {"record": config.epsilon_record}
    return {"attribute": config.epsilon, **record}


def as_json(guarantee: Guarantee) -> dict[str, str | float]:
    """A guarantee as JSON values; JSON has no infinity."""
    values: dict[str, str | float] = asdict(guarantee)
    return values if math.isfinite(guarantee.epsilon) else values | {"epsilon": "inf"}


def state_guarantees(config: FedSVAConfig, releases: tuple[Release, ...]) -> list[Guarantee]:
    """What the run has guaranteed its worst-off client, under each relation."""
    ledger, allowed = Ledger(releases), assembly.local_budgets(config)
    relations: tuple[Relation, ...] = ("client",) if config.privacy == "central" else ("attribute", "record")
    stated = []
    for relation in relations:
        if relation == "attribute" and config.drop_private:
            words = "the private attributes were replaced by public constants before training"
            stated.append(Guarantee(0.0, config.delta, relation, "proven", words))
        elif config.privacy == "none":
            stated.append(Guarantee(math.inf, config.delta, relation, "none", "trained without noise"))
        else:
            stated.append(weakest_guarantee(ledger, config.delta, relation, allowed.get(relation)))
    return stated
