"""What a data source is asked for: the same few settings for every loader, embedded, from a file or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.datasets.schema import Dataset

__all__ = ["DataRequest", "Loader"]


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
    """

    path: str = ""
    schema_path: str = ""
    test_path: str = ""
    target: str = ""
    client_column: str = ""
    test_fraction: float = 0.2
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def allow(self, dataset: str, *keys: str) -> None:
        """Refuse settings that this data set has no use for.

        Parameters
        ----------
        dataset : str
            Its name.
        keys : str
            The settings it takes, as a configuration spells them: ``"data-path"``, ``"target"``, ``"options"``.

        Raises
        ------
        ValueError
            Naming the first that is given all the same.
        """
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


Loader = Callable[[DataRequest], Dataset]
"""A data source: called with the settings, gives the data set; raises ValueError or OSError with one sentence."""
