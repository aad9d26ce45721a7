"""Random streams: the right distributions, one stream for each name, and the keying written a second time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from itertools import combinations, islice
from math import factorial, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from fedveil.streams import Stream, Streams, normals_from, uniforms_from

FALSE_ALARM = 1e-7
"""Of each statistical test below, were it drawn anew; seeds are fixed, so that in fact it passes or fails for good."""


def stream(
    purpose: str = "noise", *, config: str = "c0ffee", seed: int = 7, round: int = 3, client: int = 5
) -> Stream:
    return Streams.seeded(config, seed).stream(purpose, round=round, client=client)


def philox(key: tuple[int, int]):
    """Philox 4x64-10 in plain integers, from its publication (Salmon et al., SC 2011); counters start at 1."""
    mask = 2**64 - 1
    counter = 0
    while True:
        counter += 1
        yield from _philox_block((counter & mask, counter >> 64, 0, 0), key, mask)


def _philox_block(counter: tuple[int, int, int, int], key: tuple[int, int], mask: int) -> tuple[int, ...]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (right >> 64) ^ c1 ^ k0, right & mask, (left >> 64) ^ c3 ^ k1, left & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return c0, c1, c2, c3


def test_the_second_philox_gives_the_known_answers_of_its_authors():
    zeros = _philox_block((0, 0, 0, 0), (0, 0), 2**64 - 1)
    assert [f"{word:016x}" for word in zeros] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


@pytest.mark.parametrize(
    ("config", "seed", "purpose", "round", "client"),
    [("c0ffee", 0, "noise", 1, 0), ("", 2**80, "client-sampling", 0, -1), ("ä", 17, "batch", 10**6, 999)],
)
def test_words_are_philox_keyed_by_the_hash_of_the_five_names(config, seed, purpose, round, client):
    name = f"{config}\x1f{seed}\x1f{round}\x1f{client}\x1f{purpose}".encode()
    digest = blake2b(name, digest_size=16).digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    words = Streams.seeded(config, seed).stream(purpose, round=round, client=client).words(103)
    assert words.dtype == np.uint64
    assert words.tolist() == list(islice(philox(key), 103))
    by_numpy = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    assert words.tolist() == by_numpy.integers(0, 2**64, 103, dtype=np.uint64).tolist()


def test_another_process_draws_the_same():
    code = (
        "from fedveil.streams import Streams;"
        "print(Streams.seeded('c0ffee', 7).stream('noise', round=3, client=5).normal(50).tolist())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(stream().normal(50).tolist())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_draws_do_not_depend_on_how_many_are_asked_for_at_once(sizes):
    pieces, whole = stream(), stream()
    drawn = np.concatenate([pieces.normal(size) for size in sizes])
    assert drawn.tolist() == whole.normal(sum(sizes)).tolist()


@pytest.mark.parametrize("shape", [(), 0, 5, (2, 3), (3, 0, 2)])
def test_shapes_are_as_asked_for(shape):
    expected = (shape,) if isinstance(shape, int) else shape
    assert np.shape(stream().normal(shape)) == expected
    assert np.shape(stream().uniform(shape)) == expected


def test_normal_draws_are_standard_normal():
    """Kolmogorov-Smirnov on 200,000 draws, then the tails by exact binomial tests; false alarms 1e-7 each."""
    draws = stream().normal(200_000)
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(np.square(draws), "chi2", args=(1,)).pvalue > FALSE_ALARM
    for bound in (3.0, 4.0):
        beyond = int(np.sum(np.abs(draws) > bound))
        assert stats.binomtest(beyond, draws.size, 2 * stats.norm.sf(bound)).pvalue > FALSE_ALARM


def test_extreme_words_give_finite_symmetric_normals():
    words = np.array([0, 1, 2**64 - 1, 2**64 - 2], dtype=np.uint64)
    high, low, *middle = Stream(lambda count: words[:count]).normal(4)
    assert high == -low == pytest.approx(stats.norm.isf(2.0**-65), rel=1e-12)
    assert middle == [0.0, 0.0]


def test_extreme_words_give_uniforms_inside_the_open_interval():
    words = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert Stream(lambda count: words[:count]).uniform(2).tolist() == [2.0**-53, 1 - 2.0**-53]


def test_uniform_draws_are_uniform():
    """Kolmogorov-Smirnov on 200,000 draws; false alarm 1e-7."""
    draws = stream("batch").uniform(200_000)
    assert 0 < draws.min() < draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > FALSE_ALARM


def test_every_order_is_equally_likely():
    """Chi-square over the 24 orders of 4 things, 24,000 draws; false alarm 1e-7."""
    orders = stream("client-sampling")
    counts = Counter(tuple(orders.permutation(4).tolist()) for _ in range(24_000))
    assert len(counts) == factorial(4)
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


@given(st.integers(0, 300), st.integers(0, 2**32))
@settings(max_examples=50)
def test_a_permutation_holds_every_index_once(size, seed):
    order = stream(seed=seed).permutation(size)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))


VARIANTS = {
    "as it is": {},
    "another purpose": {"purpose": "batch"},
    "the next round": {"round": 4},
    "the next client": {"client": 6},
    "another configuration": {"config": "c0ffed"},
    "another seed": {"seed": 8},
    "round and client swapped": {"round": 5, "client": 3},
    "digits that move from seed to round": {"seed": 73, "round": 3},
    "digits that move from round to seed": {"seed": 7, "round": 33},
}


@pytest.mark.parametrize(("one", "other"), list(combinations(VARIANTS, 2)))
def test_streams_of_different_names_are_independent(one, other):
    """Correlation of the draws, their squares, and of neighbours, over 20,000; false alarm 3e-7 a pair."""
    first, second = stream(**VARIANTS[one]), stream(**VARIANTS[other])
    x, y = first.normal(20_000), second.normal(20_000)
    bound = stats.norm.isf(FALSE_ALARM / 2)
    for a, b in ((x, y), (np.square(x), np.square(y)), (x[1:], y[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) * sqrt(a.size) < bound
    # a shared word is a coincidence of probability 4e8 / 2^64 = 2e-11
    assert not set(stream(**VARIANTS[one]).words(20_000)) & set(stream(**VARIANTS[other]).words(20_000))


def test_a_stream_has_no_correlation_with_its_own_past():
    """Autocorrelation at lags 1 to 16 of 100,000 draws; false alarm 16e-7."""
    draws = stream().normal(100_000)
    for lag in range(1, 17):
        r = np.corrcoef(draws[lag:], draws[:-lag])[0, 1]
        assert abs(r) * sqrt(draws.size - lag) < stats.norm.isf(FALSE_ALARM / 2)


def test_the_streams_of_many_clients_and_rounds_are_all_different():
    streams = Streams.seeded("c0ffee", 7)
    words = {
        int(streams.stream("noise", round=round, client=client).words(1)[0])
        for round in range(60)
        for client in range(-1, 99)
    }
    assert len(words) == 60 * 100


def test_the_systems_streams_never_repeat():
    """Equal words among 60,000 have probability 1e-10."""
    one, other = Streams.system(), Streams.system()
    assert not one.is_seeded
    words = np.concatenate([streams.stream("noise").words(15_000) for streams in (one, one, other, other)])
    assert len(set(words.tolist())) == words.size


def test_the_systems_draws_have_the_same_distributions():
    """Kolmogorov-Smirnov on 50,000 fresh draws each; false alarm 2e-9 in every run of this test."""
    streams = Streams.system()
    assert stats.kstest(streams.stream("noise").normal(50_000), "norm").pvalue > 1e-9
    assert stats.kstest(streams.stream("batch").uniform(50_000), "uniform").pvalue > 1e-9


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed must be a non-negative integer, got -1"):
        Streams.seeded("c0ffee", -1)


def test_a_seeded_run_says_so():
    assert Streams.seeded("c0ffee", 0).is_seeded


# words of many records


def words(first: int, count: int, words_each: int, *, purpose: str = "notes", round: int = 3) -> np.ndarray:
    return Streams.seeded("c0ffee", 7).words_of(
        purpose, round=round, first=first, count=count, words_each=words_each
    )


@given(st.integers(0, 40), st.integers(0, 7), st.lists(st.integers(0, 9), max_size=8))
def test_a_record_has_the_same_words_however_records_are_split(first, words_each, sizes):
    parts, place = [words(first, 0, words_each)], first
    for size in sizes:
        parts.append(words(place, size, words_each))
        place += size
    assert np.concatenate(parts).tolist() == words(first, sum(sizes), words_each).tolist()


def test_words_of_records_are_one_stream_from_its_beginning():
    whole = stream("notes", client=-1).words(50 * 33)
    assert words(0, 50, 33).tolist() == whole.reshape(50, 33).tolist()
    assert words(41, 9, 33).tolist() == whole.reshape(50, 33)[41:].tolist()


def test_words_of_records_far_along_the_stream_are_the_counters_own():
    """The block of the counter in which record 2^50 begins, by the second Philox."""
    digest = blake2b(b"c0ffee\x1f7\x1f3\x1f-1\x1fnotes", digest_size=16).digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    expected = [word for n in (1, 2) for word in _philox_block((2**50 + n, 0, 0, 0), key, 2**64 - 1)]
    assert words(2**50, 2, 4).ravel().tolist() == expected


def test_purposes_and_rounds_have_words_of_their_own():
    sets = [set(words(0, 500, 4, purpose=purpose, round=round).ravel().tolist())
            for purpose in ("notes", "noise") for round in (1, 2)]  # fmt: skip
    assert len(set.union(*sets)) == 4 * 2000


def test_the_systems_words_of_records_never_repeat():
    """Equal words among 8,000 have probability 2e-12."""
    drawn = [Streams.system().words_of("notes", round=1, first=0, count=1000, words_each=4) for _ in range(2)]
    assert len(set(np.concatenate(drawn).ravel().tolist())) == 8000


@pytest.mark.parametrize("numbers", [(-1, 1, 1), (0, -1, 1), (0, 1, -1)])
def test_negative_numbers_of_words_are_refused(numbers):
    with pytest.raises(ValueError, match="must be whole numbers of at least 0"):
        words(*numbers)


def test_draws_from_words_are_those_of_a_stream():
    raw = stream().words(3000)
    assert normals_from(raw).tolist() == stream().normal(3000).tolist()
    assert uniforms_from(raw).tolist() == stream().uniform(3000).tolist()


def test_normals_have_the_sign_and_the_tail_of_their_word():
    raw = stream().words(10_000)
    tail = ((raw >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    by_hand = np.where(raw & np.uint64(1), 1.0, -1.0) * special.ndtri(tail)
    assert normals_from(raw).tobytes() == by_hand.tobytes()


def test_scaled_normals_go_where_they_are_told():
    raw = stream().words(600).reshape(20, 30)
    kept, out = raw.copy(), np.empty((20, 30))
    assert normals_from(raw, scale=2.5, out=out) is out
    assert out.tobytes() == (2.5 * normals_from(raw)).tobytes()
    assert raw.tobytes() == kept.tobytes()
