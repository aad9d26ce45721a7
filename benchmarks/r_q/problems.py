"""The synthetic problems: Gaussian mixtures, logistic regression, and many training runs of it at once.

Each run has records of its own, drawn from the same population, and stochastic gradient descent from 0. All runs go
through their steps together, as one array (runs, dimension).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.streams import Streams

Floats = NDArray[np.float32]
CHECKPOINTS = 40
MEMBERS = 20  # of a run's records, that an attacker is shown, and as many others
BLOCK = 100  # runs in memory at a time


@dataclass(frozen=True)
class Problem:
    """A population and a way to learn from it.

    Attributes
    ----------
    dimension, components : int
        Of the features; Gaussians of each class.
    separation : float
        Norm of half the difference of the two classes' means; informative coordinates become rarer and weaker.
    records : int
        Of a training run.
    steps, batch : int
        Of gradient descent. A batch of 0 is all records, with a step that becomes smaller: converged at the end.
    """

    name: str
    dimension: int
    components: int
    separation: float
    records: int
    steps: int = 400
    batch: int = 32
    step: float = 0.3

    @property
    def title(self) -> str:
        return f"{self.name}: d = {self.dimension}, n = {self.records}"


PROBLEMS = (
    Problem("16-d", 16, 1, 1.0, 100),
    Problem("32-d", 32, 2, 1.2, 200),
    Problem("64-d", 64, 2, 1.5, 300),
    Problem("128-d", 128, 3, 1.5, 300),
    Problem("128-d, many records", 128, 3, 1.5, 1000),
    Problem("128-d, converged", 128, 3, 1.5, 100, batch=0),
)

# first run when the tables' rows were fixed, which the problems above had suggested in part
FRESH = (
    Problem("20-d", 20, 2, 1.1, 150),
    Problem("48-d", 48, 1, 1.3, 400),
    Problem("100-d", 100, 2, 1.4, 250),
)


@dataclass(frozen=True)
class Runs:
    """What training runs left.

    Attributes
    ----------
    trajectory : float32 array of shape (runs, CHECKPOINTS, dimension)
        The last checkpoint is the model that is quantized and published.
    members, others : float32 arrays of shape (runs, MEMBERS, dimension)
        Records y x, the feature vector turned by its label: all that a linear model sees of a record.
    """

    trajectory: Floats
    members: Floats
    others: Floats


@dataclass(frozen=True)
class Population:
    """Draws records of a problem."""

    problem: Problem
    means: Floats

    @classmethod
    def of(cls, problem: Problem) -> Population:
        normal = Streams.seeded(f"r_Q study: {problem.name}", 0).stream("means").normal
        decay = 0.92 ** np.arange(problem.dimension)
        shared = normal(problem.dimension) * decay
        shared *= problem.separation / np.linalg.norm(shared)
        apart = normal((problem.components, problem.dimension)) * decay
        apart -= apart.mean(axis=0)
        scale = problem.separation / max(float(np.linalg.norm(apart, axis=1).mean()), 1e-9)
        return cls(problem, (shared + scale * apart).astype(np.float32))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Records y x; both classes mirror one another, so the label itself is never needed."""
        component = rng.integers(len(self.means), size=shape)
        noise = rng.standard_normal((*shape, self.problem.dimension), dtype=np.float32)
        noise += self.means[component]
        return noise


def sigmoid_of_minus(margins: Floats) -> Floats:
    """1/(1 + exp(m)), the size of the gradient of log(1 + exp(-m))."""
    return np.float32(0.5) - np.float32(0.5) * np.tanh(margins / 2)


def logistic_losses(margins: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(1 + exp(-m))."""
    return np.logaddexp(0, -margins)


def train(problem: Problem, runs: int, seed: int) -> Runs:
    """Train ``runs`` models, each on records of its own."""
    population = Population.of(problem)
    blocks = []
    for first in range(0, runs, BLOCK):
        rng = np.random.default_rng([seed, first])
        count = min(BLOCK, runs - first)
        records = population.draw(rng, (count, problem.records))
        trajectory = _descend(problem, records, rng)
        others = population.draw(rng, (count, MEMBERS))
        blocks.append((trajectory, records[:, :MEMBERS].copy(), others))
    trajectories, members, others = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Runs(trajectories, members, others)


def _descend(problem: Problem, records: Floats, rng: np.random.Generator) -> Floats:
    count = len(records)
    weights = np.zeros((count, problem.dimension), dtype=np.float32)
    kept = np.empty((count, CHECKPOINTS, problem.dimension), dtype=np.float32)
    every = problem.steps // CHECKPOINTS
    rows = np.arange(count)[:, None]
    for step in range(problem.steps):
        batch = records
        if problem.batch:
            batch = records[rows, rng.integers(problem.records, size=(count, problem.batch))]
        size = problem.step if problem.batch else 4 * problem.step
        pull = sigmoid_of_minus((batch @ weights[:, :, None])[:, :, 0])
        gradient = -(pull[:, None, :] @ batch)[:, 0, :] / batch.shape[1]
        # a little decay keeps separable records from driving the weights to infinity
        weights -= size * (gradient + np.float32(0.01) * weights)
        if (step + 1) % every == 0:
            kept[:, (step + 1) // every - 1] = weights
    return kept
