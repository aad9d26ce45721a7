"""Eigenvalues of a released covariance made safe to divide by: floor and ridge from known noise levels only.

With w_i, v_i the eigenvalues and eigenvectors of the slopes' covariance, M the mean over messages of what they have
beside c x, d features, K messages, c = 1 - alpha and records of norm at most B:

    m_i = v_i' M v_i/c^2                     noise variance of a record along v_i
    l_i = m_i sqrt(d/K)                      order of the noise of w_i
    k_i = tau^2/(tau^2 + l_i^2)              how far w_i is believed; tau = 0.15 B^2, the size expected beforehand
    r_i = hypot(k_i max(w_i, 0), sqrt(k_i) l_i)      the floored eigenvalue: root of a posterior second moment
    t_i = 2 B^2 m_i/K                        noise of b_hat along v_i over the variance of slopes expected beforehand
    beta = sum_i v_i (v_i'b) r_i/(r_i^2 + t_i)       so the ridge on r_i is t_i/r_i

Without noise this is least squares; with ever more noise the slopes go to 0. Derived, and biased: the constants 0.15
and 2 were chosen on public tables. They affect no privacy: all is post-processing. Without B, k_i = 1 and t_i = 0.

With label privacy, b_hat has the labels' noise too, and t_i is (1 + sigma^2/(c^2 tau)) times that: records and scaled
labels are both expected to have variance tau beforehand.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.domain import non_negative, positive
from fedveil.privacy.normal_equations import NormalEquations, NotIdentified

_EXPECTED_EIGENVALUE = 0.15
_EXPECTED_PRECISION = 2.0


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of the slopes' covariance before and after.

    Parameters
    ----------
    values : float64 array of shape (d,)
        w_i in increasing order; with an intercept, of the covariance about the mean.
    vectors : float64 array of shape (d, d)
        v_i as columns.
    noise : float64 array of shape (d,)
        Order of the noise of each eigenvalue, l_i, or with B its posterior sqrt(k_i) l_i: public.
    raised : float64 array of shape (d,)
        Eigenvalues after the floor.
    ridge : float64 array of shape (d,)
        What is added to each of them.
    floored : int
        How many w_i are below the explicit floor, or below their noise.
    """

    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    noise: NDArray[np.float64]
    raised: NDArray[np.float64]
    ridge: NDArray[np.float64]
    floored: int

    @property
    def damped(self) -> NDArray[np.float64]:
        """Eigenvalues to divide by, shape (d,)."""
        return self.raised + self.ridge

    @property
    def negligible(self) -> NDArray[np.bool_]:
        """Where the damped eigenvalue is 0 but for rounding: records do not vary there, and get slope 0."""
        negligible: NDArray[np.bool_] = self.damped <= np.finfo(float).eps * len(self.values) * abs(
            self.values[-1]
        )
        return negligible

    @property
    def problem(self) -> str | None:
        """Why slopes from these eigenvalues would mean nothing, in a sentence; None when they mean something."""
        if self.values[-1] <= 0:
            return (
                f"The released covariance has no positive eigenvalue (the largest is {self.values[-1]:.3g}): noise "
                "hides the records, so use more clients or a larger epsilon."
            )
        wild = ~self.negligible & (self.damped < self.noise / 2) & (self.values < self.noise)
        return (
            f"A regularised eigenvalue of {self.damped[wild].min():.3g} is within the noise of the released "
            f"covariance, about {self.noise[wild].max():.3g}: give a larger ridge or floor, or leave both out."
            if wild.any()
            else None
        )


def regularised_spectrum(
    equations: NormalEquations,
    *,
    bound: float | None = None,
    ridge: float | None = None,
    floor: float | None = None,
) -> Spectrum:
    """Eigenvalues of the slopes' covariance, floored and with a ridge.

    Parameters
    ----------
    equations : NormalEquations
    bound : float, optional
        B > 0, the public norm to which records were clipped; see the module.
    ridge, floor : float, optional
        >= 0, instead of the module's rule: the floored eigenvalue is then max(w_i, floor), and the ridge is added
        to each as it is.

    Returns
    -------
    Spectrum

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    covariance, _ = equations.slopes_alone()
    d, k = len(covariance), equations.count
    values, vectors = np.linalg.eigh(covariance)
    record_noise = np.einsum("ji,jk,ki->i", vectors, equations.noise_covariance[:d, :d], vectors)
    noise = record_noise * np.sqrt(d / k)
    expected = np.inf if bound is None else _EXPECTED_EIGENVALUE * positive("bound", bound) ** 2
    if floor is not None:
        least = np.full(d, non_negative("floor", floor))
        raised = np.maximum(values, least)
    else:
        least = noise
        believed = 1 / (1 + (noise / expected) ** 2)
        noise = np.sqrt(believed) * noise  # what is left of it beside the size expected beforehand
        raised = np.hypot(believed * np.maximum(values, 0), noise)
    if ridge is not None:
        added = np.full(d, non_negative("ridge", ridge))
    elif bound is None:
        added = np.zeros(d)
    else:
        labels = 1.0 if equations.label_scale is None else 1 + equations.noise_variance / expected
        target = _EXPECTED_PRECISION * bound**2 / k * record_noise * labels
        added = np.divide(target, raised, out=np.zeros(d), where=raised > 0)
    return Spectrum(values, vectors, noise, raised, added, int((values < least).sum()))


def regularised(
    equations: NormalEquations,
    *,
    bound: float | None = None,
    ridge: float | None = None,
    floor: float | None = None,
) -> NormalEquations:
    """Equations whose solution is the one-shot estimate, for descent on them: post-processing.

    Parameters
    ----------
    equations, bound, ridge, floor
        As for `regularised_spectrum`.

    Returns
    -------
    NormalEquations
        With a positive semidefinite covariance, so that descent cannot run away. They are biased: no intervals.

    Raises
    ------
    NotIdentified
        When the spectrum has a problem.
    ValueError
        When an argument is outside its range.
    """
    spectrum = regularised_spectrum(equations, bound=bound, ridge=ridge, floor=floor)
    if spectrum.problem is not None:
        raise NotIdentified(spectrum.problem)
    before, _ = equations.slopes_alone()
    d = len(before)
    covariance = equations.covariance.copy()
    covariance[:d, :d] += (spectrum.vectors * spectrum.damped) @ spectrum.vectors.T - before
    return replace(equations, covariance=(covariance + covariance.T) / 2)
