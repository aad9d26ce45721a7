"""From checked settings to every message that clients may send, from public values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config.errors import ConfigError
from fedveil.config.modulated import NO_PRIVACY, ModulatedConfig
from fedveil.config.modulated_data import LARGEST_HALF_RANGES, Regression
from fedveil.config.sites import uses_sites
from fedveil.plugins import find
from fedveil.privacy import (
    MODULATED_MESSAGE,
    RANGE_MESSAGE,
    MessagePlan,
    Modulation,
    plan_gradients,
    plan_messages,
)
from fedveil.wire import MAIN, RANGE, SOURCE

__all__ = [
    "code_of_data",
    "comparison_rounds",
    "refuse_empty_cohorts",
    "variant_plans",
]

_ITERATIVE_ROUNDS = 20  # of the comparator "iterative", whose clients send once each


def variant_plans(config: ModulatedConfig, problem: Regression, *, simulated: bool) -> dict[str, VariantPlan]:
    """What clients may be asked for, with the noise of each message; nodes and server compute the same.

    Raises
    ------
    ConfigError
        If the settings do not fit the data.
    """
    dimension = problem.num_features
    if config.num_directions >= dimension and config.amplitude > 0:
        raise ConfigError(
            f"num-directions = {config.num_directions} must be below the number of features, {dimension} in "
            f"{problem.data.name}: one direction must stay free for the coefficients; lower it, or use amplitude = 0."
        )
    try:
        plans = {MAIN: _modulated(config, problem, config.modulation, main_releases(config))}
        if config.standardization == "estimated":
            plans[RANGE] = _range(config, problem)
        for name in config.comparators_of(simulated=simulated):
            plans[name] = _comparator(name, config, problem)
        if not uses_sites(config):  # of which all together must have enough
            refuse_empty_cohorts(config, problem.num_clients)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return plans


def main_releases(config: ModulatedConfig) -> int:
    """Messages of one client in the rounds of the main method.

    With sampling it is the expected number, rounded up: a client that happens to be drawn more often spends its budget
    earlier and stops.
    """
    if config.method == "one-shot" or config.participation == "cohorts":
        return 1
    if config.participation == "all":
        return config.rounds
    return max(1, math.ceil(config.fraction_train * config.rounds - 1e-9))


def comparison_rounds(name: str, config: ModulatedConfig, num_clients: int) -> int:
    """Rounds that a comparator takes; of disjoint cohorts no more than there are clients."""
    if name == "lambda-0":
        return config.rounds
    taken = {"iterative": _ITERATIVE_ROUNDS, "dp-sgd": config.dp_sgd_rounds}.get(name, 1)
    return min(taken, num_clients) if num_clients else taken  # sites have not said yet how many they have


def code_of_data(config: ModulatedConfig, code: Mapping[str, str]) -> dict[str, str]:
    """What runs here, for server and nodes to compare: FedVeil's own code, and the version of a plugin's data set."""
    plugin = find("dataset", config.dataset)
    return {**code, SOURCE: code[SOURCE] if plugin.is_own else f"{code[SOURCE]}; {plugin}"}


def refuse_empty_cohorts(config: ModulatedConfig, num_clients: int) -> None:
    """Refuse more disjoint cohorts than clients.

    Raises
    ------
    ConfigError
        If there are.
    """
    own = config.method == "iterative" and config.participation == "cohorts"
    if own and config.rounds > num_clients:
        raise ConfigError(
            f"num-server-rounds = {config.rounds}: {config.rounds} rounds of disjoint cohorts need as many clients, "
            f"and there are {num_clients}; use fewer rounds."
        )


def _modulated(
    config: ModulatedConfig, problem: Regression, modulation: Modulation, num_releases: int
) -> VariantPlan:
    share = 1 - config.range_share if config.standardization == "estimated" else 1.0
    plan = _messages(config, modulation, problem.bound, num_releases, share, MODULATED_MESSAGE)
    return VariantPlan("modulated", plan, modulation, problem.bound, *_labels(config))


def _range(config: ModulatedConfig, problem: Regression) -> VariantPlan:
    # clipped less than the records themselves: what is estimated is where they lie
    bound = math.sqrt(problem.num_features)
    plain = Modulation(config.alpha, 0.0, 0.0, 1)
    plan = _messages(config, plain, bound, 1, config.range_share, RANGE_MESSAGE)
    return VariantPlan("range", plan, plain, bound, *_labels(config))


def _messages(
    config: ModulatedConfig, modulation: Modulation, bound: float, num_releases: int, share: float, name: str
) -> MessagePlan:
    return plan_messages(
        epsilon=config.epsilon,
        delta=config.delta,
        bound=bound,
        modulation=modulation,
        num_releases=num_releases,
        rule=config.sensitivity,
        accounting=config.accounting,
        label_privacy=config.label_privacy,
        share=share,
        name=name,
    )


def _comparator(name: str, config: ModulatedConfig, problem: Regression) -> VariantPlan:
    if name == NO_PRIVACY:
        plain: Any = Modulation(0.0, 0.0, 0.0, 1)
        # a bound that no standardised record reaches: nothing is clipped
        return VariantPlan(
            "unnoised", None, plain, 2.1 * math.sqrt(problem.num_features), None, LARGEST_HALF_RANGES
        )
    if name == "dp-sgd":
        plan = plan_gradients(
            epsilon=config.epsilon,
            delta=config.delta,
            clip_norm=config.dp_sgd_clip_norm,
            accounting=config.accounting,
        )
        return VariantPlan("gradient", plan, config.modulation, config.dp_sgd_clip_norm, None)
    if name == "lambda-0":
        plain = replace(config.modulation, amplitude=0.0)
        return _modulated(config, problem, plain, main_releases(config))
    return _modulated(config, problem, config.modulation, 1)


def _labels(config: ModulatedConfig) -> tuple[float | None, float | None]:
    """Scale of a noised label, and public bound of one in the clear; targets are standardised already."""
    return (1.0, None) if config.label_privacy else (None, LARGEST_HALF_RANGES)
