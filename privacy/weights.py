"""Noise-aware aggregation: a client whose update carries more noise weighs less.

Where clients' true updates differ from a common one by an independent spread of standard deviation tau on
each coordinate, and client i adds noise of standard deviation s_i, the unbiased weighted mean of least
variance has weights proportional to 1/(s_i^2 + tau^2) (inverse-variance weighting).
"""

import math
import sys
from collections.abc import Iterable

from fedveil.privacy.domain import non_negative, positive


def noise_aware_weight(sigmas: Iterable[float], learning_rate: float, tau: float) -> float:
    """Weight of one client's update in a round, tau^2/(s^2 + tau^2) with s^2 = sum_t (lr sigma_t)^2.

    Computing it costs no privacy where every sigma_t is fixed or released: it is a function of ledger rows.
    Weighing by it leaves every client's guarantee as it is, since noise is added before. The weights of
    several clients are to be divided by their sum; the objective becomes sum_i w_i f_i with these weights.

    Parameters
    ----------
    sigmas : iterable of float
        sigma_t >= 0 of the round's noised steps, standard deviations of the noise on each coordinate of the
        mean gradient; none for a client that adds no noise.
    learning_rate : float
        Step size > 0 of the clients.
    tau : float
        Public spread > 0 of the true updates, on each coordinate, in units of the update. Far above every s
        all clients weigh the same; far below, the weights go as 1/s^2.

    Returns
    -------
    float
        Weight in (0, 1]: 1 without noise, 1/2 where s = tau. Equal bits on every machine and in every order of
        the steps: only products, quotients and one exactly rounded sum.

    Raises
    ------
    ValueError
        When an argument is outside its range, or the noise is so far above tau that the weight vanishes.
    """
    learning_rate, tau = positive("learning_rate", learning_rate), positive("tau", tau)
    ratios = [learning_rate * non_negative("sigma", sigma) / tau for sigma in sigmas]
    # In units of tau, so that the squares of small numbers do not vanish before they are compared.
    squares = [ratio * ratio for ratio in ratios]
    if not all(square <= sys.float_info.max / (len(squares) + 1) for square in squares):
        raise ValueError(
            f"tau = {tau:g} is too small beside the noise of the update, so the client's weight vanishes: "
            "raise tau or lower the learning rate."
        )
    return 1 / (1 + math.fsum(squares))
