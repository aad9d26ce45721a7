"""One synthetic problem: trained, attacked by the baseline, and read by r_Q with every quantizer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from baseline import features_of, security_of
from indicator import QUANTIZERS, Reading, entropy_of, frozen_candidates, own_candidates, published, read
from numpy.typing import NDArray
from problems import CHECKPOINTS, Population, Problem, logistic_losses, train
from threadpoolctl import threadpool_limits

from fedveil.privacy import record_interval

PUBLIC = 2000  # records that r_Q is computed on
CALIBRATION = 200  # runs by which the attacker knows the population
INTERVALS = 5  # runs whose intervals are computed
SUBSETS = 12  # draws of few runs, by which stability is told
BASELINE_SIZES = (15, 30, 60, 100, 150, 250, 350, 500)
ALL, LATE, OWN, OWN_LATE = "all", "late", "own", "own late"
HALF = CHECKPOINTS // 2


@dataclass
class Found:
    """What came of one problem; arrays have a row for each quantizer."""

    problem: Problem
    accuracy_by_run: NDArray[np.float64]  # of the discriminator, (quantizers, runs)
    errors: NDArray[np.float64]  # standard errors of MIS
    readings: dict[str, list[Reading]]
    bounds: NDArray[np.float64]  # 95 % intervals of r_Q, frozen, (INTERVALS, quantizers, 2)
    entropy: NDArray[np.float64]
    accuracy: NDArray[np.float64]  # of the published models, on public records
    few: dict[int, list[NDArray[np.float64]]] = field(
        default_factory=dict
    )  # MIS from few runs, by their number

    @property
    def security(self) -> NDArray[np.float64]:
        """MIS before it is cut to [0, 1]: the cut would make ties."""
        return 2 * (1 - self.accuracy_by_run.mean(axis=1))

    def r_q(self, variant: str) -> NDArray[np.float64]:
        """Of each quantizer (row) and run."""
        return np.stack([one.r_q for one in self.readings[variant]])


def study(problem: Problem, attacked: int, read_runs: int) -> Found:
    """Train, attack and read all quantizers of one problem."""
    with threadpool_limits(1):
        began = time.monotonic()
        runs = train(problem, attacked + CALIBRATION, seed=1)
        rng = np.random.default_rng(2)
        public = Population.of(problem).draw(rng, (PUBLIC,))

        def losses(weights: NDArray[np.float32]) -> NDArray[np.float64]:
            return logistic_losses((public @ weights.T).astype(np.float64))

        final, short = runs.trajectory[:, -1], runs.trajectory[:read_runs]
        columns = []
        readings: dict[str, list[Reading]] = {ALL: [], LATE: [], OWN: [], OWN_LATE: []}
        few: dict[int, list[NDArray[np.float64]]] = {
            size: [] for size in BASELINE_SIZES if size <= attacked // 2
        }
        subsets = {size: [rng.choice(attacked, size, replace=False) for _ in range(SUBSETS)] for size in few}
        bounds = np.empty((INTERVALS, len(QUANTIZERS), 2))
        for place, name in enumerate(QUANTIZERS):
            weights, codes = published(final, name)
            features = features_of(runs, weights, codes, CALIBRATION)
            mis = security_of(features)
            for size, chosen in subsets.items():
                few[size].append(
                    np.array([2 * (1 - security_of(features[one]).balanced_accuracy) for one in chosen])
                )
            frozen, own = frozen_candidates(short, name), own_candidates(short, name)
            for variant, (candidates, since) in {
                ALL: (frozen, 0),
                LATE: (frozen, HALF),
                OWN: (own, 0),
                OWN_LATE: (own, HALF),
            }.items():
                readings[variant].append(read(*candidates, losses, since))
            for run in range(INTERVALS):
                told = record_interval(losses(frozen[0][run]))
                bounds[run, place] = told.low, told.high
            right = float((public @ weights[:50].T > 0).mean())
            columns.append((mis.accuracy_by_run, mis.standard_error, entropy_of(codes[:200]), right))
            print(
                f"{problem.title}  {name:16s} MIS {mis.security:.3f}  {time.monotonic() - began:.0f} s",
                flush=True,
            )
    by_run, errors, entropy, accuracy = (np.array(column) for column in zip(*columns, strict=True))
    return Found(problem, by_run, errors, readings, bounds, entropy, accuracy, few)
