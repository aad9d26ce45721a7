"""Zero-concentrated differential privacy: the closed-form, looser view of a Gaussian release.

A mu-GDP Gaussian release is rho-zCDP with rho = mu^2/2; rho adds over releases, and rho-zCDP implies
(epsilon, delta) with epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun & Steinke 2016, proposition 1.3).
"""

import math

from fedveil.privacy.domain import non_negative, positive, probability

# A dozen roundings of half an ulp are below this; zcdp_rho gives up more, so that converting back
# never states more epsilon than was asked for.
_ROUNDING = 2.0**-49

# Far above the subnormal numbers, whose few digits would state another epsilon than was asked for.
_SMALLEST_RHO = 1e-290


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Largest rho whose zCDP bound stays within (epsilon, delta).

    Parameters
    ----------
    epsilon : float
        Privacy loss, in (0, inf).
    delta : float
        Failure probability, in (0, 1).

    Returns
    -------
    float
        rho = (sqrt(L + epsilon) - sqrt(L))^2 with L = ln(1/delta), rounded down. A Gaussian release
        reaches it with sigma = sensitivity / sqrt(2 rho), more noise than `gaussian_mu` asks for.

    Raises
    ------
    ValueError
        When an argument is outside its range, or rho would be below 1e-290.
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    rho = rho_from_below(epsilon, delta)
    if rho < _SMALLEST_RHO:
        raise ValueError(
            f"epsilon = {epsilon:.3g} is not allowed through zCDP at delta = {delta:.3g}, where rho would be below "
            f"{_SMALLEST_RHO:g}: give at least {1.01 * zcdp_epsilon(_SMALLEST_RHO, delta):.3g}."
        )
    return rho


def rho_from_below(epsilon: float, delta: float) -> float:
    """`zcdp_rho` of any size: for arguments in their ranges, with no digits left where it is below 1e-290."""
    log_inverse = -math.log(delta)
    # Not sqrt(L + eps) - sqrt(L), which cancels when epsilon is small beside L.
    root = epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))
    return root * root * (1 - 4 * _ROUNDING)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon that rho-zCDP implies at delta, rounded up.

    Parameters
    ----------
    rho : float
        Sum of mu_t^2/2 over the releases, in [0, inf).
    delta : float
        Failure probability, in (0, 1).

    Returns
    -------
    float
        rho + 2 sqrt(rho ln(1/delta)): an upper bound on the exact `gaussian_epsilon`.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    rho, delta = non_negative("rho", rho), probability("delta", delta)
    return (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + _ROUNDING)
