"""Random streams: one per (configuration, seed, round, client, purpose), never global.

A stream is a sequence of 64-bit words, and every draw is a pure function of the words. In a seeded simulation the
words come from Philox 4x64-10, keyed by a hash of the five values above; otherwise they come from the operating
system's cryptographic generator. The code that draws does not know which.

The key holds a hash of the configuration because two runs that share their noise and differ in one setting would
reveal their difference without any noise at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["Stream", "Streams", "normals_from", "uniforms_from"]

Shape = int | tuple[int, ...]
Words = NDArray[np.uint64]

_BLOCK = 4  # words that Philox makes of one value of its counter


def uniforms_from(words: Words) -> NDArray[np.float64]:
    """Uniform draws in the open interval (0, 1), on the grid of odd multiples of 2^-53; one word each."""
    # 52 bits: with one more, adding the half would round the largest up to 1
    draws = (words >> np.uint64(12)).view(np.int64).astype(np.float64)
    draws += 0.5
    draws *= 2.0**-52
    return draws


def normals_from(
    words: Words, *, scale: float = 1.0, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Normal draws of mean 0 through the inverse distribution function; one word each.

    One bit is the sign and 63 bits the probability of the tail, where floats are dense: magnitudes reach 9.2
    standard deviations, which a true normal passes with probability 5e-20.

    Parameters
    ----------
    words : uint64 array
        Uniformly random words, of any shape.
    scale : float
        Standard deviation, at least 0.
    out : float64 array, optional
        Where the draws go, contiguous and of the shape of `words`; a new array if missing. With it nothing else is
        allocated but one array of words.
    """
    bits = words >> np.uint64(1)
    tail = np.empty(words.shape) if out is None else out
    np.copyto(tail, bits.view(np.int64), casting="unsafe")  # from int64 the conversion is vectorised
    tail += 0.5
    tail *= 2.0**-64
    ndtri(tail, out=tail)
    # the sign bit is flipped where the word's last bit is 1; the factor below turns all signs round
    np.left_shift(words, np.uint64(63), out=bits)
    np.bitwise_xor(tail.view(np.uint64), bits, out=tail.view(np.uint64))
    tail *= -scale
    return tail


@dataclass(frozen=True)
class Stream:
    """A sequence of random words and the draws made from it, in order.

    Parameters
    ----------
    words : callable
        ``words(n)`` returns the next ``n`` words as a uint64 array of shape (n,).
    """

    words: Callable[[int], Words]

    def uniform(self, shape: Shape) -> NDArray[np.float64]:
        """Uniform draws in the open interval (0, 1); see :func:`uniforms_from`."""
        return uniforms_from(self.words(int(np.prod(shape)))).reshape(shape)

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """Standard normal draws; see :func:`normals_from`."""
        return normals_from(self.words(int(np.prod(shape)))).reshape(shape)

    def permutation(self, size: int) -> NDArray[np.int64]:
        """A uniformly random order of 0..size-1 (ties among 64-bit words, 1e-10 at a million, keep their order)."""
        return np.argsort(self.words(size), kind="stable").astype(np.int64)


@dataclass(frozen=True)
class Streams:
    """All random streams of one run.

    Build it with :meth:`seeded` or :meth:`system`. A seeded run gives no privacy against whoever knows the seed:
    its noise can be drawn again and subtracted.
    """

    config_hash: str
    seed: int | None

    @classmethod
    def seeded(cls, config_hash: str, seed: int) -> Streams:
        """Reproducible streams, for simulations only.

        Parameters
        ----------
        config_hash : str
            Hash of every setting that changes what is computed.
        seed : int
            Any non-negative integer; as secret as the data.

        Raises
        ------
        ValueError
            If the seed is negative.
        """
        if seed < 0:
            raise ValueError(f"seed must be a non-negative integer, got {seed}.")
        return cls(config_hash, seed)

    @classmethod
    def system(cls) -> Streams:
        """Streams of the operating system's cryptographic generator: nobody can draw them again."""
        return cls("", None)

    @property
    def is_seeded(self) -> bool:
        """Whether the same draws can be made again by whoever knows the seed."""
        return self.seed is not None

    def stream(self, purpose: str, *, round: int = 0, client: int = -1) -> Stream:
        """The stream of one purpose, round and client (-1: the server); independent of every other.

        The same arguments give the same draws in a seeded run, in any process and in any order of calls.
        """
        if self.seed is None:
            return Stream(_system_words)
        return Stream(np.random.Philox(key=self._key(purpose, round, client)).random_raw)

    def words_of(self, purpose: str, *, round: int, first: int, count: int, words_each: int) -> Words:
        """Words of `count` consecutive records, those of a record the same however records are split.

        Record i has the words ``[i * words_each, (i + 1) * words_each)`` of one stream, that of `purpose`, `round` and
        client -1: a fixed range of its counter, so that nothing is set up for each record. The purpose must be used
        for nothing else.

        Parameters
        ----------
        purpose : str
        round : int
        first, count : int
            Records first, ..., first + count - 1; at least 0.
        words_each : int
            Words of one record, at least 0; the same in every call for this purpose and round.

        Returns
        -------
        uint64 array (count, words_each)
            In a seeded run a function of the arguments; otherwise fresh from the operating system.

        Raises
        ------
        ValueError
            If a number is negative.
        """
        if min(first, count, words_each) < 0:
            raise ValueError(
                f"first = {first}, count = {count} and words_each = {words_each} must be whole numbers of at least 0."
            )
        shape = (count, words_each)
        if 0 in shape:
            return np.zeros(shape, dtype=np.uint64)
        if self.seed is None:
            return _system_words(count * words_each).reshape(shape)
        block, before = divmod(first * words_each, _BLOCK)
        philox = np.random.Philox(key=self._key(purpose, round, -1), counter=block)
        return philox.random_raw(before + count * words_each)[before:].reshape(shape)

    def _key(self, purpose: str, round: int, client: int) -> Words:
        name = "\x1f".join((self.config_hash, str(self.seed), str(round), str(client), purpose))
        return np.frombuffer(blake2b(name.encode(), digest_size=16).digest(), dtype="<u8")


def _system_words(count: int) -> Words:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
