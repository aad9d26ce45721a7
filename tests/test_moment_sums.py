"""Sums of messages: blocks, the fixed-point grid, and the same bits however clients are split."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedveil.moment_sums import (
    SumGrid,
    add,
    block_size,
    block_sums,
    blocks_of,
    fraction_bits,
    share_of,
    sum_messages,
    zero_sums,
)

counts = st.integers(1, 10_000_000)


@settings(deadline=None)
@given(counts)
@example(1)
@example(63)
@example(64)
@example(1_000_000)
def test_blocks_are_powers_of_two_and_at_least_64_once_there_are_64_clients(num_clients):
    size = block_size(num_clients)
    assert size & (size - 1) == 0
    assert 1 <= size <= 4096
    assert num_clients // size >= min(num_clients, 64)


@settings(deadline=None)
@given(counts, st.integers(1, 64))
def test_shares_are_whole_blocks_and_together_all_clients(num_clients, num_nodes):
    size = block_size(num_clients)
    if num_nodes > -(-num_clients // size):
        with pytest.raises(ValueError, match="use at most"):
            share_of(0, num_nodes, num_clients)
        return
    reached = 0
    for node in range(num_nodes):
        first, count = share_of(node, num_nodes, num_clients)
        assert first == reached
        assert count > 0
        assert first % size == 0
        reached += count
    assert reached == num_clients


def test_sixteen_nodes_share_a_few_hundred_clients_evenly():
    shares = [share_of(node, 16, 300)[1] for node in range(16)]
    assert sum(shares) == 300
    assert max(shares) - min(shares) <= block_size(300) == 4


@pytest.mark.parametrize("node", [-1, 4])
def test_a_node_that_does_not_exist_is_refused(node):
    with pytest.raises(ValueError, match="does not exist"):
        share_of(node, 4, 1000)


@settings(deadline=None)
@given(st.sets(st.integers(0, 500), max_size=80), st.sampled_from([1, 2, 8, 64]))
def test_parts_are_the_clients_of_one_block_each(members, size):
    clients = np.array(sorted(members), dtype=np.int64)
    parts = [clients[part] for part in blocks_of(clients, size)]
    assert [client for part in parts for client in part.tolist()] == sorted(members)
    assert [len(set((part // size).tolist())) for part in parts] == [1] * len(parts)
    assert len(parts) == len({client // size for client in members})


@settings(deadline=None)
@given(counts, st.floats(1e-100, 1e100))
def test_no_sum_within_the_bound_leaves_half_of_int64(num_clients, largest):
    bits = fraction_bits(num_clients, largest)
    total = Fraction(largest) * num_clients * Fraction(2) ** bits
    assert 2**60 < total <= 2**62


@pytest.mark.parametrize("largest", [0.0, -1.0, math.inf, math.nan, 1e308])
def test_a_bound_that_is_none_is_refused(largest):
    with pytest.raises(ValueError, match="must be above 0 and its sum over 100 clients finite"):
        fraction_bits(100, largest)


def messages_of(number: int, dimension: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.normal(size=(number, dimension)), rng.normal(size=number)


GRID = SumGrid(700, largest=20.0, largest_label=8.0)


def test_sums_are_those_of_numpy_to_half_a_step_a_block():
    messages, labels = messages_of(700)
    sums = sum_messages(messages, labels, np.arange(700), GRID)
    expected = {
        "gram": messages.T @ messages,
        "cross": messages.T @ labels,
        "total": messages.sum(axis=0),
        "labels": np.array([labels.sum(), labels @ labels]),
    }
    blocks = -(-700 // block_size(700))
    assert set(sums) == set(expected)
    for name, value in expected.items():
        assert sums[name].dtype == np.int64
        # half a step a block, and float64 in the sums that are compared
        allowed = blocks / 2 * 2.0 ** -GRID.bits[name].astype(float) + 700 * 100 * 2.0**-50
        assert (np.abs(GRID.to_real(name, sums[name]) - value) <= allowed).all()


def test_the_squares_of_small_labels_are_not_rounded_away():
    """Labels of a thousandth of their bound: on one grid for both, sized for the square, y would be lost too."""
    rng = np.random.default_rng(5)
    grid = SumGrid.of(700, bound=1.0, sigma=1.0, largest_label=64.0)
    labels = 1e-4 * rng.normal(size=700)
    sums = sum_messages(rng.normal(size=(700, 3)), labels, np.arange(700), grid)
    assert grid.to_real("labels", sums["labels"]) == pytest.approx([labels.sum(), labels @ labels], rel=1e-6)


@settings(deadline=None)
@given(st.sets(st.integers(0, 699), max_size=200), st.data())
def test_sums_have_the_same_bits_on_any_nodes_in_any_order(members, data):
    messages, labels = messages_of(700)
    clients = np.array(sorted(members), dtype=np.int64)
    whole = sum_messages(messages[clients], labels[clients], clients, GRID)
    num_nodes = data.draw(st.integers(1, 40))
    total = zero_sums(5)
    for node in data.draw(st.permutations(range(num_nodes))):
        first, count = share_of(node, num_nodes, 700)
        own = clients[(clients >= first) & (clients < first + count)]
        part = sum_messages(messages[own], labels[own], own, GRID)
        total = {name: total[name] + part[name] for name in total}
    assert {name: value.tobytes() for name, value in total.items()} == {
        name: value.tobytes() for name, value in whole.items()
    }


def test_the_gram_matrix_is_symmetric_to_the_bit():
    messages, labels = messages_of(700)
    gram = sum_messages(messages, labels, np.arange(700), GRID)["gram"]
    assert gram.tobytes() == gram.T.tobytes()


def test_messages_of_all_clients_at_their_bound_do_not_overflow():
    grid = SumGrid(64, largest=3.0, largest_label=1e6)
    sums = zero_sums(2)
    for _ in range(64):
        add(sums, block_sums(np.full((1, 2), 3.0), np.full(1, -1e6), grid))
    assert grid.to_real("gram", sums["gram"]).tolist() == [[576.0, 576.0]] * 2
    assert grid.to_real("labels", sums["labels"]).tolist() == [-64e6, 64e12]
    assert all(np.abs(value).max() <= 2**62 for value in sums.values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e12])
def test_what_passes_its_bound_is_refused(bad):
    with pytest.raises(ValueError, match=r"the sum 'cross' is beyond its public bound"):
        block_sums(np.ones((1, 2)), np.full(1, bad), SumGrid(1, 1.0, 1.0))


def test_the_grid_of_messages_bounds_every_coordinate():
    grid = SumGrid.of(100, bound=2.0, sigma=0.5, scale=-0.7, amplitude=0.4, largest_label=3.0)
    assert grid.largest == pytest.approx(0.7 * 2 + 0.4 + 9.3 * 0.5, rel=1e-11)
    assert grid.largest_label == 3.0
    noised = SumGrid.of(100, bound=2.0, sigma=0.5)
    assert noised.largest == noised.largest_label == pytest.approx(2 + 4.65, rel=1e-11)
