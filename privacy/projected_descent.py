"""Projected gradient descent on released moments: as many steps as wanted, all of them post-processing.

    beta <- P(beta - eta (Sigma beta - b)),   P the projection of the slopes onto ||beta|| <= radius

The intercept, last, is not projected. The gradient is that of half the mean squared error (THEORY 2).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import positive, whole
from fedveil.privacy.normal_equations import NormalEquations, NotIdentified


def gradient(equations: NormalEquations, beta: ArrayLike) -> NDArray[np.float64]:
    """Gradient Sigma beta - b of half the mean squared error at `beta`, unbiased for a beta fixed beforehand.

    Parameters
    ----------
    equations : NormalEquations
    beta : array of shape (D,)

    Returns
    -------
    float64 array of shape (D,)

    Raises
    ------
    ValueError
        When the shape does not fit.
    """
    point = real_array("coefficients", beta, shape=(equations.dimension,))
    slope: NDArray[np.float64] = equations.covariance @ point - equations.cross
    return slope


def projected_step(
    beta: ArrayLike,
    gradient: ArrayLike,
    learning_rate: float,
    radius: float | None,
    *,
    intercept: bool = True,
) -> NDArray[np.float64]:
    """One step against the gradient, then the slopes scaled back onto the ball.

    Parameters
    ----------
    beta, gradient : arrays of shape (D,)
    learning_rate : float
        eta > 0.
    radius : float or None
        > 0, bound on the L2 norm of the slopes; None for none.
    intercept : bool
        Whether the last coordinate is the intercept, which is not bounded.

    Returns
    -------
    float64 array of shape (D,)

    Raises
    ------
    ValueError
        When an argument is outside its range or a shape does not fit.
    """
    start = real_array("coefficients", beta, shape=(None,))
    slope = real_array("gradient", gradient, shape=(len(start),))
    moved: NDArray[np.float64] = start - positive("learning_rate", learning_rate) * slope
    slopes = len(moved) - intercept
    if radius is not None:
        norm = float(np.linalg.norm(moved[:slopes]))
        if norm > positive("radius", radius):
            moved[:slopes] *= radius / norm
    return moved


def descend(
    equations: NormalEquations,
    start: ArrayLike,
    *,
    steps: int,
    learning_rate: float | None = None,
    radius: float | None = None,
) -> NDArray[np.float64]:
    """Take `steps` projected steps on one set of moments.

    Parameters
    ----------
    equations : NormalEquations
    start : array of shape (D,)
    steps : int
        At least 0.
    learning_rate : float, optional
        eta > 0; 1/L when left out, L the largest eigenvalue of Sigma in magnitude, itself released.
    radius : float, optional
        Bound on the L2 norm of the slopes, a public number. Required when Sigma has a negative eigenvalue: without
        it steps would run away along that direction. Better then: descent on `regularised` equations.

    Returns
    -------
    float64 array of shape (D,)

    Raises
    ------
    NotIdentified
        When Sigma has a negative eigenvalue and there is no radius, or is 0 and there is no learning rate.
    ValueError
        When an argument is outside its range.
    """
    beta = real_array("coefficients", start, shape=(equations.dimension,))
    values = np.linalg.eigvalsh(equations.covariance)
    largest = float(np.abs(values).max())
    if radius is None and values[0] < -np.finfo(float).eps * len(values) * largest:
        raise NotIdentified(
            f"The released covariance has eigenvalue {values[0]:.3g}, along which descent runs away: give a radius."
        )
    if learning_rate is None:
        if largest == 0:
            raise NotIdentified(
                "The released covariance is 0, which gives no step size: give a learning rate."
            )
        learning_rate = 1 / largest
    for _ in range(whole("steps", steps, minimum=0)):
        beta = projected_step(
            beta, gradient(equations, beta), learning_rate, radius, intercept=equations.intercept
        )
    return beta
