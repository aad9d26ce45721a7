"""What a run has produced so far: rounds, messages of whole cohorts, directions; kept in its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedveil import wire
from fedveil.artifacts import Checkpoint
from fedveil.privacy import MODULATED_MESSAGE, CohortRelease, Release
from fedveil.strategies import ModulatedOutcome

from .methods import Ranges

__all__ = ["History"]

Arrays = dict[str, NDArray[Any]]
Packed = tuple[NDArray[np.uint8], dict[str, Any]]


class History:
    """Metrics, releases and what a resumed run needs beside the strategy's own state.

    Parameters
    ----------
    num_clients : int
    checkpoint : Checkpoint or None
        Of the run to go on with.
    """

    def __init__(self, num_clients: int, checkpoint: Checkpoint | None) -> None:
        self.num_clients = num_clients
        self.metrics: list[dict[str, Any]] = []
        self.releases: tuple[CohortRelease, ...] = ()
        self.assumed: tuple[CohortRelease, ...] = ()
        self.pending: tuple[CohortRelease, ...] = ()  # of attempts of a round that is not done
        self.directions: list[NDArray[np.float64]] = []
        self.ranges: Ranges | None = None
        self.compared: list[dict[str, Any]] = []
        self.begun: list[str] = []  # comparators
        self.problem: str | None = None
        # what a checkpoint holds of each cohort, by the cohort itself and for as long as it is held here: pending ones
        # are dropped, and Python gives their ids to later ones
        self._packed: WeakKeyDictionary[CohortRelease, Packed] = WeakKeyDictionary()
        if checkpoint is not None:
            self._restore(checkpoint)

    @property
    def all_releases(self) -> tuple[CohortRelease, ...]:
        """Messages that arrived, and those that may have left without arriving."""
        return self.releases + self.assumed

    def add(self, outcome: ModulatedOutcome, row: dict[str, Any]) -> None:
        """Take in one round."""
        self.metrics.append(row)
        self.problem = outcome.problem
        self.pay(outcome.releases, outcome.assumed)
        if outcome.directions is not None:
            self.directions.append(outcome.directions)

    def pay(self, releases: Iterable[CohortRelease], assumed: Iterable[CohortRelease]) -> None:
        """Take in messages, those of all attempts of a round."""
        self.pending = ()
        self.releases += tuple(releases)
        self.assumed += tuple(assumed)

    def checkpoint(
        self,
        server_round: int,
        coefficients: NDArray[np.float64],
        state: Mapping[str, NDArray[Any]],
        config_hash: str,
        extra: Mapping[str, Any],
    ) -> Checkpoint:
        """All that a resumed run needs to end like an unbroken one."""
        optimizer: Arrays = {f"state/{name}": np.asarray(value) for name, value in state.items()}
        if self.directions:
            optimizer["directions"] = np.stack(self.directions)
        if self.ranges is not None:
            optimizer |= {"ranges/center": self.ranges[0], "ranges/spread": self.ranges[1]}
        rows: list[dict[str, Any]] = []
        packed: list[NDArray[np.uint8]] = []
        for kind, cohorts in (("reply", self.releases), ("assumed", self.assumed + self.pending)):
            for cohort in cohorts:
                clients, row = self._kept(cohort)
                packed.append(clients)
                rows.append({"source": kind, "row": row, "bytes": len(clients)})
        # one array of all, not one a round: thousands of them would take long to write
        optimizer["cohorts"] = np.concatenate([np.zeros(0, np.uint8), *packed])
        return Checkpoint(
            round=server_round,
            arrays={wire.COEFFICIENTS: coefficients},
            optimizer=optimizer,
            releases=(),
            metrics=self.metrics,
            config_hash=config_hash,
            extra={
                **extra,
                "cohorts": rows,
                "compared": self.compared,
                "begun": self.begun,
                "problem": self.problem,
            },
        )

    def _kept(self, cohort: CohortRelease) -> Packed:
        """Who sent, as bytes, and the row; made once, for a checkpoint of every round holds all rounds."""
        if cohort not in self._packed:
            clients = np.frombuffer(wire.encode_clients(cohort.clients), np.uint8)
            self._packed[cohort] = clients, asdict(cohort.release)
        return self._packed[cohort]

    def _restore(self, checkpoint: Checkpoint) -> None:
        arrays = checkpoint.optimizer
        # the initial model is evaluated again
        self.metrics = list(checkpoint.metrics) if checkpoint.round else []
        self.directions = list(arrays.get("directions", ()))
        if "ranges/center" in arrays:
            self.ranges = arrays["ranges/center"], arrays["ranges/spread"]
        self.compared = list(checkpoint.extra["compared"])
        self.begun = list(checkpoint.extra["begun"])
        self.problem = checkpoint.extra["problem"]
        entries = checkpoint.extra["cohorts"]
        ends = np.cumsum([entry["bytes"] for entry in entries], dtype=np.int64)[:-1]
        for entry, packed in zip(entries, np.split(arrays["cohorts"], ends), strict=False):
            clients = wire.decode_clients(packed.tobytes(), self.num_clients - 1)
            cohort = CohortRelease(Release(**entry["row"]), clients)
            if entry["source"] == "reply":
                self.releases += (cohort,)
            else:
                self.assumed += (cohort,)

    @staticmethod
    def state_of(checkpoint: Checkpoint) -> Arrays:
        """The strategy's own state in a checkpoint."""
        return {
            name.removeprefix("state/"): value
            for name, value in checkpoint.optimizer.items()
            if name.startswith("state/")
        }

    @property
    def sent_by(self) -> int:
        """Clients of which a message of the main method arrived."""
        seen = np.zeros(self.num_clients, np.bool_)
        for cohort in self.releases:
            if cohort.release.name == MODULATED_MESSAGE:
                seen[cohort.clients] = True
        return int(seen.sum())

    def effective_clients(self) -> float | None:
        """How many clients the messages are worth: (sum n)^2 / sum n^2 where a client sent n; None where none did."""
        counts = np.zeros(self.num_clients)
        for cohort in self.releases:
            if cohort.release.name == MODULATED_MESSAGE:
                counts[cohort.clients] += 1
        square = float(np.sum(counts**2))
        return float(np.sum(counts)) ** 2 / square if square else None
