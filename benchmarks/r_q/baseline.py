"""The MIS baseline of the synthetic study: what a discriminator sees of a quantized linear model and a record.

It knows the population through other runs (codes' means and variances, the mean of the weights before quantization),
and tells the pull of a record on each weight from the codes: near the best test where a model is nearly the mean model.
"""

from __future__ import annotations

import numpy as np
from indicator import Codes
from numpy.typing import NDArray
from problems import Floats, Runs, sigmoid_of_minus

from fedveil.attacks import MembershipSecurity, measure_membership_security

Features = NDArray[np.float64]


def features_of(runs: Runs, weights: Floats, codes: Codes, calibration: int) -> Features:
    """Features of shape (runs - calibration, 2 MEMBERS, 5), members before others.

    Parameters
    ----------
    runs : Runs
    weights, codes : arrays of shape (runs, d)
        Published models.
    calibration : int
        Runs at the end by which the attacker knows the population; they are not attacked.
    """
    last = len(weights) - calibration
    usual = runs.trajectory[last:, -1].mean(axis=0)
    seen = codes[last:].astype(np.float32)
    variance = seen.var(axis=0)
    # codes that hardly ever change are no evidence, and must not be divided by zero
    apart = codes[:last].astype(np.float32) - seen.mean(axis=0)
    whitened = apart / (variance + 0.02 * variance.max() + 1e-9)
    norms = np.linalg.norm(weights[:last], axis=1)[:, None] + 1e-9
    sides = []
    for records in (runs.members[:last], runs.others[:last]):
        margin = along(records, weights[:last])
        expected = records @ usual
        pull = sigmoid_of_minus(expected)
        sides.append(
            np.stack(
                [
                    margin,
                    margin / norms,
                    expected,
                    pull * along(records, apart),
                    pull * along(records, whitened),
                ],
                axis=-1,
            )
        )
    return np.concatenate(sides, axis=1).astype(np.float64)


def security_of(features: Features) -> MembershipSecurity:
    """MIS by discriminator from features (runs, 2 k, F), the first k rows of a run being members."""
    runs, rows, number = features.shape
    members = np.tile(np.repeat([True, False], rows // 2), runs)
    return measure_membership_security(
        features.reshape(-1, number), members, np.repeat(np.arange(runs), rows), folds=5
    )


def along(records: Floats, vectors: Floats) -> Floats:
    """Inner products (runs, k) of records (runs, k, d) with one vector a run (runs, d)."""
    products: Floats = (records @ vectors[:, :, None])[:, :, 0]
    return products
