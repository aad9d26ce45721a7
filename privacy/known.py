"""What is known of a client from its own releases, and may therefore decide how its later steps are noised."""

from dataclasses import dataclass

from fedveil.privacy.domain import positive, share

__all__ = ["NOTHING", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """Released facts about one client; None for what is not known (yet).

    Parameters
    ----------
    contribution : float, optional
        R in [0, 1], the share of the model's utility that is due to the private attributes.
    attribute_clip_norm : float, optional
        C_p > 0 that the released quantiles have led to.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """

    contribution: float | None = None
    attribute_clip_norm: float | None = None

    def __post_init__(self) -> None:
        """Check both."""
        if self.contribution is not None:
            share("contribution", self.contribution)
        if self.attribute_clip_norm is not None:
            positive("attribute_clip_norm", self.attribute_clip_norm)


NOTHING = Known()
