"""Confidence intervals of regression coefficients from released moments, or the reason why there are none.

The estimate is least squares without ridge or floor, which has an asymptotic normal law; a ridge estimate is biased
by an amount that nobody knows, so it has no interval. The normal law is a good description only while the noise in
Sigma_hat is small against its smallest eigenvalue; otherwise `confidence_region` is what the moments allow.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import probability
from fedveil.privacy.normal_equations import NormalEquations, NotIdentified
from fedveil.privacy.one_shot import least_squares
from fedveil.privacy.score_covariance import Target, score_covariance, symmetric

# Smallest eigenvalue of Sigma_hat over the size of the noise in it, from which on the normal law is used.
_CLEAR = 10.0


@dataclass(frozen=True, eq=False)
class Intervals:
    """An interval for each coefficient, or the statement that they are not identified.

    Parameters
    ----------
    estimate : float64 array of shape (D,)
        Least squares less its second-order bias; NaN where not identified: Sigma_hat^-1 b_hat would be wild.
    lower, upper : float64 arrays of shape (D,)
        Each coefficient alone lies between them with probability `level`; -inf and inf where not identified.
    standard_errors : float64 array of shape (D,)
        inf where not identified.
    level : float
        Confidence level in (0, 1).
    target : {"clients", "population"}
        What the coefficients are of; see `score_covariance`.
    identified : bool
        Whether `smallest_eigenvalue` is above `needed`.
    statement : str
        One sentence for a person, with the numbers.
    smallest_eigenvalue, needed : float
        Of the slopes' covariance (about the mean, with an intercept), and ten times the noise in it.
    """

    estimate: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    level: float
    target: Target
    identified: bool
    statement: str
    smallest_eigenvalue: float
    needed: float


def confidence_intervals(
    equations: NormalEquations,
    *,
    level: float = 0.95,
    target: Target = "clients",
    effective_clients: float | None = None,
) -> Intervals:
    """Wald intervals of least squares from released moments: post-processing, free of privacy cost.

    Parameters
    ----------
    equations : NormalEquations
    level : float
        In (0, 1).
    target, effective_clients
        As for `score_covariance`.

    Returns
    -------
    Intervals
        With `identified` False, and no interval, unless lambda_min(Sigma_hat) > 10 ||M||/c^2 sqrt(d/K), where M
        is the covariance of what a message holds beside c x: ||M|| = sigma^2 + lambda^2/(2m). Label privacy
        enters only b_hat, linearly, so it widens intervals and leaves the condition; an intercept is solved for
        first, so the condition is on the slopes' covariance about the mean.

    Raises
    ------
    ValueError
        When an argument is outside its range.

    Notes
    -----
    THEORY 2.3. For many features the bias of least squares would spoil the intervals: at d = 64 it is two thirds
    of a standard error where the condition is just met, so `least_squares_bias` is subtracted.
    """
    level = probability("level", level)
    smallest, needed = identifiability(equations)
    identified = smallest > needed
    if identified:
        raw = least_squares(equations)
        covariance = asymptotic_covariance(equations, raw, target=target, effective_clients=effective_clients)
        estimate = raw - least_squares_bias(equations, raw)
        errors = np.sqrt(np.diag(covariance))
    else:
        score_covariance(  # refuses the same arguments as with an identified estimate
            equations,
            np.zeros(equations.dimension),
            target=target,
            effective_clients=effective_clients,
        )
        estimate, errors = np.full(equations.dimension, np.nan), np.full(equations.dimension, np.inf)
    reach = float(ndtri((1 + level) / 2)) * errors
    return Intervals(
        estimate=estimate,
        lower=estimate - reach if identified else -errors,
        upper=estimate + reach if identified else errors,
        standard_errors=errors,
        level=level,
        target=target,
        identified=identified,
        statement=identification_statement(equations, smallest, needed),
        smallest_eigenvalue=smallest,
        needed=needed,
    )


def asymptotic_covariance(
    equations: NormalEquations,
    coefficients: ArrayLike,
    *,
    target: Target = "clients",
    effective_clients: float | None = None,
) -> NDArray[np.float64]:
    """Covariance Sigma^-1 Omega Sigma^-1/K of least squares without ridge or floor, for many messages.

    Parameters
    ----------
    equations : NormalEquations
    coefficients : array of shape (D,)
        Where to evaluate it: the estimate.
    target, effective_clients
        As for `score_covariance`, which is Omega.

    Returns
    -------
    float64 array of shape (D, D)

    Raises
    ------
    NotIdentified
        When Sigma_hat is not positive definite.
    ValueError
        When an argument is outside its range or a shape does not fit.
    """
    omega = score_covariance(equations, coefficients, target=target, effective_clients=effective_clients)
    inverse = _inverse(equations)
    return symmetric(inverse @ omega @ inverse / equations.count)


def least_squares_bias(equations: NormalEquations, coefficients: ArrayLike) -> NDArray[np.float64]:
    """Expected error of least squares to order 1/K: it grows with d, as noise in Sigma_hat inflates its inverse.

    With P = Sigma^-1 and delta_k the noise of message k in Sigma_hat, the bias is P E[delta P u]/K (derived):

        P { (D + 1) M beta/c^2 + [ tr(P M) M beta + M P M beta - (3/8) a^4 sum_j (v_j'P v_j)(v_j'beta) v_j ]/c^4 }/K

    Parameters
    ----------
    equations : NormalEquations
    coefficients : array of shape (D,)
        Where to evaluate it: the estimate.

    Returns
    -------
    float64 array of shape (D,)

    Raises
    ------
    NotIdentified
        When Sigma_hat is not positive definite.
    ValueError
        When a shape does not fit.
    """
    beta = real_array("coefficients", coefficients, shape=(equations.dimension,))
    inverse, square = _inverse(equations), equations.scale**2
    total = np.zeros_like(beta)
    for one in equations.corrections:
        noise, rows = one.covariance, one.directions
        seen = noise @ beta
        curvature = np.einsum("jd,de,je->j", rows, inverse, rows)
        kurtosis = -3 / 8 * one.direction_amplitude**4 * ((curvature * (rows @ beta)) @ rows)
        second = np.trace(inverse @ noise) * seen + noise @ (inverse @ seen) + kurtosis
        total += one.count / equations.count * ((equations.dimension + 1) * seen + second / square) / square
    bias: NDArray[np.float64] = inverse @ total / equations.count
    return bias


def identifiability(equations: NormalEquations) -> tuple[float, float]:
    """Smallest eigenvalue of the slopes' covariance, and what it must pass for the normal law to be used."""
    values = np.linalg.eigvalsh(equations.slopes_alone()[0])
    # Errors of Sigma_hat add over messages as squares, so noise that differs counts by its root mean square.
    square = sum(
        one.count / equations.count * float(np.linalg.norm(one.covariance, 2)) ** 2
        for one in equations.corrections
    )
    noise = math.sqrt(square) / equations.scale**2 * math.sqrt(equations.num_features / equations.count)
    rounding = np.finfo(float).eps * len(values) * float(np.abs(values).max())
    return float(values[0]), max(_CLEAR * noise, rounding)


def identification_statement(equations: NormalEquations, smallest: float, needed: float) -> str:
    """Whether single coefficients are identified, in one sentence with its numbers."""
    what = (
        f"the smallest eigenvalue of the features' estimated covariance is {smallest:.3g}, and intervals need "
        f"more than {needed:.3g}, ten times what the noise and the modulation of {equations.count} messages of "
        f"{equations.num_features} features leave in it"
    )
    if smallest > needed:
        return f"Identified: {what}."
    return (
        f"Not identified: {what}; more clients, a larger epsilon or a smaller amplitude would give intervals."
    )


def _inverse(equations: NormalEquations) -> NDArray[np.float64]:
    """Sigma_hat^-1 when it is positive definite."""
    values, vectors = np.linalg.eigh(equations.covariance)
    if values[0] <= np.finfo(float).eps * len(values) * abs(values[-1]):
        raise NotIdentified(
            f"The smallest eigenvalue of the released covariance is {values[0]:.3g}: the coefficients are not "
            "identified and have no covariance, so use more clients or a larger epsilon."
        )
    inverse: NDArray[np.float64] = (vectors / values) @ vectors.T
    return inverse
