"""From records to messages, a block of clients at a time: clip, modulate, add noise, as matrix operations.

The noise and phases of a record are given as uniformly random words, so that this is a function of its arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.clients.modulated_request import MessageRequest
from fedveil.clients.modulated_variant import VariantPlan
from fedveil.moment_sums import round_to
from fedveil.privacy import modulated
from fedveil.streams import normals_from, uniforms_from

__all__ = ["Encoded", "RecordNotFinite", "encode_gradients", "encode_messages", "words_needed"]

_EPS = 2.0**-52
_LARGEST_RATIO = 1e100  # of a label to its scale: its square is finite, and clipped it is the same

FloatArray = NDArray[np.float64]
Words = NDArray[np.uint64]


class RecordNotFinite(ValueError):
    """A client's record holds NaN or infinity."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Messages of some clients.

    Parameters
    ----------
    messages : float64 array (k, d), or (k, d + 1) for gradients
    labels : float64 array (k,)
        In the clear or noised, as the variant says; empty for gradients.
    clipped : int
        Records whose norm was clipped: private.
    """

    messages: FloatArray
    labels: FloatArray
    clipped: int


def words_needed(variant: VariantPlan, dimension: int) -> dict[str, int]:
    """Random words of one record by what they are for; 0 of a kind that the variant does not use."""
    if variant.mechanism == "gradient":
        return {"phases": 0, "noise": dimension + 1, "label-noise": 0}
    noised = variant.plan is not None
    return {
        "phases": variant.modulation.num_directions if variant.modulation.amplitude > 0 else 0,
        "noise": dimension if noised else 0,
        "label-noise": 1 if noised and variant.label_scale is not None else 0,
    }


def encode_messages(
    features: NDArray[np.floating],
    targets: FloatArray,
    clients: NDArray[np.int64],
    words: dict[str, Words],
    variant: VariantPlan,
    request: MessageRequest,
) -> Encoded:
    """Messages c x + wave + noise of records of norm at most B, and their labels, on a grid (THEORY section 2).

    Parameters
    ----------
    features : float array (k, d)
        Standardised by public constants.
    targets : float64 array (k,)
        In the target's own unit.
    clients : int64 array (k,)
        Whose records they are.
    words : dict of str to uint64 array (k, number)
        As many as :func:`words_needed` says.
    variant : VariantPlan
    request : MessageRequest

    Raises
    ------
    RecordNotFinite
        If a record is not finite; only its client is named.
    ValueError
        If a label in the clear is beyond its public bound.
    """
    x, squares = _records(features, targets, clients, request)
    labels = targets.astype(np.float64)
    private_label = variant.label_scale is not None
    if variant.label_scale is not None:
        with np.errstate(over="ignore"):
            labels /= variant.label_scale
        np.clip(labels, -_LARGEST_RATIO, _LARGEST_RATIO, out=labels)
        squares += labels * labels
    elif variant.largest_label is not None and np.any(np.abs(labels) > variant.largest_label):
        raise ValueError(
            f"a label in the clear passes its public bound {variant.largest_label:g} in magnitude: state the target's "
            "range, or measure it in a larger unit."
        )
    factors = _clip_factors(squares, variant.bound, features.shape[1] + private_label)
    if factors is not None:
        x *= factors[:, None]
        if private_label:
            labels *= factors
    directions = request.directions if variant.modulation.amplitude > 0 else request.directions[:0]
    phases = uniforms_from(words["phases"])
    phases *= 2 * math.pi
    messages = modulated(x, directions, phases, variant.modulation)
    if variant.plan is not None:
        # the records are in the messages now, and their array takes the noise
        messages += normals_from(words["noise"], scale=variant.sigma, out=x)
        round_to(variant.step, messages)
    if private_label:
        labels *= variant.modulation.scale
        if variant.plan is not None:
            labels += normals_from(words["label-noise"][:, 0], scale=variant.sigma)
            round_to(variant.step, labels)
    return Encoded(messages, labels, _count(factors))


def encode_gradients(
    features: NDArray[np.floating],
    targets: FloatArray,
    clients: NDArray[np.int64],
    words: dict[str, Words],
    variant: VariantPlan,
    request: MessageRequest,
) -> Encoded:
    """Noised gradients of 1/2 (x'beta + b0 - y)^2 in the coefficients, clipped to norm C (local DP-SGD).

    Parameters, errors
        As for :func:`encode_messages`. A gradient that is not finite counts as 0.
    """
    x, _ = _records(features, targets, clients, request)
    gradients = np.empty((len(x), x.shape[1] + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        residuals = x @ request.coefficients[:-1] + request.coefficients[-1] - targets
        np.multiply(x, residuals[:, None], out=gradients[:, :-1])
        gradients[:, -1] = residuals
        squares = np.einsum("ij,ij->i", gradients, gradients)
        gradients[~np.isfinite(squares)] = 0.0
        squares[~np.isfinite(squares)] = 0.0
    factors = _clip_factors(squares, variant.bound, gradients.shape[1])
    if factors is not None:
        gradients *= factors[:, None]
    gradients += normals_from(words["noise"], scale=variant.sigma)
    round_to(variant.step, gradients)
    return Encoded(gradients, np.zeros(0), _count(factors))


def _records(
    features: NDArray[np.floating], targets: FloatArray, clients: NDArray[np.int64], request: MessageRequest
) -> tuple[FloatArray, FloatArray]:
    """The records in float64, scaled by estimated means and spreads if there are, and their squared norms."""
    if features.shape != (clients.size, request.dimension) or targets.shape != clients.shape:
        raise ValueError(
            f"records of shape {features.shape} and targets of {targets.shape} do not fit {clients.size} clients of "
            f"{request.dimension} features each: server and nodes must read the same data set."
        )
    if request.center is None or request.spread is None:
        x = features.astype(np.float64)
    else:
        x = np.subtract(features, request.center, dtype=np.float64)
        x /= request.spread
    squares = np.einsum("ij,ij->i", x, x)
    finite = np.isfinite(squares) & np.isfinite(targets)
    if not finite.all():
        raise RecordNotFinite(
            f"the record of client {clients[~finite][0]} holds NaN or infinity: repair it, or impute a public constant."
        )
    return x, squares


def _clip_factors(squares: FloatArray, bound: float, dimension: int) -> FloatArray | None:
    """Factors that bring rows of these squared norms to the bound, or None where no row passes it."""
    # a hair inside, so that no rounding, of the sum of squares or of the products, takes the norm past the bound
    limit = bound * (1 - (dimension + 8) * _EPS)
    over = squares > limit * limit
    if not over.any():
        return None
    return np.where(over, limit / np.sqrt(np.maximum(squares, limit * limit)), 1.0)


def _count(factors: FloatArray | None) -> int:
    return 0 if factors is None else int(np.count_nonzero(factors < 1))
