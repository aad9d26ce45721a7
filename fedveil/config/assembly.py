"""From a checked configuration to the parts of a run: data, plans of noise, cohorts. Every check needs no node."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.config.errors import ConfigError, nearest
from fedveil.config.fedsva import FedSVAConfig
from fedveil.datasets.mnist import load_mnist_5k
from fedveil.datasets.partition import partition
from fedveil.datasets.schema import Dataset, Records, check_records, with_baseline
from fedveil.datasets.table import load_csv
from fedveil.privacy import (
    PrivacyFilter,
    Relation,
    StepMechanism,
    WeakDelta,
    budgets,
    gaussian_mu,
    plan_step,
    subsampled_noise_multiplier,
)
from fedveil.strategies import CentralMechanism
from fedveil.streams import Streams

__all__ = [
    "Problem",
    "central_mechanism",
    "home",
    "hosted_clients",
    "load_problem",
    "local_budgets",
    "local_mechanisms",
    "model_factory",
    "num_releases",
    "output_root",
    "public_streams",
    "run_streams",
]

MODELS = ("softmax", "mlp")
_REGION = re.compile(r"[\d\s]*:[\d\s]*,[\d\s]*:[\d\s]*")


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of a run: what clients hold and what is private in it.

    Attributes
    ----------
    dataset : Dataset
        Clients' records and the public test set; private attributes already at their baseline where they are dropped.
    private : bool array, shape (p,), or None
        The private attributes, where the run protects or drops any.
    parts : tuple of int64 arrays
        Row indices of each logical client, in the order of clients.
    """

    dataset: Dataset
    private: NDArray[np.bool_] | None
    parts: tuple[NDArray[np.int64], ...]

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
        return self.dataset.train.take(self.parts[client])

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
        "min_records",
        "data_seed",
        "private_attributes",
        "drop_private",
    )
    protects = config.is_attribute_level or config.drop_private
    values = {name: getattr(config, name) for name in names}
    return _load_problem(tuple(values.items()), protects)


@lru_cache(maxsize=2)
def _load_problem(values: tuple[tuple[str, Any], ...], protects: bool) -> Problem:
    setting = dict(values)
    drop = setting["drop_private"]
    try:
        dataset = _load_dataset(setting)
        check_records(dataset.train, dataset.schema, f"data set {dataset.name}")
        check_records(dataset.test, dataset.schema, f"the public test set of {dataset.name}")
        private = _private_attributes(dataset, setting["private_attributes"]) if protects else None
        if drop and private is not None:
            dataset = _dropped(dataset, private)
        parts = partition(
            dataset.train,
            setting["partition"],
            None if setting["partition"] == "natural" else setting["num_clients"],
            setting["dirichlet_alpha"],
            setting["data_seed"],
            setting["min_records"],
        )
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    return Problem(dataset, None if drop else private, tuple(parts))


def _load_dataset(setting: Mapping[str, Any]) -> Dataset:
    if setting["dataset"] == "mnist-5k":
        return load_mnist_5k(setting["test_fraction"], setting["data_seed"])
    return load_csv(
        setting["data_path"],
        setting["target"],
        setting["data_schema"] or None,
        setting["test_fraction"],
        setting["data_seed"],
        setting["client_column"] or None,
        setting["test_path"] or None,
    )


def _private_attributes(dataset: Dataset, named: str) -> NDArray[np.bool_]:
    schema = dataset.schema
    # by how it is written, so that a region named for a table is told as what it is
    mask = schema.region(named) if _REGION.fullmatch(named) else schema.columns(named)
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


def model_factory(config: FedSVAConfig) -> str | Any:
    """The model's embedded name, or the user's own factory ``package.module:factory``.

    Raises
    ------
    ConfigError
        If there is no such model.
    """
    if ":" not in config.model:
        if config.model not in MODELS:
            raise ConfigError(f"model = {config.model!r} is not known; {nearest(config.model, MODELS)}")
        return config.model
    module, _, name = config.model.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no module's name
        raise ConfigError(f"model = {config.model!r} cannot be imported: {error}.") from error


def num_releases(config: FedSVAConfig) -> int:
    """Noised steps of one client over the run: its expected share of rounds, rounded up, times the local steps.

    A client that happens to be sampled more often spends its budget earlier and stops.
    """
    rounds = math.ceil(config.fraction_train * config.num_server_rounds - 1e-9)
    return max(1, rounds) * config.local_steps


def local_mechanisms(config: FedSVAConfig, examples: Mapping[int, int]) -> dict[int, StepMechanism | None]:
    """The noised step of every client; None where clients add no noise.

    Raises
    ------
    ConfigError
        If no client could take even the first round without passing its budget.
    """
    if config.privacy != "local":
        return dict.fromkeys(examples)
    planned = {n: _plan(config, n) for n in sorted(set(examples.values()))}
    allowed = local_budgets(config)
    for client, n in examples.items():
        first = tuple(
            row for step in range(config.local_steps) for row in planned[n].releases(client, 1, step)
        )
        if config.sampling_rate == 1 and not PrivacyFilter(allowed).admits(first):
            raise ConfigError(
                f"the first round would pass the budget of client {client}: {config.local_steps} release(s) at "
                f"mu-release = {config.mu_release} against epsilon = {config.epsilon:g}; lower mu-release or raise "
                "epsilon."
            )
    return {client: planned[n] for client, n in examples.items()}


def _plan(config: FedSVAConfig, num_records: int) -> StepMechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakDelta)  # the app names the clients, once for all
        return plan_step(
            num_records=num_records,
            clip_norm=config.clip_norm,
            calibration=config.calibration,
            epsilon=config.epsilon,
            delta=config.delta,
            num_releases=num_releases(config),
            epsilon_record=config.epsilon_record,
            attribute_clip_norm=config.attribute_clip_norm if config.is_attribute_level else None,
            sampling_rate=config.sampling_rate,
            mu_release=config.mu_release,
        )


def local_budgets(config: FedSVAConfig) -> dict[Relation, float]:
    """GDP budgets mu_B of a client's privacy filter, by relation; none where its records are sampled.

    Sampled steps have no valid filter: they follow a fixed schedule of at most ``num_releases`` steps.
    """
    if config.privacy != "local" or config.sampling_rate < 1:
        return {}
    return budgets(
        calibration=config.calibration,
        epsilon=config.epsilon,
        delta=config.delta,
        epsilon_record=config.epsilon_record,
    )


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


def hosted_clients(num_clients: int, partition_id: int, num_partitions: int) -> Sequence[int]:
    """The consecutive logical clients that one node serves, all through the run.

    Raises
    ------
    ConfigError
        If there are more nodes than clients, or the node's number is not among them.
    """
    if not 0 <= partition_id < num_partitions:
        raise ConfigError(
            f"partition-id = {partition_id} must lie between 0 and num-partitions - 1 = {num_partitions - 1}."
        )
    if num_partitions > num_clients:
        raise ConfigError(
            f"{num_partitions} nodes for {num_clients} clients: start at most one node a client "
            "(num-supernodes, or more num-clients)."
        )
    first, last = (k * num_clients // num_partitions for k in (partition_id, partition_id + 1))
    return range(first, last)


def run_streams(config: FedSVAConfig, *, simulated: bool) -> Streams:
    """The secret streams of noise and sampling: seeded in a simulation that asks for it, else the system's entropy.

    Raises
    ------
    ConfigError
        If a seed is given outside a simulation.
    """
    if config.seed is None:
        return Streams.system()
    if not simulated:
        raise ConfigError(
            f"seed = {config.seed} in a deployment: whoever knows it could subtract the noise; leave seed empty."
        )
    return Streams.seeded(config.config_hash, config.seed)


def public_streams(config: FedSVAConfig) -> Streams:
    """Streams that anyone may know: of the initial model."""
    return Streams.seeded("public", config.data_seed)


def output_root(config: FedSVAConfig) -> Path:
    """Absolute folder of all run folders: output-dir, else $FEDVEIL_HOME/runs, else ~/.fedveil/runs."""
    return Path(config.output_dir) if config.output_dir else home() / "runs"


def home() -> Path:
    """Absolute folder of FedVeil on this machine: $FEDVEIL_HOME, else ~/.fedveil."""
    return Path(os.environ.get("FEDVEIL_HOME") or "~/.fedveil").expanduser().absolute()
