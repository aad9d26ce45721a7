"""The rate of membership-inference security on cases small enough to enumerate, beside r_Q.

A learner picks, of a few configurations with known losses on a few kinds of records, the one of least total loss on n
records (the first among equals). All numbers of records of each kind are enumerated, so that
MIS = 1 - TV(law(theta_hat, member), law(theta_hat) x P) is exact, and its rate is the slope over n of
-log(1 - MIS) - 1/2 log n; the correction is the factor n^(-1/2) of the probability of a rare mean (Bahadur & Ranga Rao
1960). Beside it r_Q and the exponent of large deviations, min_k -log min_t E exp(-t (l_k - l_1)) (Cramer).

    python benchmarks/r_q_rate.py [--page docs/membership.md]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, ndtr
from trials import table, write_section

from fedveil.privacy import LossMoments, membership_indicator

Array = NDArray[np.float64]

LOGARITHMS = (4.0, 12.0)  # of the range of sizes, in units of 1/exponent
SIZES = 24
LARGEST = {2: 4000, 3: 900, 4: 160}  # numbers of records that can be enumerated, by kinds


@dataclass(frozen=True)
class Case:
    """Kinds of records: how many of `denominator` are of each, and their losses under each configuration."""

    name: str
    weights: tuple[int, ...]
    losses: tuple[tuple[float, ...], ...]  # (kinds, configurations)

    @property
    def shares(self) -> Array:
        return np.array(self.weights) / sum(self.weights)

    def r_q(self) -> float:
        """From a population that has the shares exactly."""
        rows = np.repeat(np.array(self.losses), self.weights, axis=0)
        return membership_indicator(LossMoments.from_losses(rows)).r_q

    def exponent(self) -> float:
        losses = np.array(self.losses)
        best = int(np.argmin(self.shares @ losses))
        return min(
            chernoff(self.shares, losses[:, k] - losses[:, best]) for k in range(losses.shape[1]) if k != best
        )

    def leak(self, n: int) -> float:
        """1 - MIS, by enumeration."""
        counts = compositions(n, len(self.weights))
        logs = gammaln(n + 1) - gammaln(counts + 1).sum(axis=1) + counts @ np.log(self.shares)
        totals = counts @ np.array(self.losses)
        picked = np.argmin(np.round(totals, 9), axis=1)
        weighted = np.exp(logs)[:, None] * (counts / n - self.shares)
        return sum(float(np.abs(weighted[picked == k].sum(axis=0)).sum()) for k in range(totals.shape[1])) / 2


CASES = (
    Case("two, small gap", (11, 9), ((0.0, 1.0), (1.0, 0.0))),
    Case("two, wider gap", (13, 7), ((0.0, 1.0), (1.0, 0.0))),
    Case("two, wide gap", (9, 1), ((0.0, 1.0), (1.0, 0.0))),
    Case("two, rare records where the best is much worse", (1, 19), ((4.0, 0.0), (0.0, 0.4))),
    Case("two, rare records where the best is much better", (1, 19), ((0.0, 10.0), (0.2, 0.0))),
    Case("two, three kinds", (5, 10, 3), ((0.0, 2.0), (0.5, 0.5), (2.0, 0.0))),
    Case(
        "three, the nearer in loss sets r_Q", (8, 6, 4), ((0.0, 1.0, 2.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))
    ),
    Case(
        "three, the farther in loss sets r_Q", (9, 6, 5), ((0.0, 0.2, 2.0), (0.2, 0.4, 0.0), (0.2, 0.2, 0.0))
    ),
    Case(
        "four, four kinds",
        (6, 5, 4, 3),
        ((0.0, 1.0, 1.0, 2.0), (0.0, 1.0, 0.0, 1.0), (1.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.0, 0.0)),
    ),
)


def compositions(n: int, kinds: int) -> NDArray[np.int64]:
    """All ways to share n records among kinds, shape (ways, kinds)."""
    if kinds == 1:
        return np.array([[n]])
    parts = []
    for first in range(n + 1):
        rest = compositions(n - first, kinds - 1)
        parts.append(np.column_stack([np.full(len(rest), first), rest]))
    return np.concatenate(parts)


def chernoff(shares: Array, difference: Array) -> float:
    """-log min_t E exp(-t d), the exponent with which a mean of d > 0 comes out negative."""
    found = minimize_scalar(
        lambda t: math.log(float(shares @ np.exp(-t * difference))),
        bounds=(0, 60),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return -float(found.fun)


def normal_leak(ratio: float, n: int) -> float:
    """1 - MIS of two configurations with normal differences of mean `ratio` and deviation 1, by quadrature."""
    places, weights = np.polynomial.hermite_e.hermegauss(200)
    given = ndtr(-((n - 1) * ratio + places + ratio) / math.sqrt(n - 1))
    return float(weights @ np.abs(given - ndtr(-ratio * math.sqrt(n)))) / math.sqrt(2 * math.pi)


def slope(
    leak: Callable[[int], float], exponent: float, largest: int
) -> tuple[tuple[int, int], float, float]:
    """Range of n; slope of -log(1 - MIS) over n, as it is and with the factor n^(-1/2) taken out."""
    first, last = (min(largest, math.ceil(place / exponent)) for place in LOGARITHMS)
    sizes = np.unique(np.linspace(max(8, min(first, last // 3)), last, SIZES).astype(int))
    logs = -np.log([leak(int(n)) for n in sizes])
    plain = float(np.polyfit(sizes, logs, 1)[0])
    return (int(sizes[0]), int(sizes[-1])), plain, float(np.polyfit(sizes, logs - np.log(sizes) / 2, 1)[0])


def rows() -> list[list[str]]:
    """One row a case."""
    found: list[tuple[str, float, float, Callable[[int], float], int]] = []
    for ratio in (0.1, 0.3):
        half = ratio**2 / 2
        found.append(("two, normal differences", half, half, partial(normal_leak, ratio), 4000))
    for case in CASES:
        found.append((case.name, case.r_q(), case.exponent(), case.leak, LARGEST[len(case.weights)]))
    cells = []
    for name, r_q, exponent, leak, largest in found:
        span, plain, rate = slope(leak, exponent, largest)
        cells.append(
            [
                name,
                f"{span[0]} to {span[1]}",
                f"{r_q:.4f}",
                f"{exponent:.4f}",
                f"{plain:.4f}",
                f"{rate:.4f}",
                f"{rate / exponent:.2f}",
                f"{rate / r_q:.2f}",
            ]
        )
    return cells


HEADER = (
    "configurations",
    "n",
    "r_Q",
    "Cramer exponent",
    "slope of -log(1 - MIS)",
    "rate",
    "rate/exponent",
    "rate/r_Q",
)


def main() -> None:
    """Print the table, and put it into a page when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="a page whose section `rate` is replaced")
    options = parser.parse_args()
    text = table(HEADER, rows())
    print(text)
    if options.page is not None:
        write_section(options.page, "rate", text)


if __name__ == "__main__":
    main()
