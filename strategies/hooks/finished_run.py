"""What a hook is given: a finished run, with its models and the public records that they can be judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil.artifacts import RunFolder

__all__ = ["FinishedRun", "Hook"]

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run whose results are on disk.

    Attributes
    ----------
    folder : RunFolder
        Where they are; :meth:`fedveil.artifacts.RunFolder.add` puts further files beside them.
    app : str
        Name of the app.
    config : mapping
        Every setting as a run configuration; no secret one is asked for.
    arrays : mapping of str to float32 array
        The final model.
    trajectory : sequence of (int, mapping)
        Rounds and the models after them, in order, as far as they were kept.
    losses : callable
        ``losses(candidates)``: candidates hold M models, each array with them one above the other (M, ...); gives their
        loss on every public record, float64 (n, M).
    figures : callable
        ``figures(arrays)``: how good a model is on the public records, by name; the first is the one to show.
    num_records : int
        Number n of public records.
    say : callable
        Prints one line.
    clients : mapping, optional
        What r_Q is on the clients' records, where they were asked for it: the file ``membership.json``.
    grid : Grid, optional
        The nodes, while they are there; None for a run that is looked at later.
    """

    folder: RunFolder
    app: str
    config: Mapping[str, Any]
    arrays: Arrays
    trajectory: Sequence[tuple[int, Arrays]]
    losses: Callable[[Arrays], NDArray[np.float64]]
    figures: Callable[[Arrays], Mapping[str, float]]
    num_records: int
    say: Callable[[str], None]
    clients: Mapping[str, Any] | None = None
    grid: Grid | None = None

    def __post_init__(self) -> None:
        """What one hook gets the next one gets too: arrays cannot be written to."""
        for arrays in (self.arrays, *(model for _, model in self.trajectory)):
            for array in arrays.values():
                array.setflags(write=False)


Hook = Callable[[FinishedRun], None]
"""Called with a finished run; what it raises is reported, and the run's results stay."""
