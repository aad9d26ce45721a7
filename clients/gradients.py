"""Per-record gradients, clipped one by one and averaged: the quantity that a noised step releases.

Record i has gradient ``g_i`` at its features and ``g0_i`` at its features with the private attributes at
their public baseline. A record-level step releases ``mean(clip_C(g_i))``; an attribute-level step releases
``mean(clip_C(g0_i)) + mean(clip_Cp(clip_C(g_i) - clip_C(g0_i)))``. Both sensitivities are proved in the
docstrings below, rounding included.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.clients.record_gradients import Arrays, Rows, gradient_blocks, pieces
from fedveil.models import Learner

__all__ = ["Arrays", "attribute_mean_and_share", "clipped_mean", "private_radius"]

_UNIT = 2.0**-53  # unit roundoff of float64
# clipping norms from here to its inverse leave products of float32 gradients inside float64
_SMALLEST = 1e-30


def clipped_mean(
    learner: Learner,
    arrays: Arrays,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    clip_norm: float,
    *,
    denominator: float,
    included: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Mean of the per-record gradients, each clipped to L2 norm ``clip_norm``.

    Parameters
    ----------
    learner : Learner
        Network and loss. No layer may mix records (``fedveil.models.refuse_record_coupling``).
    arrays : mapping of str to array
        Values of the model's parameters by name; their order is the order of the result.
    features : float32 array, shape (n, *record)
    labels : int64 array, shape (n,)
    clip_norm : float
        C > 0.
    denominator : float
        Public number to divide by: n, or the expected batch size under Poisson sampling. Never the realised
        size.
    included : bool array, shape (n,), optional
        The sample, under Poisson sampling. The gradients of all records are computed and the others weigh 0: were
        the sample taken out, its size, which is secret, would decide the shapes and so the last bits of its
        records' gradients, and the time that the step takes.

    Returns
    -------
    float64 array, shape (p,)

    Notes
    -----
    Replacing one record moves the result by at most ``2 C / denominator`` in L2 norm. Proof: every record is
    clipped to norm at most C' and a non-finite gradient counts as 0, so the exact mean moves by at most 2
    C'/denominator; the gradients of the other records do not change, not even in their last bit, because each
    row is computed from its own record and from public shapes. ``private_radius`` leaves room between C' and
    C for every float64 rounding.
    """
    total = torch.zeros(_size(arrays), dtype=torch.float64)
    radius = private_radius(clip_norm, num_records=len(features), size=len(total))
    weights = torch.ones(len(features)) if included is None else torch.tensor(included)
    start = 0
    for (gradients,) in gradient_blocks(learner, arrays, (features,), labels):
        stop = start + len(gradients[0])
        factors = _clip_factors(gradients, radius) * weights[start:stop].double()
        for place, piece in pieces(gradients):
            total[place].addmv_(piece.T, factors)
        start = stop
    return (total / denominator).numpy()


def attribute_mean_and_share(
    learner: Learner,
    arrays: Arrays,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    baseline_features: NDArray[np.float32],
    clip_norm: float,
    attribute_clip_norm: float,
    *,
    denominator: float,
) -> tuple[NDArray[np.float64], float]:
    """Mean gradient at the baseline plus the clipped mean contribution of the private attributes, and a share.

    Parameters
    ----------
    learner, arrays, features, labels, clip_norm, denominator
        As in :func:`clipped_mean`.
    baseline_features : float32 array, shape (n, *record)
        ``features`` with the private attributes at their public baseline.
    attribute_clip_norm : float
        C_p > 0, public or released.

    Returns
    -------
    float64 array, shape (p,)
        ``sum(g0) + sum(clip_Cp(g - g0))`` over ``denominator``, with g and g0 clipped to ``clip_norm``.
    float
        Number of records with ``norm(g - g0) <= C_p``, before that clipping, over ``denominator``. Exact: one record
        moves it by at most ``1 / denominator`` under either relation, and it leaves a client with noise of its
        own only.

    Notes
    -----
    With t in [0, 1] the factor of a record's second clipping, it adds ``g0 + t (g - g0) = (1 - t) g0 + t g``.

    Attribute relation (the private attributes of one record change, its other attributes and its label do not): the
    result moves by at most ``2 C_p / denominator``. Proof: no other record's gradients or factors change, g0 depends
    on no private attribute, and ``t (g - g0)`` has norm at most C_p before and after.

    Record relation (one record changes as a whole): at most ``2 C / denominator``. Proof: what a record adds is a
    point between two points of the ball of radius C, which is convex.

    ``private_radius`` leaves room for every float64 rounding. A non-finite g or g0 counts as 0, each by itself, which
    keeps both arguments. Feature differential privacy, arXiv 2506.19836, and semi-sensitive features, arXiv
    2401.15246, treat the central case.
    """
    total, within = torch.zeros(_size(arrays), dtype=torch.float64), 0
    radius = private_radius(clip_norm, num_records=len(features), size=len(total))
    attribute_radius = private_radius(
        attribute_clip_norm, num_records=len(features), size=len(total), beside=clip_norm
    )
    scratch = torch.empty(0, dtype=torch.float64)
    for at_record, at_baseline in gradient_blocks(learner, arrays, (features, baseline_features), labels):
        factors, baseline_factors = _clip_factors(at_record, radius), _clip_factors(at_baseline, radius)
        # g0 - g in units of the baseline factor: one pass over a piece, not three
        ratios = (factors / baseline_factors)[:, None]
        squares = torch.zeros_like(factors)
        for (_, piece), (_, baseline) in zip(pieces(at_record), pieces(at_baseline), strict=True):
            if len(scratch) < piece.numel():
                scratch = torch.empty(
                    piece.numel(), dtype=torch.float64
                )  # fresh memory costs as much as the sum
            difference = scratch[: piece.numel()].view(piece.shape)
            torch.addcmul(baseline, piece, ratios, value=-1, out=difference)
            squares += torch.linalg.vector_norm(difference, dim=1).square_()
        norms = baseline_factors * squares.sqrt_()
        within += int((norms <= attribute_clip_norm).sum())
        shares = (attribute_radius / norms).clamp(max=1.0)
        weights, baseline_weights = shares * factors, (1.0 - shares) * baseline_factors
        for (place, piece), (_, baseline) in zip(pieces(at_record), pieces(at_baseline), strict=True):
            total[place].addmv_(baseline.T, baseline_weights).addmv_(piece.T, weights)
    return (total / denominator).numpy(), within / denominator


def private_radius(clip_norm: float, *, num_records: int, size: int, beside: float = 0.0) -> float:
    """The norm to clip to, so that the rounded mean still moves by at most the norm that is stated.

    Parameters
    ----------
    clip_norm : float
        The stated norm C.
    num_records : int
        Public bound n on the records summed.
    size : int
        Number of parameters p.
    beside : float
        Norm of the records of a sum that is added to this one.

    Returns
    -------
    float
        ``C (1 - m)`` with ``m = 1e-9 + 8 u (n^2 (1 + beside/C) + p)`` and u = 2^-53.

    Raises
    ------
    ValueError
        If a norm is outside 1e-30 .. 1e30, or m would pass 1/2.

    Notes
    -----
    With real arithmetic m = 0 would do. A computed norm of p numbers has a relative error of at most (p + 4) u. Where
    the record's clipped gradients g and g0 of norm B (C itself, or ``beside``) are weighed by t and 1 - t, the factors
    carry relative errors of at most 2 u each, and t (g - g0) one of 2 u B beside that of its norm: together 4 u B.
    A computed sum of 2 n terms whose norms add up to n B, in any order, is off by at most n (2 n + 1) u B (Higham,
    Accuracy and Stability of Numerical Algorithms, section 4.2), and dividing it rounds by n u B more. That is less
    than 8 n^2 u B in all, for either of two neighbours, in opposite directions, and between their exact sums lies 2 C:
    so m C covers it.
    """
    if not (_SMALLEST <= clip_norm <= 1 / _SMALLEST and 0 <= beside <= 1 / _SMALLEST):
        raise ValueError(
            f"a clipping norm must lie between {_SMALLEST} and {1 / _SMALLEST}, got {clip_norm}."
        )
    margin = 1e-9 + 8 * _UNIT * (float(num_records) ** 2 * (1 + beside / clip_norm) + size)
    if margin > 0.5:
        raise ValueError(
            f"clipping norm {clip_norm} with {num_records} records and {size} parameters leaves no room for "
            "float64 rounding; raise the norm or split the client's records."
        )
    return clip_norm * (1 - margin)


def _clip_factors(gradients: Rows, radius: float) -> Tensor:
    """min(1, radius / norm) of each row; a row that is not finite is set to 0 in place."""
    squares = torch.zeros(len(gradients[0]), dtype=torch.float64)
    for _, piece in pieces(gradients):
        squares += torch.linalg.vector_norm(piece, dim=1).square_()
    finite = torch.isfinite(squares)  # the squares of finite float32 numbers cannot overflow in float64
    if not bool(finite.all()):
        for part in gradients:
            part[~finite] = 0.0
        squares = torch.where(finite, squares, 0.0)
    factors: Tensor = (radius / squares.sqrt_()).clamp(max=1.0)
    return factors


def _size(arrays: Arrays) -> int:
    return sum(int(np.size(value)) for value in arrays.values())
