"""The exact law: with secret uniform phases the wave says nothing of the record."""

import math

import numpy as np
import pytest
from scipy.stats import arcsine, ks_2samp, kstest

from fedveil.privacy import draw_directions, modulate

N = 20_000


@pytest.mark.parametrize("frequency", [0.0, 0.3, 1.0, 40.0])
@pytest.mark.parametrize("seed", range(4))
def test_each_wave_has_the_arcsine_law_whatever_the_record_and_the_frequency(seed, frequency):
    """Kolmogorov-Smirnov at 1e-4: false alarm 0.5 % for all 48 of them."""
    rng = np.random.default_rng([seed, int(10 * frequency)])
    x = seed * rng.standard_normal(5)
    directions = draw_directions(3, 5, rng.standard_normal)
    messages = modulate(
        np.tile(x, (N, 1)), directions, alpha=0.3, amplitude=2.0, frequency=frequency, rng=rng
    )
    waves = (messages - 0.7 * x) @ directions.T / (2 / math.sqrt(3))
    for wave in waves.T:
        assert kstest(wave, arcsine(-1, 2).cdf).pvalue > 1e-4


def test_waves_along_different_directions_are_independent():
    """Given the sign of one, the other has the same law: two-sample Kolmogorov-Smirnov at 1e-4, twice."""
    rng = np.random.default_rng(1)
    directions = draw_directions(2, 3, rng.standard_normal)
    x = np.tile([1.0, -0.5, 2.0], (N, 1))
    waves = (
        modulate(x, directions, alpha=0.3, amplitude=1.0, frequency=2.0, rng=rng) - 0.7 * x
    ) @ directions.T
    for one, other in (waves.T, waves.T[::-1]):
        assert ks_2samp(one[other > 0], one[other < 0]).pvalue > 1e-4
    # and of their squares, which would tell of a shared phase: a correlation has standard error 1/sqrt N
    assert abs(np.corrcoef((waves**2).T)[0, 1]) < 4.5 / math.sqrt(N)


@pytest.mark.parametrize("frequency", [0.5, 7.0])
def test_messages_of_two_neighbours_differ_by_their_records_alone(frequency):
    """Two-sample Kolmogorov-Smirnov at 1e-4 along each of 4 axes."""
    rng = np.random.default_rng(int(frequency))
    directions = draw_directions(1, 4, rng.standard_normal)
    neighbours = np.array([1.0, 0.0, -0.5, 0.3]), np.array([-0.2, 0.9, 0.0, 0.1])
    left = [
        modulate(np.tile(x, (N, 1)), directions, alpha=0.3, amplitude=3.0, frequency=frequency, rng=rng)
        - 0.7 * x
        for x in neighbours
    ]
    for axis in range(4):
        # without noise a coordinate orthogonal to the direction would be 0 on both sides but for rounding
        noise = 0.01 * rng.standard_normal((2, N))
        assert ks_2samp(left[0][:, axis] + noise[0], left[1][:, axis] + noise[1]).pvalue > 1e-4


def test_a_known_phase_tells_the_record():
    """The same phase for all: what is left after c x is one number, not an arcsine law, and it depends on x."""
    x = np.array([[0.8, 0.1], [-0.8, 0.1]])
    known = [
        modulate(x[i], [1.0, 0.0], alpha=0.3, amplitude=3.0, frequency=2.0, rng=np.random.default_rng(5))
        - 0.7 * x[i]
        for i in range(2)
    ]
    assert abs(known[0][0] - known[1][0]) > 0.5
