"""What the clients of a node send for one variant of a run, by the node's own plan: never by what a message says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from fedveil.moment_sums import LARGEST_LABEL, SumGrid, message_step
from fedveil.privacy import MessagePlan, Modulation, Relation, modulation_sensitivity
from fedveil.wire import Mechanism

__all__ = ["VariantPlan"]


@dataclass(frozen=True)
class VariantPlan:
    """Mechanism, noise and public constants of one variant.

    Parameters
    ----------
    mechanism : {"modulated", "range", "gradient", "unnoised"}
        See :data:`fedveil.wire.Mechanism`.
    plan : MessagePlan or None
        Sensitivity D, sigma and budget of each client's messages; None for messages without noise.
    modulation : Modulation
        Its amplitude counts as 0 for every mechanism but ``modulated``.
    bound : float
        B > 0, L2 norm to which x is clipped, and with label privacy (x, y/s) jointly; C for gradients.
    label_scale : float or None
        s > 0, and the label leaves as the noised c y/s; None: the label leaves as it is.
    largest_label : float, optional
        Public bound on the magnitude of a label in the clear, beyond which it is an error. Left out, it is
        :data:`fedveil.moment_sums.LARGEST_LABEL`, or None where labels are noised.

    Raises
    ------
    ValueError
        If the plan's sensitivity or relation is not that of such messages, or a number is outside its range.
    """

    mechanism: Mechanism
    plan: MessagePlan | None
    modulation: Modulation
    bound: float
    label_scale: float | None = None
    largest_label: float | None = None

    def __post_init__(self) -> None:
        """Check that the plan is one of such messages."""
        if self.mechanism not in get_args(Mechanism):
            raise ValueError(
                f"mechanism = {self.mechanism!r} must be one of {', '.join(get_args(Mechanism))}."
            )
        for name in ("bound", "largest_label", "label_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} = {value!r} must be a finite number above 0.")
        if self.label_scale is None:
            object.__setattr__(self, "largest_label", self.largest_label or LARGEST_LABEL)
        elif self.largest_label is not None:
            raise ValueError("a noised label is clipped with its record: leave largest_label out.")
        if self.mechanism != "modulated":
            object.__setattr__(self, "modulation", replace(self.modulation, amplitude=0.0))
        if (self.plan is None) != (self.mechanism == "unnoised"):
            raise ValueError(
                f"mechanism = {self.mechanism!r} does not go with plan = {self.plan!r}: 'unnoised' alone has none."
            )
        if self.plan is not None:
            self._check_plan(self.plan)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each coordinate of a message; 0 without noise."""
        return 0.0 if self.plan is None else self.plan.sigma

    @property
    def budget(self) -> Mapping[Relation, float]:
        """mu_B of a client's total over its run."""
        return {} if self.plan is None else {self.plan.relation: self.plan.budget}

    @property
    def step(self) -> float:
        """Grid that noised messages are rounded to."""
        return message_step(self.sigma, self.grid(1).largest)

    def grid(self, num_clients: int) -> SumGrid:
        """The fixed-point grid of the sums."""
        is_gradient = self.mechanism == "gradient"
        return SumGrid.of(
            num_clients,
            bound=self.bound,
            sigma=self.sigma,
            scale=1.0 if is_gradient else self.modulation.scale,
            amplitude=self.modulation.amplitude,
            largest_label=self.largest_label,
        )

    def _check_plan(self, plan: MessagePlan) -> None:
        if self.mechanism == "gradient":
            least, relation = 2 * self.bound, "record"
        else:
            least = modulation_sensitivity(
                self.bound,
                alpha=self.modulation.alpha,
                amplitude=self.modulation.amplitude,
                frequency=self.modulation.frequency,
                num_directions=self.modulation.num_directions,
                rule=plan.rule,
            )
            relation = "attribute" if self.label_scale is None else "record"
        if plan.sensitivity < least:
            raise ValueError(
                f"the plan's sensitivity {plan.sensitivity!r} is below the {least!r} of messages clipped to "
                f"{self.bound!r}: plan with the same constants."
            )
        if plan.relation != relation:
            raise ValueError(
                f"the plan's relation {plan.relation!r} is not that of these messages: with label_scale = "
                f"{self.label_scale!r} give {relation!r}."
            )
