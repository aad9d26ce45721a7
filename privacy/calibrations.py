"""How much noise a step gets: the calibrations that a run can name, and what a calibration of one's own must be.

A calibration says how much noise the mean of a client's clipped gradients gets in ONE of the run's steps, and nothing
else. What that noise is worth is computed from the clip norms and the noise, never taken from the calibration, and a
client's filter stops before its budget is passed: a calibration can waste privacy or utility, not overstate privacy.

T steps with noise sqrt(T) sigma compose to one release with noise sigma, so the formulas of FedSVA (arXiv 2503.12958),
which are for one release, are taken at a client's total (epsilon, delta) and scaled by sqrt(T/share).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fedveil.privacy.calibration import calibrate_noise
from fedveil.privacy.domain import non_negative, one_of, positive, probability, rate, share, whole
from fedveil.privacy.gaussian import gaussian_mu

__all__ = [
    "CALIBRATIONS",
    "StepCalibration",
    "StepRequest",
    "budget_of",
    "contribution_effect",
    "step_noise",
]


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a calibration knows of one client and one step; every value is public or released.

    Parameters
    ----------
    num_records : int
        n >= 1.
    clip_norm : float
        C, L2 bound on each record's gradient.
    attribute_clip_norm : float or None
        C_p, L2 bound on what the private attributes add to it; given to attribute-level calibrations only.
    epsilon, delta : float
        The client's TOTAL budget over the run, under the relation of the calibration.
    num_releases : int
        T, the client's noised steps over the run.
    share : float
        Share of the budget mu^2 that the steps have together; other releases of the client have the rest.
    contribution : float
        R in [0, 1]; 1, the most protective, until it is known.
    beta : float
        FedSVA's lower bound on the tolerance.
    """

    num_records: int
    clip_norm: float
    attribute_clip_norm: float | None
    epsilon: float
    delta: float
    num_releases: int
    share: float = 1.0
    contribution: float = 1.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        """Check every field."""
        whole("num_records", self.num_records, minimum=1)
        positive("clip_norm", self.clip_norm)
        positive("epsilon", self.epsilon)
        probability("delta", self.delta)
        whole("num_releases", self.num_releases, minimum=1)
        rate("share", self.share)
        share("contribution", self.contribution)
        non_negative("beta", self.beta)

    @property
    def sensitivity(self) -> float:
        """2 C_p/n at the attribute level, else 2 C/n."""
        norm = self.clip_norm if self.attribute_clip_norm is None else self.attribute_clip_norm
        return 2 * norm / self.num_records

    @property
    def steps_per_release(self) -> float:
        """sqrt(T/share): a step's noise over the noise of one release that had the whole budget."""
        return math.sqrt(self.num_releases / self.share)


@dataclass(frozen=True, slots=True)
class StepCalibration:
    """A calibration that a run can name; register an instance under the entry-point group ``fedveil.calibrations``.

    Parameters
    ----------
    relation : {"record", "attribute"}
        Neighbouring relation of the client's (epsilon, delta). Attribute-level steps clip what the private attributes
        add to a gradient to C_p.
    sigma : callable
        ``sigma(request)``: standard deviation of the noise on each coordinate of the mean in one step, a finite number
        above 0.
    uses_contribution : bool
        Whether R changes the noise, so that it must be measured.
    name : str
        What errors call it.

    Raises
    ------
    ValueError
        If the relation is another, or ``sigma`` cannot be called.
    """

    relation: Literal["record", "attribute"]
    sigma: Callable[[StepRequest], float]
    uses_contribution: bool = False
    name: str = "a calibration of your own"

    def __post_init__(self) -> None:
        """Check what a plugin may have got wrong."""
        one_of("relation", self.relation, ("record", "attribute"))
        if not callable(self.sigma):
            raise ValueError(f"sigma = {self.sigma!r} is not allowed: give a function of a StepRequest.")


def step_noise(calibration: StepCalibration, request: StepRequest) -> float:
    """Ask a calibration for the noise of one step, and check what it gives.

    Raises
    ------
    ValueError
        Naming the calibration, if it fails or gives anything but a finite number above 0.
    """
    try:
        sigma = calibration.sigma(request)
    except ValueError as error:
        raise ValueError(f"{calibration.name}: {error}") from error
    except Exception as error:  # a plugin may fail in any way; it is named, and nothing goes on
        raise ValueError(
            f"{calibration.name} failed ({type(error).__name__}: {error}): correct it."
        ) from error
    try:
        return positive("sigma", sigma)
    except ValueError:
        raise ValueError(
            f"{calibration.name} gave sigma = {reprlib.repr(sigma)} for {request.num_records} records: it must give "
            "the noise of one step as a finite number above 0."
        ) from None


def contribution_effect(delta: float, beta: float = 0.0) -> float:
    """By how much R can move the noise of ``paper`` at most: sigma at R = 1 over sigma at R = 0, minus 1.

    Parameters
    ----------
    delta : float
        In (0, 1).
    beta : float
        FedSVA's lower bound on the tolerance, at least 0.

    Returns
    -------
    float
        ``sqrt(max(1 + t, beta)/max(t, beta)) - 1`` with ``t = 2 ln(1/delta)``: 0.021 at delta 1e-5, and 0 where beta
        is above both.
    """
    least, beta = -2 * math.log(probability("delta", delta)), non_negative("beta", beta)
    return math.sqrt(max(1 + least, beta) / max(least, beta)) - 1


def _exact(request: StepRequest) -> float:
    return request.sensitivity / gaussian_mu(request.epsilon, request.delta) * request.steps_per_release


def _one_release(
    rule: Literal["paper", "tight"],
    clip_norm: float,
    epsilon: float,
    delta: float,
    contribution: float,
    beta: float,
) -> float:
    """FedSVA's noise of one release with one record; with n it is this over n."""
    return calibrate_noise(
        clip_norm=clip_norm,
        epsilon=epsilon,
        num_records=1,
        delta=delta,
        contribution=contribution,
        beta=beta,
        calibration=rule,
    ).sigma


def _published(rule: Literal["paper", "tight"]) -> StepCalibration:
    def sigma(request: StepRequest) -> float:
        terms = (request.clip_norm, request.epsilon, request.delta, request.contribution, request.beta)
        return _one_release(rule, *terms) / request.num_records * request.steps_per_release

    return StepCalibration("record", sigma, uses_contribution=True, name=f"calibration {rule!r}")


PAPER = _published("paper")
TIGHT = _published("tight")
UNIFORM = StepCalibration("record", _exact, name="calibration 'uniform'")
ATTRIBUTE = StepCalibration("attribute", _exact, name="calibration 'attribute'")

CALIBRATIONS: Mapping[str, StepCalibration] = MappingProxyType(
    {"attribute": ATTRIBUTE, "uniform": UNIFORM, "paper": PAPER, "tight": TIGHT}
)


def budget_of(calibration: StepCalibration, epsilon: float, delta: float, beta: float = 0.0) -> float:
    """Give mu_B of a client's filter under the relation of the calibration; public, whatever R turns out to be.

    For FedSVA's own formulas it is mu at R = 0, where their noise is least. For every other calibration it is the mu
    that is exactly (epsilon, delta): a plugin has no say in it.
    """
    for rule, published in (("paper", PAPER), ("tight", TIGHT)):
        if calibration == published:
            return 2.0 / _one_release(rule, 1.0, epsilon, delta, 0.0, beta)  # type: ignore[arg-type]
    return gaussian_mu(epsilon, delta)
