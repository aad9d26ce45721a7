"""From checked replies to one mean update: exact sums of the clients' own releases, or the server's own release."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import CENTRAL_UPDATE, Release, gradient_rows
from fedveil.strategies.replies import BadReply, TrainReply
from fedveil.streams import Streams

__all__ = ["CentralMechanism", "central_update", "total_weight", "weighted_mean"]

Update = dict[str, NDArray[np.float64]]


def weighted_mean(replies: Sequence[TrainReply], total: float) -> Update:
    """sum_i w_i delta_i / sum_i w_i, from fixed-point sums: the same bits in any order of replies.

    Parameters
    ----------
    replies : sequence of TrainReply
        Sums of weight times update.
    total : float
        Sum of the weights: of n_i, or of what the clients weighed by instead.

    Raises
    ------
    ValueError
        If the int64 sum could overflow.
    """
    mean: Update = {}
    for name in replies[0].arrays:
        parts = [np.asarray(reply.arrays[name], dtype=np.int64) for reply in replies]
        # the exact bound in Python integers; abs would overflow at the smallest int64
        bound = sum(max(int(part.max(initial=0)), -int(part.min(initial=0))) for part in parts)
        if bound >= 2**63:
            raise ValueError(
                f"the sum of updates overflows in {name}: training diverged; lower learning-rate."
            )
        mean[name] = wire.from_fixed(np.sum(parts, axis=0, dtype=np.int64)) / total
    return mean


def total_weight(replies: Sequence[TrainReply], weigh: Callable[[Sequence[float]], float] | None) -> float:
    """Sum of the weights that the clients of these replies gave their updates.

    Parameters
    ----------
    replies : sequence of TrainReply
        Checked replies.
    weigh : callable or None
        ``weigh(sigmas)`` of a client's steps, from the same ledger rows as on the client; None: n_i.

    Raises
    ------
    BadReply
        If the noise of a row leaves its client no weight.
    """
    if weigh is None:
        return sum(reply.num_examples for reply in replies)
    rows: dict[int, list[Release]] = {}
    for reply in replies:
        for row in reply.releases:
            rows.setdefault(row.client, []).append(row)
    try:
        return math.fsum(weigh([row.sigma for row in gradient_rows(own)]) for own in rows.values())
    except ValueError as error:
        raise BadReply(str(error)) from error


@dataclass(frozen=True)
class CentralMechanism:
    """The trusted server's release of one round: clip each client's update, sum, add noise, divide by q N.

    Attributes
    ----------
    clip_norm : float
        L2 bound C of one client's update.
    noise_multiplier : float
        Noise of the sum over C. The sum moves by at most 2 C when one client's records are all replaced.
    sampling_rate : float
        Probability q with which a client takes part in a round.
    num_clients : int
        N, public; the denominator is the fixed q N, never the realised number.
    """

    clip_norm: float
    noise_multiplier: float
    sampling_rate: float
    num_clients: int

    @property
    def denominator(self) -> float:
        """The expected number of clients of a round, q N."""
        return self.sampling_rate * self.num_clients

    @property
    def sigma(self) -> float:
        """Noise of the mean update."""
        return self.noise_multiplier * self.clip_norm / self.denominator

    def release(self, server_round: int) -> Release:
        """The ledger row of one round, under the client relation."""
        return Release(
            client=-1,
            round=server_round,
            step=0,
            name=CENTRAL_UPDATE,
            relation="client",
            sensitivity=2 * self.clip_norm / self.denominator,
            sigma=self.sigma,
            chosen="fixed",
            sampling_rate=self.sampling_rate,
        )


def central_update(
    replies: Sequence[TrainReply],
    shapes: Mapping[str, tuple[int, ...]],
    mechanism: CentralMechanism,
    streams: Streams,
    server_round: int,
) -> Update:
    """The noised mean update of one round; with no replies at all it is noise, as the guarantee needs.

    Clients are added in their own order whatever the order of replies, so that the bits do not depend on it.
    """
    rows: dict[int, Update] = {}
    for reply in replies:
        for index, client in enumerate(reply.took_part):
            rows[client] = {
                name: np.asarray(array[index], np.float64) for name, array in reply.arrays.items()
            }
    total: Update = {name: np.zeros(shape) for name, shape in shapes.items()}
    for client in sorted(rows):
        norm = _norm(rows[client])
        # a hair inside the bound, so that rounding cannot step over it; a non-finite update counts as 0
        factor = (
            0.0 if not math.isfinite(norm) else min(1.0, mechanism.clip_norm * (1 - 1e-9) / max(norm, 1e-300))
        )
        for name, array in rows[client].items():
            total[name] += factor * array if factor else 0.0
    noise = streams.stream("central-noise", round=server_round)
    scale = mechanism.noise_multiplier * mechanism.clip_norm
    return {
        name: (array + scale * noise.normal(array.shape)) / mechanism.denominator
        for name, array in total.items()
    }


def _norm(update: Update) -> float:
    """L2 norm of an update; infinite where its square leaves the doubles, for a node may send any finite numbers."""
    with np.errstate(over="ignore"):
        squares = [float(np.sum(np.square(array))) for array in update.values()]
    try:
        return math.sqrt(math.fsum(squares))
    except OverflowError:
        return math.inf
