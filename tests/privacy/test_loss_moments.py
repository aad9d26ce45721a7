"""Moments of losses add over clients and lose no digits."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.privacy import LossMoments, NotAdditive


def exact(losses):
    """Mean differences and centred sums of squares in rational arithmetic."""
    rows = [[Fraction(float(x)) for x in row] for row in losses]
    n, m = len(rows), len(rows[0])
    gaps, scatter = np.zeros((m, m)), np.zeros((m, m))
    for j in range(m):
        for k in range(m):
            difference = [row[j] - row[k] for row in rows]
            mean = sum(difference) / n
            gaps[j, k] = mean
            scatter[j, k] = sum((d - mean) ** 2 for d in difference)
    return gaps, scatter


def losses_apart(seed, scales, n=40):
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(n, len(scales))) * np.array(scales)


small_losses = st.integers(1, 4).flatmap(
    lambda m: st.lists(
        st.lists(st.floats(-1e4, 1e4, width=32), min_size=m, max_size=m), min_size=2, max_size=12
    )
)


@given(small_losses, st.data())
def test_moments_are_those_of_rational_arithmetic_however_records_are_split(rows, data):
    cut = data.draw(st.integers(1, len(rows) - 1))
    gaps, scatter = exact(rows)
    size = max(1.0, np.abs(rows).max())
    for moments in (
        LossMoments.from_losses(rows),
        LossMoments.from_losses(rows[:cut]) + LossMoments.from_losses(rows[cut:]),
    ):
        assert moments.count == len(rows)
        np.testing.assert_allclose(moments.gaps, gaps, rtol=1e-13, atol=1e-15 * size)
        np.testing.assert_allclose(moments.scatter, scatter, rtol=1e-12, atol=1e-28 * size**2 * len(rows))


@pytest.mark.parametrize("reference", [0, 1, 2])
def test_a_reference_with_losses_10_000_times_larger_costs_no_digits(reference):
    losses = losses_apart(3, [1e4, 1.0, 1.0])
    losses[:, 2] = losses[:, 1] + 1e-3 + 1e-2 * losses[:, 2]
    _, scatter = exact(losses)
    parts = [LossMoments.from_losses(part, reference) for part in np.array_split(losses, [1, 4, 11])]
    moments = parts[0] + parts[1] + parts[2] + parts[3]
    np.testing.assert_allclose(moments.scatter, scatter, rtol=1e-12)


def test_sums_with_the_reference_are_those_of_the_specification():
    losses = losses_apart(5, [1.0, 2.0, 3.0, 0.5])
    moments = LossMoments.from_losses(losses[:7], 2) + LossMoments.from_losses(losses[7:], 2)
    difference = losses - losses[:, [2]]
    np.testing.assert_allclose(moments.total, difference.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.second, difference.T @ difference, rtol=1e-11, atol=1e-11)


def test_many_records_are_taken_in_blocks_with_the_same_result(monkeypatch):
    losses = losses_apart(6, [1.0, 2.0, 3.0], n=500)
    whole = LossMoments.from_losses(losses)
    monkeypatch.setattr("fedveil.privacy.loss_moments._BLOCK", 90)
    blocks = LossMoments.from_losses(losses)
    assert blocks.count == 500
    np.testing.assert_allclose(blocks.gaps, whole.gaps, rtol=1e-12)
    np.testing.assert_allclose(blocks.scatter, whole.scatter, rtol=1e-12)
    np.testing.assert_allclose(blocks.rounding, whole.rounding, rtol=1e-12)


@pytest.mark.parametrize("type_", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.25, 1.0, 3.0])
def test_losses_that_differ_by_a_constant_have_no_variance_in_any_precision(type_, shift):
    first = np.random.default_rng(0).exponential(size=400)
    moments = LossMoments.from_losses(np.column_stack([first, first + shift]).astype(type_))
    assert moments.variances[0, 1] == 0
    assert not moments.alike[0, 1]


def test_losses_that_differ_by_rounding_alone_are_alike_and_by_more_are_not():
    first = np.random.default_rng(0).exponential(size=400)
    near = np.nextafter(first, np.inf)
    far = first * (1 + 1e-12 * np.random.default_rng(1).standard_normal(400))
    alike = LossMoments.from_losses(np.column_stack([first, near, far])).alike
    assert alike.tolist() == [[True, True, False], [True, True, False], [False, False, True]]


@pytest.mark.parametrize(
    ("others", "reference", "says"),
    [(3, 1, "reference candidate 0 and 1"), (4, 0, "number of candidates 3 and 4")],
)
def test_moments_of_other_candidates_or_another_reference_do_not_add(others, reference, says):
    with pytest.raises(NotAdditive, match=says):
        LossMoments.from_losses(np.ones((2, 3))) + LossMoments.from_losses(np.ones((2, others)), reference)
    with pytest.raises(TypeError):
        LossMoments.from_losses(np.ones((2, 3))) + 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_refused_with_its_candidate(bad):
    losses = np.ones((4, 5))
    losses[2, 3] = bad
    with pytest.raises(ValueError, match="Candidate 3 has a loss that is not finite"):
        LossMoments.from_losses(losses)


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        (np.zeros((3, 0)), r"shape \(3, 0\)"),
        (np.zeros(3), r"shape \(3,\)"),
        ([["a", "b"]], "give numbers"),
        ([[1e200, 0.0]], "clip the losses"),
    ],
)
def test_what_are_no_losses_is_refused(losses, says):
    with pytest.raises(ValueError, match=says):
        LossMoments.from_losses(losses)


@pytest.mark.parametrize("reference", [-1, 2, 0.5, True])
def test_a_reference_that_is_no_candidate_is_refused(reference):
    with pytest.raises(ValueError, match="reference"):
        LossMoments.from_losses(np.ones((4, 2)), reference)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("gaps", [[0.0, 1.0], [1.0, 0.0]], "antisymmetric"),
        ("scatter", [[0.0, -1.0], [-1.0, 0.0]], "scatter"),
        ("scatter", [[0.0, 1.0], [2.0, 0.0]], "scatter"),
        ("scatter", [[0.0]], "shape"),
        ("rounding", [-1.0, 0.0], "rounding"),
        ("count", 0, "count"),
    ],
)
def test_arrays_that_are_no_moments_are_refused(field, value, says):
    good = LossMoments.from_losses(losses_apart(1, [1.0, 2.0]))
    fields = {
        "count": good.count,
        "gaps": good.gaps,
        "scatter": good.scatter,
        "rounding": good.rounding,
        "reference": 0,
    }
    assert LossMoments(**fields).count == 40
    with pytest.raises(ValueError, match=says):
        LossMoments(**{**fields, field: np.array(value) if isinstance(value, list) else value})
