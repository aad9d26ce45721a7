"""Modulation: the formula, its two sensitivities, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import Modulation, draw_directions, modulate, modulated, modulation_sensitivity

PLAIN = {"alpha": 0.3, "amplitude": 0.5, "frequency": 1.0}


def clipped(rng, n, d, bound):
    x = rng.standard_normal((n, d)) * rng.uniform(0.1, 3, (n, 1))
    return x * np.minimum(1, bound / np.linalg.norm(x, axis=1))[:, None]


@pytest.mark.parametrize(("m", "d"), [(1, 2), (1, 5), (3, 5), (6, 7)])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_each_record_is_shrunk_and_gets_a_wave_along_each_direction(m, d, kind):
    rng = np.random.default_rng(m + d)
    x, phases = rng.standard_normal((20, d)).astype(kind), rng.uniform(0, 2 * math.pi, (20, m))
    directions = draw_directions(m, d, rng.standard_normal)
    modulation = Modulation(alpha=-0.4, amplitude=2.5, frequency=1.7, num_directions=m)
    messages = modulated(x, directions, phases, modulation)
    assert messages.dtype == np.float64
    for record, phi, message in zip(x.astype(np.float64), phases, messages):
        expected = 1.4 * record
        for v, angle in zip(directions, phi):
            expected = expected + 2.5 / math.sqrt(m) * math.cos(1.7 * float(record @ v) + angle) * v
        np.testing.assert_allclose(message, expected, rtol=1e-13, atol=1e-13)


def test_without_amplitude_the_record_is_only_shrunk():
    x = np.arange(6.0).reshape(2, 3)
    for directions in (np.zeros((0, 3)), np.eye(3)[:1]):
        phases = np.zeros((2, len(directions)))
        np.testing.assert_array_equal(modulated(x, directions, phases, Modulation(amplitude=0.0)), 0.7 * x)


def test_one_record_and_a_row_of_a_matrix_are_modulated_alike_with_fresh_phases_for_each():
    v = np.array([0.6, 0.8, 0.0])
    x = np.array([0.3, -0.2, 0.5])
    one = modulate(x, v, **PLAIN, rng=np.random.default_rng(3))
    assert one.shape == (3,)
    many = modulate(np.tile(x, (4, 1)), v[None], **PLAIN, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(many[0], one)
    assert len(np.unique(many[:, 0])) == 4
    np.testing.assert_array_equal(many[:, 2], np.full(4, many[0, 2]))  # no wave where no direction points
    again = modulate(x, v[:, None], **PLAIN, rng=np.random.default_rng(3))  # a column is a direction too
    np.testing.assert_array_equal(again, one)


def test_whole_numbers_are_records_too():
    record = modulate(np.array([1, 2, 0]), [0, 0, 1], **PLAIN, rng=np.random.default_rng(0))
    np.testing.assert_allclose(record[:2], [0.7, 1.4], rtol=1e-15)


def test_the_exact_sensitivity_is_twice_the_bound_times_c_whatever_the_wave():
    for alpha, amplitude, frequency, m in ((0.3, 0.5, 1, 1), (0.3, 0, 0, 1), (-2, 70, 9, 4), (1.7, 1, 1, 2)):
        assert modulation_sensitivity(
            1.5, alpha=alpha, amplitude=amplitude, frequency=frequency, num_directions=m
        ) == pytest.approx(3 * abs(1 - alpha), rel=1e-15)


def test_the_published_sensitivity_adds_the_slope_of_the_wave():
    published = modulation_sensitivity(
        2.0, alpha=0.3, amplitude=0.5, frequency=3.0, num_directions=4, rule="paper"
    )
    assert published == pytest.approx(2 * 2 * (0.7 + 0.5 * 3 / 2), rel=1e-15)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 4),
    alpha=st.floats(-2, 3).filter(lambda a: abs(a - 1) > 1e-3),
    amplitude=st.floats(0, 5),
    frequency=st.floats(0, 10),
    bound=st.floats(0.1, 10),
    label=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_with_known_phases_no_two_messages_are_farther_apart_than_published(
    m, alpha, amplitude, frequency, bound, label, seed
):
    rng = np.random.default_rng(seed)
    directions = draw_directions(m, 5, rng.standard_normal)
    modulation = Modulation(alpha, amplitude, frequency, m)
    # With label privacy the last coordinate is y/s, clipped jointly and shrunk without a wave.
    z, other = clipped(rng, 40, 5 + label, bound), clipped(rng, 40, 5 + label, bound)
    phases = rng.uniform(0, 2 * math.pi, (40, m))
    apart = modulated(z[:, :5], directions, phases, modulation) - modulated(
        other[:, :5], directions, phases, modulation
    )
    if label:
        apart = np.column_stack([apart, modulation.scale * (z - other)[:, 5:]])
    limit = modulation_sensitivity(
        bound, alpha=alpha, amplitude=amplitude, frequency=frequency, num_directions=m, rule="paper"
    )
    assert np.linalg.norm(apart, axis=1).max() <= limit * (1 + 1e-12)


def test_a_known_phase_can_come_as_near_to_the_published_sensitivity_as_wanted():
    """With phase -pi/2 the wave is a sine: of slope lambda omega at 0."""
    modulation = Modulation(alpha=0.9, amplitude=2.0, frequency=0.01)
    ends = np.array([[1.0, 0.0], [-1.0, 0.0]])
    phases = np.full((2, 1), -math.pi / 2)
    messages = modulated(ends, np.array([[1.0, 0.0]]), phases, modulation)
    rules = {
        rule: modulation_sensitivity(
            1.0, alpha=0.9, amplitude=2.0, frequency=0.01, num_directions=1, rule=rule
        )
        for rule in ("exact", "paper")
    }
    apart = np.linalg.norm(messages[0] - messages[1])
    assert apart == pytest.approx(2 * (0.1 + 2 * math.sin(0.01)), rel=1e-12)
    assert rules["exact"] * 1.19 < apart <= rules["paper"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 1}, "alpha = 1 is not allowed: the message would hold no record"),
        ({"alpha": math.nan}, "alpha = nan"),
        ({"alpha": math.inf}, "alpha = inf"),
        ({"alpha": "0.3"}, "alpha = '0.3'"),
        ({"amplitude": -0.1}, "amplitude = -0.1 is not allowed: give a finite number of at least 0"),
        ({"amplitude": math.inf}, "amplitude = inf"),
        ({"frequency": -1}, "frequency = -1"),
        ({"frequency": math.nan}, "frequency = nan"),
        ({"num_directions": 0}, "num_directions = 0"),
        ({"num_directions": 1.5}, "num_directions = 1.5"),
    ],
)
def test_constants_outside_their_range_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        Modulation(**change)
    with pytest.raises(ValueError, match=message):
        modulation_sensitivity(1.0, **{**PLAIN, "num_directions": 1, **change})


@pytest.mark.parametrize(
    ("x", "directions", "message"),
    [
        (np.zeros(3), np.eye(3), "3 directions for 3 features are too many: give at most 2"),
        (np.zeros(3), np.eye(3)[0] * 2, "away from orthonormal"),
        (np.zeros(3), np.eye(2)[:1], "do not fit 3 features"),
        (np.array([0.0, math.nan, 0]), np.eye(3)[:1], "x hold NaN or infinity"),
        (np.zeros((2, 2, 2)), np.eye(2)[:1], "x has shape"),
        (np.zeros(0), np.eye(2)[:1], "x has shape"),
        (np.array(1.0), np.eye(2)[:1], "x has shape"),
        (np.array(["a", "b"]), np.eye(2)[:1], "real numbers"),
        (np.array([True, False]), np.eye(2)[:1], "real numbers"),
    ],
)
def test_records_and_directions_that_do_not_fit_are_refused(x, directions, message):
    with pytest.raises(ValueError, match=message):
        modulate(x, directions, **PLAIN, rng=np.random.default_rng(0))


def test_arrays_of_a_chunk_that_do_not_fit_are_refused():
    x, directions, phases = np.zeros((4, 3)), np.eye(3)[:2], np.zeros((4, 2))
    modulation = Modulation(num_directions=2)
    for arguments in (
        (x[0], directions, phases),
        (x, directions[:, :2], phases),
        (x, directions, phases[:3]),
    ):
        with pytest.raises(ValueError, match="do not fit: give"):
            modulated(*arguments, modulation)
    with pytest.raises(ValueError, match="2 directions do not fit num_directions = 1"):
        modulated(x, directions, phases, Modulation())
    with pytest.raises(ValueError, match="0 directions do not fit num_directions = 1"):
        modulated(x, directions[:0], phases[:, :0], Modulation())


def test_a_bound_or_rule_that_is_not_allowed_is_refused():
    for bound in (0, -1, math.inf):
        with pytest.raises(ValueError, match="bound ="):
            modulation_sensitivity(bound, **PLAIN, num_directions=1)
    with pytest.raises(ValueError, match="give one of exact, paper"):
        modulation_sensitivity(1, **PLAIN, num_directions=1, rule="published")
