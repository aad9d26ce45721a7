"""From a checked configuration to its assembled parts: model, code, weights, the server's noise. No node is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig
from fedveil.config.loading import load_problem, load_sites
from fedveil.config.problem import Problem
from fedveil.datasets.schema import Dataset
from fedveil.models import Learner, build_learner, gradient_descent
from fedveil.plugins import find, resolve
from fedveil.privacy import gaussian_mu, noise_aware_weight, subsampled_noise_multiplier
from fedveil.strategies import CentralMechanism
from fedveil.strategies.update_bound import UpdateBound
from fedveil.wire import SOURCE

__all__ = [
    "Problem",
    "central_mechanism",
    "code_of",
    "learner",
    "load_problem",
    "load_sites",
    "model_factory",
    "update_bound",
    "weigh",
]


def learner(config: FedSVAConfig, dataset: Dataset) -> Learner:
    """The network that clients train, with its loss and local step.

    Raises
    ------
    ConfigError
        If there is no such model, or it cannot be used.
    """
    schema = dataset.schema
    try:
        return build_learner(
            model_factory(config.model), schema.shape, schema.num_classes, config.hidden_units
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def model_factory(name: str) -> Any:
    """The factory of a model's name, or the user's own ``package.module:factory``.

    Raises
    ------
    ConfigError
        If it cannot be imported.
    """
    if ":" not in name:
        return resolve("model", name)
    module, _, factory = name.partition(":")
    try:
        return getattr(import_module(module), factory)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no module's name
        raise ConfigError(f"model = {name!r} cannot be imported: {error}.") from error


def code_of(config: FedSVAConfig, code: Mapping[str, str]) -> dict[str, str]:
    """What runs here, for server and nodes to compare: FedVeil's own code, and the versions of the plugins in use.

    Parameters
    ----------
    code : mapping of str to str
        :func:`fedveil.wire.fingerprint`.
    """
    named = [("strategy", config.strategy), ("dataset", config.dataset), ("calibration", config.calibration)]
    if ":" not in config.model:
        named.append(("model", config.model))
    foreign = [str(plugin) for kind, name in named if not (plugin := find(kind, name)).is_own]
    return {**code, SOURCE: "; ".join([code[SOURCE], *foreign])}


def weigh(config: FedSVAConfig) -> Callable[[Sequence[float]], float] | None:
    """A client's weight from the noise of its steps; None where clients weigh by their records."""
    if config.aggregation_weights == "records":
        return None
    return lambda sigmas: noise_aware_weight(sigmas, config.learning_rate, config.weight_tau)


def update_bound(config: FedSVAConfig, dataset: Dataset) -> UpdateBound | None:
    """What clipping allows a client's update; None without clipping, or with a local step of the model's own."""
    clips = config.privacy == "local" or config.clip_without_noise
    if not clips or learner(config, dataset).local_step is not gradient_descent:
        return None
    return UpdateBound(config.learning_rate, config.clip_norm)


def central_mechanism(config: FedSVAConfig, num_clients: int) -> CentralMechanism | None:
    """The trusted server's release of a round, calibrated to (epsilon, delta) under the client relation."""
    if config.privacy != "central":
        return None
    rounds, rate = config.num_server_rounds, config.fraction_train
    if rate == 1:
        # sensitivity 2 C of the sum: mu of a round is 2 / noise multiplier
        noise_multiplier = 2 * math.sqrt(rounds) / gaussian_mu(config.epsilon, config.delta)
    else:
        noise_multiplier = subsampled_noise_multiplier(config.epsilon, config.delta, rate, rounds)
    return CentralMechanism(config.clip_norm, noise_multiplier * (1 + 1e-12), rate, num_clients)
