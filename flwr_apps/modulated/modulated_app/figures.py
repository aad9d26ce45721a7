"""How well coefficients predict the public test set: R^2 and RMSE, for records clipped as the clients' are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.config.modulated_data import Regression

from .methods import Ranges

__all__ = ["Figures", "HeldOut", "shown"]


@dataclass(frozen=True)
class Figures:
    """What a model explains of the test set.

    Attributes
    ----------
    r2 : float
        1 less the squared errors over those of the test set's own mean: 1 is perfect, below 0 worse than the mean; NaN
        where all targets are equal, or there is one.
    rmse : float
        Root mean squared error in the target's own unit.
    """

    r2: float
    rmse: float

    @property
    def told(self) -> str:
        """Both, for a person."""
        return f"R^2 {shown(self.r2)}, RMSE {self.rmse:.4g}"


def shown(r2: float) -> str:
    """R^2 for a person, also an absurd one."""
    if math.isnan(r2):
        return "undefined"
    return f"{r2:.4f}" if abs(r2) < 1e4 else f"{r2:.3g}"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The public test set, ready for the coefficients of one run.

    A model of clipped records is asked about clipped records: features go through the same centre, spread and clip as
    on the clients, which is public.
    """

    features: NDArray[np.float64]
    targets: NDArray[np.float64]
    unit: float

    @classmethod
    def of(cls, problem: Regression, ranges: Ranges | None, bound: float) -> HeldOut:
        """The test set of a problem, scaled by the estimated ranges where there are any, and clipped to a bound."""
        features, targets = problem.test
        scaled = features.astype(np.float64)
        if ranges is not None:
            scaled = (scaled - ranges[0]) / ranges[1]
        norms = np.linalg.norm(scaled, axis=1, keepdims=True)
        scaled *= np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        return cls(scaled, targets, problem.target_half_range)

    def figures(self, coefficients: NDArray[np.float64]) -> Figures:
        """R^2 and RMSE of these coefficients, the intercept last."""
        errors = self.targets - (self.features @ coefficients[:-1] + coefficients[-1])
        if not errors.size:
            return Figures(math.nan, math.nan)
        spread = float(np.mean((self.targets - self.targets.mean()) ** 2))
        with np.errstate(over="ignore"):
            mean_square = float(np.mean(errors**2))
        # a test set of one record, or of equal targets, has nothing to explain; rounding may leave a hair of a spread
        r2 = 1.0 - mean_square / spread if spread > 1e-28 * float(np.max(self.targets**2)) else math.nan
        return Figures(r2, mean_square**0.5 * self.unit)
