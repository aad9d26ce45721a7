"""ModulatedIterative: rounds of messages along directions orthogonal to the model, and projected gradient steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import ModulatedMoments, NormalEquations, descend, regularised, regularised_spectrum
from fedveil.privacy.domain import one_of, positive, whole
from fedveil.strategies.client_averages import ClientAverages
from fedveil.strategies.message_rounds import Collected
from fedveil.strategies.message_strategy import FloatArray, State
from fedveil.strategies.modulated_strategy import ModulatedStrategy
from fedveil.strategies.moment_state import prefixed, without

__all__ = ["Estimation", "ModulatedIterative", "default_radius"]

Estimation = Literal["fresh", "pooled", "averaged"]
"""What a gradient is computed from: this round's messages, all messages so far, or each client's average so far."""

_LARGEST_RATE = 1e6
_AVERAGES = "averages-"


@dataclass(kw_only=True, eq=False)
class ModulatedIterative(ModulatedStrategy):
    """Iterative private regression (THEORY 2; arXiv 2605.07233).

    A round draws directions orthogonal to the slopes beta, asks its clients, and steps along the gradient
    Sigma_hat beta - b_hat of half the mean squared error, projected onto a ball. The intercept is neither private nor
    noised: it is solved for exactly beside the slopes.

    ``fresh`` is the published form: one step a round on the round's own estimate. Its noise does not shrink from round
    to round, and where Sigma_hat has negative eigenvalues a step leads away: the ball bounds that, and the outcome and
    a line say so. ``pooled`` adds up the moments of all rounds and takes many steps on them, which is free
    post-processing. They are regularised as in one-shot learning, from the known noise, so that steps cannot run away;
    with disjoint cohorts that is one-shot learning spread over rounds. ``averaged`` averages each client's messages
    first: T rounds of the same clients leave 1/T of the noise variance in each average, at 8 K d bytes of memory
    (:data:`fedveil.strategies.client_averages.MAX_NUMBERS` bounds K d).

    Parameters
    ----------
    estimate : {"fresh", "pooled", "averaged"}
    steps : int
        Projected steps a round, on one set of moments; ``fresh`` takes one.
    learning_rate : float, optional
        Step eta in (0, 1e6]; None: 1/L, L the largest eigenvalue of the released Sigma_hat of the slopes in magnitude,
        the step at which gradient descent is sure to converge where all eigenvalues are positive.
    radius : float, optional
        L2 norm that the slopes may reach; None: :func:`default_radius` of the round's moments for ``fresh``; the others
        need none.

    Raises
    ------
    ValueError
        If a number is outside its range, or ``averaged`` meets replies of sums, disjoint cohorts or too many clients.
    """

    estimate: Estimation = "pooled"
    steps: int = 1000
    learning_rate: float | None = None
    radius: float | None = None

    _averages: ClientAverages | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        one_of("estimate", self.estimate, get_args(Estimation))
        whole("steps", self.steps, minimum=1)
        for name in ("learning_rate", "radius"):
            value = getattr(self, name)
            if value is not None and positive(name, value) > _LARGEST_RATE and name == "learning_rate":
                raise ValueError(
                    f"learning_rate = {value:g} is not allowed: give a number above 0 and at most {_LARGEST_RATE:g}."
                )
        if self.estimate == "averaged":
            self._refuse_averages_without_use()
            self._averages = ClientAverages(
                self.census.num_clients, self.dimension, self._wave, self.sigma, self.label_scale
            )

    def _refuse_averages_without_use(self) -> None:
        if self.reply != "each":
            raise ValueError(
                f"reply {self.reply!r} is not allowed with estimate 'averaged', which needs every client's message: "
                "use reply 'each', or estimate 'pooled'."
            )
        if self.participation == "cohorts":
            raise ValueError(
                "participation 'cohorts' is not allowed with estimate 'averaged': no client sends twice, so use "
                "estimate 'pooled'."
            )

    def _learn(self, server_round: int, collected: Collected, directions: FloatArray) -> None:
        fresh = self._moments_of(collected, directions)
        if self._averages is None:
            self.moments = fresh if self.moments is None else self.moments + fresh
        else:
            self._averages.add(collected, directions)
            self.moments = self._averages.moments()
        self._step(server_round, fresh if self.estimate == "fresh" else self.moments)

    def _step(self, server_round: int, moments: ModulatedMoments) -> None:
        equations = moments.normal_equations()
        spectrum = regularised_spectrum(equations, bound=self.bound)
        if spectrum.problem is not None:
            self.problem = f"{spectrum.problem} The coefficients stay as they were."
            return
        fresh = self.estimate == "fresh"
        covariance, cross = (equations if fresh else regularised(equations, bound=self.bound)).slopes_alone()
        radius = self.radius
        # regularised moments cannot run away, unless records do not vary at all along some direction
        if radius is None and (fresh or spectrum.damped.min() <= 1e-9 * spectrum.damped.max()):
            radius = default_radius(equations, self.bound)
        slopes = descend(
            replace(moments.normal_equations(intercept=False), covariance=covariance, cross=cross),
            self.coefficients[:-1],
            steps=1 if fresh else self.steps,
            learning_rate=self.learning_rate,
            radius=radius,
        )
        self.coefficients = equations.complete(slopes)
        self.projected = radius is not None and float(np.linalg.norm(slopes)) >= radius * (1 - 1e-9)
        if radius is not None and self.projected and not self._told:
            self._told = True
            self.say(
                f"round {server_round}: a step left the ball of radius {radius:.4g} and was cut back to it: in some "
                f"direction noise outweighs the records (smallest eigenvalue {spectrum.values[0]:.3g}), or "
                "learning-rate is too large; read the coefficients with care"
            )

    def _own_state(self) -> State:
        return super()._own_state() if self._averages is None else prefixed(_AVERAGES, self._averages.state())

    def _take_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        if self._averages is None:
            super()._take_state(state)
            return
        self._averages.restore(without(_AVERAGES, state))
        self.moments = self._averages.moments() if self._averages.rounds else None


def default_radius(equations: NormalEquations, bound: float) -> float:
    """Norm that least-squares slopes keep to, from released moments and public numbers: free post-processing.

    Least squares has beta' S beta <= var y, S the covariance of the records, so along directions in which S is at least
    t its slopes have norm sqrt(var y/t) at most. t is the noise level (sigma^2/c^2) sqrt(d/K): where S is smaller, the
    released one is noise, and slopes along it are anybody's guess.

    Parameters
    ----------
    equations : NormalEquations
        With the intercept.
    bound : float
        B > 0, which bounds S by B^2; without noise, t is a trillionth of that.

    Returns
    -------
    float
        > 0. With label privacy var y is debiased, and its own noise stands in for a smaller or negative one.
    """
    mean = float(equations.cross[-1])
    variance = equations.label_square - mean**2
    if equations.label_scale is not None:
        noise = equations.label_scale**2 * equations.noise_variance * math.sqrt(2 / equations.count)
        variance = max(variance, noise)
    # constant labels: rounding alone is left of their variance, and a ball has to have a radius
    variance = max(variance, 2.0**-52 * mean**2, np.finfo(float).tiny ** 0.5)
    level = equations.noise_variance * math.sqrt(equations.num_features / equations.count)
    return math.sqrt(variance / max(level, 1e-12 * bound**2))
