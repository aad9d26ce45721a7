"""What a run says about its privacy: beforehand, round by round, and at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict

from fedveil import __version__
from fedveil.config import FedSVAConfig, assembly, planning
from fedveil.datasets.partition import sizes_line
from fedveil.privacy import (
    BOUNDED_BY,
    NOTHING,
    Guarantee,
    Ledger,
    Relation,
    Release,
    compose_mu,
    contribution_effect,
    gaussian_epsilon,
    rounded_up,
)
from fedveil.strategies import weakest_guarantee

_NEIGHBOURS: dict[Relation, str] = {
    "attribute": "the private attributes of one record",
    "record": "one record",
    "client": "all records of one client",
}


def announce(
    config: FedSVAConfig, problem: assembly.Problem, *, seeded: bool, say: Callable[[str], None]
) -> None:
    """Say what will run and what it will guarantee, before it starts; and, by name, where delta is weak."""
    dataset, parts = problem.dataset, problem.parts
    say(f"FedVeil {__version__}, FedSVA on {dataset.name}: {dataset.scaled}")
    sizes = (
        sizes_line(problem.examples.values())
        if problem.examples
        else f"{config.num_clients} clients, which say how many records they have when the run starts"
    )
    say(f"{config.partition} partition: {sizes}; {len(dataset.test)} public test records")
    if parts.dropped:
        say(
            f"left out: {len(parts.dropped)} client(s) with fewer than min-records = {config.min_records} records, "
            f"{sum(parts.dropped.values())} records in all"
        )
    if problem.private is not None:
        say(f"{int(problem.private.sum())} of {dataset.schema.num_features} attributes are private")
    if config.privacy == "none":
        say("privacy: none; nothing is guaranteed")
    else:
        relation: Relation = "client" if config.privacy == "central" else config.step_calibration.relation
        if config.is_data_dependent:
            say(
                f"privacy: local, {config.calibration} at a nominal total epsilon {config.epsilon:g}, delta "
                f"{config.delta:g} ({relation} relation). No proven guarantee: R is measured on private records "
                "and decides the noise. Each client's sigma, R and phi stay in its node's ledger"
            )
        else:
            say(
                f"privacy: {config.privacy}, total epsilon {rounded_up(printed_budgets(config)[relation])} at delta "
                f"{config.delta:g} for each client, {relation} relation (neighbours: {_NEIGHBOURS[relation]} "
                "replaced), composed over the whole run"
                + (
                    ""
                    if config.epsilon_record is None
                    else f"; and {config.epsilon_record:g}, record relation"
                )
            )
    if config.privacy == "local":
        _announce_noise(config, problem, say)
    if config.privacy != "none" and not config.is_data_dependent:
        say(
            "below, eps(relation) is the largest epsilon that a client has spent so far, at delta "
            f"{config.delta:g}, composed from the rows of its ledger: " + _what_is_proven(config)
        )
    weak = [client for client, n in problem.examples.items() if config.delta > 1 / n]
    if weak and config.privacy == "local":
        named = ", ".join(map(str, weak[:10])) + (f" and {len(weak) - 10} more" if len(weak) > 10 else "")
        say(
            f"warning: delta = {config.delta:g} is above 1/n_i for client(s) {named}: such a "
            "delta allows to publish a record outright; choose delta below 1/n_i"
        )
    if config.membership != "public":
        _announce_losses(config, say)
    if seeded:
        say("simulation: no privacy against who knows the seed")


def _what_is_proven(config: FedSVAConfig) -> str:
    if not planning.proven_by_filter(config):
        return "proven"
    what = "noise depends" if planning.adapts_noise(config) else "releases depend"
    return f"a reading, for later {what} on earlier releases; what is proven is the budget of the filter"


def _announce_noise(config: FedSVAConfig, problem: assembly.Problem, say: Callable[[str], None]) -> None:
    """Say how noise is chosen, what R can do to it, and what the same noise means for whole records."""
    if config.calibration in ("paper", "tight"):
        if config.calibration == "paper":
            effect = contribution_effect(config.delta, config.beta)
            say(
                f"R moves the noise of calibration 'paper' by at most {rounded_up(100 * effect)} % at delta "
                f"{config.delta:g}, beta {config.beta:g}: more contribution means more noise, by that much"
            )
        if not config.is_data_dependent:
            say(
                f"the formula was given epsilon {config.epsilon:g} and delta {config.delta:g}; the total above is what "
                "its least noise, at R = 0, comes to by exact accounting"
            )
    if problem.groups is not None:
        names = [
            f"{name} (private)" if index in problem.groups.private and name != "private" else name
            for index, name in enumerate(problem.groups.names)
        ]
        how = (
            "retraining on coalitions"
            if config.contribution == "retrain"
            else "masking in the received model"
        )
        once = config.contribution == "retrain" and problem.groups.kind == "attributes"
        then = f"{'once' if once else 'in every round'}, not released"
        if config.releases_contribution:
            then = (
                f"released once from round {config.first_release_round} on ({config.contribution_release}), for "
                f"{100 * config.contribution_share:g} % of the mu^2 budget; until then "
                + (f"C_p = {config.attribute_clip_norm:g}" if config.is_attribute_level else "R = 1")
            )
        say(
            f"contribution R of {len(names)} groups of {problem.groups.kind} ({', '.join(names)}) by {how}, {then}"
        )
    if config.is_attribute_level:
        _announce_record_level(config, problem, say)


def _announce_losses(config: FedSVAConfig, say: Callable[[str], None]) -> None:
    """Say what clients will be asked for r_Q, and what it costs them."""
    if config.membership == "study":
        say(
            "after training each client gives exact moments of its losses for r_Q: study only, not private; no "
            "guarantee here covers them"
        )
        return
    epsilon = gaussian_epsilon(min(planning.loss_budgets(config).values()), config.delta)
    say(
        "after training each client releases clipped loss differences for r_Q, for "
        f"{100 * config.membership_share:g} % of the tightest mu^2 budget (epsilon {rounded_up(epsilon)} by itself, "
        "record relation), split evenly over quantizers; training has "
        f"{100 * (1 - config.membership_share):g} % of each"
    )


def _announce_record_level(
    config: FedSVAConfig, problem: assembly.Problem, say: Callable[[str], None]
) -> None:
    plan = next(iter(planning.client_plans(config, problem.examples, problem.groups).values()), None)
    if plan is None:  # no client adds noise, or none has said yet how many records it has
        return
    if planning.proven_by_filter(config):
        budget = gaussian_epsilon(planning.local_budgets(config)["record"], config.delta)
        why = (
            "the worst case of what may be released; set epsilon-record to bound it"
            if config.epsilon_record is None
            else "the budget that epsilon-record asks for"
        )
        what = "C_p or the noise" if planning.adapts_noise(config) else "which losses are released"
        say(
            f"{what} depends on releases, so whole records are proven epsilon {rounded_up(budget)} at delta "
            f"{config.delta:g} (record relation): {why}"
        )
        return
    rows = plan.mechanism(NOTHING).releases(0, 1, 0)
    mu = compose_mu([row.mu for row in rows if row.relation == "record"] * planning.num_releases(config))
    say(
        f"the same noise gives whole records epsilon {rounded_up(gaussian_epsilon(mu, config.delta))} at delta "
        f"{config.delta:g} (record relation) when all planned releases are made"
    )


def printed_budgets(config: FedSVAConfig) -> dict[Relation, float]:
    """Total epsilon of each relation that has a budget."""
    if config.privacy == "none" or config.is_data_dependent:
        return {}
    if config.privacy == "central":
        return {"client": config.epsilon}
    rule = config.step_calibration
    own = config.epsilon
    if config.calibration in ("paper", "tight"):
        own = gaussian_epsilon(planning.local_budgets(config)["record"], config.delta)
    record: dict[Relation, float] = {} if config.epsilon_record is None else {"record": config.epsilon_record}
    return {rule.relation: own, **record}


def as_json(guarantee: Guarantee) -> dict[str, str | float]:
    """A guarantee as JSON values; JSON has no infinity."""
    values: dict[str, str | float] = asdict(guarantee)
    return values if math.isfinite(guarantee.epsilon) else values | {"epsilon": "inf"}


def state_guarantees(config: FedSVAConfig, releases: tuple[Release, ...]) -> list[Guarantee]:
    """What the run has guaranteed its worst-off client, under each relation."""
    ledger, allowed = Ledger(releases), planning.local_budgets(config)
    relations: tuple[Relation, ...] = ("client",) if config.privacy == "central" else ("attribute", "record")
    stated = []
    for relation in relations:
        if relation == "attribute" and config.drop_private:
            words = "the private attributes were replaced by public constants before training"
            stated.append(Guarantee(0.0, config.delta, relation, "proven", words))
        elif config.privacy == "none":
            stated.append(Guarantee(math.inf, config.delta, relation, "none", "trained without noise"))
        elif config.is_data_dependent:
            stated.append(_unproven(config, relation))
        else:
            stated.append(weakest_guarantee(ledger, config.delta, relation, _budget(allowed, relation)))
    return stated


def _budget(allowed: Mapping[Relation, float], relation: Relation) -> float | None:
    """The mu that a client's filter keeps under a relation, if it keeps one."""
    return min((allowed[name] for name in BOUNDED_BY[relation] if name in allowed), default=None)


def readings(config: FedSVAConfig, releases: tuple[Release, ...]) -> dict[str, float]:
    """What the rows of the worst-off client compose to, where the guarantee is a budget: no guarantee themselves."""
    if not planning.proven_by_filter(config):
        return {}
    ledger, allowed = Ledger(releases), planning.local_budgets(config)
    relations: tuple[Relation, ...] = ("attribute", "record")
    found: dict[str, float] = {}
    for relation in relations:
        mu = max((ledger.odometer(client, relation) for client in ledger.clients), default=0.0)
        # a client's filter stops it at its budget, whatever the server assumes for replies that were lost
        budget = _budget(allowed, relation)
        found[relation] = gaussian_epsilon(mu if budget is None else min(mu, budget), config.delta)
    return found


def _unproven(config: FedSVAConfig, relation: Relation) -> Guarantee:
    words = "the noise was chosen by looking at private data that were not released"
    if relation == "record" and config.calibration == "paper":
        return Guarantee(config.epsilon, config.delta, relation, "nominal", words)
    return Guarantee(math.inf, config.delta, relation, "none", words)
