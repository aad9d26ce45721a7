"""A finished run of FedSVA as hooks are given it: its models, and the public records that they are judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil.artifacts import RunFolder
from fedveil.artifacts.run_folder import MEMBERSHIP
from fedveil.config import FedSVAConfig, assembly
from fedveil.config.places import secret_keys
from fedveil.models import evaluate
from fedveil.strategies.hooks import FinishedRun
from fedveil.threads import set_threads

from .membership import public_losses

__all__ = ["finished_run"]

Arrays = Mapping[str, NDArray[np.float32]]


def finished_run(
    folder: RunFolder, config: FedSVAConfig, say: Callable[[str], None], grid: Grid | None = None
) -> FinishedRun:
    """What hooks are given of the run in this folder.

    Raises
    ------
    ConfigError
        If its data cannot be loaded any more.
    RunFolderError, DamagedFile
        If its files cannot be read.
    """
    set_threads(config.threads_per_node)
    problem = assembly.load_problem(config)
    learner = assembly.learner(config, problem.dataset)
    test, shape = problem.dataset.test, problem.dataset.schema.shape
    arrays, _ = folder.load_model()

    def figures(model: Arrays) -> dict[str, float]:
        result = evaluate(learner.module, model, test.features, test.labels, shape)
        return {"accuracy": result.accuracy, "loss": result.loss}

    return FinishedRun(
        folder=folder,
        app="fedsva",
        config=config.to_run_config() | dict.fromkeys(secret_keys(config), "secret"),
        arrays=arrays,
        trajectory=folder.load_trajectory(),
        losses=public_losses(learner, problem),
        figures=figures,
        num_records=len(test),
        say=say,
        clients=folder.document(MEMBERSHIP),
        grid=grid,
    )
