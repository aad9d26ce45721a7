"""From replies to one mean update: exact sums, and the trusted server's own noised mean."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from fedveil.privacy import gaussian_epsilon
from fedveil.strategies import CentralMechanism, TrainReply, central_update, weighted_mean
from fedveil.streams import Streams

int64 = st.integers(-(2**63), 2**63 - 1)


def sums(values: list[int], num_examples: int) -> TrainReply:
    """A reply of fixed-point sums."""
    return TrainReply({"w": np.array(values, dtype=np.int64)}, num_examples, (0,), (), ())


# weighted mean


@given(
    st.lists(
        st.tuples(st.lists(st.integers(-(2**58), 2**58), min_size=3, max_size=3), st.integers(1, 10**9)),
        min_size=1,
        max_size=8,
    )
)
def test_the_mean_is_the_exact_one_rounded(rows):
    total = sum(count for _, count in rows)
    mean = weighted_mean([sums(values, count) for values, count in rows], total)["w"]
    for index in range(3):
        exact = Fraction(sum(values[index] for values, _ in rows), 2**32 * total)
        # one rounding where the sum fits 53 bits, two otherwise
        small = abs(sum(values[index] for values, _ in rows)) <= 2**53
        assert (
            mean[index] == float(exact) if small else abs(Fraction(mean[index]) - exact) <= abs(exact) / 2**52
        )


@given(
    st.lists(st.lists(st.integers(-(2**59), 2**59), min_size=4, max_size=4), min_size=1, max_size=8),
    st.data(),
)
def test_the_order_of_replies_changes_no_bit(rows, data):
    replies = [sums(values, 1 + index) for index, values in enumerate(rows)]
    shuffled = data.draw(st.permutations(replies))
    assert weighted_mean(replies, 7.5)["w"].tobytes() == weighted_mean(shuffled, 7.5)["w"].tobytes()


@given(st.lists(st.lists(int64, min_size=2, max_size=2), min_size=1, max_size=5))
@example([[-(2**63), 0]])
@example([[2**62, 0], [2**62, 0]])
@example([[2**62, 0], [-(2**62), 0]])
@example([[2**63 - 1, 0], [0, 0]])
def test_a_sum_that_could_leave_int64_is_refused_and_no_other_is_wrong(rows):
    replies = [sums(values, 1) for values in rows]
    if max(sum(abs(values[index]) for values in rows) for index in range(2)) >= 2**63:
        with pytest.raises(ValueError, match="overflows in w: training diverged; lower learning-rate"):
            weighted_mean(replies, len(rows))
        return
    if sum(max(map(abs, values)) for values in rows) >= 2**63:
        return  # the bound that is checked is coarser, and may refuse
    mean = weighted_mean(replies, len(rows))["w"]
    for index in range(2):
        exact = Fraction(sum(values[index] for values in rows), 2**32 * len(rows))
        assert abs(Fraction(mean[index]) - exact) <= abs(exact) / 2**52


def test_a_parameter_that_is_one_number_keeps_its_shape():
    reply = TrainReply({"scale": np.array(3 * 2**32, np.int64)}, 2, (0,), (), ())
    mean = weighted_mean([reply, reply], 4)["scale"]
    assert np.shape(mean) == ()
    assert mean == 1.5


# the trusted server

SHAPES = {"weight": (3, 2), "bias": (2,)}
NO_NOISE = 1e-12
"""A noise multiplier that leaves the mean readable."""


def updates_reply(updates: dict[int, dict[str, np.ndarray]]) -> TrainReply:
    """A reply of single updates."""
    stacked = {
        name: np.array([update[name] for update in updates.values()]).reshape(-1, *shape)
        for name, shape in SHAPES.items()
    }
    return TrainReply(stacked, 10 * len(updates), tuple(updates), (), ())


def central(replies: list[TrainReply], mechanism: CentralMechanism, server_round: int = 1) -> np.ndarray:
    """The released mean as one vector."""
    update = central_update(replies, SHAPES, mechanism, Streams.seeded("c0ffee", 5), server_round)
    assert {name: array.shape for name, array in update.items()} == SHAPES
    return np.concatenate([array.ravel() for array in update.values()])


def random_update(rng: np.random.Generator, scale: float) -> dict[str, np.ndarray]:
    return {name: scale * rng.normal(size=shape) for name, shape in SHAPES.items()}


any_float = st.floats(width=64)
any_update = st.fixed_dictionaries(
    {name: npst.arrays(np.float64, shape, elements=any_float) for name, shape in SHAPES.items()}
)
quiet_numbers = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@quiet_numbers
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 6),
    st.floats(1e-3, 1e3),
    st.floats(0.05, 1.0),
    any_update,
    any_update,
    st.integers(0, 2**32),
    st.sampled_from([1e-9, 1.0, 1e9, 1e200]),
)
def test_replacing_one_clients_update_moves_the_mean_by_its_sensitivity_at_most(
    num_clients, clip_norm, rate, one, other, seed, scale
):
    """Whatever the update is: huge, not finite, zero, or not there at all."""
    mechanism = CentralMechanism(clip_norm, NO_NOISE, rate, num_clients)
    rng = np.random.default_rng(seed)
    rest = {client: random_update(rng, scale) for client in range(num_clients)}
    moved = [
        central([updates_reply({**rest, 0: update})], mechanism)
        for update in (one, other, {name: np.zeros(shape) for name, shape in SHAPES.items()})
    ]
    sensitivity = mechanism.release(1).sensitivity
    assert sensitivity == 2 * clip_norm / (rate * num_clients)
    for a in moved:
        for b in moved:
            assert np.linalg.norm(a - b) <= sensitivity


@quiet_numbers
def test_the_sensitivity_is_reached():
    """By two opposite updates beyond the clip norm; otherwise the noise would be more than is needed."""
    mechanism = CentralMechanism(0.7, NO_NOISE, 0.5, 4)
    up = {name: np.full(shape, 1e6) for name, shape in SHAPES.items()}
    down = {name: -array for name, array in up.items()}
    a, b = (central([updates_reply({0: update})], mechanism) for update in (up, down))
    assert np.linalg.norm(a - b) == pytest.approx(mechanism.release(1).sensitivity, rel=1e-8)


@quiet_numbers
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_an_update_that_is_not_finite_counts_as_zero(bad):
    """As does one whose norm is not; all other clients count as they are."""
    mechanism = CentralMechanism(1.0, NO_NOISE, 1.0, 2)
    good = random_update(np.random.default_rng(0), 0.1)
    broken = {name: array.copy() for name, array in good.items()}
    broken["bias"][1] = bad
    nothing = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    both = [updates_reply({0: good, 1: update}) for update in (broken, nothing)]
    with_broken, with_nothing = (central([reply], mechanism) for reply in both)
    assert with_broken.tobytes() == with_nothing.tobytes()


def test_a_small_update_is_not_scaled():
    mechanism = CentralMechanism(1.0, NO_NOISE, 1.0, 1)
    small = random_update(np.random.default_rng(1), 1e-3)
    expected = np.concatenate([array.ravel() for array in small.values()])
    np.testing.assert_allclose(central([updates_reply({0: small})], mechanism), expected, atol=1e-10)


def test_the_denominator_is_the_expected_number_of_clients_whoever_came():
    mechanism = CentralMechanism(1.0, NO_NOISE, 0.25, 16)
    update = {name: np.full(shape, 0.01) for name, shape in SHAPES.items()}
    for present in (1, 3, 9):
        mean = central([updates_reply(dict.fromkeys(range(present), update))], mechanism)
        np.testing.assert_allclose(mean, present * 0.01 / (0.25 * 16), atol=1e-10)


@pytest.mark.parametrize("replies", [[], [updates_reply({})]])
def test_an_empty_round_is_noise_of_the_stated_size(replies):
    """Chi-square over 2000 rounds, Kolmogorov-Smirnov for the shape; false alarms 1e-7 each."""
    mechanism = CentralMechanism(clip_norm=0.3, noise_multiplier=1.7, sampling_rate=0.2, num_clients=50)
    sigma = mechanism.release(1).sigma
    assert sigma == pytest.approx(1.7 * 0.3 / (0.2 * 50), rel=1e-15)
    noise = np.concatenate([central(replies, mechanism, server_round) for server_round in range(1, 2001)])
    scaled = float(np.sum(np.square(noise / sigma)))
    assert 1e-7 / 2 < stats.chi2.cdf(scaled, noise.size) < 1 - 1e-7 / 2
    assert stats.kstest(noise / sigma, "norm").pvalue > 1e-7


def test_the_noise_is_fresh_in_every_round_and_the_same_for_the_same_round():
    mechanism = CentralMechanism(1.0, 1.0, 1.0, 4)
    assert central([], mechanism, 1).tobytes() == central([], mechanism, 1).tobytes()
    assert not np.intersect1d(central([], mechanism, 1), central([], mechanism, 2)).size


def test_the_noise_does_not_depend_on_the_updates():
    mechanism = CentralMechanism(1.0, 1.0, 1.0, 4)
    update = {name: np.full(shape, 0.01) for name, shape in SHAPES.items()}
    moved = central([updates_reply({2: update})], mechanism) - central([], mechanism)
    np.testing.assert_allclose(moved, 0.01 / 4, atol=1e-12)


@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=3))
def test_grouping_and_order_of_clients_change_no_bit(order, cuts):
    rng = np.random.default_rng(2)
    updates = {client: random_update(rng, 1.0) for client in range(6)}
    mechanism = CentralMechanism(1.0, 0.5, 1.0, 6)
    edges = [0, *sorted(set(cuts)), 6]
    parts = [order[first:last] for first, last in itertools.pairwise(edges)]
    replies = [updates_reply({client: updates[client] for client in part}) for part in parts]
    assert central(replies, mechanism).tobytes() == central([updates_reply(updates)], mechanism).tobytes()


def test_the_ledger_row_says_what_was_released():
    mechanism = CentralMechanism(clip_norm=2.0, noise_multiplier=4.0, sampling_rate=0.5, num_clients=10)
    row = mechanism.release(7)
    assert (row.client, row.round, row.relation, row.chosen) == (-1, 7, "client", "fixed")
    assert row.sampling_rate == 0.5
    # noise over clip norm, when one client's replacement moves the sum by twice the clip norm
    assert row.noise_multiplier == pytest.approx(4.0, rel=1e-15)
    full = CentralMechanism(2.0, 4.0, 1.0, 10).release(7)
    assert gaussian_epsilon(full.mu, 1e-5) == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-12)
    assert math.isclose(full.mu, 2 / 4.0, rel_tol=1e-15)
