"""One-shot regression: one division of the released moments, made safe by floor and ridge.

Noise can make Sigma_hat indefinite, so Sigma_hat^-1 b_hat alone may be arbitrarily far off. See `regularisation` for
the rule; it uses public numbers and released moments, so the estimate costs no privacy, and it is biased.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.moments import ModulatedMoments
from fedveil.privacy.normal_equations import NormalEquations, NotIdentified
from fedveil.privacy.regularisation import regularised_spectrum


@dataclass(frozen=True, eq=False)
class Estimate:
    """Coefficients and how they were regularised.

    Parameters
    ----------
    coefficients : float64 array of shape (D,)
        Slopes, then the intercept if there is one.
    ridge : float
        What was added to an eigenvalue of the slopes' covariance, on average over them; the intercept is not
        penalised.
    floored : int
        How many eigenvalues were below the floor or, by default, below their known noise; d of them mean that the
        covariance tells hardly anything.
    eigenvalues : float64 array of shape (d,)
        Of the slopes' covariance (about the mean, with an intercept) before that, in increasing order.
    problem : str or None
        A sentence when slopes would mean nothing: they are 0 then, and the intercept is the mean label.
    """

    coefficients: NDArray[np.float64]
    ridge: float
    floored: int
    eigenvalues: NDArray[np.float64]
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether the slopes come from the records."""
        return self.problem is None


def one_shot(
    equations: NormalEquations | ModulatedMoments,
    directions: ArrayLike | None = None,
    *,
    alpha: float | None = None,
    amplitude: float | None = None,
    sigma: float | None = None,
    bound: float | None = None,
    ridge: float | None = None,
    floor: float | None = None,
    intercept: bool = False,
) -> Estimate:
    """Estimate coefficients from one set of released moments.

    Parameters
    ----------
    equations : NormalEquations or ModulatedMoments
    directions, alpha, amplitude, sigma
        For moments that do not know how their messages were made; see `ModulatedMoments.debias`.
    bound : float, optional
        B > 0, the public norm to which records were clipped: much better slopes when noise is large.
    ridge, floor : float, optional
        >= 0, in the unit of Sigma, instead of the rule of `regularisation`. With both 0, slopes along eigenvectors of
        eigenvalue 0 or less are 0.
    intercept : bool
        For moments: whether there is one. Equations know.

    Returns
    -------
    Estimate
        Slopes are 0 along directions in which the records do not vary at all (constant or collinear columns without
        noise).

    Raises
    ------
    ValueError
        When an argument is outside its range or contradicts the moments.
    """
    if isinstance(equations, ModulatedMoments):
        moments = equations.described(directions, alpha=alpha, amplitude=amplitude, sigma=sigma)
        equations = moments.normal_equations(intercept)
    elif any(value is not None for value in (directions, alpha, amplitude, sigma)):
        raise ValueError(
            "directions, alpha, amplitude or sigma were given for normal equations, which know them: leave them out."
        )
    spectrum = regularised_spectrum(equations, bound=bound, ridge=ridge, floor=floor)
    _, cross = equations.slopes_alone()
    slopes = np.zeros(len(cross))
    problem = spectrum.problem
    if problem is None:
        kept = ~spectrum.negligible
        along = spectrum.vectors[:, kept]
        slopes = along @ (along.T @ cross / spectrum.damped[kept])
    return Estimate(
        coefficients=equations.complete(slopes),
        ridge=float(spectrum.ridge.mean()),
        floored=spectrum.floored,
        eigenvalues=spectrum.values,
        problem=problem,
    )


def least_squares(equations: NormalEquations) -> NDArray[np.float64]:
    """Solve Sigma beta = b without floor or ridge: the estimate that has an asymptotic covariance.

    Parameters
    ----------
    equations : NormalEquations

    Returns
    -------
    float64 array of shape (D,)
        Slopes, then the intercept if there is one.

    Raises
    ------
    NotIdentified
        When the slopes' covariance is not positive definite.
    """
    covariance, cross = equations.slopes_alone()
    values, vectors = np.linalg.eigh(covariance)
    if values[0] <= np.finfo(float).eps * len(values) * abs(values[-1]):
        raise NotIdentified(
            f"The smallest eigenvalue of the released covariance is {values[0]:.3g}: the coefficients are not "
            "identified, so use more clients, a larger epsilon, or one_shot."
        )
    return equations.complete(vectors @ (vectors.T @ cross / values))
