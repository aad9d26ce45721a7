"""The noised gradient step as a value: how much noise on the clipped mean, and which ledger rows it costs.

A record-level step releases mean(g) + N(0, sigma^2 I), g = clip_C(gradient) of each of a client's n records;
replacing one record moves the mean by at most 2 C/n. An attribute-level step (derived here) also takes g0,
the clipped gradient with the private attributes at public baselines, and d = g - g0, and releases

    mean(g0) + mean(clip_Cp(d)) + N(0, sigma^2 I)

Changing only private attributes leaves g0 as it is, so that sensitivity is 2 C_p/n. As clip_Cp(d) = t d with
t in [0, 1], a record contributes (1 - t) g0 + t g, of norm at most C: the record sensitivity stays 2 C/n.
"""

from dataclasses import dataclass
from typing import get_args

from fedveil.privacy.calibrations import CALIBRATIONS, StepCalibration, StepRequest, budget_of, step_noise
from fedveil.privacy.domain import (
    check_attribute_clip_norm,
    one_of,
    positive,
    probability,
    rate,
    warn_weak_delta,
    whole,
)
from fedveil.privacy.gaussian import gaussian_mu
from fedveil.privacy.known import NOTHING, Known
from fedveil.privacy.release import GRADIENT, Chosen, Relation, Release
from fedveil.privacy.subsampled import subsampled_noise_multiplier


@dataclass(frozen=True, slots=True)
class StepMechanism:
    """Clipping and noise of one private gradient step of one client.

    Parameters
    ----------
    num_records : int
        n >= 1, public.
    clip_norm : float
        C > 0, L2 bound on each record's gradient.
    sigma : float
        Standard deviation > 0 of the noise on each coordinate of the MEAN, whose fixed denominator is
        n (full batch) or the expected batch size q n.
    attribute_clip_norm : float, optional
        C_p in (0, C], bound on the part of a record's gradient that its private attributes cause; None for a
        record-level step.
    sampling_rate : float
        Poisson sampling rate q in (0, 1]; attribute-level steps are full batch only, because mean(g0) reveals
        the sample.
    chosen : {"fixed", "released", "data-dependent"}
        What clip norms, sigma and the decision to take the step were computed from; see `Release`.
    num_releases : int, optional
        Length of the fixed schedule this step belongs to. Subsampled steps have no filter, so a client
        must stop after this many of them.

    Raises
    ------
    ValueError
        When a field is outside its range, or an attribute-level step is subsampled.
    """

    num_records: int
    clip_norm: float
    sigma: float
    attribute_clip_norm: float | None = None
    sampling_rate: float = 1.0
    chosen: Chosen = "fixed"
    num_releases: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        whole("num_records", self.num_records, minimum=1)
        positive("clip_norm", self.clip_norm)
        positive("sigma", self.sigma)
        rate("sampling_rate", self.sampling_rate)
        one_of("chosen", self.chosen, get_args(Chosen))
        if self.attribute_clip_norm is not None:
            check_attribute_clip_norm(self.attribute_clip_norm, self.clip_norm)
            _refuse_subsampled_attribute(self.sampling_rate)
        if self.num_releases is not None:
            whole("num_releases", self.num_releases, minimum=1)

    @property
    def denominator(self) -> float:
        """Fixed denominator of the mean: n, or the expected batch size q n, never the realised one."""
        return self.num_records * self.sampling_rate

    @property
    def contribution(self) -> None:
        """A single step releases no contribution."""
        return

    @property
    def quantile(self) -> None:
        """A single step releases no quantile."""
        return

    @property
    def is_data_dependent(self) -> bool:
        """Whether the noise was chosen by looking at private data."""
        return self.chosen == "data-dependent"

    def mechanism(self, known: Known) -> "StepMechanism":
        """The step itself: as a `Plan` it is the same whatever is known."""
        return self

    def rows(
        self, client: int, round: int, steps: int, known: Known = NOTHING, *, measure: bool = False
    ) -> tuple[Release, ...]:
        """Ledger rows of the steps of one round."""
        return tuple(row for step in range(steps) for row in self.releases(client, round, step))

    def releases(self, client: int, round: int, step: int) -> tuple[Release, ...]:
        """Ledger rows of one such step.

        Returns
        -------
        tuple of Release
            Record-level: one ``record`` row of sensitivity 2 C/(q n). Attribute-level: an ``attribute`` row
            of 2 C_p/n and a ``record`` row of 2 C/n, for the one noise.
        """
        norms: dict[Relation, float] = {"record": self.clip_norm}
        if self.attribute_clip_norm is not None:
            norms = {"attribute": self.attribute_clip_norm, **norms}
        return tuple(
            Release(
                client=client,
                round=round,
                step=step,
                name=GRADIENT,
                relation=relation,
                sensitivity=2 * norm / self.denominator,
                sigma=self.sigma,
                chosen=self.chosen,
                sampling_rate=self.sampling_rate,
            )
            for relation, norm in norms.items()
        )


def plan_step(
    *,
    num_records: int,
    clip_norm: float,
    calibration: str | StepCalibration,
    epsilon: float,
    delta: float,
    num_releases: int,
    epsilon_record: float | None = None,
    attribute_clip_norm: float | None = None,
    sampling_rate: float = 1.0,
    mu_release: float | None = None,
    contribution: float = 1.0,
    beta: float = 0.0,
    share: float = 1.0,
    chosen: Chosen = "fixed",
    warn: bool = True,
) -> StepMechanism:
    """Plan the noise with which `num_releases` steps of one client stay within its total budget.

    Parameters
    ----------
    num_records : int
        n >= 1, public. delta above 1/n gives a `WeakDelta` warning.
    clip_norm : float
        C > 0, L2 bound on each record's gradient.
    calibration : str or StepCalibration
        Rule for the noise: ``uniform``, ``attribute``, ``paper``, ``tight``, or one of your own. Its relation is that
        of (epsilon, delta): one record replaced, or the private attributes of one record replaced.
    epsilon, delta : float
        The client's TOTAL budget over all releases, in (0, inf) and (0, 1).
    num_releases : int
        Number of noised steps over the whole run, at least 1.
    epsilon_record : float, optional
        Second total budget (at the same delta) under one record replaced; attribute-level only.
    attribute_clip_norm : float, optional
        C_p in (0, C]; required by, and only allowed with, attribute-level calibrations.
    sampling_rate : float
        Poisson sampling rate in (0, 1]; below 1 with ``uniform`` only.
    mu_release : float, optional
        Sensitivity over sigma of each step, instead of the even share; ``uniform`` and ``attribute`` only.
        The filter of `budgets` still ends the client's part when its total is spent.
    contribution, beta : float
        R in [0, 1] and the lower bound on the tolerance, for the calibrations that use them.
    share : float
        Share of the budget mu^2 that these steps have together, in (0, 1].
    chosen : {"fixed", "released", "data-dependent"}
        What R and C_p were computed from; see `Release`.
    warn : bool
        Whether a delta above 1/n gives the warning.

    Returns
    -------
    StepMechanism
        Rounded so that all `num_releases` steps of the built-in calibrations pass the filter of `budgets`.

    Raises
    ------
    ValueError
        When an argument is outside its range or contradicts another, or a calibration gives no usable noise.
    """
    rule = _rule(calibration)
    n = whole("num_records", num_records, minimum=1)
    if warn:
        warn_weak_delta(probability("delta", delta), n)
    clip_norm = positive("clip_norm", clip_norm)
    num_releases = whole("num_releases", num_releases, minimum=1)
    sampling_rate = rate("sampling_rate", sampling_rate)
    share = rate("share", share)
    limits = budgets(
        calibration=calibration,
        epsilon=epsilon,
        delta=delta,
        epsilon_record=epsilon_record,
        sampling_rate=sampling_rate,
        beta=beta,
    )
    if rule.relation == "attribute":
        if attribute_clip_norm is None:
            raise ValueError(f"attribute_clip_norm is missing: {rule.name} needs C_p above 0.")
        attribute_clip_norm = check_attribute_clip_norm(attribute_clip_norm, clip_norm)
    elif attribute_clip_norm is not None:
        raise ValueError(
            f"attribute_clip_norm = {attribute_clip_norm!r} contradicts {rule.name}: "
            "leave it out or use calibration 'attribute'."
        )
    request = StepRequest(
        n, clip_norm, attribute_clip_norm, epsilon, delta, num_releases, share, contribution, beta
    )
    if sampling_rate < 1:
        if mu_release is not None or share < 1:
            given = f"mu_release = {mu_release!r}" if mu_release is not None else f"share = {share:g}"
            raise ValueError(
                f"{given} contradicts sampling_rate = {sampling_rate:g}: "
                "subsampled steps have no filter, so leave it out or use the full batch."
            )
        multiplier = subsampled_noise_multiplier(epsilon, delta, sampling_rate, num_releases)
        sigma = multiplier * clip_norm / (n * sampling_rate)
    elif mu_release is not None:
        if rule not in (CALIBRATIONS["uniform"], CALIBRATIONS["attribute"]):
            raise ValueError(
                f"mu_release = {mu_release!r} contradicts {rule.name}, which has its own rule: leave it out or "
                "use 'uniform' or 'attribute'."
            )
        sigma = request.sensitivity / positive("mu_release", mu_release)
    else:
        # Floating-point sums of num_releases squares, by whoever keeps them, must not pass the budget.
        margin = 1 + (num_releases + 8) * 2.0**-51
        sigma = step_noise(rule, request) * margin
        if epsilon_record is not None:
            record = 2 * clip_norm / n / limits["record"] * request.steps_per_release
            sigma = max(sigma, record * margin)
    return StepMechanism(n, clip_norm, sigma, attribute_clip_norm, sampling_rate, chosen, num_releases)


def budgets(
    *,
    calibration: str | StepCalibration,
    epsilon: float,
    delta: float,
    epsilon_record: float | None = None,
    sampling_rate: float = 1.0,
    beta: float = 0.0,
) -> dict[Relation, float]:
    """Total mu_B under each limited relation, for the `PrivacyFilter` of one client.

    Parameters
    ----------
    calibration, epsilon, delta, epsilon_record, sampling_rate, beta
        As for `plan_step`.

    Returns
    -------
    dict of relation to float
        Public: the same whatever R is. Empty for subsampled steps: no filter is valid for them, only the fixed
        schedule bounds them.

    Raises
    ------
    ValueError
        When an argument is outside its range or contradicts another.
    """
    rule = _rule(calibration)
    if rule.relation == "attribute":
        _refuse_subsampled_attribute(sampling_rate)
    else:
        if epsilon_record is not None:
            raise ValueError(
                f"epsilon_record = {epsilon_record!r} contradicts {rule.name}: "
                "its epsilon is already the record's, so leave it out."
            )
        if rate("sampling_rate", sampling_rate) < 1 and rule != CALIBRATIONS["uniform"]:
            raise ValueError(
                f"sampling_rate = {sampling_rate:g} is not allowed with {rule.name}, which knows full batches "
                "only: use sampling_rate = 1 or calibration 'uniform'."
            )
    limits: dict[Relation, float] = {rule.relation: budget_of(rule, epsilon, delta, beta)}
    if epsilon_record is not None:
        limits["record"] = gaussian_mu(positive("epsilon_record", epsilon_record), delta)
    return limits if rate("sampling_rate", sampling_rate) == 1 else {}


def _rule(calibration: str | StepCalibration) -> StepCalibration:
    if isinstance(calibration, StepCalibration):
        return calibration
    one_of("calibration", calibration, tuple(CALIBRATIONS))
    return CALIBRATIONS[calibration]


def _refuse_subsampled_attribute(sampling_rate: float) -> None:
    if rate("sampling_rate", sampling_rate) != 1:
        raise ValueError(
            f"sampling_rate = {sampling_rate:g} is not allowed with attribute-level privacy: the step shows "
            "which records were sampled, so use sampling_rate = 1 or calibration 'uniform'."
        )
