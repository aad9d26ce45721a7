"""Corrections: covariance and fourth cumulant of what a message has beside the record."""

import math

import numpy as np
import pytest

from fedveil.privacy import Correction, averaged, draw_directions


def test_the_covariance_is_noise_and_half_the_squared_amplitude_along_each_direction():
    one = Correction(10, 0.5, 2.0, np.array([[1.0, 0, 0], [0, 0.6, 0.8]]))
    a = 2 / math.sqrt(2)
    assert one.direction_amplitude == pytest.approx(a, rel=1e-15)
    expected = 0.25 * np.eye(3) + a**2 / 2 * np.array([[1, 0, 0], [0, 0.36, 0.48], [0, 0.48, 0.64]])
    np.testing.assert_allclose(one.covariance, expected, rtol=1e-14)
    beta = np.array([2.0, 1.0, -1.0])
    expected = np.zeros((3, 3))
    for v in one.directions:
        expected += -3 / 8 * a**4 * float(v @ beta) ** 2 * np.outer(v, v)
    np.testing.assert_allclose(one.fourth_cumulant(beta), expected, rtol=1e-14)


def test_without_a_wave_only_noise_is_left():
    for one in (Correction(1, 0.5, 0.0, np.eye(3)[:2]), Correction(1, 0.5, 0.0, np.zeros((0, 3)))):
        np.testing.assert_array_equal(one.covariance, 0.25 * np.eye(3))
        np.testing.assert_array_equal(one.fourth_cumulant(np.ones(3)), np.zeros((3, 3)))


def test_covariance_and_cumulant_of_an_average_are_those_of_independent_terms():
    """Of n independent terms both add; scaled by 1/t they fall with t^2 and t^4."""
    rng = np.random.default_rng(4)
    t, beta = 3, rng.standard_normal(5)
    rounds = [
        Correction(9, sigma, 1.5, draw_directions(2, 5, rng.standard_normal)) for sigma in (0.5, 1.0, 2.0)
    ]
    together = averaged(rounds, 7)
    assert (together.count, together.directions.shape) == (7, (6, 5))
    np.testing.assert_allclose(together.covariance, sum(one.covariance for one in rounds) / t**2, rtol=1e-13)
    np.testing.assert_allclose(
        together.fourth_cumulant(beta), sum(one.fourth_cumulant(beta) for one in rounds) / t**4, rtol=1e-13
    )
    alone = averaged(rounds[:1], 9)
    assert alone.law == rounds[0].law
    assert alone.count == 9


def test_the_intercept_is_neither_noised_nor_modulated():
    one = Correction(4, 0.5, 2.0, np.array([[0.6, 0.8]]))
    padded = one.with_intercept()
    assert (padded.dimension, padded.intercept) == (3, True)
    np.testing.assert_array_equal(padded.covariance[:2, :2], one.covariance)
    assert not padded.covariance[2].any()
    assert not padded.covariance[:, 2].any()
    with pytest.raises(ValueError, match="has an intercept already"):
        padded.with_intercept()


def test_corrections_that_cannot_be_are_refused():
    v = np.array([[1.0, 0.0]])
    for arguments, message in (
        ((0, 1.0, 1.0, v), "count = 0"),
        ((1, -1.0, 1.0, v), "sigma = -1.0"),
        ((1, 1.0, -1.0, v), "amplitude = -1.0"),
        ((1, 1.0, math.nan, v), "amplitude = nan"),
        ((1, 1.0, 1.0, 2 * v), "give unit rows"),
        ((1, 1.0, 1.0, v[0]), "directions have shape"),
        ((1, 1.0, 1.0, v[:, ::-1], True), "reach the intercept"),
    ):
        with pytest.raises(ValueError, match=message):
            Correction(*arguments)
    with pytest.raises(ValueError, match="No messages to average"):
        averaged([], 1)
    with pytest.raises(ValueError, match="average those of one setting"):
        averaged([Correction(1, 1.0, 1.0, v), Correction(1, 1.0, 2.0, v)], 1)
