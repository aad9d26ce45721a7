"""The interval over clients from noised moments: a jackknife by brute force, its coverage, and when there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t as student

from fedveil.privacy import LossRelease, NotAdditive, ReleasedMoments, released_interval

SIZES = (60, 40, 80, 60, 60, 50, 70)


def losses_of(rng: np.random.Generator, n: int, gaps: tuple[float, ...] = (0.2, 0.35)) -> NDArray[np.float64]:
    """Losses whose differences with the first column are normal with deviation 1."""
    return np.column_stack([np.zeros(n), *(gap + rng.normal(size=n) for gap in gaps)])


def release(losses: NDArray[np.float64], rng: np.random.Generator, mu: float) -> ReleasedMoments:
    """One client's release."""
    plan = LossRelease.planned(len(losses), losses.shape[1] - 1, 4.0, {"record": mu})
    return plan.read(plan.vector(losses) + plan.sigma * rng.normal(size=plan.size))


def town(seed: int, mu: float = 6.0, sizes: tuple[int, ...] = SIZES) -> list[ReleasedMoments]:
    rng = np.random.default_rng(seed)
    return [release(losses_of(rng, n), rng, mu) for n in sizes]


def z_values(clients: list[ReleasedMoments], best: int) -> dict[int, float]:
    """gap/sd of each candidate with the best, one at a time; NaN where the variance is not above 0."""
    n, q = sum(one.count for one in clients), len(clients[0].total)
    mean = [0.0, *(sum(one.total[k] for one in clients) / n for k in range(q))]
    noise = sum(one.noise for one in clients) / n**2

    def square(j: int, k: int) -> float:
        if 0 in (j, k):
            return 0.0
        return sum(one.second[j - 1, k - 1] for one in clients) / n

    found = {}
    for k in range(q + 1):
        if k != best:
            gap = mean[k] - mean[best]
            free = (noise if k else 0.0) + (noise if best else 0.0)
            variance = square(k, k) + square(best, best) - 2 * square(k, best) - (gap**2 - free)
            found[k] = gap / math.sqrt(variance) if variance > 0 else math.nan
    return found


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_jackknife_written_out_for_each_pair(seed: int) -> None:
    clients = town(seed)
    pooled = sum(clients[1:], clients[0])
    found = pooled.indicator()
    assert all(found.identified)
    best, m = found.best, len(clients)
    whole = z_values(clients, best)
    sizes = [one.count for one in clients]
    effective = sum(sizes) ** 2 / sum(n**2 for n in sizes)
    quantile = student.ppf(1 - 0.05 / (2 * 3), effective - 1)
    lows, highs = [], []
    for k, z in whole.items():
        rest = [z_values(clients[:i] + clients[i + 1 :], best)[k] for i in range(m)]
        margin = quantile * math.sqrt((m - 1) / m * sum((value - z) ** 2 for value in rest))
        lows.append(max(0.0, abs(z) - margin) ** 2 / 2)
        highs.append((abs(z) + margin) ** 2 / 2)
    interval = released_interval(clients)
    assert interval.low == pytest.approx(min(lows), rel=1e-9)
    assert interval.high == pytest.approx(min(highs), rel=1e-9)
    assert (interval.num_units, interval.unit, interval.level) == (m, "clients", 0.95)


@pytest.mark.parametrize(
    ("mu", "sizes"), [(50.0, (60,) * 8), (6.0, (60,) * 8), (6.0, SIZES), (3.0, (200,) * 12)]
)
def test_it_covers_the_true_value_in_93_of_100_cases_or_more(mu: float, sizes: tuple[int, ...]) -> None:
    """300 towns; at true coverage 0.95, 263 or fewer are covered with probability 1e-6."""
    truth = 0.5 * 0.2**2  # unclipped: a norm of 4 is passed by a record in 2,000
    covered = 0
    for seed in range(300):
        interval = released_interval(town(1000 + seed, mu, sizes))
        covered += not interval.is_given or interval.low <= truth <= interval.high
    assert covered >= 264


def test_where_noise_hides_a_pair_it_bounds_nothing() -> None:
    """One pair of each client is exact, the other has a noise as large as it is."""
    clients = town(3)
    hidden = [
        ReleasedMoments(
            one.count,
            one.total,
            one.second * np.array([[1.0, 0.0], [0.0, 0.0]]),
            one.clip_norm,
            one.noise,
        )
        for one in clients
    ]
    alone = [
        ReleasedMoments(one.count, one.total[:1], one.second[:1, :1], one.clip_norm, one.noise)
        for one in clients
    ]
    interval, single = released_interval(hidden), released_interval(alone)
    assert interval.low == 0.0
    assert math.isfinite(interval.high)
    assert interval.high >= single.high  # the quantile is that of more pairs


def test_fewer_than_five_clients_have_no_interval() -> None:
    interval = released_interval(town(1)[:4])
    assert not interval.is_given
    assert interval.statement == "No interval for r_Q: 4 clients are fewer than 5."


def test_clients_worth_fewer_than_two_have_no_interval() -> None:
    interval = released_interval(town(1, sizes=(4000, 5, 5, 5, 5, 5)))
    assert not interval.is_given
    assert "fewer than 2" in interval.statement


def test_where_nothing_is_identified_there_is_no_interval() -> None:
    interval = released_interval(town(1, mu=0.01))
    assert not interval.is_given
    assert "hides every variance" in interval.statement


def test_clients_of_other_clip_norms_do_not_add() -> None:
    clients = town(1)
    other = ReleasedMoments(10, np.zeros(2), np.eye(2), 1.0, 1.0)
    with pytest.raises(NotAdditive):
        released_interval([*clients, other])


def test_no_client_is_an_error() -> None:
    with pytest.raises(ValueError, match="no clients"):
        released_interval([])
