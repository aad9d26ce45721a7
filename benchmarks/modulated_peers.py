"""What modulated regression is compared with: local DP-SGD with FedAvg over a grid of settings, and no privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from modulated_trial import DELTA, FloatArray, Table

from fedveil.privacy import plan_gradients

CLIP_NORMS = (0.1, 0.3, 1.0, 3.0)
LEARNING_RATES = (0.1, 0.3, 1.0, 3.0)
SGD_ROUNDS = (1, 5, 20, 50)


def least_squares_of(features: FloatArray, labels: FloatArray) -> FloatArray:
    """No privacy: ordinary least squares."""
    whole = np.column_stack([features, np.ones(len(features))])
    coefficients: FloatArray = np.linalg.lstsq(whole, labels, rcond=None)[0]
    return coefficients


def local_dp_sgd(table: Table, epsilon: float) -> Iterator[tuple[str, FloatArray]]:
    """Local DP-SGD with FedAvg for every setting of the grid: name of the setting, coefficients.

    Every client clips and noises the gradient of its record in every round, the server steps along the mean. In its
    favour: labels, public under this relation, are standardised by their exact mean and spread, records are not
    clipped, and the mean of the second half of the iterates is offered beside the last one. The K clients' noise is
    drawn as the one normal that its mean is.
    """
    records = np.column_stack([table.records, np.ones(len(table.labels))])
    mean, spread = float(table.labels.mean()), float(table.labels.std())
    labels = ((table.labels - mean) / spread)[:, None]
    norms = np.linalg.norm(records, axis=1)[:, None]
    clips, rates = (np.array(each).ravel() for each in np.meshgrid(CLIP_NORMS, LEARNING_RATES, indexing="ij"))
    units = np.array([plan_gradients(epsilon=epsilon, delta=DELTA, clip_norm=1.0).sigma])
    for rounds in SGD_ROUNDS:
        # sigma is proportional to the clip norm and to the root of the number of rounds
        sigma = units * math.sqrt(rounds) * clips
        beta, tail = np.zeros((records.shape[1], len(clips))), np.zeros((records.shape[1], len(clips)))
        for round in range(rounds):
            residual = records @ beta - labels
            size = np.abs(residual) * norms
            residual *= np.minimum(1.0, clips / np.maximum(size, 1e-300))
            draw = table.draws.streams.stream(f"gradient-noise-{rounds}", round=round).normal(beta.shape)
            step = records.T @ residual / len(labels) + draw * sigma / math.sqrt(len(labels))
            beta = beta - rates * step
            if round >= rounds // 2:
                tail += beta / (rounds - rounds // 2)
        for place, (clip, rate) in enumerate(zip(clips.tolist(), rates.tolist(), strict=True)):
            for name, last in (("last", beta), ("mean", tail)):
                told = last[:, place] * spread
                told[-1] += mean
                yield f"clip {clip:g}, step {rate:g}, {rounds} rounds, {name}", told
