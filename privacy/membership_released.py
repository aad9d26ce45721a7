"""r_Q read from noised loss differences: noise is subtracted where it biases, and the interval holds it.

From the sums over K clients, n records in all, of clipped differences l with the reference and their second moments,
with noise of variance tau^2 = sum sigma_i^2 on each sum, the pair (j, k) has

    gap = (S_j - S_k)/n,  square = (S_jj + S_kk - 2 S_jk)/n,  Var = square - (gap^2 - v),  r = (gap^2 - v)/(2 Var)

v the noise variance of gap. gap^2 - v and Var are unbiased for those of the n records, and either may come out
negative: a negative gap^2 counts as 0, a Var that noise could have made means that the pair is not identified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import non_negative, positive, probability, whole
from fedveil.privacy.moments import NotAdditive


@dataclass(frozen=True, slots=True)
class ReleasedIndicator:
    """r_Q as anybody may read it from the releases.

    Parameters
    ----------
    r_q : float
        Estimate in [0, inf); NaN where no pair is identified.
    best, runner_up : int
        The pair that sets it: 0 is the reference, 1..q the candidates in the order of the release.
    low, high : float
        Simultaneous interval for r_Q of clipped differences: noise of the releases and sampling of records, taken
        as independent.
    level : float
        Of the interval, at least.
    num_records : int
        n over all clients.
    identified : tuple of bool
        For each candidate 0..q but the best (True there): whether its variance stands out of the noise.
    """

    r_q: float
    best: int
    runner_up: int | None
    low: float
    high: float
    level: float
    num_records: int
    identified: tuple[bool, ...]

    @property
    def statement(self) -> str:
        """One sentence to print."""
        basis = (
            f"{100 * self.level:g} % interval {self.low:.3g} to {self.high:.3g}, {self.num_records} records"
        )
        if math.isnan(self.r_q):
            return f"r_Q is not identified: the noise of the releases hides every variance ({basis})."
        if self.low == 0:
            return f"r_Q = {self.r_q:.3g}, which noise alone could give ({basis})."
        return f"r_Q = {self.r_q:.3g} ({basis})."


@dataclass(frozen=True, eq=False)
class ReleasedMoments:
    """Noised sums of clipped loss differences; they add over clients.

    Parameters
    ----------
    count : int
        n >= 1, records.
    total : float64 array of shape (q,)
        Sum of l, noised.
    second : float64 array of shape (q, q)
        Sum of l l', noised, symmetric.
    clip_norm : float
        Lambda > 0.
    noise : float
        tau^2 > 0: variance of the noise in each number of `total`; diagonal numbers of `second` have Lambda^2 tau^2,
        others half of it.

    Raises
    ------
    ValueError
        When shapes do not fit or a number is outside its range.
    """

    count: int
    total: NDArray[np.float64]
    second: NDArray[np.float64]
    clip_norm: float
    noise: float

    def __post_init__(self) -> None:
        """Check every field."""
        object.__setattr__(self, "count", whole("count", self.count, minimum=1))
        total = real_array("total", self.total, shape=(None,))
        q = whole("number of pairs", len(total), minimum=1)
        second = real_array("second", self.second, shape=(q, q))
        if not np.array_equal(second, second.T):
            raise ValueError("second is not symmetric: give the sum of l l'.")
        object.__setattr__(self, "total", total)
        object.__setattr__(self, "second", second)
        object.__setattr__(self, "clip_norm", positive("clip_norm", self.clip_norm))
        object.__setattr__(self, "noise", positive("noise", self.noise))

    def __add__(self, other: object) -> ReleasedMoments:
        """Moments of both.

        Raises
        ------
        NotAdditive
            When they differ in number of pairs or in Lambda.
        """
        if not isinstance(other, ReleasedMoments):
            return NotImplemented
        for what, mine, theirs in (
            ("number of pairs", len(self.total), len(other.total)),
            ("clip norm", self.clip_norm, other.clip_norm),
        ):
            if mine != theirs:
                raise NotAdditive(
                    f"Releases with {what} {mine:g} and {theirs:g} do not add: plan them alike on every client."
                )
        return ReleasedMoments(
            self.count + other.count,
            self.total + other.total,
            self.second + other.second,
            self.clip_norm,
            self.noise + other.noise,
        )

    def indicator(self, *, level: float = 0.95) -> ReleasedIndicator:
        """Read r_Q.

        Parameters
        ----------
        level : float
            In (0, 1), of the interval.

        Returns
        -------
        ReleasedIndicator
            The pair is the one of least r among the identified ones.
        """
        level = probability("level", level)
        n, q = self.count, len(self.total)
        means = np.concatenate([[0.0], self.total]) / n
        second = np.zeros((q + 1, q + 1))
        second[1:, 1:] = self.second / n
        best = int(np.argmin(means))
        others = np.delete(np.arange(q + 1), best)
        gap = means[others] - means[best]
        square = second[others, others] + second[best, best] - 2 * second[others, best]
        # how many of the two have sums of their own: the reference has none, hence no noise
        own = (others > 0).astype(np.float64) + (best > 0)
        unit = self.noise / n**2
        gap_noise = own * unit
        # a pair of candidates: two diagonal numbers and twice an off-diagonal one, 1 + 1 + 4/2
        square_noise = np.where(own == 2, 4.0, 1.0) * unit * self.clip_norm**2
        squared_gap = np.maximum(np.square(gap) - gap_noise, 0.0)
        variance = square - (np.square(gap) - gap_noise)
        wrong = square_noise + 2 * gap_noise * (gap_noise + 2 * squared_gap)  # of square, and of gap^2
        identified = variance > 2 * np.sqrt(wrong)
        rates = np.where(identified, squared_gap / np.where(identified, 2 * variance, 1.0), math.inf)
        bound = self.clip_norm * np.where(own == 2, math.sqrt(2), 1.0)  # of one record's difference
        low, high = _bounds(gap, gap_noise, square, square_noise, bound, n, 1 - (1 - level) / (4 * q))
        place = int(np.argmin(rates)) if identified.any() else None
        return ReleasedIndicator(
            r_q=math.nan if place is None else float(rates[place]),
            best=best,
            runner_up=None if place is None else int(others[place]),
            low=float(low.min()),
            high=float(high.min()),
            level=level,
            num_records=n,
            identified=tuple(np.insert(identified, best, True).tolist()),
        )


def release_deviation(
    gap: float, deviation: float, *, num_records: int, clip_norm: float, noise: float
) -> float:
    """Standard deviation that the noise of the releases gives r of one pair with the reference.

    By the delta method from r = gap^2/(2 (square - gap^2)), with the second-order term of gap^2, which is all there is
    where the gap is small:

        Var(r) = (g/V + g^3/V^2)^2 v + (g^2/(2V^2))^2 Lambda^2 v + v^2/(2V^2),  v = tau^2/n^2

    It predicts while the noise Lambda sqrt(v) of the variance is well below V, its square root; beyond that nothing is
    identified.

    Parameters
    ----------
    gap, deviation : float
        Mean g and standard deviation sqrt(V) > 0 of the clipped difference, from public records.
    num_records : int
        n over all clients.
    clip_norm : float
        Lambda.
    noise : float
        tau^2 >= 0, the sum of the clients' sigma^2.

    Returns
    -------
    float
    """
    n, norm = whole("num_records", num_records, minimum=1), positive("clip_norm", clip_norm)
    g, variance = abs(float(gap)), positive("deviation", deviation) ** 2
    v = non_negative("noise", noise) / n**2
    return math.sqrt(
        (g / variance + g**3 / variance**2) ** 2 * v
        + (g**2 / (2 * variance**2)) ** 2 * norm**2 * v
        + v**2 / (2 * variance**2)
    )


def _bounds(
    gap: NDArray[np.float64],
    gap_noise: NDArray[np.float64],
    square: NDArray[np.float64],
    square_noise: NDArray[np.float64],
    bound: NDArray[np.float64],
    n: int,
    level: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of r of each pair, from ends of the gap and of the mean square, each at a two-sided quantile of `level`.

    Sampling: Var(l) <= E l^2 and, with |l| <= B, Var(l^2) <= B^2 E l^2; so with x the root of the mean square,
    x^2 <= square + t (sqrt(noise) + B x/sqrt n), solved for x.
    """
    t = float(ndtri(level))
    slope = t * bound / math.sqrt(n)
    top = np.maximum(square + t * np.sqrt(square_noise), 0.0)
    most = np.square((slope + np.sqrt(np.square(slope) + 4 * top)) / 2)
    spread = np.sqrt(square_noise + np.square(bound) * most / n)
    least = np.maximum(square - t * spread, 0.0)
    error = t * np.sqrt(gap_noise + most / n)
    near, far = np.square(np.maximum(np.abs(gap) - error, 0.0)), np.square(np.abs(gap) + error)
    with np.errstate(divide="ignore"):
        low = np.where(
            near == 0, 0.0, np.where(most > near, near / np.maximum(2 * (most - near), 0.0), math.inf)
        )
        high = np.where(least > far, far / np.maximum(2 * (least - far), 0.0), math.inf)
    return low, high
