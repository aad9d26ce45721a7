"""Client averages: the sum of each client's own messages over rounds, and the moments of their averages.

Rounds of the same clients bring no new records. The average of a client's t messages has 1/t of the noise variance, so
its square is noised far less than the mean of t squares, and any number of steps on its moments is free
post-processing (THEORY 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import Correction, ModulatedMoments, Modulation, averaged
from fedveil.strategies.message_rounds import Collected

__all__ = ["MAX_NUMBERS", "ClientAverages"]

MAX_NUMBERS = 2**25
"""Largest number of clients times features that is kept: 256 MiB, a million clients of 33 features."""

_CHUNK = 4096  # clients at a time, so that averages need no second copy of all sums

FloatArray = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]


@dataclass(eq=False)
class ClientAverages:
    """Sums of every client's messages so far, and which rounds each took part in.

    Parameters
    ----------
    num_clients, dimension : int
        K and d.
    modulation : Modulation
    sigma : float
        Noise of one message.
    label_scale : float, optional
        See :class:`fedveil.privacy.ModulatedMoments`.

    Raises
    ------
    ValueError
        If K d passes :data:`MAX_NUMBERS`.
    """

    num_clients: int
    dimension: int
    modulation: Modulation
    sigma: float
    label_scale: float | None = None

    _messages: FloatArray = field(init=False)
    _labels: FloatArray = field(init=False)
    _attended: list[NDArray[np.uint8]] = field(default_factory=list, init=False)
    _directions: list[FloatArray] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make room."""
        if self.num_clients * self.dimension > MAX_NUMBERS:
            raise ValueError(
                f"averaging the messages of {self.num_clients} clients of {self.dimension} features would keep "
                f"{self.num_clients * self.dimension} numbers, and {MAX_NUMBERS} are allowed: use estimate 'pooled', "
                "which keeps sums only."
            )
        self._messages = np.zeros((self.num_clients, self.dimension))
        self._labels = np.zeros(self.num_clients)

    @property
    def rounds(self) -> int:
        """Rounds taken in so far."""
        return len(self._attended)

    def add(self, collected: Collected, directions: FloatArray) -> None:
        """Take in one round: every client's message and label as they arrived, and the directions.

        Raises
        ------
        ValueError
            If the replies were sums.
        """
        messages, labels, clients = collected.messages, collected.labels, collected.took_part
        if messages is None or labels is None:
            raise ValueError("sums were given to be averaged by client: ask for reply 'each'.")
        self._messages[clients] += messages
        self._labels[clients] += labels
        attended = np.zeros(self.num_clients, np.bool_)
        attended[clients] = True
        self._attended.append(np.packbits(attended))
        self._directions.append(directions)

    def moments(self) -> ModulatedMoments:
        """Moments of the averages of all clients that have sent so far, with what noise is left in them."""
        d = self.dimension
        gram, cross, total, label_total, label_square = np.zeros((d, d)), np.zeros(d), np.zeros(d), 0.0, 0.0
        times = np.zeros(self.num_clients, np.int64)
        for row in self._attended:
            times += self._unpacked(row)
        clients = np.flatnonzero(times)
        for first in range(0, len(clients), _CHUNK):
            part = clients[first : first + _CHUNK]
            means, labels = self._messages[part] / times[part][:, None], self._labels[part] / times[part]
            gram += means.T @ means
            cross += labels @ means
            total += means.sum(axis=0)
            label_total += float(labels.sum())
            label_square += float(labels @ labels)
        return ModulatedMoments(
            gram,
            cross,
            total,
            label_total,
            label_square,
            len(clients),
            self.modulation.scale,
            self._corrections(clients),
            self.label_scale,
        )

    def state(self) -> State:
        """What a resumed run needs."""
        return {
            "message-sums": self._messages.copy(),
            "label-sums": self._labels.copy(),
            "attended": np.stack(self._attended) if self._attended else np.zeros((0, 0), np.uint8),
            "directions": np.stack(self._directions)
            if self._directions
            else np.zeros((0, 0, self.dimension)),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`."""
        self._messages = np.array(state["message-sums"], np.float64)
        self._labels = np.array(state["label-sums"], np.float64)
        self._attended = list(np.array(state["attended"], np.uint8))
        self._directions = list(np.array(state["directions"], np.float64))

    def _unpacked(self, row: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return np.unpackbits(row, count=self.num_clients).astype(np.bool_)

    def _corrections(self, clients: NDArray[np.int64]) -> tuple[Correction, ...]:
        """One for each set of rounds that clients took part in."""
        attended = np.stack([self._unpacked(row)[clients] for row in self._attended])  # (rounds, clients)
        patterns, counts = np.unique(np.packbits(attended, axis=0), axis=1, return_counts=True)
        corrections = []
        for pattern, count in zip(patterns.T, counts.tolist(), strict=True):
            rounds = np.flatnonzero(np.unpackbits(pattern, count=len(attended)))
            each = [
                Correction(1, self.sigma, self.modulation.amplitude, self._directions[index])
                for index in rounds
            ]
            corrections.append(averaged(each, count))
        return tuple(corrections)
