"""What modulation and noise add to second moments, and must be subtracted: one correction a kind of message.

A message is c x + a sum_j A_j v_j + N(0, sigma^2 I), A_j arcsine on [-1, 1], a = lambda/sqrt(m), so beside c x it
has covariance and fourth cumulant (contracted with beta twice)

    M = sigma^2 I + (a^2/2) sum_j v_j v_j',     -(3/8) a^4 sum_j (v_j' beta)^2 v_j v_j'
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import non_negative, whole


@dataclass(frozen=True, eq=False)
class Correction:
    """Noise and modulation of `count` messages that are alike.

    Parameters
    ----------
    count : int
        Number of messages, at least 1.
    sigma : float
        Standard deviation >= 0 of the Gaussian noise on each noised coordinate of a message.
    amplitude : float
        lambda >= 0: each of the m directions has amplitude a = lambda/sqrt(m).
    directions : float64 array of shape (m, d)
        Unit rows v_j, m >= 0. They are orthonormal for one message; a message that is the average of one
        client's messages of several rounds has the directions of all of them (`averaged`).
    intercept : bool
        Whether the last coordinate is the constant 1, which is neither noised nor modulated.

    Raises
    ------
    ValueError
        When a number is outside its range or the rows are not unit vectors.
    """

    count: int
    sigma: float
    amplitude: float
    directions: NDArray[np.float64]
    intercept: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        whole("count", self.count, minimum=1)
        for field in ("sigma", "amplitude"):
            object.__setattr__(self, field, non_negative(field, getattr(self, field)))
        rows = real_array("directions", self.directions, shape=(None, None))
        if len(rows) and np.abs((rows * rows).sum(axis=1) - 1).max() > 1e-9:
            raise ValueError("directions are not of length 1: give unit rows.")
        if self.intercept and len(rows) and np.abs(rows[:, -1]).max() > 0:
            raise ValueError(
                "directions reach the intercept, which is not modulated: give rows that end in 0."
            )
        object.__setattr__(self, "directions", rows)

    @property
    def dimension(self) -> int:
        """Length of a message, with the intercept if there is one."""
        return self.directions.shape[1]

    @property
    def direction_amplitude(self) -> float:
        """Amplitude a = lambda/sqrt(m) of each direction; 0 without directions."""
        return self.amplitude / math.sqrt(len(self.directions)) if len(self.directions) else 0.0

    @property
    def covariance(self) -> NDArray[np.float64]:
        """M of one message, shape (d, d): what a message has beside c x; the row and column of an intercept are 0."""
        matrix: NDArray[np.float64] = self.direction_amplitude**2 / 2 * (self.directions.T @ self.directions)
        noised = self.dimension - self.intercept
        matrix[range(noised), range(noised)] += self.sigma**2
        return matrix

    def fourth_cumulant(self, beta: NDArray[np.float64]) -> NDArray[np.float64]:
        """-(3/8) a^4 sum_j (v_j' beta)^2 v_j v_j' of one message, shape (d, d)."""
        weights = self.directions @ beta
        cumulant: NDArray[np.float64] = (
            -3 / 8 * self.direction_amplitude**4 * (self.directions.T * weights**2) @ self.directions
        )
        return cumulant

    def with_intercept(self) -> "Correction":
        """The same for messages followed by the constant coordinate."""
        if self.intercept:
            raise ValueError("The correction has an intercept already: use it as it is.")
        padded = np.column_stack([self.directions, np.zeros(len(self.directions))])
        return replace(self, directions=padded, intercept=True)

    @property
    def law(self) -> tuple[object, ...]:
        """All but the count, as a key: messages of equal laws have one correction together."""
        return self.sigma, self.amplitude, self.intercept, self.directions.shape, self.directions.tobytes()


def averaged(corrections: Sequence[Correction], count: int) -> Correction:
    """Correction of `count` messages, each the average of t messages of one client, one of each kind given.

    Noise and phases are fresh for every message, so the average of the t has covariance sum_s M_s/t^2, and amplitude
    a/t along each of all t m directions: sigma' = sqrt(sum_s sigma_s^2)/t and lambda' = lambda/sqrt(t).

    Parameters
    ----------
    corrections : sequence of Correction
        t >= 1 of them, of equal amplitude and number of directions; their counts are not used.
    count : int
        Number of averages, at least 1.

    Returns
    -------
    Correction

    Raises
    ------
    ValueError
        When there is none or they differ in amplitude, directions or intercept.
    """
    if not corrections:
        raise ValueError("No messages to average: give the correction of at least one.")
    if len({(one.amplitude, one.directions.shape, one.intercept) for one in corrections}) > 1:
        raise ValueError(
            "Messages of different amplitude or number of directions were averaged: average those of one setting."
        )
    t = len(corrections)
    return Correction(
        count=count,
        sigma=math.hypot(*(one.sigma for one in corrections)) / t,
        amplitude=corrections[0].amplitude / math.sqrt(t),
        directions=np.concatenate([one.directions for one in corrections]),
        intercept=corrections[0].intercept,
    )


def merged(corrections: Sequence[Correction]) -> tuple[Correction, ...]:
    """Corrections with those of the same law added up, in order of first appearance."""
    counts: dict[tuple[object, ...], int] = {}
    kinds: dict[tuple[object, ...], Correction] = {}
    for one in corrections:
        kinds.setdefault(one.law, one)
        counts[one.law] = counts.get(one.law, 0) + one.count
    return tuple(replace(one, count=counts[law]) for law, one in kinds.items())
