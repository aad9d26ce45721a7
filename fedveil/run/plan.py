"""A run that was asked for, checked as far as it can be before anything starts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fedveil.artifacts import RunFolder, RunFolderError
from fedveil.artifacts.config_file import REDACTED
from fedveil.run.app import App, BadInput, find_app
from fedveil.run.overrides import Value, absolute_paths, flatten

__all__ = ["Engine", "RunPlan", "plan_run"]

Engine = Literal["flower", "in-process"]


@dataclass(frozen=True)
class RunPlan:
    """What to run and how.

    Attributes
    ----------
    app : App
        The app.
    engine : {"flower", "in-process"}
        Through a SuperLink and Ray, or in this process.
    overrides : Mapping[str, Value]
        What differs from the app's defaults, paths absolute.
    config : Mapping[str, Value]
        The whole run configuration.
    num_nodes : int
        Number of simulated nodes.
    num_cpus : int
        CPU cores that Ray sets aside for a node; engine ``flower`` only.
    num_gpus : float
        GPUs, or a share of one, that Ray gives a node; engine ``flower`` only.
    """

    app: App
    engine: Engine
    overrides: Mapping[str, Value]
    config: Mapping[str, Value]
    num_nodes: int
    num_cpus: int
    num_gpus: float


def plan_run(
    app: str,
    *,
    engine: str = "flower",
    overrides: Mapping[str, Value] | None = None,
    num_nodes: int = 2,
    num_cpus: int | None = None,
    num_gpus: float = 0.0,
    resume: str | None = None,
    output_dir: str | None = None,
) -> RunPlan:
    """Check a request and complete it.

    Parameters
    ----------
    app : str
        Name of an app of FedVeil, or path of an app folder.
    engine : {"flower", "in-process"}
        Through a SuperLink of its own and Ray, or in this process.
    overrides : mapping
        Values for keys of the app's configuration; relative paths count from the current folder.
    num_nodes : int
        Simulated nodes, at least 1; they share the logical clients.
    num_cpus : int, optional
        CPU cores that Ray sets aside for a node; default 2, Flower's own, or 1 where there is one core.
    num_gpus : float
        GPUs, or a share of one, that Ray gives a node.
    resume : str, optional
        Folder of an unfinished run to go on with, under the settings that are written there.
    output_dir : str, optional
        Short for the key output-dir.

    Raises
    ------
    BadInput
        One sentence that says what is wrong, what is allowed and what to do.
    """
    if engine not in get_args(Engine):
        raise BadInput(f"engine must be one of {', '.join(get_args(Engine))}, got {engine!r}.")
    if num_nodes < 1:
        raise BadInput(f"num-supernodes must be at least 1, got {num_nodes}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if num_cpus is None:
        num_cpus = min(2, cores)
    if engine == "flower" and not 1 <= num_cpus <= cores:
        raise BadInput(
            f"client-resources-num-cpus must be from 1 to {cores}, the cores of this machine, got {num_cpus}."
        )
    if not 0 <= num_gpus < math.inf:
        raise BadInput(f"client-resources-num-gpus must not be negative and must be finite, got {num_gpus}.")
    for name, path in (("resume", resume), ("output-dir", output_dir)):
        if path is not None and not path.strip():
            raise BadInput(f"{name} is empty: give a folder, or leave the option out.")
    found = find_app(app)
    model = found.config_class()
    given = _settings_of_run(found, resume) if resume else {}
    given |= absolute_paths(overrides or {}, getattr(model, "path_keys", ()))
    given |= _as_paths({"resume": resume, "output-dir": output_dir})
    if REDACTED in given.values():
        secret = next(key for key, value in given.items() if value == REDACTED)
        raise BadInput(
            f"{secret} of the run in {resume} is not written down: give it again, -c '{secret}=...'."
        )
    config = found.configure(given)
    return RunPlan(found, engine, given, config, num_nodes, num_cpus, num_gpus)  # type: ignore[arg-type]


def _settings_of_run(app: App, folder: str) -> dict[str, Value]:
    """What the run in this folder was started with, where it differs from the app's defaults."""
    run = RunFolder(Path(folder).expanduser().absolute())
    if not os.path.isfile(run.path / "config.toml"):
        raise BadInput(f"{folder} is not the folder of a run: it has no config.toml.")
    unknown = [key for key, _ in flatten(run.config) if key not in app.defaults]
    if unknown:
        raise BadInput(
            f"the run in {folder} is not one of app {app.name}, which has no setting {unknown[0]!r}."
        )
    if run.is_finished:
        raise BadInput(f"the run in {run.path} is finished: start a new run.")
    try:
        written = flatten(run.config | run.secrets)
    except RunFolderError as error:
        raise BadInput(str(error)) from error
    own = {"resume", "output-dir"}
    return {
        key: value
        for key, value in written
        if key not in own and isinstance(value, (bool, int, float, str)) and value != app.defaults.get(key)
    }


def _as_paths(options: Mapping[str, str | None]) -> dict[str, Value]:
    return {key: str(Path(value).expanduser().absolute()) for key, value in options.items() if value}
