"""The Fisher information of a modulated direction: reference values, limits in closed form, and its order."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import pbdv

from fedveil.privacy import modulated_fisher_information

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["fisher_modulated_direction"]
ratios = st.floats(-3, 3).map(lambda power: 10.0**power)


@pytest.mark.parametrize("row", GOLDEN)
def test_it_equals_the_reference_values(row):
    assert modulated_fisher_information(row["amplitude"], row["sigma"]) == pytest.approx(
        row["information"], rel=1e-12
    )


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 40.0])
def test_without_modulation_it_is_the_gaussian_information(sigma):
    assert modulated_fisher_information(0, sigma) == pytest.approx(1 / sigma**2, rel=1e-15)
    for ratio in (1e-300, 1e-9, 1e-7):
        assert modulated_fisher_information(ratio * sigma, sigma) == pytest.approx(1 / sigma**2, rel=1e-12)


@pytest.mark.parametrize("ratio", [1e-3, 3e-3, 1e-2])
def test_a_small_amplitude_lowers_it_by_half_its_square(ratio):
    """The density's logarithm to second order: a Gaussian of variance sigma^2 + a^2/2, errors of order ratio^4."""
    assert 1 - modulated_fisher_information(ratio, 1) == pytest.approx(ratio**2 / 2, rel=ratio**2)


def test_a_large_amplitude_meets_the_law_of_its_edges():
    """Near an end the density is (2 a sigma)^(-1/2)/pi times the convolution of t^(-1/2) with a normal: a parabolic
    cylinder function D_{-1/2}. What the other end and the interior change is of relative order sigma/a."""

    def edge(z):
        value, slope = pbdv(-0.5, -z)
        height = math.exp(-z * z / 4) / math.sqrt(2)
        return (height * (-z / 2 * value - slope)) ** 2 / (height * value)

    tail = 1 / (6 * 50**1.5)  # beyond 50 the function is t^(-1/2), up to a relative 1/50^2
    constant = math.sqrt(2) / math.pi * (quad(edge, -9, 50, limit=400, epsabs=1e-12)[0] + tail)
    for ratio in (1e3, 1e4, 1e6, 1e9):
        information = modulated_fisher_information(ratio, 1) * math.sqrt(ratio)
        assert information == pytest.approx(constant, rel=0.3 / ratio + 1e-6)


@pytest.mark.parametrize("ratio", [0.07, 0.9, 6.0, 25.0])
def test_it_agrees_with_the_characteristic_function(ratio):
    """A second way to the density: the inverse Fourier transform of J_0(ratio k) exp(-k^2/2)."""
    frequencies = np.linspace(0, 9.0, 4001)
    characteristic = np.array([float(mpmath.besselj(0, ratio * k)) for k in frequencies]) * np.exp(
        -(frequencies**2) / 2
    )
    weights = np.full(frequencies.size, frequencies[1])
    weights[0] /= 2  # the integrand is even and flat at both ends: the trapezium rule is exact to rounding
    points = np.linspace(-(ratio + 7), ratio + 7, 2001)
    phase = np.outer(points, frequencies)
    density = np.cos(phase) @ (weights * characteristic) / math.pi
    slope = -np.sin(phase) @ (weights * characteristic * frequencies) / math.pi
    information = np.sum(slope**2 / density) * (points[1] - points[0])
    assert modulated_fisher_information(ratio, 1) == pytest.approx(information, rel=1e-7)


@given(ratio=ratios, sigma=st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_it_lies_between_the_inverse_variance_and_the_gaussian_information(ratio, sigma):
    information = modulated_fisher_information(ratio * sigma, sigma) * sigma**2
    assert 1 / (1 + ratio**2 / 2) * (1 - 1e-12) <= information <= 1 + 1e-12


@given(ratio=ratios, growth=st.floats(1.001, 3))
@settings(max_examples=60, deadline=None)
def test_it_falls_with_the_amplitude_and_with_the_noise(ratio, growth):
    here = modulated_fisher_information(ratio, 1)
    assert modulated_fisher_information(ratio * growth, 1) <= here * (1 + 1e-12)
    assert modulated_fisher_information(ratio, growth) <= here * (1 + 1e-12)


@given(ratio=ratios, unit=st.floats(1e-6, 1e6))
@settings(max_examples=40, deadline=None)
def test_it_scales_with_the_unit(ratio, unit):
    assert modulated_fisher_information(ratio * unit, unit) * unit**2 == pytest.approx(
        modulated_fisher_information(ratio, 1), rel=1e-9
    )


@pytest.mark.parametrize(
    ("amplitude", "sigma"),
    [(-1, 1), (math.nan, 1), (math.inf, 1), (1, 0), (1, -1), (1, math.inf), (True, 1), (1e300, 1e-300)],
)
def test_arguments_outside_their_range_are_refused(amplitude, sigma):
    with pytest.raises(ValueError, match="give"):
        modulated_fisher_information(amplitude, sigma)
