"""What a run asks of a node, from its checked settings alone: what a node's policy looks at."""

from __future__ import annotations

import math

from fedveil.clients.run_terms import Noise, RunTerms
from fedveil.config.base import RunConfig
from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig
from fedveil.config.modulated import ModulatedConfig
from fedveil.privacy import BOUNDED_BY, Relation, subsampled_noise_multiplier
from fedveil.privacy.message_plan import budget_mu

__all__ = ["terms_of"]

_ROUNDING = 1 + 1e-12


def terms_of(config: RunConfig) -> RunTerms:
    """What a run asks of a node that is not simulated.

    Costs are of the worst case that the run's own filters let pass, or of its whole schedule where no filter is valid.

    Raises
    ------
    ConfigError
        If the settings are those of no known app.
    """
    if isinstance(config, ModulatedConfig):
        return _modulated(config)
    if isinstance(config, FedSVAConfig):
        return _fedsva(config)
    raise ConfigError(
        f"a node's policy knows no settings of type {type(config).__name__}: use FedVeil's apps."
    )


def _modulated(config: ModulatedConfig) -> RunTerms:
    own: Relation = "record" if config.label_privacy else "attribute"
    mu = budget_mu(config.epsilon, config.delta, config.accounting)
    noise: tuple[Noise, ...] = ("local",)
    if config.asks_without_noise:
        # beside messages without noise no bound of the others says anything
        return RunTerms("modulated", (*noise, "none"), (), {}, sensitivity=config.sensitivity)
    return RunTerms("modulated", noise, (own,), _bounded({own: mu}), sensitivity=config.sensitivity)


def _fedsva(config: FedSVAConfig) -> RunTerms:
    if config.privacy == "none":
        return RunTerms("fedsva", ("none",), ())
    if config.privacy == "central":
        return RunTerms("fedsva", ("central",), ("client",), {"client": _central(config)})
    if config.is_data_dependent:
        return RunTerms("fedsva", ("local", "unproven"), (), {}, config.calibration)
    relations: tuple[Relation, ...] = (config.step_calibration.relation,)
    if config.epsilon_record is not None and "record" not in relations:
        relations = (*relations, "record")
    return RunTerms("fedsva", ("local",), relations, _local(config), config.calibration)


def _local(config: FedSVAConfig) -> dict[Relation, float]:
    from fedveil.config import planning  # torch, which the modulated app does without

    limits = planning.local_budgets(config)
    if (
        not limits
    ):  # sampled records: no filter is valid, and a schedule counts as if all records had been used
        steps = planning.num_releases(config)
        z = subsampled_noise_multiplier(config.epsilon, config.delta, config.sampling_rate, steps)
        return _bounded({"record": 2 * math.sqrt(steps) / z * _ROUNDING})
    if "record" not in limits:
        limits["record"] = limits["attribute"] * planning.worst_ratio(config)
    return _bounded(limits)


def _central(config: FedSVAConfig) -> float:
    """Total mu of the server's releases under the client relation, as if all clients took part in every round."""
    from fedveil.config import assembly

    mechanism = assembly.central_mechanism(config, config.num_clients)
    if mechanism is None:
        raise ConfigError("only privacy = 'central' has noise of the server's.")
    return 2 * math.sqrt(config.num_server_rounds) / mechanism.noise_multiplier


def _bounded(costs: dict[Relation, float]) -> dict[Relation, float]:
    """Costs with that of the attributes, which a bound for whole records bounds too."""
    attribute = min(
        (costs[relation] for relation in BOUNDED_BY["attribute"] if relation in costs), default=None
    )
    return costs if attribute is None else {**costs, "attribute": attribute}
