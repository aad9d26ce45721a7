"""The noise of messages from clients that hold one record each, planned so that a client's total stays in budget.

A client that takes part N times sends N Gaussian releases of sensitivity D, so sigma = D sqrt(N)/mu, mu of
(epsilon, delta) exactly or, as in arXiv 2605.07233, through zCDP, which asks for more noise (THEORY 2.2).
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from numpy.typing import ArrayLike

from fedveil.privacy.cohort_release import CohortRelease
from fedveil.privacy.domain import one_of, positive, probability, rate, whole
from fedveil.privacy.gaussian import gaussian_mu
from fedveil.privacy.modulation import Modulation, SensitivityRule, modulation_sensitivity
from fedveil.privacy.release import GRADIENT, RELATIONS, Relation, Release
from fedveil.privacy.zcdp import zcdp_rho

Accounting = Literal["exact", "zcdp"]

MODULATED_MESSAGE, RANGE_MESSAGE = "modulated-message", "range-message"
"""Names of a client's releases in the ledger: its modulated record, and the one that ranges are estimated from."""


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """Noise and cost of each message of a client, and the budget of all of them.

    Parameters
    ----------
    name : str
        What is released.
    relation : {"attribute", "record"}
        ``attribute``: all features of the client's record replaced, its label equal; ``record``: the whole
        record replaced.
    sensitivity, sigma : float
        L2 sensitivity D > 0 and standard deviation > 0 of the noise on each coordinate.
    num_releases : int
        How often a client may send, N >= 1.
    epsilon, delta : float
        TOTAL budget of a client over its whole run, under `relation`.
    rule : {"exact", "paper"}
        Where D comes from; see `modulation_sensitivity`.
    accounting : {"exact", "zcdp"}
        How (epsilon, delta) became a mu.
    share : float
        Part of the budget mu^2 that the N messages may use, in (0, 1].
    """

    name: str
    relation: Relation
    sensitivity: float
    sigma: float
    num_releases: int
    epsilon: float
    delta: float
    rule: SensitivityRule = "exact"
    accounting: Accounting = "exact"
    share: float = 1.0

    def __post_init__(self) -> None:
        """Check every field."""
        one_of("relation", self.relation, RELATIONS)
        one_of("rule", self.rule, get_args(SensitivityRule))
        for field in ("sensitivity", "sigma", "epsilon"):
            positive(field, getattr(self, field))
        probability("delta", self.delta)
        whole("num_releases", self.num_releases, minimum=1)
        one_of("accounting", self.accounting, get_args(Accounting))
        rate("share", self.share)

    @property
    def mu(self) -> float:
        """Gaussian privacy parameter D/sigma of one message, under `relation`."""
        return self.sensitivity / self.sigma

    @property
    def budget(self) -> float:
        """Total mu of one client that its filter enforces, under `relation`; the whole of it, whatever `share`."""
        return budget_mu(self.epsilon, self.delta, self.accounting)

    def release(self, client: int, round: int, step: int = 0) -> Release:
        """Ledger row of one message of one client."""
        return Release(client, round, step, self.name, self.relation, self.sensitivity, self.sigma)

    def cohort_release(self, clients: ArrayLike, round: int, step: int = 0) -> CohortRelease:
        """Ledger rows of one message of each of these clients, given once each and in increasing order."""
        return CohortRelease(self.release(-1, round, step), clients)  # type: ignore[arg-type]


def plan_messages(
    *,
    epsilon: float,
    delta: float,
    bound: float,
    modulation: Modulation,
    num_releases: int = 1,
    rule: SensitivityRule = "exact",
    accounting: Accounting = "exact",
    label_privacy: bool = False,
    share: float = 1.0,
    name: str = MODULATED_MESSAGE,
) -> MessagePlan:
    """Plan the noise of modulated messages.

    Parameters
    ----------
    epsilon, delta : float
        Total budget of a client over the whole run, in (0, inf) and (0, 1).
    bound : float
        B > 0, L2 norm to which a record x is clipped; with label privacy, (x, y/s) jointly.
    modulation : Modulation
        Public constants.
    num_releases : int
        How often one client may send, at least 1.
    rule : {"exact", "paper"}
        Sensitivity; see `modulation_sensitivity`.
    accounting : {"exact", "zcdp"}
        ``exact``: the largest mu that (epsilon, delta) allows. ``zcdp``: the smaller sqrt(2 rho).
    label_privacy : bool
        Whether the message also hides the label: relation ``record``, else ``attribute``.
    share : float
        Part of the budget mu^2 for these messages, in (0, 1]; the rest is for other releases of the client.
    name : str
        Name of the release in the ledger.

    Returns
    -------
    MessagePlan
        sigma is rounded up, so that the squares of `num_releases` mu never pass the share of the budget.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    sensitivity = modulation_sensitivity(
        bound,
        alpha=modulation.alpha,
        amplitude=modulation.amplitude,
        frequency=modulation.frequency,
        num_directions=modulation.num_directions,
        rule=rule,
    )
    # The exact law needs a uniform phase. In double precision phi lies on a grid (2^-52 of a turn or finer) and
    # omega <x, v> + phi is rounded; together they move the angle by less than h/2, h = 2^-50 (omega B + 2 pi), so
    # each message is within lambda h/2 of one that obeys the law, and D grows by lambda h at most. (An error of
    # <x, v> itself does not matter: a uniform phase hides it like <x, v>.)
    grid = modulation.amplitude * 2.0**-50 * (modulation.frequency * bound + 2 * math.pi)
    if rule == "exact" and grid > sensitivity / 1000:
        raise ValueError(
            f"frequency = {modulation.frequency:g} is not allowed at bound = {bound:g} and amplitude = "
            f"{modulation.amplitude:g}: double precision would lose the phase beside it, so give a smaller one."
        )
    return _planned(
        name=name,
        relation="record" if label_privacy else "attribute",
        sensitivity=sensitivity,
        rounding=grid / sensitivity,
        num_releases=num_releases,
        epsilon=epsilon,
        delta=delta,
        rule=rule,
        accounting=accounting,
        share=share,
    )


def plan_gradients(
    *,
    epsilon: float,
    delta: float,
    clip_norm: float,
    num_releases: int = 1,
    accounting: Accounting = "exact",
) -> MessagePlan:
    """Plan the noise of local DP-SGD: each message is the clipped gradient of the client's one record.

    Parameters
    ----------
    epsilon, delta : float
        Total budget of a client over the whole run, under one record replaced.
    clip_norm : float
        C > 0, L2 norm to which the gradient is clipped: D = 2 C.
    num_releases, accounting
        As for `plan_messages`.

    Returns
    -------
    MessagePlan
        Named ``gradient``, relation ``record``.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    return _planned(
        name=GRADIENT,
        relation="record",
        sensitivity=2 * positive("clip_norm", clip_norm),
        rounding=0.0,
        num_releases=num_releases,
        epsilon=epsilon,
        delta=delta,
        rule="exact",
        accounting=accounting,
        share=1.0,
    )


def budget_mu(epsilon: float, delta: float, accounting: Accounting) -> float:
    """Total mu that (epsilon, delta) allows, rounded down: exactly, or sqrt(2 rho) through zCDP."""
    one_of("accounting", accounting, get_args(Accounting))
    if accounting == "exact":
        return gaussian_mu(epsilon, delta)
    return math.sqrt(2 * zcdp_rho(epsilon, delta)) * (1 - 2.0**-51)


def _planned(
    *,
    name: str,
    relation: Relation,
    sensitivity: float,
    rounding: float,
    num_releases: int,
    epsilon: float,
    delta: float,
    rule: SensitivityRule,
    accounting: Accounting,
    share: float,
) -> MessagePlan:
    num_releases, share = whole("num_releases", num_releases, minimum=1), rate("share", share)
    mu = budget_mu(epsilon, delta, accounting)
    # Floating-point sums of num_releases squares, by whoever keeps them, must not pass the budget.
    margin = 1 + (num_releases + 8) * 2.0**-51
    sensitivity *= (
        1 + rounding
    )  # of the program, not of real numbers: the ledger says what the noise was set for
    sigma = sensitivity * math.sqrt(num_releases / share) / mu * margin
    return MessagePlan(
        name,
        relation,
        sensitivity,
        sigma,
        num_releases,
        float(epsilon),
        float(delta),
        rule,
        accounting,
        share,
    )
