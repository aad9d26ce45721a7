"""The error of r_Q read from private releases, against epsilon: measured beside predicted.

Made-up losses of a reference and three candidates, 0.06, 0.10 and 0.15 apart with deviation 0.3 (r_Q 0.02), which ten
clients release once; Lambda is the 99 % quantile of the differences on 1,000 public records. The whole epsilon is spent
on this release.

    python benchmarks/r_q_release.py [--page docs/membership.md]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trials import table, write_section

from fedveil.privacy import (
    LossMoments,
    LossRelease,
    clipped_differences,
    gaussian_mu,
    membership_indicator,
    public_clip_norm,
    release_deviation,
)

CLIENTS, TRIALS, DELTA = 10, 400, 1e-5


def losses(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    apart = np.array([0.0, 0.06, 0.10, 0.15])
    own = np.where(apart > 0, 0.3, 0.0) * rng.standard_normal((n, 4))
    return rng.exponential(size=(n, 1)) + apart + own


def cells(rng: np.random.Generator, n: int, epsilon: float) -> list[str]:
    """One row: n records a client."""
    norm = public_clip_norm(losses(rng, 1000), 0.99)
    rows = losses(rng, CLIENTS * n)
    exact = membership_indicator(LossMoments.from_losses(clipped_differences(rows, norm)))
    plan = LossRelease.planned(n, 3, norm, {"record": gaussian_mu(epsilon, DELTA)})
    vectors = [plan.vector(part) for part in np.split(rows, CLIENTS)]
    found = []
    for _ in range(TRIALS):
        noisy = [plan.read(one + plan.sigma * rng.standard_normal(plan.size)) for one in vectors]
        whole = noisy[0]
        for one in noisy[1:]:
            whole = whole + one
        found.append(whole.indicator())
    values = np.array([one.r_q for one in found])
    seen = ~np.isnan(values)
    due = release_deviation(
        exact.gap, exact.deviation, num_records=CLIENTS * n, clip_norm=norm, noise=CLIENTS * plan.sigma**2
    )
    error = math.sqrt(float(np.mean((values[seen] - exact.r_q) ** 2))) if seen.any() else math.nan
    middle = [float(np.median([getattr(one, name) for one in found])) for name in ("low", "high")]
    return [
        f"{n}",
        f"{epsilon:g}",
        f"{exact.r_q:.4f}",
        f"{error:.4f}",
        f"{due:.4f}",
        f"{100 * (1 - seen.mean()):.0f} %",
        f"{middle[0]:.4f} to {middle[1]:.3g}",
    ]


HEADER = (
    "records a client",
    "epsilon",
    "r_Q without noise",
    "error",
    "predicted for its pair",
    "not identified",
    "95 % interval, medians of its ends",
)


def main() -> None:
    """Print the table, and put it into a page when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="a page whose section `release` is replaced")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    text = table(HEADER, [cells(rng, n, eps) for n in (100, 500, 5000) for eps in (0.25, 0.5, 1, 2, 4, 8)])
    print(text)
    if options.page is not None:
        write_section(options.page, "release", text)


if __name__ == "__main__":
    main()
