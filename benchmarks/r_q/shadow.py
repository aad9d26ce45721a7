"""Many networks of one hidden layer, trained at once on random halves of one pool of real records.

Every run has initial weights, records and batches of its own; runs go through their steps together, as arrays
(runs, ...). This is the material of LiRA: for each record about half of the runs had it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
CHECKPOINTS = 40
BATCH = 50


@dataclass(frozen=True)
class Network:
    """Weights of several models; every array's first axis is the model."""

    first: Floats  # (models, features, hidden)
    first_bias: Floats  # (models, hidden)
    second: Floats  # (models, hidden, classes)
    second_bias: Floats  # (models, classes)

    @classmethod
    def initial(cls, models: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Network:
        features, hidden, classes = shape
        first = rng.standard_normal((models, features, hidden), dtype=np.float32)
        second = rng.standard_normal((models, hidden, classes), dtype=np.float32)
        return cls(
            first * np.float32(1 / np.sqrt(features)),
            np.zeros((models, hidden), dtype=np.float32),
            second * np.float32(1 / np.sqrt(hidden)),
            np.zeros((models, classes), dtype=np.float32),
        )

    @property
    def matrices(self) -> Floats:
        """What is quantized, one row a model; biases stay as they are."""
        models = len(self.first)
        return np.concatenate([self.first.reshape(models, -1), self.second.reshape(models, -1)], axis=1)

    @property
    def cut(self) -> int:
        """Where the second matrix begins in a row of ``matrices``: each has a scale of its own."""
        return self.first[0].size

    def with_matrices(self, rows: Floats) -> Network:
        """The same biases with other matrices, or with those of several candidates of ONE model."""
        models = len(rows)
        first = rows[:, : self.cut].reshape(models, *self.first.shape[1:])
        second = rows[:, self.cut :].reshape(models, *self.second.shape[1:])
        return Network(
            first,
            np.broadcast_to(self.first_bias, (models, self.first.shape[2])),
            second,
            np.broadcast_to(self.second_bias, (models, self.second.shape[2])),
        )

    def only(self, model: int) -> Network:
        """One model."""
        here = slice(model, model + 1)
        return Network(self.first[here], self.first_bias[here], self.second[here], self.second_bias[here])

    def scores(self, features: Floats) -> Floats:
        """Scores (models, records, classes); features are (records, p), or (models, records, p)."""
        return self._hidden(features) @ self.second + self.second_bias[:, None]

    def _hidden(self, features: Floats) -> Floats:
        return np.maximum(features @ self.first + self.first_bias[:, None], 0)

    def step(self, features: Floats, labels: NDArray[np.int64], size: float) -> None:
        """One step of gradient descent, in place, on a batch (models, records, ...) of each model."""
        hidden = self._hidden(features)
        pull = probabilities(hidden @ self.second + self.second_bias[:, None])
        np.put_along_axis(pull, labels[..., None], np.take_along_axis(pull, labels[..., None], -1) - 1, -1)
        pull *= np.float32(size / features.shape[1])
        back = (pull @ self.second.transpose(0, 2, 1)) * (hidden > 0)
        self.second[...] -= hidden.transpose(0, 2, 1) @ pull
        self.second_bias[...] -= pull.sum(axis=1)
        self.first[...] -= features.transpose(0, 2, 1) @ back
        self.first_bias[...] -= back.sum(axis=1)


def probabilities(scores: Floats) -> Floats:
    """Softmax over the last axis."""
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = grown / grown.sum(axis=-1, keepdims=True)
    return shares


def losses_of(network: Network, features: Floats, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cross-entropies (models, records) in float64, of scores in float32."""
    scores = network.scores(features).astype(np.float64)
    top = scores.max(axis=-1)
    total = top + np.log(np.exp(scores - top[..., None]).sum(axis=-1))
    true = np.take_along_axis(scores, np.broadcast_to(labels, total.shape)[..., None], -1)[..., 0]
    return np.maximum(total - true, 0)


@dataclass(frozen=True)
class Shadows:
    """Trained runs.

    Attributes
    ----------
    final : Network
        Of all runs.
    trajectory : float32 array of shape (read runs, CHECKPOINTS, parameters)
        Matrices of the first few runs at their checkpoints, the last of which is final.
    members : bool array of shape (runs, pool)
    """

    final: Network
    trajectory: Floats
    members: NDArray[np.bool_]


def train(
    features: Floats, labels: NDArray[np.int64], hidden: int, classes: int, *, runs: int, read: int, steps: int,
    step: float, seed: int,
) -> Shadows:  # fmt: skip
    """Train ``runs`` networks, each on a random half of the pool; keep the trajectories of the first ``read``."""
    rng = np.random.default_rng(seed)
    members = np.zeros((runs, len(labels)), dtype=bool)
    half = len(labels) // 2
    chosen = np.argsort(rng.random(members.shape), axis=1)[:, :half]
    np.put_along_axis(members, chosen, True, axis=1)
    network = Network.initial(runs, (features.shape[1], hidden, classes), rng)
    kept = np.empty((read, CHECKPOINTS, network.matrices.shape[1]), dtype=np.float32)
    every = steps // CHECKPOINTS
    for number, batch in enumerate(_batches(chosen, steps, rng)):
        network.step(features[batch], labels[batch], step)
        if (number + 1) % every == 0:
            kept[:, (number + 1) // every - 1] = network.matrices[:read]
    return Shadows(network, kept, members)


def _batches(chosen: NDArray[np.int64], steps: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Batches (runs, BATCH) of each run's own records, through all of them in a new order every time."""
    left = np.empty((len(chosen), 0), dtype=np.int64)
    for _ in range(steps):
        if left.shape[1] < BATCH:
            left = np.take_along_axis(chosen, np.argsort(rng.random(chosen.shape), axis=1), axis=1)
        yield left[:, :BATCH]
        left = left[:, BATCH:]
