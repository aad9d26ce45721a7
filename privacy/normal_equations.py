"""Least-squares equations from released moments: Sigma beta = b, with an exact constant coordinate for the intercept.

The intercept's coordinate is the constant 1: neither private, clipped nor noised. It comes LAST, and needs only
sums that are released anyway:

    Sigma = [[Sigma_hat, mean x], [mean x', 1]],     b = (b_hat, mean y)
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.correction import Correction


class NotIdentified(ValueError):
    """The released moments do not tell the coefficients."""


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Unbiased second moments of the clipped records, and how their messages were noised.

    Made by `ModulatedMoments.normal_equations`.

    Parameters
    ----------
    covariance : float64 array of shape (D, D)
        Sigma, E = X'X/K for records with the constant coordinate last if there is an intercept; symmetric, but
        noise can make eigenvalues negative. D = d or d + 1.
    cross : float64 array of shape (D,)
        b, E = X'y/K.
    label_square : float
        Mean of y^2; with label privacy debiased, so noise can make it negative.
    count : int
        Number of messages, K.
    scale : float
        c = 1 - alpha.
    corrections : tuple of Correction
        How the messages were noised, padded with 0 for the intercept; counts add to K.
    label_scale : float or None
        s with label privacy.
    intercept : bool
        Whether the last coordinate is the constant.
    """

    covariance: NDArray[np.float64]
    cross: NDArray[np.float64]
    label_square: float
    count: int
    scale: float
    corrections: tuple[Correction, ...]
    label_scale: float | None = None
    intercept: bool = False

    @property
    def dimension(self) -> int:
        """D, number of coefficients."""
        return len(self.cross)

    @property
    def num_features(self) -> int:
        """d, number of slopes."""
        return self.dimension - self.intercept

    @property
    def noise_variance(self) -> float:
        """Mean over messages of sigma^2/c^2: noise variance on a coordinate of a record, in the record's unit."""
        return sum(one.count / self.count * one.sigma**2 for one in self.corrections) / self.scale**2

    @property
    def noise_covariance(self) -> NDArray[np.float64]:
        """Mean over messages of M/c^2, shape (D, D): what a message has beside the record, in the record's unit."""
        total = sum((one.count * one.covariance for one in self.corrections), np.zeros(self.covariance.shape))
        covariance: NDArray[np.float64] = total / (self.count * self.scale**2)
        return covariance

    def with_intercept(self, mean: NDArray[np.float64], label_mean: float) -> "NormalEquations":
        """Return the equations with the constant coordinate placed last.

        Parameters
        ----------
        mean : float64 array of shape (d,)
            Mean of the records, from the sum of the messages.
        label_mean : float
            Mean of the labels.

        Raises
        ------
        ValueError
            When there is an intercept already.
        """
        if self.intercept:
            raise ValueError("The equations have an intercept already: use them as they are.")
        return replace(
            self,
            covariance=np.block([[self.covariance, mean[:, None]], [mean[None, :], np.ones((1, 1))]]),
            cross=np.append(self.cross, label_mean),
            corrections=tuple(one.with_intercept() for one in self.corrections),
            intercept=True,
        )

    def slopes_alone(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Equations of the slopes with the intercept solved for: Sigma - mean x mean x' and b - mean x mean y.

        Returns
        -------
        covariance, cross : float64 arrays of shapes (d, d) and (d,)
            Without an intercept, Sigma and b themselves.
        """
        if not self.intercept:
            return self.covariance, self.cross
        mean, label = self.covariance[:-1, -1], self.cross[-1]
        covariance: NDArray[np.float64] = self.covariance[:-1, :-1] - np.outer(mean, mean)
        return covariance, self.cross[:-1] - mean * label

    def complete(self, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return slopes (d,) followed by the intercept that is best beside them, mean y - mean x' slopes."""
        if not self.intercept:
            return slopes
        return np.append(slopes, self.cross[-1] - self.covariance[:-1, -1] @ slopes)
