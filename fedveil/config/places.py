"""Who sits where: the clients of a node, the folders of runs, the ledger of a node."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedveil.artifacts import NODE_LEDGER, Checkpoint, RunFolder, require_same_config
from fedveil.config.base import RunConfig
from fedveil.config.errors import ConfigError

__all__ = [
    "check_writable",
    "home",
    "hosted_clients",
    "ledger_path",
    "node_ledger_path",
    "open_resumed",
    "output_root",
    "place_of_node",
    "require_same_hash",
    "secret_keys",
]


def hosted_clients(num_clients: int, partition_id: int, num_partitions: int) -> Sequence[int]:
    """The consecutive logical clients that one node serves, all through the run.

    Parameters
    ----------
    num_clients : int
    partition_id, num_partitions : int
        As :func:`place_of_node` gives them.

    Raises
    ------
    ConfigError
        If there are more nodes than clients.
    """
    if num_partitions > num_clients:
        raise ConfigError(
            f"{num_partitions} nodes for {num_clients} clients: start at most one node a client "
            "(num-supernodes, or more num-clients)."
        )
    first, last = (k * num_clients // num_partitions for k in (partition_id, partition_id + 1))
    return range(first, last)


def output_root(config: RunConfig) -> Path:
    """Absolute folder of all run folders: output-dir, else $FEDVEIL_HOME/runs, else ~/.fedveil/runs."""
    return Path(config.output_dir) if config.output_dir else home() / "runs"


def home() -> Path:
    """Absolute folder of FedVeil on this machine: $FEDVEIL_HOME, else ~/.fedveil."""
    return Path(os.environ.get("FEDVEIL_HOME") or "~/.fedveil").expanduser().absolute()


def place_of_node(node_config: Mapping[str, object]) -> tuple[int, int]:
    """A node's number and the number of nodes, from what it was started with.

    Raises
    ------
    ConfigError
        If one is missing or is no such number.
    """
    found = []
    for key in ("partition-id", "num-partitions"):
        if key not in node_config:
            raise ConfigError(
                f"{key!r} is missing: start the node with --node-config 'partition-id=0 num-partitions=2'."
            )
        value = str(node_config[key])
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", value):
            raise ConfigError(
                f"{key} = {value!r} must be a whole number: start the node with --node-config 'partition-id=0 "
                "num-partitions=2'."
            )
        found.append(int(value))
    partition_id, num_partitions = found
    if not 0 <= partition_id < num_partitions:
        raise ConfigError(
            f"partition-id = {partition_id} must lie between 0 and num-partitions - 1 = {num_partitions - 1}."
        )
    return partition_id, num_partitions


def ledger_path(config: RunConfig, run: str, *, simulated: bool) -> Path:
    """Where a node's ledger lies: with the run's results in a simulation, on the node itself otherwise.

    On a real node no setting of the server's decides: in another place every budget would be whole again.

    Raises
    ------
    ConfigError
        If the run's name, which comes from the server, could lead elsewhere.
    """
    if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", run):
        raise ConfigError(f"a run's name is letters, digits and hyphens, got {run!r}.")
    if not simulated:
        return node_ledger_path()
    folder = Path(config.resume) if config.resume else output_root(config) / run
    return folder / NODE_LEDGER


def node_ledger_path() -> Path:
    """Where a real node's ledger lies, of all its runs."""
    return home() / NODE_LEDGER


def secret_keys(config: RunConfig) -> set[str]:
    """Settings that must not be read in a run's folder: with the seed, the noise could be drawn again."""
    return set() if config.seed is None else {"seed"}


def open_resumed(config: RunConfig) -> RunFolder:
    """The folder of the unfinished run to go on with; its settings must be this run's."""
    folder = RunFolder.open(config.resume)
    known = folder.secrets  # gone where the run died while its model was written, all rounds done
    require_same_config(
        folder.config | known,
        config.to_run_config(),
        may_differ={"output-dir", "resume", "round-timeout", "min-replies", "round-attempts"},
        redact=secret_keys(config) - set(known),
    )
    return folder


def require_same_hash(config: RunConfig, checkpoint: Checkpoint, folder: Path) -> None:
    """Refuse to go on under settings that the checkpoint was not made under, whatever config.toml says by now.

    Raises
    ------
    ConfigError
        If a setting that changes what is computed, a budget for example, was edited in the folder.
    """
    if checkpoint.config_hash != config.config_hash:
        raise ConfigError(
            f"{folder}/config.toml is not what the run was started with: restore it, or start a new run."
        )


def check_writable(config: RunConfig) -> None:
    """Refuse a place for run folders that cannot be written to, before anybody works for it."""
    place = output_root(config)
    while not os.path.exists(place):  # Path.exists raises where a folder on the way is closed to this user
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"output-dir: nothing can be written to {place}; choose another folder.")
