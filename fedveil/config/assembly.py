"""From a checked configuration to the parts of a run: data, plans of noise, cohorts. Every check needs no node."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.config.data_source import load_data
from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig
from fedveil.datasets.groups import Groups, parse_groups
from fedveil.datasets.partition import Partition, partition
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records, check_records, with_baseline
from fedveil.models import Learner, build_learner
from fedveil.plugins import find, resolve
from fedveil.privacy import MAX_EXACT, gaussian_mu, noise_aware_weight, subsampled_noise_multiplier
from fedveil.strategies import CentralMechanism
from fedveil.wire import SOURCE

__all__ = [
    "Problem",
    "central_mechanism",
    "code_of",
    "learner",
    "load_problem",
    "model_factory",
    "weigh",
]

_RANGE = r"[\d\s]*:[\d\s]*"
_REGIONS = re.compile(rf"{_RANGE},{_RANGE}(\+{_RANGE},{_RANGE})*")


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of a run: what clients hold and what is private in it.

    Attributes
    ----------
    dataset : Dataset
        Clients' records and the public test set; private attributes already at their baseline where they are dropped.
    private : bool array, shape (p,), or None
        The private attributes, where the run protects or drops any.
    parts : Partition
        Row indices of each logical client, in the order of clients.
    groups : Groups or None
        The groups whose contributions are compared, where the run measures them.
    """

    dataset: Dataset
    private: NDArray[np.bool_] | None
    parts: Partition
    groups: Groups | None = None

    @property
    def num_clients(self) -> int:
        """Logical clients; with a natural partition the data says how many."""
        return len(self.parts)

    @property
    def examples(self) -> dict[int, int]:
        """Number of records n_i of each logical client; public."""
        return {client: len(part) for client, part in enumerate(self.parts)}

    def records(self, client: int) -> Records:
        """The records of one client."""
        return self.dataset.train.take(self.parts.parts[client])

    def baseline_features(self, records: Records) -> NDArray[np.float32] | None:
        """The same features with the private attributes at their public baseline."""
        if self.private is None:
            return None
        return with_baseline(records.features, self.private, self.dataset.schema.baseline)


def load_problem(config: FedSVAConfig) -> Problem:
    """Load and check the data, mark the private attributes, and spread the records over the clients.

    The same configuration gives the same Problem in every process.

    Raises
    ------
    ConfigError
        Naming the file, column, row or client that is wrong.
    """
    names: tuple[str, ...] = (
        "dataset",
        "data_path",
        "data_schema",
        "target",
        "client_column",
        "test_fraction",
        "test_path",
        "partition",
        "num_clients",
        "dirichlet_alpha",
        "classes_per_client",
        "min_records",
        "small_clients",
        "data_seed",
        "private_attributes",
        "drop_private",
        "groups",
        "private_groups",
    )
    values = {name: getattr(config, name) for name in names}
    return _load_problem(
        tuple(values.items()),
        config.is_attribute_level or config.drop_private,
        config.measures_contribution,
        config.groups_records,
        "drop-private" if config.drop_private else f"calibration = {config.calibration!r}",
        config.contribution_pairs,
        json.dumps(config.options_of("dataset"), sort_keys=True),
    )


@lru_cache(maxsize=2)
def _load_problem(
    values: tuple[tuple[str, Any], ...],
    protects: bool,
    measures: bool,
    of_records: bool,
    wanted_by: str,
    pairs: int,
    options: str,
) -> Problem:
    setting = dict(values)
    drop = setting["drop_private"]
    try:
        dataset = _load_dataset(setting, json.loads(options))
        check_records(dataset.train, dataset.schema, f"data set {dataset.name}")
        check_records(dataset.test, dataset.schema, f"the public test set of {dataset.name}")
        named = setting["private_attributes"] or dataset.private
        private = None
        if protects or (measures and not of_records):
            private = _private_attributes(dataset, named, wanted_by)
        groups = None
        if measures:
            groups = parse_groups(setting["groups"], dataset.schema, private, setting["private_groups"])
            if len(groups.names) > MAX_EXACT and pairs == 0:
                raise ConfigError(
                    f"groups: {len(groups.names)} groups are too many for exact Shapley values (at most {MAX_EXACT}): "
                    "join some, or sample permutations with contribution-pairs, for example 100."
                )
        if drop and private is not None:
            dataset = _dropped(dataset, private)
        parts = partition(
            dataset.train,
            setting["partition"],
            None if setting["partition"] == "natural" else setting["num_clients"],
            setting["dirichlet_alpha"],
            setting["data_seed"],
            setting["min_records"],
            setting["classes_per_client"],
            setting["small_clients"],
        )
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    return Problem(dataset, private if protects and not drop else None, parts, groups)


def _load_dataset(setting: Mapping[str, Any], options: Mapping[str, Any]) -> Dataset:
    request = DataRequest(
        path=setting["data_path"],
        schema_path=setting["data_schema"],
        test_path=setting["test_path"],
        target=setting["target"],
        client_column=setting["client_column"],
        test_fraction=setting["test_fraction"],
        seed=setting["data_seed"],
        options=options,
    )
    return load_data(setting["dataset"], request, Dataset)


def _private_attributes(dataset: Dataset, named: str, wanted_by: str) -> NDArray[np.bool_]:
    schema = dataset.schema
    if not named:
        raise ConfigError(
            f"private-attributes is empty, and {wanted_by} needs private attributes: name columns, or a region of "
            "images."
        )
    # by how it is written, so that a region named for a table is told as what it is
    if _REGIONS.fullmatch(named):
        mask = np.logical_or.reduce([schema.region(region) for region in named.split("+")])
    else:
        mask = schema.columns(named)
    if mask.all():
        raise ConfigError(
            "all attributes are private: the attribute relation protects some attributes given the others; leave at "
            "least one public, or use calibration = 'uniform', which protects whole records."
        )
    return mask


def _dropped(dataset: Dataset, private: NDArray[np.bool_]) -> Dataset:
    def drop(records: Records) -> Records:
        features = with_baseline(records.features, private, dataset.schema.baseline)
        return Records(features, records.labels, records.client_ids)

    return Dataset(dataset.name, dataset.schema, drop(dataset.train), drop(dataset.test), dataset.scaled)


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
