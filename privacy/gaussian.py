"""Gaussian differential privacy: exact conversions between mu, epsilon and delta, and composition.

Releasing a quantity of L2 sensitivity D with noise N(0, sigma^2 I) is mu-GDP with mu = D/sigma (Dong, Roth
& Su 2022). Its exact trade-off is (Balle & Wang 2018, theorem 8)

    delta(epsilon; mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

decreasing in epsilon and increasing in mu. Every function here rounds to the private side: a stated
delta or epsilon is never below the truth, a stated mu that a budget allows is never above it.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, ndtr

from fedveil.privacy.domain import non_negative, positive, probability
from fedveil.privacy.zcdp import rho_from_below, zcdp_epsilon

# Bound on the relative error of delta as computed below, beside what the rounding of p contributes: several
# times the largest error found against 120-digit arithmetic.
_RELATIVE_ERROR = 2e-12
_SMALL_MU = 0.1
_SMALLEST_MU = 1e-150  # squares of smaller ones vanish; rounded up to it, the private side
_LARGEST_MU = 1e12
_UNDERFLOW = 30.0  # beyond this p, delta < exp(-p^2)/2 is below the smallest float
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest delta at which a mu-GDP Gaussian release is (epsilon, delta)-DP, rounded up.

    Parameters
    ----------
    epsilon : float
        Privacy loss, in [0, inf).
    mu : float
        Sensitivity over noise standard deviation, in [0, inf), under the neighbouring relation of that
        sensitivity.

    Returns
    -------
    float
        delta in [0, 1]; 0 only for mu = 0.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    epsilon, mu = non_negative("epsilon", epsilon), non_negative("mu", mu)
    if mu == 0:
        return 0.0
    return min(1.0, math.nextafter(math.exp(_log_delta(epsilon, mu, 1)), math.inf))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon at which a mu-GDP Gaussian release is (epsilon, delta)-DP, rounded up.

    Parameters
    ----------
    mu : float
        Sensitivity over noise standard deviation (of a composition: `compose_mu`), in [0, inf).
    delta : float
        Failure probability, in (0, 1).

    Returns
    -------
    float
        epsilon; 0 when delta >= 2 Phi(mu/2) - 1, inf when it is beyond the largest float.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    mu, delta = non_negative("mu", mu), probability("delta", delta)
    target = math.log(delta)
    mu = max(mu, _SMALLEST_MU) if mu > 0 else mu
    if mu == 0 or _log_delta(0.0, mu, 1) <= target:
        return 0.0
    if not math.isfinite(mu * mu):
        return math.inf
    if mu > _LARGEST_MU:  # neighbours are told apart with certainty: the bound is as good as the root
        return zcdp_epsilon(mu * mu / 2, delta)
    # The zCDP bound has p^2 = ln(1/delta), where delta(epsilon; mu) is at most half the target.
    ceiling = zcdp_epsilon(mu * mu / 2, delta)
    return _private_root(lambda epsilon: _log_delta(epsilon, mu, 1) - target, 0.0, ceiling)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose Gaussian release is (epsilon, delta)-DP, rounded down.

    The noise that reaches it is sigma = sensitivity/mu, under the neighbouring relation of that sensitivity:
    the analytic Gaussian mechanism of Balle & Wang 2018.

    Parameters
    ----------
    epsilon : float
        Privacy loss, in (0, inf).
    delta : float
        Failure probability, in (0, 1).

    Returns
    -------
    float
        mu > 0, such that `gaussian_epsilon(mu, delta)` and `gaussian_delta(epsilon, mu)` do not exceed what
        was asked.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    # Two roundings of gaussian_delta, so that it gives back at most delta.
    target = math.log(delta * (1 - 2.0**-51))

    def excess(mu: float) -> float:
        return _log_delta(epsilon, mu, 3) - target

    # Two bounds from below: zCDP is looser than exact, and at epsilon = 0 delta = erf(mu/sqrt 8).
    low = max(math.sqrt(2 * rho_from_below(epsilon, delta)), math.sqrt(8) * float(erfinv(delta)) * (1 - 1e-9))
    while excess(low) > 0:
        low *= 0.5
    high = 2 * low
    while excess(high) <= 0:
        low, high = high, 2 * high
    return _private_root(excess, high, low)


def compose_mu(mus: Iterable[float]) -> float:
    """Mu of Gaussian releases composed adaptively: sqrt(sum mu_t^2), rounded up.

    An upper bound when later queries depend on earlier answers but each mu_t is fixed beforehand; tight when
    one pair of neighbours attains every sensitivity (Dong, Roth & Su 2022, corollary 2).

    Parameters
    ----------
    mus : iterable of float
        One mu_t in [0, inf) for each release, all under the same neighbouring relation.

    Returns
    -------
    float
        mu of the composition; 0 for no release.

    Raises
    ------
    ValueError
        When a mu is outside its range.
    """
    counts = Counter(non_negative("mu", mu) for mu in mus)
    exact = sum(count * _as_integer(mu) ** 2 for mu, count in counts.items())
    total = math.hypot(*(mu * math.sqrt(count) for mu, count in counts.items()))
    while math.isfinite(total) and _as_integer(total) ** 2 < exact:
        total = math.nextafter(total, math.inf)
    return total


def _as_integer(number: float) -> int:
    """Return number * 2^1074 exactly: every float is a multiple of 2^-1074."""
    numerator, denominator = number.as_integer_ratio()
    return numerator * (2**1074 // denominator)


def _log_delta(epsilon: float, mu: float, safety: int) -> float:
    """Bound ln delta(epsilon; mu) for mu > 0 from above, by `safety` rounding allowances.

    delta = exp(-p^2) (erfcx(p) - erfcx(q))/2 with p, q = (epsilon/mu -+ mu/2)/sqrt 2, q^2 - p^2 = epsilon.
    """
    p = (epsilon / mu - mu / 2) / math.sqrt(2)
    q = (epsilon / mu + mu / 2) / math.sqrt(2)
    if p == math.inf:
        return -math.inf
    if mu < _SMALL_MU and p < _UNDERFLOW:
        # The difference cancels: integrate -erfcx'(t) = 2/sqrt pi - 2 t erfcx(t) > 0 over [p, q] instead.
        t = p + mu / math.sqrt(8) * (1 + _NODES)
        slope = 2 / math.sqrt(math.pi) - 2 * t * erfcx(t)
        value = math.log(float(_WEIGHTS @ slope) * mu / math.sqrt(32)) - p * p
    elif p < 0:
        # Near delta = 1 only the complement keeps its digits.
        value = math.log1p(-float(ndtr(math.sqrt(2) * p)) - math.exp(-p * p) * float(erfcx(q)) / 2)
    elif p < _UNDERFLOW:
        value = math.log(float(erfcx(p) - erfcx(q)) / 2) - p * p
    else:
        # -erfcx'(t) <= 1/(sqrt pi t^2) bounds the difference, to 0.2 %.
        value = math.log(mu / (p * q) / math.sqrt(8 * math.pi)) - p * p
    # Beside the functions' own errors, p is off by a few ulps of q, and p^2 by 2 p times that.
    return value + safety * min(1.0, -value) * (_RELATIVE_ERROR + 2.0**-50 * abs(p) * q)


def _private_root(excess: Callable[[float], float], refused: float, allowed: float) -> float:
    """Point nearest to `refused` where excess <= 0, on the side of `allowed`.

    `excess` changes sign once between `refused` (excess > 0) and `allowed` (excess <= 0).
    """
    tolerance = max(abs(allowed - refused) * 2.0**-53, sys.float_info.min)
    root = float(brentq(excess, refused, allowed, xtol=tolerance, rtol=4 * sys.float_info.epsilon))
    step = max(root * 2.0**-52, tolerance)
    while excess(root) > 0:
        root = min(root + step, allowed) if allowed > refused else max(root - step, allowed)
        step *= 2
    return root
