"""A client's plan: every release it will make in a run, with its noise, from public values and its own releases.

Client and server hold the same plan. The client asks it how much noise the next step gets, and its filter which rows
the round would cost; the server asks it which rows a reply owes, and what a client has spent whose reply is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, get_args

from fedveil.privacy.calibration import LEAST_CONTRIBUTION
from fedveil.privacy.calibrations import StepCalibration
from fedveil.privacy.contribution import ContributionRelease
from fedveil.privacy.domain import one_of, positive, share
from fedveil.privacy.known import NOTHING, Known
from fedveil.privacy.mechanism import StepMechanism, plan_step
from fedveil.privacy.quantile import QuantileRelease
from fedveil.privacy.release import Chosen, Relation, Release

__all__ = ["ClipRule", "NoisePlan", "Plan", "attribute_clip_norm", "split_budget"]

ClipRule = Literal["contribution", "fixed", "quantile"]


class Plan(Protocol):
    """What a cohort and a strategy ask of a client's plan; a `StepMechanism` is the plan of one step for ever."""

    @property
    def num_records(self) -> int:
        """Number of records n of the client."""

    @property
    def sampling_rate(self) -> float:
        """Poisson sampling rate of records."""

    @property
    def num_releases(self) -> int | None:
        """Length of the schedule of steps."""

    @property
    def contribution(self) -> ContributionRelease | None:
        """The planned release of the contribution."""

    @property
    def quantile(self) -> QuantileRelease | None:
        """The planned release of a quantile in every round."""

    @property
    def is_data_dependent(self) -> bool:
        """Whether the noise depends on private data that are not released."""

    def mechanism(self, known: Known) -> StepMechanism:
        """The noised step, given what has been released."""

    def rows(
        self, client: int, round: int, steps: int, known: Known = NOTHING, *, measure: bool = False
    ) -> tuple[Release, ...]:
        """Ledger rows of one round; with ``measure``, the release of the contribution too."""


def attribute_clip_norm(
    rule: ClipRule, known: Known, *, clip_norm: float, start: float, scale: float
) -> float:
    """C_p of a client: every fixed or released C_p keeps the guarantee, the rule decides what is learned.

    Parameters
    ----------
    rule : {"contribution", "fixed", "quantile"}
        ``contribution``: ``scale max(R, 0.05) C``, once R is released. ``fixed``: ``start``. ``quantile``: what
        the released quantiles have led to.
    known : Known
        What the client has released.
    clip_norm : float
        C, the largest C_p.
    start : float
        C_p before anything is known.
    scale : float
        kappa of the rule ``contribution``.
    """
    one_of("rule", rule, get_args(ClipRule))
    if rule == "contribution" and known.contribution is not None:
        share("contribution", known.contribution)
        return min(
            clip_norm, positive("scale", scale) * max(known.contribution, LEAST_CONTRIBUTION) * clip_norm
        )
    if rule == "quantile" and known.attribute_clip_norm is not None:
        return min(clip_norm, known.attribute_clip_norm)
    return start


@dataclass(frozen=True)
class NoisePlan:
    """The plan of one client whose noise may depend on its contribution.

    Parameters
    ----------
    num_records : int
        n, public.
    clip_norm : float
        C.
    calibration : str or StepCalibration
        Rule for the noise of a step.
    epsilon, delta : float
        The client's total budget under the relation of the calibration.
    num_steps : int
        Noised steps over the run.
    epsilon_record : float, optional
        Second budget, under the record relation.
    mu_release : float, optional
        Fixed mu of a step.
    sampling_rate : float
        Poisson sampling rate of records.
    beta : float
        FedSVA's lower bound on the tolerance.
    clip_rule : {"contribution", "fixed", "quantile"}, optional
        How C_p is chosen; None for record-level calibrations.
    start_attribute_clip_norm, contribution_scale : float
        See `attribute_clip_norm`.
    known_contribution : float, optional
        R where it is public from the start.
    contribution : ContributionRelease, optional
        The planned release of the contribution.
    quantile : QuantileRelease, optional
        The planned release of a quantile in every round.
    share : float
        Share of the budget mu^2 that is left for the steps.
    is_data_dependent : bool
        R is measured on the records and not released: nothing is proven, and rows stay on the client.
    """

    num_records: int
    clip_norm: float
    calibration: str | StepCalibration
    epsilon: float
    delta: float
    num_steps: int
    epsilon_record: float | None = None
    mu_release: float | None = None
    sampling_rate: float = 1.0
    beta: float = 0.0
    clip_rule: ClipRule | None = None
    start_attribute_clip_norm: float = 1.0
    contribution_scale: float = 1.0
    known_contribution: float | None = None
    contribution: ContributionRelease | None = None
    quantile: QuantileRelease | None = None
    share: float = 1.0
    is_data_dependent: bool = False

    @property
    def num_releases(self) -> int:
        """Length of the schedule of steps."""
        return self.num_steps

    def mechanism(self, known: Known) -> StepMechanism:
        """The noised step, given what the client has released.

        Raises
        ------
        ValueError
            When the calibration gives no usable noise, or the plan contradicts itself.
        """
        return _mechanism(self, known)

    def rows(
        self, client: int, round: int, steps: int, known: Known = NOTHING, *, measure: bool = False
    ) -> tuple[Release, ...]:
        """Ledger rows of one round: its steps, and what else is released in it."""
        rows = self.mechanism(known).rows(client, round, steps)
        if measure and self.contribution is not None:
            rows += self.contribution.releases(client, round)
        if self.quantile is not None:
            rows += self.quantile.releases(client, round)
        return rows


@lru_cache(maxsize=4096)  # a client asks several times in a round, and many clients share a plan
def _mechanism(plan: NoisePlan, known: Known) -> StepMechanism:
    contribution = known.contribution if plan.known_contribution is None else plan.known_contribution
    norm = None
    if plan.clip_rule is not None:
        norm = attribute_clip_norm(
            plan.clip_rule,
            Known(contribution, known.attribute_clip_norm),
            clip_norm=plan.clip_norm,
            start=plan.start_attribute_clip_norm,
            scale=plan.contribution_scale,
        )
    chosen: Chosen = "fixed" if known == NOTHING else "released"
    return plan_step(
        num_records=plan.num_records,
        clip_norm=plan.clip_norm,
        calibration=plan.calibration,
        epsilon=plan.epsilon,
        delta=plan.delta,
        num_releases=plan.num_steps,
        epsilon_record=plan.epsilon_record,
        attribute_clip_norm=norm,
        sampling_rate=plan.sampling_rate,
        mu_release=plan.mu_release,
        contribution=1.0 if contribution is None else contribution,
        beta=plan.beta,
        share=plan.share,
        chosen="data-dependent" if plan.is_data_dependent else chosen,
        warn=False,
    )


def split_budget(limits: Mapping[Relation, float], part: float) -> dict[Relation, float]:
    """Give the mu under each relation that a share of mu^2 comes to, a hair below: shares must not add up to more."""
    return {relation: mu * math.sqrt(part) * (1 - 2.0**-50) for relation, mu in limits.items()}
