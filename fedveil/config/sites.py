"""Partition "sites": every node brings its own records, which the server never sees.

A simulated node finds the records of a client in the run's ``data-path``, in which ``{client}`` stands for the
client's number. On a real node only its owner says where records lie, when the node is started: no path that a server
names is opened there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from fedveil.config.data_source import load_data
from fedveil.config.errors import ConfigError
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.regression_schema import RegressionSchema
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Schema
from fedveil.plugins import find

__all__ = [
    "PLACEHOLDER",
    "SiteData",
    "SitedConfig",
    "check_run_path",
    "load_whole",
    "own_client",
    "refuse_foreign_path",
    "refuse_left_out",
    "schema_digest",
    "site_data",
    "sites_on_disk",
    "sites_problem",
    "uses_sites",
]

PLACEHOLDER = "{client}"
"""Stands for the client's number in the ``data-path`` of a simulation."""

_EXAMPLE = "--node-config 'partition-id=0 num-partitions=3 data-path=\"/data/records.csv\"'"
_FILES = ("csv", "parquet", "npz", "image-folder")  # FedVeil's own data sets that are read from a path
_DESCRIBED = ("csv", "parquet", "npz")  # and those with a schema file

T = TypeVar("T", Dataset, RegressionData)


class SitedConfig(Protocol):
    """What is asked of a run's settings here."""

    @property
    def dataset(self) -> str:
        """Name of the data set."""

    @property
    def partition(self) -> str:
        """How records are spread over clients."""

    @property
    def data_path(self) -> str:
        """Where the records lie."""

    @property
    def data_schema(self) -> str:
        """Where their public description lies."""

    @property
    def test_path(self) -> str:
        """Where the public test set lies."""


@dataclass(frozen=True)
class SiteData:
    """Where a site's records lie on its own machine.

    Attributes
    ----------
    path : str
        Absolute path of the records.
    schema : str
        Absolute path of their public description; empty where it lies beside them, or there is none.
    """

    path: str
    schema: str


def uses_sites(config: SitedConfig) -> bool:
    """Whether every node brings its own records."""
    return config.partition == "sites"


def sites_problem(config: SitedConfig) -> str | None:
    """What in settings contradicts partition "sites", as one sentence without its full stop; None where all is well."""
    if not uses_sites(config):
        return None
    if find("dataset", config.dataset).is_own and config.dataset not in _FILES:
        return (
            f"partition = 'sites' is for records in files, dataset {', '.join(_FILES)} or a plugin's, and dataset is "
            f"{config.dataset!r}"
        )
    if config.data_path and PLACEHOLDER not in config.data_path:
        return (
            f"data-path = {config.data_path!r} with partition = 'sites' names one file for all: in a simulation write "
            f"{PLACEHOLDER} where the client's number stands, as in '/data/site-{PLACEHOLDER}.csv'; on real nodes "
            "leave it empty"
        )
    if not config.test_path:
        return (
            "partition = 'sites' needs test-path, a public test set: the server sees no client's record that it could "
            "set apart"
        )
    if config.dataset in _DESCRIBED and not config.data_schema:
        return (
            "partition = 'sites' needs data-schema, the public description of the columns, which the server reads "
            "without any record"
        )
    return None


def site_data(
    config: SitedConfig, node_config: Mapping[str, object], client: int, *, simulated: bool
) -> SiteData:
    """Where the records of a client lie.

    Parameters
    ----------
    node_config : mapping
        What the node was started with; its ``data-path`` and ``data-schema`` count on a real node only.
    client : int
        Number of the site.
    simulated : bool
        Whether this process asks for itself that it is simulated, never a message.

    Raises
    ------
    ConfigError
        If the path is missing, is not absolute, or comes from the wrong side: a run that names a file of a real node,
        or a placeholder on one.
    """
    check_run_path(config, simulated=simulated)
    if simulated:
        return SiteData(config.data_path.replace(PLACEHOLDER, str(client)), config.data_schema)
    path = _own_path(node_config, "data-path")
    if not path:
        raise ConfigError(
            f"this node has no data-path, and partition = 'sites' needs its own records: start it with {_EXAMPLE}."
        )
    return SiteData(path, _own_path(node_config, "data-schema"))


def check_run_path(config: SitedConfig, *, simulated: bool) -> None:
    """Refuse a run of sites whose ``data-path`` is not of its kind: a placeholder in a simulation, nothing elsewhere.

    Raises
    ------
    ConfigError
        If it is another.
    """
    if simulated and PLACEHOLDER not in config.data_path:
        raise ConfigError(
            f"data-path = {config.data_path!r} with partition = 'sites' in a simulation: write {PLACEHOLDER} where the "
            f"client's number stands, as in '/data/site-{PLACEHOLDER}.csv'."
        )
    refuse_foreign_path(config, simulated=simulated)


def sites_on_disk(config: SitedConfig) -> int:
    """How many sites of a simulation have records on this machine, counted from site 0 to the first that has none."""
    found = 0
    while os.path.exists(config.data_path.replace(PLACEHOLDER, str(found))):
        found += 1
    return found


def refuse_left_out(config: SitedConfig, num_nodes: int) -> None:
    """Refuse a simulation with fewer nodes than sites on disk, of which each node takes one.

    Raises
    ------
    ConfigError
        If records would be left out.
    """
    found = sites_on_disk(config)
    if found > num_nodes:
        raise ConfigError(
            f"data-path = {config.data_path!r} stands for {found} sites here, and the simulation has {num_nodes} "
            f"node{'s' if num_nodes > 1 else ''}, which would leave the others out: set num-supernodes to {found}, or "
            "move away what is not to take part."
        )


def refuse_foreign_path(config: SitedConfig, *, simulated: bool) -> None:
    """Refuse, on a real node, a path of records that came from the server.

    Raises
    ------
    ConfigError
        If there is one: a server could have any file of the node's read as records.
    """
    if simulated:
        return
    named = {"data-path": config.data_path}
    if not uses_sites(config):  # with sites these two are the server's own, and no node looks at them
        named |= {"data-schema": config.data_schema, "test-path": config.test_path}
    for key, value in named.items():
        if not value:
            continue
        raise ConfigError(
            f"{key} = {value!r} was set by the run, and a real node opens no file that a server names: leave it empty, "
            f"use partition = 'sites', and start the node with {_EXAMPLE}."
        )


def own_client(num_clients: int, partition_id: int, num_partitions: int) -> int:
    """The one client that a real node hosts: the number it was started with.

    Parameters
    ----------
    num_clients : int
    partition_id, num_partitions : int
        As :func:`fedveil.config.places.place_of_node` gives them.

    Raises
    ------
    ConfigError
        If there are not as many nodes as sites.
    """
    if num_partitions != num_clients:
        raise ConfigError(
            f"num-clients = {num_clients}, and this node was started as one of num-partitions = {num_partitions}: with "
            "partition = 'sites' every node is one client, so make the two equal."
        )
    return partition_id


def load_whole(name: str, request: DataRequest, expected: type[T], whose: str) -> T:
    """Load a data set of which no record is set apart for testing.

    Parameters
    ----------
    name : str
        Name of the data set.
    request : DataRequest
        Its settings; ``test_path`` and ``test_fraction`` do not count.
    expected : type
        What the loader must return.
    whose : str
        Whose records they are, for errors.

    Raises
    ------
    ValueError
        If records are set apart all the same.
    ValueError, OSError, ModuleNotFoundError, ConfigError
        As :func:`fedveil.config.data_source.load_data`.
    """
    data = load_data(name, replace(request, test_path="", test_fraction=0.0), expected)
    if len(data.test):
        raise ValueError(
            f"dataset {name!r} sets records of {whose} apart for testing, and with partition = 'sites' all of them are "
            "to be used: give a path that holds no test set of its own."
        )
    return data


def schema_digest(schema: Schema | RegressionSchema) -> str:
    """Hash of all that a public description says about numbers: nodes whose digests differ encode records differently.

    It covers names, order, ranges, categories, classes, baselines and the target; not where the file lies, nor which
    texts stand for a missing cell.
    """
    said: dict[str, Any] = {
        "names": schema.names,
        "sources": schema.sources,
        "target": schema.target,
    }
    if isinstance(schema, Schema):
        said |= {"classes": schema.classes, "shape": schema.shape}
    else:
        said["range"] = [
            None if value is None else value.hex()
            for value in (schema.target_low, schema.target_high, schema.target_baseline)
        ]
    digest = blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16)
    for values in (schema.low, schema.high, schema.baseline):
        digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return digest.hexdigest()


def _own_path(node_config: Mapping[str, object], key: str) -> str:
    """A path that the node's owner gave; empty where there is none."""
    path = node_config.get(key, "")
    if not isinstance(path, str) or (path and not Path(path).is_absolute()):
        raise ConfigError(
            f"{key} = {path!r} in the node's configuration must be an absolute path: start the node with {_EXAMPLE}."
        )
    if PLACEHOLDER in path:
        raise ConfigError(
            f"{key} = {path!r} in the node's configuration holds {PLACEHOLDER}, which is for simulations: a real node "
            "is one site, so give its own file."
        )
    return path
