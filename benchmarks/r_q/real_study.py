"""One real data set: shadow runs trained, quantized, attacked, and read by r_Q with every quantizer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from indicator import QUANTIZERS, Codes, Reading, entropy_of, frozen_candidates, published, read
from numpy.typing import NDArray
from scipy.stats import rankdata
from shadow import Floats, Network, Shadows, losses_of, probabilities, train

from fedveil.attacks import (
    AttackSuccess,
    attack_by_loss,
    attack_success,
    lira_scores_each,
    logit_confidence,
)
from fedveil.datasets.schema import Dataset

FULL = "not quantized"
LATE = 20  # the first checkpoint of the last half
PUBLIC = 2000  # records nobody trained on, for r_Q and performance

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """A data set and how long to learn from it."""

    title: str
    pool: int
    hidden: int
    steps: int
    step: float


DIGITS = Task("MNIST digits", pool=1000, hidden=32, steps=400, step=0.2)
AFFAIRS = Task("affairs", pool=1000, hidden=32, steps=4000, step=0.3)


@dataclass(frozen=True)
class Attacked:
    """What one quantizer came to."""

    name: str
    online: AttackSuccess
    offline: AttackSuccess
    by_loss: AttackSuccess
    aucs: Values  # of the online attack on each run
    r_q: Values
    r_q_late: Values
    distinct: float
    entropy: float
    accuracy: float
    auc_roc: float


def auc(inside: Values, outside: Values) -> float:
    """Share of pairs in the right order, ties counted half."""
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    return float((ranks.mean() - (len(inside) + 1) / 2) / len(outside))


def both(rows: Floats, cut: int, quantizer: str) -> tuple[Floats, Codes]:
    """Quantize both matrices of models (runs, parameters), each on a scale of its own."""
    parts = [published(part, quantizer) for part in (rows[:, :cut], rows[:, cut:])]
    return np.concatenate([one[0] for one in parts], axis=1), np.concatenate(
        [one[1] for one in parts], axis=1
    )


def both_frozen(rows: Floats, cut: int, quantizer: str) -> tuple[Floats, Codes]:
    """All checkpoints (runs, T, parameters) on the scales of the last, each matrix on its own."""
    parts = [frozen_candidates(part, quantizer) for part in (rows[..., :cut], rows[..., cut:])]
    return np.concatenate([one[0] for one in parts], axis=2), np.concatenate(
        [one[1] for one in parts], axis=2
    )


def study(task: Task, data: Dataset, runs: int, read_runs: int) -> list[Attacked]:
    """Train shadow runs, quantize, attack and read all quantizers; the first row is of the plain models."""
    began = time.monotonic()
    # files are sorted: by digit, for one
    order = np.random.default_rng(4).permutation(len(data.train.labels))
    inside, outside = order[: task.pool], order[task.pool : task.pool + PUBLIC]
    features = data.train.features.reshape(len(order), -1).astype(np.float32)
    pool, labels = features[inside], data.train.labels[inside]
    records, truth = features[outside], data.train.labels[outside]
    classes = int(data.train.labels.max()) + 1
    shadows = train(
        pool,
        labels,
        task.hidden,
        classes,
        runs=runs,
        read=read_runs,
        steps=task.steps,
        step=task.step,
        seed=5,
    )
    network, members = shadows.final, shadows.members
    print(f"{task.title}: {runs} runs trained, {time.monotonic() - began:.0f} s", flush=True)
    rows = network.matrices
    found = []
    for name in (FULL, *QUANTIZERS):
        weights, codes = (rows, None) if name == FULL else both(rows, network.cut, name)
        models = _with_all(network, weights)
        losses = np.concatenate([losses_of(one, pool, labels) for one in _each(models)])
        scores = lira_scores_each(logit_confidence(losses), members)
        offline = lira_scores_each(logit_confidence(losses), members, mode="offline")
        r_q = r_q_late = np.full(read_runs, np.nan)
        distinct = entropy = np.nan
        if codes is not None:
            whole, late = (
                [_read_run(shadows, run, name, since, records, truth) for run in range(read_runs)]
                for since in (0, LATE)
            )
            r_q, r_q_late = (np.array([one.r_q[0] for one in each]) for each in (whole, late))
            distinct = float(np.median([one.distinct for one in whole]))
            entropy = entropy_of(codes[:20])
        accuracy, area = _performance(models, records, truth)
        found.append(
            Attacked(
                name,
                attack_success(scores[members], scores[~members]),
                attack_success(offline[members], offline[~members]),
                attack_by_loss(losses[members], losses[~members]),
                np.array(
                    [auc(row[inside], row[~inside]) for row, inside in zip(scores, members, strict=True)]
                ),
                r_q,
                r_q_late,
                distinct,
                entropy,
                accuracy,
                area,
            )
        )
        last = found[-1]
        print(
            f"{task.title}  {name:16s} LiRA {last.online.auc:.3f}  accuracy {accuracy:.3f}  "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    return found


def _read_run(
    shadows: Shadows, run: int, quantizer: str, since: int, records: Floats, truth: NDArray[np.int64]
) -> Reading:
    """The indicator of one run; its candidates keep the biases of its end, which are not quantized."""
    network = shadows.final.only(run)
    weights, codes = both_frozen(shadows.trajectory[run : run + 1], network.cut, quantizer)

    def losses(candidates: Floats) -> Values:
        return losses_of(network.with_matrices(candidates), records, truth).T

    return read(weights, codes, losses, since)


def _with_all(network: Network, weights: Floats) -> Network:
    first, second = weights[:, : network.cut], weights[:, network.cut :]
    return Network(
        first.reshape(network.first.shape),
        network.first_bias,
        second.reshape(network.second.shape),
        network.second_bias,
    )


def _each(models: Network) -> list[Network]:
    return [models.only(model) for model in range(len(models.first))]


def _performance(models: Network, records: Floats, truth: NDArray[np.int64]) -> tuple[float, float]:
    """Mean accuracy, and mean AUC-ROC where there are two classes."""
    accuracies, areas = [], []
    for one in _each(models):
        scores = one.scores(records)[0]
        accuracies.append((scores.argmax(axis=1) == truth).mean())
        if scores.shape[1] == 2:
            chance = probabilities(scores)[:, 1].astype(np.float64)
            areas.append(auc(chance[truth == 1], chance[truth == 0]))
    return float(np.mean(accuracies)), float(np.mean(areas)) if areas else np.nan
