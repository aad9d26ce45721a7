"""How far private gradient descent gets: a bound on the mean squared gradient norm, term by term.

The objective is f = sum_i w_i f_i, with client weights w_i that sum to 1. Round t makes one noised step,

    theta_{t+1} = theta_t - eta (grad f(theta_t) + b_t + z_t),    z_t ~ N(0, sum_i w_i^2 sigma_i^2 I_p)

where b_t is the clipping bias (what clipping does to the mean gradient) and z_t the clients' noise, drawn
afresh in every round. If f is L-smooth, bounded below by f*, and eta <= 1/L, then (derived)

    mean_t E|grad f(theta_t)|^2 <= 2 (f_0 - f*)/(eta T) + mean_t E|b_t|^2 + eta L p sum_i w_i^2 sigma_i^2

Proof. Write g_t = grad f(theta_t) + b_t. The descent lemma and E z_t = 0 give, given the past,
E f_{t+1} <= f_t - eta <grad f, g_t> + (L eta^2/2) |g_t|^2 + (L eta^2/2) p sum_i w_i^2 sigma_i^2.
With L eta <= 1 the two middle terms are at most (eta/2) (|g_t|^2 - 2 <grad f, g_t>), which is
(eta/2) (|b_t|^2 - |grad f|^2). Rearrange, multiply by 2/eta, and average over t = 0..T-1: the f_t telescope.

No constant can be lowered: on f = L |theta|^2/2 with eta = 1/L each term is met alone (the second and the
third as T grows). At a smaller step the third is loose by the factor 2 - eta L, below 2, on that f.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedveil.privacy.domain import non_negative, positive, share, whole

_SUM_TOLERANCE = 1e-9  # weights are quotients of sums: their own sum is 1 up to a few roundings


class StepTooLarge(ValueError):
    """The step size is above 1/L, where the convergence bound is not proven."""


@dataclass(frozen=True, slots=True)
class ConvergenceBound:
    """Upper bound on the mean over rounds of E|grad f|^2, by cause.

    Parameters
    ----------
    optimization : float
        2 (f_0 - f*)/(eta T): the distance still to go; falls with more rounds or larger steps.
    clipping_bias : float
        mean_t E|b_t|^2: falls with larger clipping norms.
    noise : float
        eta L p sum_i w_i^2 sigma_i^2: the price of privacy; falls with smaller steps, not with more rounds.
    """

    optimization: float
    clipping_bias: float
    noise: float

    @property
    def total(self) -> float:
        """Sum of the three terms."""
        return self.optimization + self.clipping_bias + self.noise


def convergence_bound(
    *,
    initial_gap: float,
    step_size: float,
    num_rounds: int,
    smoothness: float,
    num_parameters: int,
    weights: Sequence[float],
    sigmas: Sequence[float],
    squared_bias: float,
) -> ConvergenceBound:
    """Bound the mean squared gradient norm of T rounds, one noised step a round.

    Every client takes part in every round. Nothing here reads private data as long as the arguments are
    public: f* >= 0 for cross-entropy, so f_0 bounds the gap: ln(classes) for a model that starts at 0, more
    for one that does not. The clipping bias is a function of the records and is known beforehand only where
    it is 0: where no gradient is longer than the clipping norm.

    Parameters
    ----------
    initial_gap : float
        f_0 - f* >= 0, or an upper bound on it.
    step_size : float
        eta in (0, 1/L]: the clients' times the server's, for the plain server optimiser.
    num_rounds : int
        T >= 1.
    smoothness : float
        L > 0, Lipschitz constant of grad f, or an upper bound on it (`softmax_smoothness`).
    num_parameters : int
        p >= 1.
    weights : sequence of float
        w_i in [0, 1], summing to 1, one for each client; the objective is sum_i w_i f_i.
    sigmas : sequence of float
        sigma_i >= 0, standard deviation of the noise on each coordinate of client i's mean gradient. Where it
        changes by round, the root of its mean square over the rounds.
    squared_bias : float
        mean_t E|b_t|^2 >= 0.

    Returns
    -------
    ConvergenceBound
        inf where a term passes the largest float.

    Raises
    ------
    StepTooLarge
        When step_size is above 1/smoothness.
    ValueError
        When an argument is outside its range, or weights and sigmas do not fit together.
    """
    gap, bias = non_negative("initial_gap", initial_gap), non_negative("squared_bias", squared_bias)
    step, smoothness = positive("step_size", step_size), positive("smoothness", smoothness)
    rounds = whole("num_rounds", num_rounds, minimum=1)
    parameters = whole("num_parameters", num_parameters, minimum=1)
    if step * smoothness > 1 + 2.0**-52:  # 1/L itself may round up
        raise StepTooLarge(
            f"step_size = {step:g} is above 1/L = {1 / smoothness:.6g}, where nothing is proven: "
            f"give a step of at most 1/L, or a smaller proven smoothness than L = {smoothness:g}."
        )
    if len(weights) != len(sigmas) or not weights:
        raise ValueError(
            f"{len(weights)} weights and {len(sigmas)} sigmas were given: give one of each for every client."
        )
    weights = [share("weight", weight) for weight in weights]
    sigmas = [non_negative("sigma", sigma) for sigma in sigmas]
    if abs(math.fsum(weights) - 1) > _SUM_TOLERANCE:
        raise ValueError(
            f"the weights sum to {math.fsum(weights):.9g}: divide them by their sum, so that they sum to 1."
        )
    variance = sum((w * sigma) * (w * sigma) for w, sigma in zip(weights, sigmas, strict=True))
    return ConvergenceBound(
        optimization=2 * gap / step / rounds,
        clipping_bias=bias,
        noise=step * smoothness * parameters * variance,
    )


def softmax_smoothness(num_features: int) -> float:
    """Smoothness L = (p + 1)/2 of softmax regression with bias on features in [0, 1]^p, however many classes.

    Proof. With scores s = W x + b and probabilities q, the Hessian of the cross-entropy in s is
    H = diag(q) - q q'. For |u| = 1, u'Hu is the variance of u_k under q, at most (max u - min u)^2/4
    (Popoviciu), and (max u - min u)^2 <= 2 |u|^2 = 2: so |H| <= 1/2. In (W, b) the Hessian is the Kronecker
    product of H and (x, 1)(x, 1)', of norm |H| (|x|^2 + 1) <= (p + 1)/2; a mean over records and clients is no
    larger. Equality: two classes with q = 1/2 and every feature 1.

    Parameters
    ----------
    num_features : int
        p >= 1, public; the bound rests on the public range [0, 1] of the features alone.

    Returns
    -------
    float
        L.

    Raises
    ------
    ValueError
        When num_features is not a whole number of at least 1.
    """
    return (whole("num_features", num_features, minimum=1) + 1) / 2
