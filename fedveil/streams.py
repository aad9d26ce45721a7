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

__all__ = ["Stream", "Streams"]

Shape = int | tuple[int, ...]


@dataclass(frozen=True)
class Stream:
    """A sequence of random words and the draws made from it, in order.

    Parameters
    ----------
    words : callable
        ``words(n)`` returns the next ``n`` words as a uint64 array of shape (n,).
    """

    words: Callable[[int], NDArray[np.uint64]]

    def uniform(self, shape: Shape) -> NDArray[np.float64]:
        """Uniform draws in the open interval (0, 1), on the grid of odd multiples of 2^-53."""
        # 52 bits: with one more, adding the half would round the largest up to 1
        bits = self.words(int(np.prod(shape))) >> np.uint64(12)
        return ((bits.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """Standard normal draws, one word each, through the inverse distribution function.

        One bit is the sign and 63 bits the probability of the tail, where floats are dense: magnitudes reach 9.2,
        which a true normal passes with probability 5e-20.
        """
        words = self.words(int(np.prod(shape)))
        tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
        signs = np.where(words & np.uint64(1), 1.0, -1.0)
        return (signs * ndtri(tail)).reshape(shape)

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
            return Stream(lambda count: np.frombuffer(os.urandom(8 * count), dtype=np.uint64))
        name = "\x1f".join((self.config_hash, str(self.seed), str(round), str(client), purpose))
        key = np.frombuffer(blake2b(name.encode(), digest_size=16).digest(), dtype="<u8")
        return Stream(np.random.Philox(key=key).random_raw)
