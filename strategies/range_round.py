"""The range round: one message a client for the mean and the spread of every feature, before records are scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import CohortRelease, MessagePlan, ModulatedMoments, Modulation
from fedveil.strategies.attempts import ask, check_attempts, too_few
from fedveil.strategies.census import Census
from fedveil.strategies.judging import Judged
from fedveil.strategies.message_moments import message_grid, moments_of
from fedveil.strategies.message_replies import MessageReply
from fedveil.strategies.message_rounds import MessageRounds

__all__ = ["RangeEstimate", "range_round", "ranges_of"]

FloatArray = NDArray[np.float64]

_CLEAR = 2.0
"""How many times its own noise an estimated variance has to be, to be taken for one."""
_EXPECTED_SPREAD = 0.5
"""Standard deviation that a feature on [-1, 1] is expected to have before anything is released of it."""


@dataclass(frozen=True, eq=False)
class RangeEstimate:
    """Center and spread of every feature, from released values alone, and what they cost.

    Attributes
    ----------
    center, spread : float64 array (d,)
        In the unit of the public standardisation: what clients subtract, and divide by, before they clip.
    releases, assumed : tuple of CohortRelease
        The messages that the estimate is from, and those that are in no estimate: of missing or bad replies, which may
        have left their clients, once for each attempt, and of too few replies.
    """

    center: FloatArray
    spread: FloatArray
    releases: tuple[CohortRelease, ...] = ()
    assumed: tuple[CohortRelease, ...] = ()


def range_round(
    grid: Grid,
    census: Census,
    *,
    plan: MessagePlan,
    modulation: Modulation,
    bound: float,
    dimension: int,
    run: str,
    code: Mapping[str, str],
    label_scale: float | None = None,
    largest_label: float | None = None,
    timeout: float = 3600,
    min_replies: int = 1,
    round_attempts: int = 1,
    repeats_itself: bool = False,
    on_repeat: Callable[[tuple[CohortRelease, ...]], None] | None = None,
    say: Callable[[str], None] = print,
) -> RangeEstimate:
    """Ask every client once, in round 0, for its record without a wave; post-process the sums.

    Parameters
    ----------
    plan : MessagePlan
        Noise and cost of these messages: the share of each client's budget that ranges may use.
    modulation : Modulation
        Only c = 1 - alpha is used.
    bound : float
        B, the L2 norm to which publicly standardised records are clipped here.
    label_scale, largest_label
        As for the messages of the run; see :class:`fedveil.strategies.ModulatedOneShot`.
    timeout : float
        Seconds that one attempt may take.
    min_replies, round_attempts : int
        Fewest nodes that ranges are estimated from (with fewer, public ones serve); how often a node is asked at most.
    repeats_itself : bool
        Whether a node that is asked again sends the same bits, as in a seeded run: they are one release then.
    on_repeat : callable, optional
        Called before nodes are asked again, with the messages that may have left in the attempts so far, where they are
        releases of their own.

    Returns
    -------
    RangeEstimate
        Its releases are under the plan's relation, which they cost like any other message.

    Raises
    ------
    NoGoodReplies
        If no node sent a usable reply.
    ValueError
        If more replies are needed than there are nodes.
    """
    check_attempts(min_replies, round_attempts, census.num_nodes)
    wave = replace(modulation, amplitude=0.0)
    sums_grid = message_grid(
        census.num_clients,
        plan=plan,
        modulation=wave,
        bound=bound,
        label_scale=label_scale,
        largest_label=largest_label,
    )
    rounds = MessageRounds(census, plan, "range", sums_grid, dimension, run, code, wire.RANGE)
    clients = np.arange(census.num_clients)
    sent = {wire.COEFFICIENTS: np.zeros(dimension + 1), wire.DIRECTIONS: np.zeros((0, dimension))}

    def before_repeat(judged: Judged[MessageReply]) -> None:
        if on_repeat is not None and not repeats_itself:
            on_repeat(rounds.sent(0, *rounds.lost(judged, clients, repeats_itself=False)))

    requests, replies = ask(
        grid,
        rounds.requests(0, clients, sent),
        partial(rounds.judge, 0, clients),
        attempts=round_attempts,
        timeout=timeout,
        before_repeat=before_repeat,
        say=lambda line: say(f"ranges: {line}"),
    )
    collected = rounds.collect(0, clients, requests, replies, repeats_itself=repeats_itself)
    for reason in collected.failures:
        say(f"ranges: dropped {reason}")
    if len(collected.took_part) and (reason := too_few(collected.num_nodes, census.num_nodes, min_replies)):
        say(f"ranges: {reason}: public ones serve")
        collected = collected.without_use()
    if len(collected.took_part):
        moments = moments_of(
            collected,
            sums_grid,
            plan=plan,
            modulation=wave,
            directions=np.zeros((0, dimension)),
            label_scale=label_scale,
        )
        center, spread, fallback = ranges_of(moments)
    else:
        center, spread = np.zeros(dimension), np.full(dimension, _EXPECTED_SPREAD)
        fallback = np.ones(dimension, np.bool_)
    say(
        f"ranges of {dimension} features estimated from {len(collected.took_part)} clients"
        + (
            f"; {fallback.sum()} keep the public range: their estimate is mostly noise"
            if fallback.any()
            else ""
        )
    )
    return RangeEstimate(
        center=center,
        spread=spread,
        releases=rounds.sent(0, collected.took_part),
        assumed=rounds.sent(0, *collected.lost),
    )


def ranges_of(moments: ModulatedMoments) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Center, spread and fallback of every feature from moments of messages without a wave: post-processing.

    The debiased variance of a feature has, from noise alone, a standard deviation of l = (sigma^2/c^2) sqrt(2/K), and
    the mean a variance of e = sigma^2/(c^2 K): both known. Expected beforehand, of a feature that its public range
    brings to [-1, 1], are a mean of 0 and a standard deviation of p = 1/2, and both estimates are drawn to what is
    expected as far as their noise says: the variance by the factor p^4/(p^4 + l^2), the mean by p^2/(p^2 + e). A
    variance of at most 2 l is mostly noise: its feature falls back to 0 and p. No spread is above the public one, 1.

    Parameters
    ----------
    moments : ModulatedMoments
        Of publicly standardised, clipped records; they know their noise.

    Returns
    -------
    center, spread : float64 array (d,)
    fallback : bool array (d,)
        Features that keep their public range.
    """
    equations = moments.normal_equations()
    mean = equations.covariance[:-1, -1]
    variance = np.diag(equations.covariance)[:-1] - mean**2
    noise = equations.noise_variance * np.sqrt(2 / equations.count)
    # a constant column has variance 0 but for rounding: divided by that, it would be anything
    fallback = variance <= np.maximum(_CLEAR * noise, 1e-12)
    expected = _EXPECTED_SPREAD**2
    believed = expected**2 / (expected**2 + noise**2)
    drawn = believed * np.maximum(variance, 0.0) + (1 - believed) * expected
    spread = np.minimum(np.sqrt(np.where(fallback, expected, drawn)), 1.0)
    trusted = expected / (expected + equations.noise_variance / equations.count)
    center = np.where(fallback, 0.0, trusted * mean)
    return center, spread, fallback
