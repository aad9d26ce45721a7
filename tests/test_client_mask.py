"""A set of clients as bytes: what comes back, what it costs, and what is refused without taking memory."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil import wire
from fedveil.client_mask import NotAMask, pack_clients, unpack_clients


@given(st.sets(st.integers(0, 3000), max_size=60), st.integers(0, 5))
def test_a_set_of_clients_comes_back(members, room):
    clients = np.array(sorted(members), dtype=np.int64)
    largest = int(clients.max(initial=0)) + room
    back = unpack_clients(pack_clients(clients), largest)
    assert back.dtype == np.int64
    assert back.tolist() == sorted(members)


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=60))
def test_a_set_with_a_client_that_does_not_exist_is_refused(members):
    with pytest.raises(NotAMask, match="a set of clients must"):
        unpack_clients(pack_clients(sorted(members)), max(members) - 1)


@given(st.binary(max_size=60), st.integers(0, 5000))
def test_random_bytes_are_no_set_of_clients(payload, largest):
    try:
        members = unpack_clients(payload, largest)
    except NotAMask:
        return
    assert members.size == 0 or (members[0] >= 0 and members[-1] <= largest and np.all(np.diff(members) > 0))


@given(st.binary(max_size=20), st.integers(0, 60), st.integers(0, 30))
def test_a_damaged_set_is_refused_or_a_set(insert, at, removed):
    payload = pack_clients(range(5, 900, 7))
    try:
        members = unpack_clients(payload[:at] + insert + payload[at + removed :], 1000)
    except NotAMask:
        return
    assert members.size == 0 or (members[-1] <= 1000 and np.all(np.diff(members) > 0))


@pytest.mark.parametrize("wrong", [[3, 2], [1, 1], [-1, 2], [0.5], [[1, 2]], [True]])
def test_only_increasing_numbers_of_clients_are_a_set(wrong):
    with pytest.raises(ValueError, match="clients must be"):
        pack_clients(np.array(wrong))


@pytest.mark.parametrize("payload", [None, "text", 3, [1, 2], bytearray(b"x")])
def test_a_set_that_is_not_bytes_is_refused(payload):
    with pytest.raises(NotAMask, match="must be bytes"):
        unpack_clients(payload, 10)


def test_a_million_clients_are_a_hundred_kilobytes_and_a_run_of_them_is_nothing():
    members = np.arange(1_000_000)
    assert len(pack_clients(members)) < 1000
    half = np.flatnonzero(np.random.default_rng(1).random(1_000_000) < 0.5)
    assert len(pack_clients(half)) < 126_000
    tenth = np.flatnonzero(np.random.default_rng(2).random(1_000_000) < 0.1)
    assert len(pack_clients(tenth)) < 100_000


def test_a_bomb_is_refused_without_being_unpacked():
    """Some hundred kilobytes that unpack to 100 MB; no more than the largest set's 1,251 bytes may be taken."""
    bomb = (0).to_bytes(8, "little") + zlib.compress(b"\xff" * 100_000_000, 9)
    tracemalloc.start()
    with pytest.raises(NotAMask, match="must end with client 10000"):
        unpack_clients(bomb, 10_000)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_first_client_far_away_takes_no_memory():
    with pytest.raises(NotAMask, match="must begin with a client"):
        unpack_clients((2**63).to_bytes(8, "little") + zlib.compress(b"\x01"), 10_000)


def test_bytes_behind_a_set_are_refused():
    with pytest.raises(NotAMask):
        unpack_clients(pack_clients([1, 5]) + b"more", 10)


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=60), st.integers(0, 3000))
def test_a_set_below_the_smallest_client_is_refused(members, smallest):
    payload = pack_clients(sorted(members))
    if smallest <= min(members):
        assert unpack_clients(payload, 3000, smallest).tolist() == sorted(members)
    else:
        with pytest.raises(NotAMask, match=f"from {smallest} to 3000"):
            unpack_clients(payload, 3000, smallest)


def test_on_the_wire_a_set_that_is_none_is_a_malformed_reply():
    assert wire.decode_clients(wire.encode_clients([2, 5]), 5).tolist() == [2, 5]
    with pytest.raises(wire.MalformedReply, match="a set of clients must"):
        wire.decode_clients(wire.encode_clients([2, 5]), 4)
