"""Shapley values: what each group of attributes or records contributes to a model's utility.

The players are N groups, the utility v(S) of a coalition S is in [0, 1], and

    phi_j = sum over S without j of |S|! (N - |S| - 1)!/N! (v(S + j) - v(S)),    sum_j phi_j = v(all) - v(empty)

A coalition is a bit mask: bit j is set when player j belongs to it. Up to N = 12 the values are exact, from one table
of all 2^N utilities; beyond, see `fedveil.privacy.sampled_shapley`.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.domain import non_negative, whole

MAX_EXACT = 12
MAX_PLAYERS = 62  # bit masks are int64

_LARGEST = 1e300  # sums of 2^12 such numbers stay finite


def shapley_values(utilities: ArrayLike) -> NDArray[np.float64]:
    """Exact Shapley values of up to 12 players.

    Parameters
    ----------
    utilities : array of 2^N numbers
        v(S) at index S, the bit mask of the coalition; 1 <= N <= 12.

    Returns
    -------
    float64 array of shape (N,)
        Each within a few roundings of the exact sum (sums are correctly rounded), so that efficiency holds to
        1e-12 for utilities in [0, 1].

    Raises
    ------
    ValueError
        When the length is no such power of two, or a utility is not finite.
    """
    table = finite_vector("utilities", utilities)
    num_players = len(table).bit_length() - 1
    if num_players < 1 or len(table) != 1 << num_players:
        raise ValueError(
            f"utilities has {len(table)} values: give 2^N of them, one for each coalition of N >= 1 players."
        )
    _refuse_inexact(num_players)
    masks = np.arange(len(table))
    sizes = np.bitwise_count(masks)
    values = np.empty(num_players)
    for player in range(num_players):
        without = masks & (1 << player) == 0
        means = []
        for size in range(num_players):
            before = masks[without & (sizes == size)]
            gain = math.fsum((*table[before | (1 << player)], *-table[before]))
            means.append(gain / len(before))
        values[player] = math.fsum(means) / num_players
    return values


def contribution_rate(values: ArrayLike, private: Iterable[int], noise: float = 0.0) -> float:
    """Share R of the utility that the private players bring.

    R = sum over private j of max(phi_j, 0) / sum over all j of max(phi_j, 0). The clamp keeps R in [0, 1].

    Parameters
    ----------
    values : array of shape (N,)
        Shapley values phi, exact or released with noise.
    private : iterable of int
        Indices of the private players, in 0..N-1.
    noise : float
        Standard deviation >= 0 of the noise in each value.

    Returns
    -------
    float
        R in [0, 1]; 1, the most protective, unless the denominator is above 2 noise sqrt(N): a smaller one says
        nothing about the shares.

    Raises
    ------
    ValueError
        When a value is not finite, an index is no player, or the noise is negative.
    """
    phi = np.maximum(finite_vector("values", values), 0.0)
    chosen = private_players(private, len(phi))
    noise = non_negative("noise", noise)
    total = math.fsum(phi)
    if total <= 2 * noise * math.sqrt(len(phi)):
        return 1.0
    return min(1.0, math.fsum(phi[list(chosen)]) / total)


def private_players(private: Iterable[int], num_players: int) -> tuple[int, ...]:
    """Distinct indices of the private players, increasing; refuse one that is no player."""
    chosen = sorted({whole("private", player, minimum=0) for player in private})
    if chosen and chosen[-1] >= num_players:
        raise ValueError(
            f"private = {chosen[-1]} is no player: give indices from 0 to {num_players - 1} of the values."
        )
    return tuple(chosen)


def shapley_sensitivity(num_players: int, num_private: int | None = None) -> float:
    """L2 sensitivity of the vector of Shapley values, times the number m of records behind each utility.

    Each utility is the share of the same m records that are predicted right, and one record's correctness depends
    on that record and the coalition alone.

    Parameters
    ----------
    num_players : int
        N in 1..62: exact values (`shapley_values`) up to 12, estimates over public permutations (`sampled_shapley`)
        beyond.
    num_private : int, optional
        None: record relation, one record replaced. k in 1..N: attribute relation, where only the k private groups of
        one record change, not its label.

    Returns
    -------
    float
        D_N under the record relation: 2 up to N = 4, 2.464 at 12, 2 sqrt(N) beyond. Half of it under the attribute
        relation with one private group.

    Raises
    ------
    ValueError
        When an argument is outside its range.

    Notes
    -----
    Let d(S) in {-1, 0, 1} be the change of one record's correctness; the vector moves by phi(d)/m.

    Record relation, exact. phi(d) = sum_S d(S) u_S. For 0 < s = |S| < N, u_S is 1/(s B) on S and -1/((N - s) B)
    elsewhere, B the number of coalitions of size s: orthogonal to the vector of ones, |u_S|^2 = N/(s (N - s) B^2). By
    symmetry sum_S <u_S, e>^2 = |u_S|^2 B/(N - 1) for a unit e orthogonal to the ones, so by Cauchy-Schwarz size s adds
    at most sqrt(N/((N - 1) s (N - s))) to the part of phi(d) orthogonal to the ones; A_N is the sum over s. The part
    along the ones is (d(all) - d(empty))/sqrt(N), at most 2/sqrt(N). Together D_N = sqrt(A_N^2 + 4/N). For N <= 4
    the vertices of the cube were enumerated: 2, which d(S) = 1 if j in S else -1 attains for every N.

    Attribute relation, exact. d(S) = 0 when S holds no private group, the empty one included. A game and its dual
    -d(complement of S) have equal Shapley values, so phi(d) = phi(g)/2 with g(S) = d(S) - d(complement of S). With
    k = 1 one of the two is 0, so |g| <= 1 and phi(d) is at most D_N/2. With k > 1 it is so for the share h_s =
    (C(N - k, s) + C(N - k, s - k))/B of the coalitions of size s that hold all private groups or none, and |g| <= 2 for
    the others: the Cauchy-Schwarz term of size s shrinks by sqrt(1 - 3 h_s/4), and the part along the ones is at most
    1/sqrt(N).

    Permutations. The value of player j in one pair is half the difference of g at two consecutive coalitions, |g| <= 2,
    so at most 2 in size: norm 2 sqrt(N), and a mean over pairs is no longer. Attribute relation with k = 1: |g| <= 1
    and sqrt(N).
    """
    n = check_num_players(num_players)
    k = None if num_private is None else whole("num_private", num_private, minimum=1)
    if k is not None and k > n:
        raise ValueError(f"num_private = {k} is above num_players = {n}: give at most the number of players.")
    if n > MAX_EXACT:
        record = 2 * math.sqrt(n)
    else:
        record = 2.0 if n <= 4 else math.sqrt(_balanced_part(n, 0) ** 2 + 4 / n)
    if k is None:
        return record
    if k == 1:
        return record / 2
    return record if n > MAX_EXACT else min(record, math.sqrt(_balanced_part(n, k) ** 2 + 1 / n))


def _balanced_part(n: int, k: int) -> float:
    """Bound on the part of phi(d) orthogonal to the ones, where k groups are private (0: record relation)."""
    total = 0.0
    for s in range(1, n):
        half = math.comb(n - k, s) + (math.comb(n - k, s - k) if s >= k else 0) if k else 0
        total += math.sqrt((1 - 0.75 * half / math.comb(n, s)) * n / ((n - 1) * s * (n - s)))
    return total


def finite_vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return a float64 copy of a row of finite numbers."""
    array = np.array(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} has shape {array.shape} and type {array.dtype}: give one row of numbers, at least one."
        )
    array = array.astype(np.float64)
    if not bool((np.abs(array) <= _LARGEST).all()):
        raise ValueError(
            f"{name} holds a number that is not finite or above 1e300 in size: give finite numbers."
        )
    return array


def check_num_players(num_players: int) -> int:
    """Return a number of players in 1..62."""
    checked = whole("num_players", num_players, minimum=1)
    if checked > MAX_PLAYERS:
        raise ValueError(
            f"num_players = {checked} is not allowed: give at most {MAX_PLAYERS}, or merge groups."
        )
    return checked


def _refuse_inexact(num_players: int) -> None:
    if num_players > MAX_EXACT:
        raise ValueError(
            f"{num_players} players are too many for exact Shapley values: give at most {MAX_EXACT}, or use "
            "sampled_shapley with draw_permutations."
        )
