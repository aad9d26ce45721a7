"""A finished run of modulated learning as hooks are given it: coefficients as a layer, and the public records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.artifacts import RunFolder
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import load_regression
from fedveil.config.places import secret_keys
from fedveil.strategies.hooks import FinishedRun

from .figures import HeldOut

__all__ = ["as_layer", "finished_run"]

Arrays = Mapping[str, NDArray[np.float32]]


def as_layer(coefficients: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
    """Coefficients as the weight and bias of a linear layer, so that quantizers know what to leave alone."""
    values = coefficients.astype(np.float32)
    return {"weight": values[None, :-1], "bias": values[-1:]}


def finished_run(
    folder: RunFolder, config: ModulatedConfig, say: Callable[[str], None], grid: Grid | None = None
) -> FinishedRun:
    """What hooks are given of the run in this folder.

    Raises
    ------
    ConfigError
        If its data cannot be loaded any more.
    RunFolderError, DamagedFile
        If its files cannot be read.
    """
    problem = load_regression(config)
    saved, _ = folder.load_model()
    schema = problem.data.schema
    # the model's file has centre and spread in the columns' own units: of the schema, moved by what was released
    ranges = (
        (saved["center"] - schema.center) / schema.half_range,
        saved["half-range"] / schema.half_range,
    )
    held_out = HeldOut.of(problem, ranges, problem.bound)

    def losses(candidates: Arrays) -> NDArray[np.float64]:
        predictions = (
            held_out.features @ candidates["weight"][:, 0].T.astype(np.float64) + candidates["bias"][:, 0]
        )
        errors: NDArray[np.float64] = held_out.targets[:, None] - predictions
        return errors**2 / 2

    def figures(model: Arrays) -> dict[str, float]:
        found = held_out.figures(np.append(model["weight"][0], model["bias"]).astype(np.float64))
        return {"r2": found.r2, "rmse": found.rmse}

    return FinishedRun(
        folder=folder,
        app="modulated",
        config=config.to_run_config() | dict.fromkeys(secret_keys(config), "secret"),
        arrays=as_layer(saved[wire.COEFFICIENTS]),
        trajectory=[
            (number, as_layer(arrays[wire.COEFFICIENTS])) for number, arrays in folder.load_trajectory()
        ],
        losses=losses,
        figures=figures,
        num_records=len(problem.data.test),
        say=say,
        grid=grid,
    )
