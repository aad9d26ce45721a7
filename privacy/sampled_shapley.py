"""Shapley values of many players, estimated from whole permutations in antithetic pairs."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.domain import whole
from fedveil.privacy.shapley import MAX_PLAYERS, check_num_players, finite_vector
from fedveil.streams import Stream

Utility = Callable[[NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True)
class SampledShapley:
    """Shapley values estimated from whole permutations.

    Parameters
    ----------
    values : float64 array of shape (N,)
        Mean over antithetic pairs; their sum is v(all) - v(empty) up to rounding, whatever was drawn.
    standard_errors : float64 array of shape (N,)
        Standard error of each value over pairs. Computed from the utilities, so as private as they are.
    """

    values: NDArray[np.float64]
    standard_errors: NDArray[np.float64]


def draw_permutations(num_players: int, pairs: int, stream: Stream) -> NDArray[np.int64]:
    """Orders in which the players join, one for each antithetic pair of `sampled_shapley`.

    Parameters
    ----------
    num_players : int
        N in 1..62.
    pairs : int
        Number of pairs, at least 2 so that there is a standard error.
    stream : Stream
        Where the orders come from; may be public, since no guarantee counts on them.

    Returns
    -------
    int64 array of shape (pairs, N)
        Each row is a permutation of 0..N-1.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    num_players, pairs = check_num_players(num_players), whole("pairs", pairs, minimum=2)
    return np.stack([stream.permutation(num_players) for _ in range(pairs)])


def sampled_shapley(utility: Utility, permutations: NDArray[np.int64]) -> SampledShapley:
    """Estimate Shapley values by averaging over whole permutations, each forward and reversed.

    In a permutation a player's value is what it adds to those before it. None is cut short, so each sums to
    v(all) - v(empty). A permutation and its reverse, one antithetic pair, are exact for games in which players
    interact in pairs only.

    Parameters
    ----------
    utility : callable
        ``utility(masks)`` returns the float64 utilities of an int64 array of distinct coalitions. It is called once,
        with all coalitions that are needed, so that it can evaluate them together.
    permutations : int64 array of shape (pairs, N)
        At least 2 rows, each a permutation of 0..N-1, N <= 62; see `draw_permutations`.

    Returns
    -------
    SampledShapley

    Raises
    ------
    ValueError
        When a row is no permutation, or the utility returns something else than one finite number for each
        coalition.
    """
    orders = _checked(permutations)
    pairs, num_players = orders.shape
    both = np.concatenate([orders, orders[:, ::-1]])
    prefixes = np.zeros((len(both), num_players + 1), dtype=np.int64)
    np.cumsum(np.int64(1) << both, axis=1, out=prefixes[:, 1:])
    masks, where = np.unique(prefixes, return_inverse=True)
    table = finite_vector("utilities", utility(masks))
    if len(table) != len(masks):
        raise ValueError(
            f"utility returned {len(table)} values for {len(masks)} coalitions: return one each."
        )
    gains = np.empty(both.shape)
    np.put_along_axis(gains, both, np.diff(table[where.reshape(prefixes.shape)], axis=1), axis=1)
    by_pair = (gains[:pairs] + gains[pairs:]) / 2
    values = np.array([math.fsum(column) for column in by_pair.T]) / pairs  # rounds once, however many pairs
    return SampledShapley(values, by_pair.std(axis=0, ddof=1) / math.sqrt(pairs))


def _checked(permutations: NDArray[np.int64]) -> NDArray[np.int64]:
    orders = np.asarray(permutations)
    if (
        orders.ndim != 2
        or len(orders) < 2
        or not 1 <= orders.shape[1] <= MAX_PLAYERS
        or orders.dtype.kind not in "iu"
        or not bool((np.sort(orders, axis=1) == np.arange(orders.shape[1])).all())
    ):
        raise ValueError(
            f"permutations has shape {orders.shape} and type {orders.dtype}: give at least 2 rows, each an order of "
            f"the players 0..N-1 with N <= {MAX_PLAYERS}."
        )
    return orders.astype(np.int64)
