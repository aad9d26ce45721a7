"""What a run of modulated learning says about its privacy: beforehand and at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from fedveil import __version__
from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import Regression
from fedveil.privacy import (
    CohortRelease,
    Guarantee,
    MessagePlan,
    Relation,
    gaussian_epsilon,
    rounded_up,
    worst_mu,
)
from fedveil.wire import MAIN, RANGE

_NEIGHBOURS = {
    "attribute": "all features of one client's record replaced, its label the same",
    "record": "one client's whole record replaced",
}


def relation_of(config: ModulatedConfig) -> Relation:
    """The relation under which the messages protect a client."""
    return "record" if config.label_privacy else "attribute"


def announce(
    config: ModulatedConfig,
    problem: Regression,
    plans: Mapping[str, VariantPlan],
    *,
    seeded: bool,
    say: Callable[[str], None],
) -> None:
    """Say what will run and what it will guarantee, before it starts."""
    data, schema = problem.data, problem.data.schema
    say(f"FedVeil {__version__}, modulated learning on {data.name}: {data.scaled}")
    clients = f"{problem.num_clients} clients" if problem.num_clients else "clients of sites"
    say(
        f"{clients} with one record each, {problem.num_features} features and an intercept predict "
        f"{schema.target!r}; {len(data.test)} public test records"
    )
    main = own_plan(plans[MAIN])
    modulation = config.modulation
    rule = {
        "exact": "a fresh uniform phase hides the record by itself, so lambda and omega cost nothing"
        if modulation.amplitude
        else "nothing is modulated",
        "paper": "the publication's bound, which asks for more noise than the messages need",
    }[config.sensitivity]
    clipped = "(x, y/s) together" if config.label_privacy else "x"
    features, _ = problem.test
    longer = float(np.mean(np.linalg.norm(features, axis=1) > problem.bound)) if len(features) else 0.0
    if RANGE in plans:
        share = ""
    else:
        share = f" ({100 * longer:.0f} % of the public test records are longer)"
    say(
        f"message: {modulation.scale:g} x + (lambda {modulation.amplitude:g} / sqrt m) sum_j cos(omega "
        f"{modulation.frequency:g} <x, v_j> + phase) v_j, m = {modulation.num_directions}, {clipped} clipped to norm "
        f"{problem.bound:.4g}{share}; sensitivity {main.sensitivity:.4g} ({rule}), noise sigma {main.sigma:.4g}"
    )
    total = gaussian_epsilon(main.budget, config.delta)
    sent = "one message" if main.num_releases == 1 else f"{main.num_releases} messages"
    if config.participation == "sampled" and config.method == "iterative":
        sent = f"{sent}, as many as are expected,"
    say(
        f"privacy: local, total epsilon {rounded_up(total)} at delta {config.delta:g} for each client, "
        f"{main.relation} relation (neighbours: {_NEIGHBOURS[main.relation]}), composed over the whole run, "
        f"{sent} of each client" + (" besides the one about ranges" if RANGE in plans else "")
    )
    if config.accounting == "zcdp":
        say(
            f"epsilon {config.epsilon:g} became noise by zCDP, which asks for more than the exact accounting that "
            "states the total above"
        )
    if not config.label_privacy:
        say(
            "labels leave their clients in the clear (label-privacy is off): nothing is guaranteed for them, nor for "
            "whole records"
        )
    if RANGE in plans:
        spent = own_plan(plans[RANGE])
        say(
            f"means and spreads of the features are estimated first, from one message of each client at sigma "
            f"{spent.sigma:.4g}: {100 * config.range_share:g} % of the mu^2 budget, with a ledger row of its own"
        )
    if seeded:
        say("simulation: no privacy against who knows the seed")


def own_plan(variant: VariantPlan) -> MessagePlan:
    """The plan of messages that the run itself needs, which are noised."""
    if variant.plan is None:
        raise ValueError(
            f"messages of mechanism {variant.mechanism!r} have no noise, and cannot be a run's own."
        )
    return variant.plan


def guarantees_of(
    config: ModulatedConfig, releases: Iterable[CohortRelease], budget_mu: float
) -> list[Guarantee]:
    """What the run has guaranteed its worst-off client, under each relation.

    Parameters
    ----------
    releases : iterable of CohortRelease
        All messages, those of lost replies too.
    budget_mu : float
        What each client's own filter lets pass.
    """
    releases, own = list(releases), relation_of(config)
    stated: list[Guarantee] = []
    relations: tuple[Relation, ...] = ("attribute", "record")
    for relation in relations:
        if relation == "record" and own == "attribute":
            words = "labels leave their clients in the clear"
            stated.append(Guarantee(math.inf, config.delta, relation, "none", words))
            continue
        mu = worst_mu(releases, relation)
        words = "exact composition of this run's own messages of the worst-off client"
        if mu > budget_mu:
            mu, words = budget_mu, f"budget mu {budget_mu:.4g} of each client's own filter"
        stated.append(Guarantee(gaussian_epsilon(mu, config.delta), config.delta, relation, "proven", words))
    return stated
