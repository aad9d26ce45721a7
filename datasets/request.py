"""What a data source is asked for: the same few settings for every loader, embedded, from a file or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedveil.datasets.regression import RegressionData
from fedveil.datasets.schema import Dataset
from fedveil.privacy.domain import one_of

__all__ = ["TASKS", "DataRequest", "Loader", "Task"]

Task = Literal["classification", "regression"]
TASKS: tuple[Task, ...] = ("classification", "regression")
"""What a column can be predicted as: one of public classes, or a number."""


@dataclass(frozen=True)
class DataRequest:
    """The settings of one data set, all public.

    Parameters
    ----------
    path, schema_path, test_path : str
        Absolute paths: the data, its public description, and a test set of its own; empty where not given.
    target, client_column : str
        Column to predict, and column that says whose a record is; empty for the data set's own.
    test_fraction : float
        Share of records of the public test set, in (0, 1), where no test set is given.
    seed : int
        Public data seed of the split.
    options : mapping
        The table of ``options`` under the data set's name, for what only this source knows.
    task : str
        What is asked for: ``"classification"`` gives a :class:`~fedveil.datasets.schema.Dataset`, ``"regression"`` a
        :class:`~fedveil.datasets.regression.RegressionData`, in which every record is a client of its own.

    Raises
    ------
    ValueError
        If there is no such task.
    """

    path: str = ""
    schema_path: str = ""
    test_path: str = ""
    target: str = ""
    client_column: str = ""
    test_fraction: float = 0.2
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    task: Task = "classification"

    def __post_init__(self) -> None:
        """Refuse a task that nobody knows."""
        one_of("task", self.task, TASKS)

    def allow(self, dataset: str, *keys: str, tasks: tuple[Task, ...] = ("classification",)) -> None:
        """Refuse a task that this data set does not know, and settings that it has no use for.

        Parameters
        ----------
        dataset : str
            Its name.
        keys : str
            The settings it takes, as a configuration spells them: ``"data-path"``, ``"target"``, ``"options"``.
        tasks : tuple of str
            The tasks it knows.

        Raises
        ------
        ValueError
            Naming the task, or the first setting that is given all the same.
        """
        if self.task not in tasks:
            raise ValueError(_other_task(dataset, self.task))
        given = {
            "data-path": self.path,
            "data-schema": self.schema_path,
            "test-path": self.test_path,
            "target": self.target,
            "client-column": self.client_column,
            "options": self.options,
        }
        for key, value in given.items():
            if value and key not in keys:
                takes = f"takes {', '.join(keys)}" if keys else "takes none of data-path, target and the like"
                raise ValueError(f"{key} = {value!r}: dataset {dataset!r} {takes}; leave {key} empty.")
        if self.task == "regression" and self.client_column:
            raise ValueError(
                f"client-column = {self.client_column!r}: in a regression every record is a client of its own; leave"
                " client-column empty, and list that column under ignore in the schema file if it is no feature."
            )


def _other_task(dataset: str, task: Task) -> str:
    """Say which data sets know a task."""
    if task == "regression":
        return (
            f"dataset = {dataset!r} has classes to predict and no number: a regression takes 'csv', 'parquet', 'npz',"
            " 'fair', 'modechoice', 'co2', 'randhie', 'synthetic-regression' or a plugin that knows it."
        )
    return (
        f"dataset = {dataset!r} has a number to predict and no classes: take it for a regression, or take another"
        " data set."
    )


Loader = Callable[[DataRequest], Dataset | RegressionData]
"""A data source: called with the settings, gives the data set; raises ValueError or OSError with one sentence."""
