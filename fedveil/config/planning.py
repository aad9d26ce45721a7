"""From a checked configuration to every client's plan of noise, all of it from public values and before any round."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedveil.clients import ContributionMeter
from fedveil.config.assembly import Problem
from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig
from fedveil.config.randomness import public_streams
from fedveil.datasets.groups import Groups
from fedveil.models import Learner, initial_arrays
from fedveil.privacy import (
    LEAST_CONTRIBUTION,
    LEAST_SHARE_OF_CLIP,
    NOTHING,
    ContributionRelease,
    Known,
    NoisePlan,
    PrivacyFilter,
    QuantileRelease,
    Relation,
    budgets,
    plan_contribution,
    split_budget,
)

__all__ = [
    "adapts_noise",
    "client_plans",
    "contribution_meter",
    "local_budgets",
    "loss_budgets",
    "num_releases",
    "num_validation",
    "proven_by_filter",
    "training_budgets",
    "worst_ratio",
]


def num_releases(config: FedSVAConfig) -> int:
    """Noised steps of one client over the run: its expected share of rounds, rounded up, times the local steps.

    A client that happens to be sampled more often spends its budget earlier and stops.
    """
    return _rounds(config) * config.local_steps


def _rounds(config: FedSVAConfig) -> int:
    return max(1, math.ceil(config.fraction_train * config.num_server_rounds - 1e-9))


def local_budgets(config: FedSVAConfig) -> dict[Relation, float]:
    """GDP budgets mu_B of a client's privacy filter, by relation; none where no filter is valid.

    Sampled steps, and steps whose noise the records decide, follow a fixed schedule of ``num_releases`` steps. Where
    C_p depends on releases and no ``epsilon-record`` is given, the record budget is what the attribute budget costs
    whole records in the worst case: a guarantee has to hold for every C_p that could have come out.
    """
    if config.privacy != "local" or config.is_data_dependent:
        return {}
    limits = budgets(
        calibration=config.step_calibration,
        epsilon=config.epsilon,
        delta=config.delta,
        epsilon_record=config.epsilon_record,
        sampling_rate=config.sampling_rate,
        beta=config.beta,
    )
    if config.is_attribute_level and proven_by_filter(config) and "record" not in limits:
        limits["record"] = limits["attribute"] * worst_ratio(config)
    return limits


def training_budgets(config: FedSVAConfig) -> dict[Relation, float]:
    """What of a client's budgets training may spend, so that the rest is there when losses are asked for.

    A client that is sampled more often than expected would spend it otherwise.
    """
    part = 1 - config.membership_share if config.releases_losses else 1.0
    return {relation: mu * math.sqrt(part) for relation, mu in local_budgets(config).items()}


def loss_budgets(config: FedSVAConfig) -> dict[Relation, float]:
    """What a client's release of losses may cost under each relation; empty where none is made."""
    return split_budget(_planned_limits(config), config.membership_share) if config.releases_losses else {}


def proven_by_filter(config: FedSVAConfig) -> bool:
    """Whether some release is made of earlier ones, so that what is proven is the budget and not what was spent.

    The losses that clients release are of checkpoints, and of the few that lead.
    """
    return adapts_noise(config) or config.releases_losses


def adapts_noise(config: FedSVAConfig) -> bool:
    """Whether C_p or the noise of a client's later releases depends on its earlier ones."""
    return config.releases_contribution or config.clip_rule == "quantile"


def worst_ratio(config: FedSVAConfig) -> float:
    """Bound on mu under the record relation over mu under the attribute relation, of every release of a client.

    A step has the ratio C/C_p, so at most that of the least C_p; the contribution at most 2; the quantile and losses
    1. As the filter bounds the sum of mu^2 under the attribute relation, it bounds that under the record relation too.
    """
    least = config.attribute_clip_norm
    if config.clip_rule == "quantile":
        least = LEAST_SHARE_OF_CLIP * config.clip_norm
    elif config.clip_rule == "contribution":
        least = min(1.0, config.contribution_scale * LEAST_CONTRIBUTION) * config.clip_norm
    other = 2.0 if config.releases_contribution else 1.0
    return max(other, config.clip_norm / min(least, config.attribute_clip_norm)) * (1 + 1e-6)


def num_validation(config: FedSVAConfig, num_records: int) -> int:
    """Records m_i of a client on which utilities are measured; at least one."""
    return max(1, round(config.validation_share * num_records))


def client_plans(
    config: FedSVAConfig, examples: Mapping[int, int], groups: Groups | None
) -> dict[int, NoisePlan | None]:
    """What every client will release, and with how much noise; None where clients add none.

    Parameters
    ----------
    examples : mapping of int to int
        Number of records of each client.
    groups : Groups or None
        The groups of the run's data, where contributions are measured.

    Raises
    ------
    ConfigError
        If a plan cannot be kept: the first round would pass the budget, the released contribution would be mostly
        noise, or the calibration gives no usable noise.
    """
    if config.privacy != "local":
        return dict.fromkeys(examples)
    planned: dict[int, NoisePlan] = {}
    for client, n in examples.items():
        if n not in planned:
            try:
                planned[n] = _plan(config, n, groups)
                _try(config, planned[n])
            except ValueError as error:
                raise ConfigError(f"client {client} with {n} records: {error}") from error
    return {client: planned[n] for client, n in examples.items()}


def _plan(config: FedSVAConfig, num_records: int, groups: Groups | None) -> NoisePlan:
    limits = _planned_limits(config)
    measuring = config.contribution_share if config.releases_contribution else 0.0
    sizing = config.quantile_share if config.clip_rule == "quantile" else 0.0
    quantile = None
    if sizing:
        quantile = QuantileRelease.planned(num_records, split_budget(limits, sizing), _rounds(config))
    return NoisePlan(
        num_records=num_records,
        clip_norm=config.clip_norm,
        calibration=config.step_calibration,
        epsilon=config.epsilon,
        delta=config.delta,
        num_steps=num_releases(config),
        epsilon_record=config.epsilon_record,
        mu_release=config.mu_release,
        sampling_rate=config.sampling_rate,
        beta=config.beta,
        clip_rule=config.clip_rule,
        start_attribute_clip_norm=config.attribute_clip_norm,
        contribution_scale=config.contribution_scale,
        known_contribution=config.public_contribution,
        contribution=_contribution(config, num_records, groups, limits) if measuring else None,
        quantile=quantile,
        share=1.0 - measuring - sizing - (config.membership_share if config.releases_losses else 0.0),
        is_data_dependent=config.is_data_dependent,
    )


def _planned_limits(config: FedSVAConfig) -> dict[Relation, float]:
    """The budgets that noise must be planned to keep."""
    return {relation: mu for relation, mu in local_budgets(config).items() if _is_given(config, relation)}


def _is_given(config: FedSVAConfig, relation: Relation) -> bool:
    """Whether a relation's budget was asked for, so that noise must be planned to keep it."""
    return relation == config.step_calibration.relation or config.epsilon_record is not None


def _contribution(
    config: FedSVAConfig, num_records: int, groups: Groups | None, limits: Mapping[Relation, float]
) -> ContributionRelease:
    if groups is None:
        raise ValueError("the contribution is to be released and there are no groups to compare.")
    if config.contribution_release == "none":
        raise ValueError("contribution-release is 'none', and there is nothing to plan.")
    try:
        return plan_contribution(
            kind=config.contribution_release,
            num_groups=len(groups.names),
            num_private=len(groups.private),
            num_records=num_validation(config, num_records),
            mus=split_budget(limits, config.contribution_share),
        )
    except ValueError as error:
        raise ValueError(
            f"{str(error).rstrip('.')}; the settings are contribution-share = {config.contribution_share:g} (of the "
            f"mu^2 budget), epsilon = {config.epsilon:g} and validation-fraction = {config.validation_share:g}; "
            "without a release: attribute-clip-rule = 'fixed', or a public contribution as in contribution = '0.3'."
        ) from error


def _try(config: FedSVAConfig, plan: NoisePlan) -> None:
    """Refuse a plan whose first round, or whose noise for some R, could not be used."""
    if config.measures_contribution:
        for contribution in (0.0, 0.5, 1.0):
            plan.mechanism(Known(contribution=contribution))
        if config.contribution == "retrain" and num_validation(config, plan.num_records) == plan.num_records:
            raise ValueError(
                f"validation-fraction = {config.validation_share:g} leaves none of its records to retrain on; lower "
                "it, or leave such clients out with min-records and small-clients = 'drop'."
            )
    allowed = training_budgets(config)
    if not allowed:
        plan.mechanism(NOTHING)
        return
    rows = plan.rows(0, 1, config.local_steps, measure=config.first_release_round == 1)
    if not PrivacyFilter(allowed).admits(rows):
        cause, cure = f"calibration = {config.calibration!r}", "let it give more noise"
        if config.mu_release is not None:
            cause, cure = f"mu-release = {config.mu_release}", "lower mu-release"
        raise ValueError(
            f"its first round would pass the budget: {config.local_steps} release(s) at {cause} against epsilon = "
            f"{config.epsilon:g}; {cure} or raise epsilon."
        )


def contribution_meter(config: FedSVAConfig, problem: Problem, learner: Learner) -> ContributionMeter | None:
    """How clients measure their contribution; None where they do not."""
    if problem.groups is None or not config.measures_contribution:
        return None
    return ContributionMeter(
        learner=learner,
        groups=problem.groups,
        schema=problem.dataset.schema,
        method="retrain" if config.contribution == "retrain" else "mask",
        kind="utilities" if config.contribution_release == "utilities" else "shapley",
        fraction=config.validation_share,
        pairs=config.contribution_pairs,
        streams=public_streams(config),
        start=_start(learner, config) if config.contribution == "retrain" else None,
        steps=config.retrain_steps,
        learning_rate=config.learning_rate,
    )


def _start(learner: Learner, config: FedSVAConfig) -> dict[str, NDArray[np.float32]]:
    return initial_arrays(learner.module, public_streams(config).stream("initial-model"))
