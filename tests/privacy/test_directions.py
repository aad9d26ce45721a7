"""Directions are orthonormal, orthogonal to the model, uniform, and checked."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import check_directions, draw_directions


@settings(max_examples=60, deadline=None)
@given(
    d=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e300]),
    data=st.data(),
)
def test_drawn_directions_are_orthonormal_and_orthogonal_to_the_slopes(d, seed, size, data):
    m = data.draw(st.integers(0, d - 1))
    rng = np.random.default_rng(seed)
    beta = size * rng.uniform(-1, 1, d)
    rows = draw_directions(m, d, rng.standard_normal, orthogonal_to=beta)
    assert rows.shape == (m, d)
    np.testing.assert_allclose(rows @ rows.T, np.eye(m), atol=1e-12)
    if size:
        np.testing.assert_allclose(rows @ (beta / np.abs(beta).max()), 0, atol=1e-12)
    np.testing.assert_array_equal(check_directions(rows, d), rows)


def test_drawn_directions_are_uniform_on_what_is_orthogonal_to_the_slopes():
    """The mean of v v' is the projection over its dimension; each entry within 5 standard errors (at most 1e-5)."""
    rng = np.random.default_rng(5)
    beta = np.array([1.0, 2.0, 0.0, -1.0])
    draws = np.stack([draw_directions(2, 4, rng.standard_normal, orthogonal_to=beta) for _ in range(3000)])
    expected = (np.eye(4) - np.outer(beta, beta) / 6) / 3
    for j in range(2):
        squares = draws[:, j, :, None] * draws[:, j, None, :]
        error = squares.std(axis=0) / math.sqrt(len(draws))
        assert (np.abs(squares.mean(axis=0) - expected) < 5 * error + 1e-12).all()
        assert (np.abs(draws[:, j].mean(axis=0)) < 5 / math.sqrt(3000)).all()


def test_rows_columns_and_a_single_vector_are_understood():
    rows = np.eye(4)[:2]
    np.testing.assert_array_equal(check_directions(rows.T, 4), rows)
    np.testing.assert_array_equal(check_directions(rows[0], 4), rows[:1])
    np.testing.assert_array_equal(check_directions(rows.astype(np.int64).tolist(), 4), rows)
    for none in (np.zeros((0, 4)), np.zeros((4, 0))):
        assert check_directions(none, 4).shape == (0, 4)
    assert check_directions(np.zeros((0, 1)), 1).shape == (0, 1)


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (np.eye(3), "3 directions for 3 features are too many: give at most 2"),
        (np.eye(3)[:2, :2], "do not fit 3 features"),
        (np.zeros((2, 3, 1)), "do not fit 3 features"),
        (np.ones(2), "do not fit 3 features"),
        ([[1, 0, 0], [1, 0, 0]], "away from orthonormal"),
        ([[1 + 1e-8, 0, 0]], "away from orthonormal"),
        ([[0.0, 0.0, 0.0]], "away from orthonormal"),
        ([[math.nan, 0, 0]], "NaN or infinity"),
        ([[1j, 0, 0]], "give real numbers"),
    ],
)
def test_directions_that_are_not_orthonormal_rows_are_refused(directions, message):
    with pytest.raises(ValueError, match=message):
        check_directions(directions, 3)


def test_draws_that_cannot_be_made_are_refused():
    normal = np.random.default_rng(0).standard_normal
    with pytest.raises(ValueError, match="num_directions = 3 is not allowed for 3 features: give at most 2"):
        draw_directions(3, 3, normal)
    with pytest.raises(ValueError, match="num_directions = -1"):
        draw_directions(-1, 3, normal)
    with pytest.raises(ValueError, match="not independent"):
        draw_directions(2, 3, np.ones)
    with pytest.raises(ValueError, match=r"normals have shape \(2,\)"):
        draw_directions(1, 3, lambda shape: np.ones(2))
    with pytest.raises(ValueError, match=r"orthogonal_to have shape \(2,\)"):
        draw_directions(1, 3, normal, orthogonal_to=[1, 2])
    with pytest.raises(ValueError, match="NaN or infinity"):
        draw_directions(1, 3, normal, orthogonal_to=[1, math.nan, 0])
