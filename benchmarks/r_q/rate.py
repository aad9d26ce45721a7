"""The rate of the publication's theorem where everything can be enumerated: slope of -log(1 - MIS) over n against r_Q.

A record is one of a few, a model one of a few codes with a loss for each record, and training picks the code of least
mean loss over n records, drawn independently; of equal ones the first. MIS is summed exactly over all counts of
records. Beside r_Q stands Cramer's rate min_k -log min_t E exp(t (l_1 - l_k)), the exact rate of a wrong choice, of
which r_Q is the Gaussian form.

    python benchmarks/r_q/rate.py [--page docs/r_q_study.md] [--small]
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from page import parser, publish, table
from ranking import spearman
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

from fedveil.attacks import membership_total_variation
from fedveil.privacy import LossMoments, membership_indicator

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A finite world.

    Attributes
    ----------
    weights : tuple of int
        Probabilities of the records in units of their sum.
    losses : tuple of tuple of float
        A row for each record, a column for each code.
    """

    name: str
    weights: tuple[int, ...]
    losses: tuple[tuple[float, ...], ...]

    @property
    def law(self) -> Values:
        weights = np.array(self.weights, dtype=np.float64)
        return weights / weights.sum()

    @property
    def table(self) -> Values:
        return np.array(self.losses)


def squares(points: tuple[float, ...], codes: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Squared error of predicting each point by each code: the quantized mean."""
    return tuple(tuple((x - code) ** 2 for code in codes) for x in points)


CASES = (
    Case("two codes, close", (11, 9), squares((0.0, 1.0), (0.0, 1.0))),
    Case("two codes", (3, 2), squares((0.0, 1.0), (0.0, 1.0))),
    Case("two codes, apart", (4, 1), squares((0.0, 1.0), (0.0, 1.0))),
    Case("three records, 1.58 bits", (4, 3, 5), squares((-1.0, 0.3, 1.0), (-1.0, 0.0, 1.0))),
    Case("three records, 2 bits", (4, 3, 5), squares((-1.0, 0.3, 1.0), (-1.0, -1 / 3, 1 / 3, 1.0))),
    Case(
        "three records, 3 bits", (4, 3, 5), squares((-1.0, 0.3, 1.0), tuple(np.linspace(-1, 1, 8).tolist()))
    ),
    Case(
        "three records, 4 bits", (4, 3, 5), squares((-1.0, 0.3, 1.0), tuple(np.linspace(-1, 1, 16).tolist()))
    ),
    Case("a rare heavy record", (18, 1, 1), squares((0.0, 1.0, 4.0), (0.0, 1.0, 2.0))),
)


def indicator(case: Case) -> float:
    """r_Q of the whole population: each record as often as its weight says."""
    records = np.repeat(case.table, case.weights, axis=0)
    return membership_indicator(LossMoments.from_losses(records)).r_q


def cramer(case: Case) -> float:
    """min over competitors k of -log min_t E exp(t (l_1 - l_k))."""
    mean = case.law @ case.table
    best = int(np.argmin(mean))
    rates = []
    for k in range(len(mean)):
        difference = case.table[:, best] - case.table[:, k]
        if k != best and difference.any():
            # never better: t may grow for ever, and only ties with probability are left
            found = minimize_scalar(
                lambda t, d=difference: math.log(case.law @ np.exp(np.minimum(t * d, 600))),
                bounds=(0, 100),
                method="bounded",
                options={"xatol": 1e-10},
            )
            rates.append(-float(found.fun))
    return min(rates)


def insecurity(case: Case, n: int) -> float:
    """1 - MIS of training on n records, summed over all counts of the n - 1 other records."""
    law, losses = case.law, case.table
    kinds = len(law)
    cuts = np.array(list(itertools.combinations(range(n - 1 + kinds - 1), kinds - 1)))
    edges = np.hstack([np.full((len(cuts), 1), -1), cuts, np.full((len(cuts), 1), n + kinds - 2)])
    counts = np.diff(edges, axis=1) - 1
    chance = np.exp(gammaln(n) - gammaln(counts + 1).sum(axis=1) + counts @ np.log(law))
    given = np.zeros((kinds, losses.shape[1]))
    for z in range(kinds):
        sums = counts @ losses + losses[z]
        # sums of the same numbers in another order differ in the last digits: those are ties
        least = sums.min(axis=1, keepdims=True)
        choice = np.argmax(sums <= least + 1e-9 * (1 + np.abs(least)), axis=1)
        given[z] = np.bincount(choice, weights=chance, minlength=losses.shape[1])
    return membership_total_variation(law, given / given.sum(axis=1, keepdims=True))


def slope(case: Case, most: int) -> tuple[float, float]:
    """Slope of -log(1 - MIS) over n by least squares in n and log n, and 1 - MIS at the largest n.

    The factor before the exponential is a power of n; without log n the slope would be off by about 1/n.
    """
    sizes = np.unique(np.linspace(most // 3, most, 25).astype(int))
    found = np.array([insecurity(case, int(n)) for n in sizes])
    design = np.stack([sizes, np.log(sizes), np.ones(len(sizes))], axis=1)
    return float(np.linalg.lstsq(design, -np.log(found), rcond=None)[0][0]), float(found[-1])


def main() -> None:
    arguments = parser(__doc__).parse_args()
    most = 60 if arguments.small else 240
    rows, slopes, read, exact = [], [], [], []
    for case in CASES:
        rate, last = slope(case, most)
        slopes.append(rate)
        read.append(indicator(case))
        exact.append(cramer(case))
        print(f"{case.name}: slope {rate:.4f}, r_Q {read[-1]:.4f}, Cramer {exact[-1]:.4f}", flush=True)
        ratio = f"{rate / read[-1]:.2f}"
        rows.append([case.name, f"{last:.2e}", f"{rate:.4f}", f"{read[-1]:.4f}", ratio, f"{exact[-1]:.4f}"])
    header = ["", f"1 - MIS at n = {most}", "slope", "r_Q", "slope / r_Q", "Cramer's rate"]
    text = table(header, rows)
    text += (
        f"\n\nSpearman of slope and r_Q {spearman(np.array(slopes), np.array(read)):.2f}, "
        f"of slope and Cramer's rate {spearman(np.array(slopes), np.array(exact)):.2f}."
    )
    publish(arguments.page, "rate", text)


if __name__ == "__main__":
    main()
