"""Attendance: who takes part in which round, and how often each client has paid, as arrays over all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.domain import one_of, rate
from fedveil.strategies.sampling import sample_size
from fedveil.streams import Streams

__all__ = ["Attendance", "Participation"]

Participation = Literal["all", "sampled", "cohorts"]
"""Who takes part: everyone in every round, a fresh sample a round, or each client in exactly one round."""


@dataclass
class Attendance:
    """Draws the clients of each round and counts what they have paid.

    A client whose planned releases are spent is not drawn again: who is drawn is a function of public values (the
    plan, the draws) and of who stopped, which is public too. Lost replies count as paid.

    Parameters
    ----------
    num_clients : int
    participation : {"all", "sampled", "cohorts"}
        ``cohorts`` splits the clients at random over the rounds; sizes differ by one client at most.
    streams : Streams
        The draws; never Flower's node ids, which are random.
    num_releases : int, optional
        Messages that each client's noise was planned for; None: no limit.
    fraction : float
        Share of all clients in a round, for ``sampled``; all that are left, where they are fewer.

    Raises
    ------
    ValueError
        If the participation is unknown, or the fraction is not in (0, 1] or not for it.
    """

    num_clients: int
    participation: Participation
    streams: Streams
    num_releases: int | None = None
    fraction: float = 1.0

    counts: NDArray[np.int32] = field(init=False)
    stopped: NDArray[np.bool_] = field(init=False)
    _cohort_of: NDArray[np.int32] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Check the settings; nobody has paid yet."""
        one_of("participation", self.participation, get_args(Participation))
        rate("fraction_train", self.fraction)
        if self.participation != "sampled" and self.fraction != 1:
            raise ValueError(
                f"fraction_train = {self.fraction:g} contradicts participation {self.participation!r}: use 1, or "
                "participation 'sampled'."
            )
        self.counts = np.zeros(self.num_clients, np.int32)
        self.stopped = np.zeros(self.num_clients, np.bool_)

    def draw(self, server_round: int, num_rounds: int) -> NDArray[np.int64]:
        """The clients of one round (from 1), sorted; empty when none of them is left.

        Raises
        ------
        ValueError
            If there are more disjoint cohorts than clients.
        """
        able = self.able()
        if self.participation == "cohorts":
            able &= self.split(num_rounds) == server_round
        clients = np.flatnonzero(able)
        if self.participation != "sampled":
            return clients
        count = sample_size(self.fraction, self.num_clients, len(clients))
        order = self.streams.stream("client-sampling", round=server_round).permutation(len(clients))
        return np.sort(clients[order[:count]])

    def split(self, num_rounds: int) -> NDArray[np.int32]:
        """The round of every client in disjoint cohorts, drawn once.

        Draw it before the first round is asked for: a run that dies in that round must find it in its state.

        Raises
        ------
        ValueError
            If there are more disjoint cohorts than clients.
        """
        if self._cohort_of is None:
            self._cohort_of = self._split(num_rounds)
        return self._cohort_of

    def able(self) -> NDArray[np.bool_]:
        """Which clients could still take part in some round, were they drawn."""
        able = ~self.stopped
        if self.num_releases is not None:
            able &= self.counts < self.num_releases
        return able

    def paid(self, clients: NDArray[np.int64]) -> None:
        """Note that a message of each of these clients left it, or may have left it."""
        self.counts[clients] += 1

    def stop(self, clients: NDArray[np.int64]) -> None:
        """Note that the nodes say these clients have spent their budget."""
        self.stopped[clients] = True

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What a resumed run needs."""
        kept: dict[str, NDArray[np.generic]] = {"paid": self.counts.copy(), "stopped": self.stopped.copy()}
        if self._cohort_of is not None:
            kept["cohort-of"] = self._cohort_of.copy()
        return kept

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`.

        Raises
        ------
        ValueError
            If the state is of another number of clients.
        """
        if np.shape(state["paid"]) != (self.num_clients,):
            raise ValueError(
                f"the saved state is of {np.size(state['paid'])} clients, and the run has {self.num_clients}: "
                "resume it with the data it was started with."
            )
        self.counts = np.array(state["paid"], np.int32)
        self.stopped = np.array(state["stopped"], np.bool_)
        if "cohort-of" in state:
            self._cohort_of = np.array(state["cohort-of"], np.int32)

    def _split(self, num_rounds: int) -> NDArray[np.int32]:
        """The round of every client, from 1."""
        if num_rounds > self.num_clients:
            raise ValueError(
                f"{num_rounds} rounds of disjoint cohorts need as many clients, and there are {self.num_clients}: use "
                "fewer rounds."
            )
        cohort_of = np.empty(self.num_clients, np.int32)
        order = self.streams.stream("cohorts").permutation(self.num_clients)
        for index, clients in enumerate(np.array_split(order, num_rounds), start=1):
            cohort_of[clients] = index
        return cohort_of
