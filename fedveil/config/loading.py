"""From a checked configuration to the data of a run: loaded, marked, and spread over the clients."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.config.data_source import load_data
from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig
from fedveil.config.problem import Problem, Sites
from fedveil.config.sites import SiteData, load_whole, schema_digest
from fedveil.datasets.groups import Groups, parse_groups
from fedveil.datasets.partition import Partition, partition
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records, Schema, check_records, with_baseline
from fedveil.privacy import MAX_EXACT

__all__ = ["load_problem", "load_sites"]

_RANGE = r"[\d\s]*:[\d\s]*"
_REGIONS = re.compile(rf"{_RANGE},{_RANGE}(\+{_RANGE},{_RANGE})*")

_NAMES = (
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


@dataclass(frozen=True)
class _Request:
    """Every setting that the data depends on, so that one answer serves all that ask the same."""

    values: tuple[tuple[str, Any], ...]
    protects: bool
    measures: bool
    of_records: bool
    wanted_by: str
    pairs: int
    options: str

    @classmethod
    def of(cls, config: FedSVAConfig) -> _Request:
        return cls(
            tuple((name, getattr(config, name)) for name in _NAMES),
            config.is_attribute_level or config.drop_private,
            config.measures_contribution,
            config.groups_records,
            "drop-private" if config.drop_private else f"calibration = {config.calibration!r}",
            config.contribution_pairs,
            json.dumps(config.options_of("dataset"), sort_keys=True),
        )

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]

    def data(self) -> DataRequest:
        return DataRequest(
            path=self["data_path"],
            schema_path=self["data_schema"],
            test_path=self["test_path"],
            target=self["target"],
            client_column=self["client_column"],
            test_fraction=self["test_fraction"],
            seed=self["data_seed"],
            options=json.loads(self.options),
        )


def load_problem(config: FedSVAConfig) -> Problem:
    """Load and check the data, mark the private attributes, and spread the records over the clients.

    The same configuration gives the same Problem in every process. With partition ``sites`` no client's record is read:
    the Problem has the public description and the test set, and :meth:`Problem.met` adds what the roll call tells.

    Raises
    ------
    ConfigError
        Naming the file, column, row or client that is wrong.
    """
    return _load_problem(_Request.of(config))


def load_sites(config: FedSVAConfig, places: Mapping[int, SiteData]) -> Problem:
    """Load and check the records of the sites that this node hosts, and of nobody else; no test set is read.

    Parameters
    ----------
    places : mapping of int to SiteData
        Where the records of each hosted client lie on this machine.

    Raises
    ------
    ConfigError
        Naming the file, column, row or client that is wrong.
    """
    request = _Request.of(config)
    loaded = {client: _load_site(request, client, place) for client, place in places.items()}
    first, dataset = next(iter(loaded.items()))
    for client, other in loaded.items():
        if schema_digest(other.schema) != schema_digest(dataset.schema):
            raise ConfigError(
                f"clients {first} and {client} describe their records in different ways: give them one schema file, or "
                "the options that fix shape and classes."
            )
    try:
        private, groups = _marked(request, dataset)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    drop = request["drop_private"]
    records = {client: one.train for client, one in loaded.items()}
    if drop and private is not None:
        records = {client: _baseline(one, private, dataset.schema) for client, one in records.items()}
    sites = Sites({client: len(one) for client, one in records.items()}, records)
    private = private if request.protects and not drop else None
    return Problem(_without_train(dataset), private, Partition(()), groups, sites)


@lru_cache(maxsize=256)
def _load_site(request: _Request, client: int, place: SiteData) -> Dataset:
    """The records of one site, kept while the process lives, for a simulated node is asked every round."""
    try:
        asked = replace(request.data(), path=place.path, schema_path=place.schema)
        dataset = load_whole(request["dataset"], asked, Dataset, f"client {client}")
        check_records(dataset.train, dataset.schema, f"client {client}")
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    if len(dataset.train) < request["min_records"]:
        raise ConfigError(
            f"client {client} has {len(dataset.train)} records, but min-records is {request['min_records']}: lower "
            "min-records, or leave this site out."
        )
    return dataset


@lru_cache(maxsize=2)
def _load_problem(request: _Request) -> Problem:
    try:
        dataset = _load_dataset(request)
        check_records(dataset.test, dataset.schema, f"the public test set of {dataset.name}")
        private, groups = _marked(request, dataset)
        drop = request["drop_private"]
        if drop and private is not None:
            train, test = (_baseline(one, private, dataset.schema) for one in (dataset.train, dataset.test))
            dataset = replace(dataset, train=train, test=test)
        private = private if request.protects and not drop else None
        if request["partition"] == "sites":
            return Problem(dataset, private, Partition(()), groups, Sites())
        parts = partition(
            dataset.train,
            request["partition"],
            None if request["partition"] == "natural" else request["num_clients"],
            request["dirichlet_alpha"],
            request["data_seed"],
            request["min_records"],
            request["classes_per_client"],
            request["small_clients"],
        )
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    return Problem(dataset, private, parts, groups)


def _load_dataset(request: _Request) -> Dataset:
    asked = request.data()
    if request["partition"] == "sites":
        public = load_whole(
            request["dataset"], replace(asked, path=asked.test_path), Dataset, "the public test set"
        )
        return replace(
            _without_train(public), test=public.train, name=f"the records of {request['num_clients']} sites"
        )
    dataset = load_data(request["dataset"], asked, Dataset)
    check_records(dataset.train, dataset.schema, f"data set {dataset.name}")
    return dataset


def _without_train(dataset: Dataset) -> Dataset:
    return replace(dataset, train=dataset.train.take(np.arange(0)))


def _marked(request: _Request, dataset: Dataset) -> tuple[NDArray[np.bool_] | None, Groups | None]:
    """The private attributes that the run protects, compares or drops, and the groups that it compares."""
    named = request["private_attributes"] or dataset.private
    private = groups = None
    if request.protects or (request.measures and not request.of_records):
        private = _private_attributes(dataset.schema, named, request.wanted_by)
    if request.measures:
        groups = parse_groups(request["groups"], dataset.schema, private, request["private_groups"])
        if len(groups.names) > MAX_EXACT and request.pairs == 0:
            raise ConfigError(
                f"groups: {len(groups.names)} groups are too many for exact Shapley values (at most {MAX_EXACT}): "
                "join some, or sample permutations with contribution-pairs, for example 100."
            )
    return private, groups


def _private_attributes(schema: Schema, named: str, wanted_by: str) -> NDArray[np.bool_]:
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


def _baseline(records: Records, private: NDArray[np.bool_], schema: Schema) -> Records:
    """The records with their private attributes dropped."""
    features = with_baseline(records.features, private, schema.baseline)
    return Records(features, records.labels, records.client_ids)
