"""Covariance of the score, what noise leaves uncertain in normal equations, from the released sums alone.

The least-squares estimate solves u(beta) = Sigma_hat beta - b_hat = 0. Write a message as g = c x + n, n of mean
0, covariance M and fourth cumulant kappa (`Correction`), r = y - x'beta, and with label privacy y + h for the label
that is used, h ~ N(0, s^2 sigma^2/c^2). Then u is the mean over messages of

    -x r + (x n'beta - n r)/c + (n n' - M) beta/c^2 - h (x + n/c)

At the least-squares coefficients of the records x r sums to 0. Odd moments of n and h vanish, so the terms are
uncorrelated, and so is x n'beta with n r once summed. With r2 the mean of r^2 (derived; THEORY 2.3)

    Omega = [(beta'M beta) Sigma + r2 M]/c^2 + [(beta'M beta) M + M beta beta'M + kappa(beta)]/c^4
            + (s^2 sigma^2/c^2)(Sigma + M/c^2)         [label privacy]
            + r2 Sigma                                 [population: x r no longer sums to 0]

is K Cov(u). Where messages differ, each term is averaged over them; M and kappa are padded with 0 for the intercept.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import one_of, positive
from fedveil.privacy.normal_equations import NormalEquations

Target = Literal["clients", "population"]


def score_covariance(
    equations: NormalEquations,
    coefficients: ArrayLike,
    *,
    target: Target = "clients",
    effective_clients: float | None = None,
) -> NDArray[np.float64]:
    """Omega: K times the covariance of u = Sigma_hat beta - b_hat at the least-squares coefficients.

    Noise can make Sigma_hat indefinite and r2 negative; the nearest values that records can have enter instead
    (`nearest_covariance` and 0), so that Omega is positive semidefinite at every beta. Both are consistent.

    Parameters
    ----------
    equations : NormalEquations
    coefficients : array of shape (D,)
        Where to evaluate it.
    target : {"clients", "population"}
        ``clients``: against least squares of the clipped records of the clients that took part, each weighted
        by its messages. ``population``: against that of the law they were drawn from, with residuals whose
        variance does not depend on x (the sums hold no fourth moment that could tell otherwise).
    effective_clients : float, optional
        For ``population``: (sum_k n_k)^2/(sum_k n_k^2) where client k sent n_k messages, at most the number of
        messages, which it is when left out (each client sent one, or its messages were averaged).

    Returns
    -------
    float64 array of shape (D, D)

    Raises
    ------
    ValueError
        When an argument is outside its range or a shape does not fit.
    """
    beta = real_array("coefficients", coefficients, shape=(equations.dimension,))
    one_of("target", target, get_args(Target))
    sigma = nearest_covariance(equations)
    residual = float(equations.label_square - 2 * equations.cross @ beta + beta @ equations.covariance @ beta)
    residual = max(0.0, residual)
    labels = 0.0 if equations.label_scale is None else (equations.label_scale / equations.scale) ** 2
    square = equations.scale**2
    omega = np.zeros_like(sigma)
    for one in equations.corrections:
        noise = one.covariance
        seen = noise @ beta
        along = float(beta @ seen)
        omega += (one.count / equations.count) * (
            (along * sigma + residual * noise) / square
            + (along * noise + np.outer(seen, seen) + one.fourth_cumulant(beta)) / square**2
            + labels * one.sigma**2 * (sigma + noise / square)
        )
    if target == "population":
        omega += residual * sigma * (equations.count / _effective(equations, effective_clients))
    elif effective_clients is not None:
        raise ValueError(
            f"effective_clients = {effective_clients!r} is of no use for target 'clients': "
            "leave it out, or give target = 'population'."
        )
    return symmetric(omega)


def nearest_covariance(equations: NormalEquations) -> NDArray[np.float64]:
    """Sigma_hat with the negative eigenvalues of its slopes' covariance (about the mean) set to 0, shape (D, D)."""
    values, vectors = np.linalg.eigh(equations.slopes_alone()[0])
    nearest: NDArray[np.float64] = equations.covariance.copy()
    slopes = slice(0, equations.num_features)
    nearest[slopes, slopes] += (vectors * np.maximum(0, -values)) @ vectors.T
    return nearest


def symmetric(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric part, which rounding leaves."""
    return (matrix + matrix.T) / 2


def _effective(equations: NormalEquations, effective_clients: float | None) -> float:
    if effective_clients is None:
        return equations.count
    clients = positive("effective_clients", effective_clients)
    if clients > equations.count:
        raise ValueError(
            f"effective_clients = {clients:g} is above the {equations.count} messages: "
            "give (sum n_k)^2/(sum n_k^2), n_k the messages of client k."
        )
    return clients
