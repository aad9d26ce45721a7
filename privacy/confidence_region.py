"""Confidence region of all coefficients together, valid however weakly the released moments identify them.

At the true coefficients K u'Omega^-1 u, u = Sigma_hat beta - b_hat, is close to chi-squared with D degrees of
freedom, whatever the noise in Sigma_hat: nothing is inverted but Omega, which noise makes larger. The region of
all beta for which it is small need not be bounded, an ellipsoid, or connected.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import probability
from fedveil.privacy.inference import identifiability, identification_statement
from fedveil.privacy.normal_equations import NormalEquations
from fedveil.privacy.score_covariance import Target, nearest_covariance, score_covariance

_ZERO = 1e-9  # of the size of the terms of u: below it a component of u is rounding


@dataclass(frozen=True, eq=False)
class Region:
    """The coefficients that the released moments do not contradict at a confidence level.

    Parameters
    ----------
    equations : NormalEquations
        Where it comes from.
    level : float
        Probability in (0, 1) with which it holds the coefficients, all at once.
    target : {"clients", "population"}
        What the coefficients are of; see `score_covariance`.
    effective_clients : float or None
        As for `score_covariance`.
    threshold : float
        Quantile of chi-squared with D degrees of freedom at `level`.
    is_bounded : bool or None
        None when neither a direction along which it is unbounded nor a proof that there is none was found.
    direction : float64 array of shape (D,) or None
        A combination of the coefficients along which the region is unbounded, of length 1.
    statement : str
        One sentence or two for a person, with the numbers.
    """

    equations: NormalEquations
    level: float
    target: Target
    effective_clients: float | None
    threshold: float
    is_bounded: bool | None
    direction: NDArray[np.float64] | None
    statement: str

    def statistic(self, beta: ArrayLike) -> float:
        """K u'Omega(beta)^-1 u at `beta`, shape (D,); inf where u leaves the range of Omega."""
        point = real_array("coefficients", beta, shape=(self.equations.dimension,))
        omega = score_covariance(
            self.equations, point, target=self.target, effective_clients=self.effective_clients
        )
        covariance, cross = self.equations.covariance, self.equations.cross
        size = float(np.max(np.abs(covariance) @ np.abs(point) + np.abs(cross)))
        return _statistic(covariance @ point - cross, omega, self.equations.count, size)

    def contains(self, beta: ArrayLike) -> bool:
        """Whether `beta`, shape (D,), is in the region."""
        return self.statistic(beta) <= self.threshold


def confidence_region(
    equations: NormalEquations,
    *,
    level: float = 0.95,
    target: Target = "clients",
    effective_clients: float | None = None,
) -> Region:
    """Region of the coefficients from released moments: post-processing, free of privacy cost.

    Parameters
    ----------
    equations : NormalEquations
    level : float
        In (0, 1).
    target, effective_clients
        As for `score_covariance`.

    Returns
    -------
    Region

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    level = probability("level", level)
    threshold = float(chdtri(equations.dimension, 1 - level))
    score_covariance(
        equations, np.zeros(equations.dimension), target=target, effective_clients=effective_clients
    )
    bounded, direction = _is_bounded(equations, threshold, target, effective_clients)
    words = {
        True: "The confidence region of all coefficients together is bounded.",
        False: "The confidence region of all coefficients together is unbounded: the moments do not exclude "
        "arbitrarily large coefficients.",
        None: "Whether the confidence region of all coefficients together is bounded was not decided.",
    }
    statement = f"{identification_statement(equations, *identifiability(equations))} {words[bounded]}"
    return Region(equations, level, target, effective_clients, threshold, bounded, direction, statement)


def _is_bounded(
    equations: NormalEquations, threshold: float, target: Target, effective_clients: float | None
) -> tuple[bool | None, NDArray[np.float64] | None]:
    """Whether the statistic ends above the threshold along every direction, and if not, one along which it does not.

    Along beta = t e it tends to K (Sigma e)'Omega(e)^-1 (Sigma e), Omega(e) without labels. With S = Sigma + N,
    N the mean of M/c^2 and every M/c^2 <= kappa N,

        Omega(e) <= (e'N e) Sigma + (e'Sigma e) N + 2 kappa (e'N e) N <= 2 kappa (e'S e) S

    and the population adds at most (e'S e) S times messages per client. So the least eigenvalue of
    Sigma S^-1 Sigma against S proves a bound, close to sharp where noise rules; its vector may refute one.
    """
    count, sigma = equations.count, equations.covariance
    from scipy.linalg import eigh  # here, for nodes invert no region and start a process for every message

    without_labels = replace(
        equations, cross=np.zeros_like(equations.cross), label_square=0.0, label_scale=None
    )
    noise, excess = _noise(equations)
    total = nearest_covariance(equations) + noise
    values, vectors = np.linalg.eigh(total)
    if values[0] <= np.finfo(float).eps * len(values) * values[-1]:
        return False, vectors[:, 0]  # this combination of features is 0 in every message: u does not move
    half = sigma @ (vectors / np.sqrt(values))
    ratios, candidates = eigh(half @ half.T, total)
    weakest = np.linalg.eigh(sigma)
    for direction in (candidates[:, 0], weakest[1][:, np.abs(weakest[0]).argmin()]):
        omega = score_covariance(
            without_labels, direction, target=target, effective_clients=effective_clients
        )
        size = float(np.max(np.abs(sigma) @ np.abs(direction)))
        if _statistic(sigma @ direction, omega, count, size) < threshold:
            return False, direction / np.linalg.norm(direction)
    repeats = 0.0 if target == "clients" else count / (effective_clients or count)
    return (True if count * ratios[0] > (2 * excess + repeats) * threshold else None), None


def _noise(equations: NormalEquations) -> tuple[NDArray[np.float64], float]:
    """N, the mean over messages of M/c^2, and the least kappa with every M/c^2 <= kappa N (inf when unknown)."""
    from scipy.linalg import eigvalsh

    square, slopes = equations.scale**2, slice(0, equations.num_features)
    noise = np.zeros_like(equations.covariance)
    for one in equations.corrections:
        noise += one.count / equations.count / square * one.covariance
    if len(equations.corrections) == 1:
        return noise, 1.0
    if not all(one.sigma > 0 for one in equations.corrections):
        return noise, np.inf
    largest = max(
        eigvalsh(one.covariance[slopes, slopes] / square, noise[slopes, slopes])[-1]
        for one in equations.corrections
    )
    return noise, float(largest)


def _statistic(score: NDArray[np.float64], omega: NDArray[np.float64], count: int, size: float) -> float:
    """K u'Omega^-1 u; inf when u has a component, against the `size` of its terms, that Omega excludes."""
    values, vectors = np.linalg.eigh(omega)
    parts = vectors.T @ score
    free = values > np.finfo(float).eps * len(values) * max(values[-1], 0.0)
    if np.abs(parts[~free]).max(initial=0.0) > _ZERO * size:
        return np.inf
    return float(count * np.sum(parts[free] ** 2 / values[free]))
