"""Fisher information of one modulated direction: what the law of a message says about a shift of the record.

Along a direction v_j a message of modulated learning is distributed as c <x, v_j> + a A + sigma Z, with A = cos U
arcsine-distributed (U uniform on the circle), Z standard normal and a = lambda/sqrt(m). Its information about the
shift is I(a, sigma); along every other direction the message is Gaussian and the information is 1/sigma^2.
"""

import math

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray

from fedveil.privacy.domain import non_negative, positive

_REACH = 9.5  # standard deviations: what lies beyond is below 1e-18 of the integral
_LARGEST_DISTANCE = 1e8  # from the edge, in sigma: the information further inside is below 1e-12 of the whole
_SMALLEST_RATIO = 1e-8
_ANGLES, _ANGLE_WEIGHTS = leggauss(64)
_POINTS, _POINT_WEIGHTS = leggauss(20)


def modulated_fisher_information(amplitude: float, sigma: float) -> float:
    """Fisher information I(a, sigma) of the location family a A + sigma Z, A = cos U arcsine, Z standard normal.

    By quadrature, relative error below 1e-10 for every ratio of the two arguments. It lies between the inverse
    variance 1/(sigma^2 + a^2/2) and 1/sigma^2, falls when either argument grows, tends to 1/sigma^2 as
    a -> 0, and for a >> sigma is 0.577919 / sqrt(a sigma^3): the density has an integrable peak at each end, and
    a peak of width sigma can be located. The frequency omega has no part in it.

    Parameters
    ----------
    amplitude : float
        a >= 0, per direction: lambda/sqrt(m), in units of the message.
    sigma : float
        > 0, standard deviation of the noise, in the same unit.

    Returns
    -------
    float
        I(a, sigma), per squared unit; inf where it passes the largest float.

    Raises
    ------
    ValueError
        When amplitude is negative, sigma not positive, either not finite, or their quotient passes the largest float.

    Notes
    -----
    THEORY 2.3. I scales as I(a, sigma) = I(a/sigma, 1)/sigma^2.
    """
    amplitude, sigma = non_negative("amplitude", amplitude), positive("sigma", sigma)
    ratio = amplitude / sigma
    if math.isinf(ratio):
        raise ValueError(
            f"amplitude = {amplitude:g} over sigma = {sigma:g} passes the largest float: give a larger sigma."
        )
    # 1 - ratio^2/2 for small ratios: below the threshold that is 1 in double precision.
    unit = _information(ratio) if ratio > _SMALLEST_RATIO else 1.0
    return unit * (1 / sigma) * (1 / sigma)


def _information(ratio: float) -> float:
    """I(ratio, 1): the integral of f'^2/f over the distance t from the right end of the support of ratio A.

    Distances instead of positions keep every difference exact: ratio - ratio cos u = 2 ratio sin^2(u/2).
    """
    distances, weights = _distances(ratio)
    # Only angles whose arcsine position lies within reach of t count, so that few nodes do at any ratio.
    first = 2 * np.arcsin(np.sqrt(np.clip((distances - _REACH) / (2 * ratio), 0, 1)))
    last = 2 * np.arcsin(np.sqrt(np.clip((np.maximum(distances, 0) + _REACH) / (2 * ratio), 0, 1)))
    half = (last - first) / 2
    angles = (first + half)[:, None] + half[:, None] * _ANGLES
    offset = 2 * ratio * np.sin(angles / 2) ** 2 - distances[:, None]
    kernel = np.exp(-(offset**2) / 2)
    scale = half / (math.pi * math.sqrt(2 * math.pi))
    density, slope = scale * (kernel @ _ANGLE_WEIGHTS), scale * ((offset * kernel) @ _ANGLE_WEIGHTS)
    return float(2 * np.sum(weights * slope**2 / density))  # twice: the density is even


def _distances(ratio: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights over t in [-reach, ratio]: panels of width 1 near the end, growing with t further inside."""
    farthest, edges = min(ratio, _LARGEST_DISTANCE), [-_REACH]
    while edges[-1] < farthest:
        edges.append(min(farthest, edges[-1] + max(1.0, edges[-1] / 16)))
    ends = np.array(edges)
    half, middle = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
    return (middle[:, None] + half[:, None] * _POINTS).ravel(), (half[:, None] * _POINT_WEIGHTS).ravel()
