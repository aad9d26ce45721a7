"""From the fixed-point sums of a round to moments that know their noise, and the public grid of those sums."""

from __future__ import annotations

from fedveil.moment_sums import LARGEST_LABEL, SumGrid
from fedveil.privacy import MessagePlan, ModulatedMoments, Modulation
from fedveil.privacy.domain import positive
from fedveil.strategies.message_rounds import Collected, FloatArray

__all__ = ["message_grid", "moments_of"]


def message_grid(
    num_clients: int,
    *,
    plan: MessagePlan | None,
    modulation: Modulation,
    bound: float,
    label_scale: float | None,
    largest_label: float | None,
) -> SumGrid:
    """The grid of messages, the same as the nodes'.

    Parameters
    ----------
    modulation : Modulation
        Of amplitude 0 for messages without a wave.
    label_scale, largest_label : float or None
        The first where labels are noised; the second, where they arrive as they are, bounds their magnitude
        (None: 2^20).

    Raises
    ------
    ValueError
        If a number is outside its range, or both are given.
    """
    if label_scale is not None and largest_label is not None:
        raise ValueError(
            f"largest_label = {largest_label!r} is not allowed where labels are noised: their noise bounds them."
        )
    if label_scale is not None:
        positive("label_scale", label_scale)
        largest = None
    else:
        largest = LARGEST_LABEL if largest_label is None else positive("largest_label", largest_label)
    return SumGrid.of(
        num_clients,
        bound=positive("bound", bound),
        sigma=0.0 if plan is None else plan.sigma,
        scale=modulation.scale,
        amplitude=modulation.amplitude,
        largest_label=largest,
    )


def moments_of(
    collected: Collected,
    grid: SumGrid,
    *,
    plan: MessagePlan | None,
    modulation: Modulation,
    directions: FloatArray,
    label_scale: float | None,
) -> ModulatedMoments:
    """Moments of one round's messages, of which there is at least one."""
    real = {name: grid.to_real(name, values) for name, values in collected.sums.items()}
    return ModulatedMoments.from_sums(
        real["gram"],
        real["cross"],
        real["total"],
        float(real["labels"][0]),
        float(real["labels"][1]),
        len(collected.took_part),
        modulation=modulation,
        directions=directions,
        sigma=0.0 if plan is None else plan.sigma,
        label_scale=label_scale,
    )
