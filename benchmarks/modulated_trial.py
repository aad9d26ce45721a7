"""One split of one table with one seed's draws: records, labels, noise and phases that every method shares.

All clients are in this process, so there are no nodes and no Flower; the privacy code is FedVeil's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.regression import RegressionData, RegressionRecords
from fedveil.streams import Streams

FloatArray = NDArray[np.float64]
Part = slice | NDArray[np.int64]  # of the clients

DELTA = 1e-5
ROUNDS = 20
SAMPLED_RELEASES = 5  # what a client of random quarters may send in all rounds


@dataclass(frozen=True, eq=False)
class Draws:
    """The random draws of one seed.

    Those of the messages are made once and scaled for every budget: figures of one seed go together over budgets and
    methods, and each has the law it must have.
    """

    streams: Streams
    num_clients: int
    dimension: int

    @cached_property
    def noise(self) -> list[FloatArray]:
        """Standard normals of each round's messages."""
        return [self.normal("noise", round=each) for each in range(ROUNDS)]

    @cached_property
    def phases(self) -> list[FloatArray]:
        """Phases of each round's messages, for one direction."""
        streams = (self.streams.stream("phases", round=each) for each in range(ROUNDS))
        return [2 * math.pi * stream.uniform((self.num_clients, 1)) for stream in streams]

    def normal(self, purpose: str, round: int = 0) -> FloatArray:
        """Standard normals, one for each coordinate of each client's message."""
        return self.streams.stream(purpose, round=round).normal((self.num_clients, self.dimension))


@dataclass(frozen=True, eq=False)
class Table:
    """One split of a table, and the draws of one seed.

    Parameters
    ----------
    bound : float
        B, the norm to which clients clip their records.
    ranges : (float64 array (d,), float64 array (d,)), optional
        Center and spread by which features are scaled beyond the public ranges.
    """

    data: RegressionData
    bound: float
    draws: Draws
    ranges: tuple[FloatArray, FloatArray] | None = None

    @cached_property
    def _private(self) -> RegressionRecords:
        """The clients' records in a random order, so that consecutive ones are a cohort."""
        order = self.draws.streams.stream("order").permutation(self.data.num_records)
        return self.data.rows(0, self.data.num_records).take(order)

    @cached_property
    def records(self) -> FloatArray:
        return self._scaled(self._private)

    @cached_property
    def clipped(self) -> FloatArray:
        return clipped(self.records, self.bound)

    @cached_property
    def labels(self) -> FloatArray:
        return self._standardised(self._private.targets)

    @property
    def dimension(self) -> int:
        return self.data.schema.num_features

    @property
    def unit(self) -> float:
        """Half the public range of the target, by which labels are divided."""
        low, high = self.data.schema.target_range()
        return (high - low) / 2

    def _scaled(self, records: RegressionRecords) -> FloatArray:
        features = records.features.astype(np.float64)
        return features if self.ranges is None else (features - self.ranges[0]) / self.ranges[1]

    def _standardised(self, targets: FloatArray) -> FloatArray:
        low, high = self.data.schema.target_range()
        return (targets - (low + high) / 2) / self.unit

    def cohorts(self) -> list[Part]:
        """Disjoint cohorts of clients, one a round."""
        ends = np.linspace(0, len(self.labels), ROUNDS + 1).astype(int).tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    def samples(self) -> list[Part]:
        """Random quarters of the clients, one a round; who has sent `SAMPLED_RELEASES` times has spent its budget."""
        sent, parts = np.zeros(len(self.labels), np.int64), []
        for round in range(ROUNDS):
            order = self.draws.streams.stream("sample", round=round).permutation(len(sent))
            drawn = np.sort(order[: len(sent) * SAMPLED_RELEASES // ROUNDS])
            drawn = drawn[sent[drawn] < SAMPLED_RELEASES]
            sent[drawn] += 1
            parts.append(drawn)
        return parts

    def figures(self, coefficients: FloatArray, clip: bool = True) -> tuple[float, float]:
        """R^2, and RMSE in the target's own units, on the held-out records, clipped as the clients' are."""
        features, labels = self._scaled(self.data.test), self._standardised(self.data.test.targets)
        if clip:
            features = clipped(features, self.bound)
        with np.errstate(over="ignore"):
            error = float(np.mean((labels - features @ coefficients[:-1] - coefficients[-1]) ** 2))
        return 1 - error / float(labels.var()), math.sqrt(error) * self.unit


def clipped(records: FloatArray, bound: float) -> FloatArray:
    """Records scaled down to norm `bound` where theirs is larger."""
    norms = np.linalg.norm(records, axis=1, keepdims=True)
    return records * np.minimum(1.0, bound / np.maximum(norms, 1e-300))
