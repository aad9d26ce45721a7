"""Comparing rankings of quantizers: rank correlations, their bootstrap intervals, and when a ranking is stable."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

Values = NDArray[np.float64]
STABLE = 0.9  # Kendall's tau with the final ranking


def spearman(a: Values, b: Values) -> float:
    """Correlation of ranks, ties averaged, infinities allowed; 0 where one of them ranks nothing."""
    first, second = rankdata(a), rankdata(b)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def kendall(a: Values, b: Values) -> float:
    """Kendall's tau-b; 0 where one of them ranks nothing."""
    tau = float(kendalltau(rankdata(a), rankdata(b)).statistic)
    return 0.0 if np.isnan(tau) else tau


def interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile interval."""
    low, high = np.quantile(list(values), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def told(value: float, bounds: tuple[float, float]) -> str:
    """A number with its interval, for a table."""
    return f"{value:.2f} [{bounds[0]:.2f}, {bounds[1]:.2f}]"


def over_runs(values: Values) -> Values:
    """Median over runs (last axis); an undefined r_Q, with no competitor at all, counts as infinite."""
    middle: Values = np.median(np.where(np.isnan(values), np.inf, values), axis=-1)
    return middle


def stability(
    values: Values, sizes: Iterable[int], rng: np.random.Generator, repeats: int
) -> dict[int, float]:
    """Mean Kendall tau of the ranking by few runs' median with the ranking by all, for each number of runs.

    Parameters
    ----------
    values : array of shape (quantizers, runs)
    sizes : ints
        How many to take, drawn without replacement; those above half of all are left out: they agree with the whole
        because they are the whole.
    """
    final, runs = over_runs(values), values.shape[1]
    taus = {}
    for size in sizes:
        if size <= runs // 2:
            chosen = [rng.choice(runs, size, replace=False) for _ in range(repeats)]
            taus[size] = float(np.mean([kendall(over_runs(values[:, one]), final) for one in chosen]))
    return taus


def runs_needed(taus: dict[int, float]) -> str:
    """The least number of runs from which on tau stays at 0.9 or more."""
    needed = None
    for size in sorted(taus, reverse=True):
        if taus[size] < STABLE:
            break
        needed = size
    return str(needed) if needed else f"> {max(taus)}"
