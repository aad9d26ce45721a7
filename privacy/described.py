"""How all of some messages were made, told in numbers: checked, and turned into their factor c and `Correction`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedveil.privacy.correction import Correction
from fedveil.privacy.directions import check_directions
from fedveil.privacy.domain import non_negative
from fedveil.privacy.modulation import scale_of


def described(
    count: int,
    dimension: int,
    *,
    directions: ArrayLike | None,
    alpha: float | None,
    amplitude: float | None,
    sigma: float | None,
) -> tuple[float, Correction]:
    """Return c = 1 - alpha and the correction of `count` messages that were made alike.

    Parameters
    ----------
    count, dimension : int
        K messages of d features.
    directions : array of shape (m, d) or None
        See `check_directions`; None only without a wave.
    alpha, amplitude, sigma : float or None
        As for `Modulation`, and the standard deviation >= 0 of the noise; None is an error.

    Returns
    -------
    scale : float
    correction : Correction

    Raises
    ------
    ValueError
        When something is missing or outside its range.
    """
    if alpha is None or amplitude is None or sigma is None:
        names = {"alpha": alpha, "amplitude": amplitude, "sigma": sigma}
        missing = ", ".join(name for name, value in names.items() if value is None)
        raise ValueError(
            f"{missing} not given for moments that do not know how their messages were made: give alpha, amplitude, "
            "directions and sigma, or make the moments with a modulation."
        )
    scale, amplitude = scale_of(alpha), non_negative("amplitude", amplitude)
    if directions is not None:
        rows = check_directions(directions, dimension)
    elif amplitude == 0:
        rows = np.zeros((0, dimension))
    else:
        raise ValueError(
            f"directions are missing for amplitude = {amplitude:g}: give an array of shape (m, {dimension})."
        )
    if amplitude > 0 and not len(rows):
        raise ValueError(
            f"amplitude = {amplitude:g} without directions is not allowed: give one or amplitude 0."
        )
    return scale, Correction(count, non_negative("sigma", sigma), amplitude, rows)


def refuse_contradiction(scale: float, corrections: Sequence[Correction], **told: Any) -> None:
    """Refuse what is told of messages that are known when it differs.

    Parameters
    ----------
    scale, corrections
        What is known: c = 1 - alpha and the corrections.
    **told
        Arguments of `described`, None where nothing is told.

    Raises
    ------
    ValueError
        When something told contradicts what is known, or is told of messages of several kinds.
    """
    given = {name: value for name, value in told.items() if value is not None}
    if not given:
        return
    names = ", ".join(given)
    if len(corrections) > 1:
        raise ValueError(
            f"{names} told of {len(corrections)} kinds of messages together, which the moments know: leave it out."
        )
    mine = corrections[0]
    known = {
        "directions": mine.directions,
        "alpha": 1 - scale,
        "amplitude": mine.amplitude,
        "sigma": mine.sigma,
    }
    told_scale, again = described(mine.count, mine.dimension, **{**known, **given})
    if again.law != mine.law or ("alpha" in given and told_scale != scale):
        raise ValueError(f"{names} contradict what the moments know of their messages: leave it out.")
