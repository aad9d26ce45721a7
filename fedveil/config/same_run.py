"""Whether a run is still the same one: budgets are a run's, and under another name they would be whole again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from fedveil import wire
from fedveil.artifacts import NODE_LEDGER, Checkpoint, RunFolder
from fedveil.artifacts.readable import is_there
from fedveil.config.errors import ConfigError

__all__ = ["check_unchanged", "known_run", "last_checkpoint"]

_KEPT = "fedveil"  # record of a node's state, which lasts as long as Flower's run


def known_run(context: Context, run: str) -> str:
    """The run that this node works for, which the first request names.

    A server that could name a new one in every message would never spend any budget.

    Raises
    ------
    ConfigError
        If a later request names another.
    """
    known = context.state.config_records.setdefault(_KEPT, ConfigRecord()).setdefault(wire.RUN, run)
    if run != known:
        raise ConfigError(f"this node works for run {known!r}, and the request is of run {run!r}.")
    return run


def last_checkpoint(folder: RunFolder) -> Checkpoint:
    """What an unfinished run is to go on with; it is there before any client is asked for a release.

    Raises
    ------
    ConfigError
        If there is none: begun again under its name, the run would not know what its clients have released.
    """
    checkpoint = folder.load_checkpoint()
    if checkpoint is None:
        raise ConfigError(
            f"{folder.path} holds no checkpoint: restore it if it was lost, or start a new run, which is new spending."
        )
    return checkpoint


def check_unchanged(
    checkpoint: Checkpoint, facts: Mapping[str, Any], folder: Path, *, has_spent: bool
) -> None:
    """Refuse to go on with a run whose code, data or ledger are not what they were.

    Parameters
    ----------
    checkpoint : Checkpoint
        Its ``extra["facts"]`` are those of the run when it was interrupted.
    facts : mapping
        Some of them as they are now, by what an error calls them.
    folder : Path
        The run's folder.
    has_spent : bool
        Whether simulated clients have written to a ledger in that folder what they have spent.

    Raises
    ------
    ConfigError
        If a fact is another, or the ledger is gone.
    """
    for name, now in facts.items():
        if checkpoint.extra["facts"].get(name) != now:
            raise ConfigError(
                f"the {name} is not what it was when the run in {folder} was interrupted: restore it, or start a new "
                "run."
            )
    if has_spent and not is_there(folder / NODE_LEDGER):
        raise ConfigError(
            f"{folder}/{NODE_LEDGER} is lost, and with it what the clients have spent: restore it, or start a "
            "new run, which is new spending."
        )
