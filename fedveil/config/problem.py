"""The data of a run, as values: what clients hold, what is private in it, what is known of nodes with their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.groups import Groups
from fedveil.datasets.partition import Partition
from fedveil.datasets.schema import Dataset, Records, with_baseline

__all__ = ["Problem", "Sites"]


@dataclass(frozen=True, eq=False)
class Sites:
    """What a process knows of clients whose nodes bring their own records.

    Attributes
    ----------
    examples : mapping of int to int
        Number of records n_i of each client; public. The server has it from the roll call.
    records : mapping of int to Records
        The records themselves of clients that this process hosts; none on the server.
    """

    examples: Mapping[int, int] = field(default_factory=dict)
    records: Mapping[int, Records] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of a run: what clients hold and what is private in it.

    Attributes
    ----------
    dataset : Dataset
        Clients' records and the public test set; private attributes already at their baseline where they are dropped.
    private : bool array, shape (p,), or None
        The private attributes, where the run protects or drops any.
    parts : Partition
        Row indices of each logical client, in the order of clients; none with ``sites``.
    groups : Groups or None
        The groups whose contributions are compared, where the run measures them.
    sites : Sites or None
        The clients where every node brings its own records, which are not in ``dataset``.
    """

    dataset: Dataset
    private: NDArray[np.bool_] | None
    parts: Partition
    groups: Groups | None = None
    sites: Sites | None = None

    @property
    def num_clients(self) -> int:
        """Logical clients that are known of; with a natural partition the data says how many."""
        return len(self.examples)

    @property
    def examples(self) -> dict[int, int]:
        """Number of records n_i of each logical client; public."""
        if self.sites is not None:
            return dict(self.sites.examples)
        return {client: len(part) for client, part in enumerate(self.parts)}

    def records(self, client: int) -> Records:
        """The records of one client."""
        if self.sites is not None:
            return self.sites.records[client]
        return self.dataset.train.take(self.parts.parts[client])

    def baseline_features(self, records: Records) -> NDArray[np.float32] | None:
        """The same features with the private attributes at their public baseline."""
        if self.private is None:
            return None
        return with_baseline(records.features, self.private, self.dataset.schema.baseline)

    def met(self, examples: Mapping[int, int]) -> Problem:
        """The same with what the roll call has told: how many records each site has."""
        return replace(self, sites=Sites(dict(examples)))
