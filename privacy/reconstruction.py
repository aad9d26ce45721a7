"""How well any attacker can reconstruct one client's record from all its messages: a lower bound on the error.

Message t of a client is distributed as c x + a_t sum_j A_j v_tj + N(0, sigma_t^2 I), A_j = cos U_j independent of
x and a_t = lambda_t/sqrt(m_t). Its information about x is that of a location family, and independent messages add:

    J = sum_t c^2 [ (I - V_t'V_t)/sigma_t^2 + I(a_t, sigma_t) V_t'V_t ],   rows of V_t: the directions of round t
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import check_directions
from fedveil.privacy.domain import non_negative, positive, whole
from fedveil.privacy.fisher import modulated_fisher_information
from fedveil.privacy.modulation import scale_of

Message = tuple[float, float, ArrayLike]


@dataclass(frozen=True, slots=True)
class ReconstructionBound:
    """Least mean squared error E ||x_hat - x||^2 of an attacker who has every message of one client.

    Units are squared units of the clipped, standardised record. None of the figures depends on the frequency
    omega, nor on the phases' hidden values: the law of a message does not.

    Parameters
    ----------
    unbiased : float
        tr J^-1: no attacker that is unbiased for every x has less (Cramer-Rao). It may pass `guess`: then
        unbiased attackers are worse than guessing, and the bound alone says little.
    bayesian : float
        tr (J + (d/B^2) I)^-1: no attacker at all has less, biased or not, on average over the reference prior
        x ~ N(0, (B^2/d) I), which an attacker is supposed to know (van Trees). Half of such records are longer
        than B: records that are clipped to B have a smaller mean square, and are guessed better, also by who knows
        nothing else. An attacker who knows more about the client beforehand can do better still.
    unbiased_unmodulated, bayesian_unmodulated : float
        The same with lambda = 0 and the same sigma, so that their quotient is what the modulation adds.
    guess : float
        B^2: error of guessing 0, for a record on the boundary.
    num_messages : int
        Messages counted.
    """

    unbiased: float
    bayesian: float
    unbiased_unmodulated: float
    bayesian_unmodulated: float
    guess: float
    num_messages: int

    @property
    def statement(self) -> str:
        """The figures in one sentence for a person."""
        sent = "one message" if self.num_messages == 1 else f"{self.num_messages} messages"
        return (
            f"From the noised features alone in the {sent} of a client an unbiased attacker's mean squared error is "
            f"at least {self.unbiased:.4g} (without modulation {self.unbiased_unmodulated:.4g}); on average over "
            f"records that are normal of mean square {self.guess:.4g} any attacker's is at least {self.bayesian:.4g} "
            f"(without modulation {self.bayesian_unmodulated:.4g}), and real, clipped records can be guessed better; "
            "what labels and the model tell of features is not counted, and the frequency of the modulation changes "
            "none of these."
        )


def reconstruction_bound(
    messages: Sequence[Message], *, alpha: float, dimension: int, bound: float
) -> ReconstructionBound:
    """Bound the reconstruction of one client's record from all the messages it sent.

    Parameters
    ----------
    messages : sequence of (sigma, amplitude, directions)
        One for each message: sigma_t > 0, amplitude lambda_t >= 0, and the (m, d) directions of its round,
        (0, d) for none. Messages, not averages of them: a server that averages has seen them all.
    alpha : float
        Any finite number but 1; c = 1 - alpha.
    dimension : int
        d >= 1, number of features.
    bound : float
        B > 0, L2 norm to which x is clipped (with label privacy, (x, y/s) jointly).

    Returns
    -------
    ReconstructionBound
        With no message: inf for unbiased attackers, B^2 for the others.

    Raises
    ------
    ValueError
        When an argument is outside its range or a shape does not fit.

    Notes
    -----
    THEORY 2.3. Directions that change from round to round undo the effect of lambda: along v_t the other rounds
    are unmodulated, so that T messages of fresh directions tell about as much as T messages with lambda = 0.
    """
    scale, d = scale_of(alpha), whole("dimension", dimension, minimum=1)
    bound = positive("bound", bound)
    information = np.zeros((d, d))
    unmodulated, known = 0.0, dict[tuple[float, float], float]()
    for number, message in enumerate(messages):
        if len(message) != 3:
            raise ValueError(
                f"message {number} has {len(message)} parts: give three, sigma, amplitude and directions."
            )
        sigma, amplitude = positive("sigma", message[0]), non_negative("amplitude", message[1])
        directions = check_directions(message[2], d)
        plain = (scale / sigma) * (scale / sigma)
        unmodulated += plain
        information[np.diag_indices(d)] += plain
        if amplitude > 0 and len(directions):
            key = amplitude / math.sqrt(len(directions)), sigma
            if key not in known:
                known[key] = scale * scale * modulated_fisher_information(*key)
            information -= (plain - known[key]) * (directions.T @ directions)
    prior = d / bound / bound
    return ReconstructionBound(
        unbiased=_trace_of_inverse(information, 0.0),
        bayesian=_trace_of_inverse(information, prior),
        unbiased_unmodulated=d / unmodulated if unmodulated else math.inf,
        bayesian_unmodulated=d / (unmodulated + prior),
        guess=bound * bound,
        num_messages=len(messages),
    )


def _trace_of_inverse(information: NDArray[np.float64], prior: float) -> float:
    """Trace of (J + prior I)^-1, inf when J + prior I is 0."""
    # here, for nodes ask for no bound and start a process for every message
    from scipy.linalg import eigvalsh

    eigenvalues = eigvalsh(information) + prior
    return math.inf if eigenvalues[0] <= 0 else float(np.sum(1 / eigenvalues))
