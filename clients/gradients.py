"""Per-record gradients, clipped one by one and averaged: the quantity that a noised step releases.

Record i has gradient ``g_i`` at its features and ``g0_i`` at its features with the private attributes at
their public baseline. A record-level step releases ``mean(clip_C(g_i))``; an attribute-level step releases
``mean(clip_C(g0_i)) + mean(clip_Cp(clip_C(g_i) - clip_C(g0_i)))``. Both sensitivities are proved in the
docstrings below, rounding included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

__all__ = ["attribute_clipped_mean", "clipped_mean", "private_radius"]

Arrays = Mapping[str, NDArray[np.floating]]

_CHUNK = 2**21  # numbers in one block of per-record gradients: 16 MB in float64, rows a function of p only
_UNIT = 2.0**-53  # unit roundoff of float64
# clipping norms from here to its inverse leave products of float32 gradients inside float64
_SMALLEST = 1e-30


def clipped_mean(
    model: nn.Module,
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
    model : torch.nn.Module
        No layer may mix records (``fedveil.models.refuse_record_coupling``).
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
    total = np.zeros(_size(arrays))
    radius = private_radius(clip_norm, num_records=len(features), size=total.size)
    weights = np.ones(len(features)) if included is None else included.astype(np.float64)
    start = 0
    for (gradients,) in _blocks(model, arrays, (features,), labels):
        stop = start + len(gradients)
        factors = _clip_factors(gradients, radius) * torch.tensor(weights[start:stop])
        total += (factors @ gradients).numpy()
        start = stop
    return total / denominator


def attribute_clipped_mean(
    model: nn.Module,
    arrays: Arrays,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    baseline_features: NDArray[np.float32],
    clip_norm: float,
    attribute_clip_norm: float,
    *,
    denominator: float,
) -> NDArray[np.float64]:
    """Mean gradient at the baseline plus the clipped mean contribution of the private attributes.

    Parameters
    ----------
    model, arrays, features, labels, clip_norm, denominator
        As in :func:`clipped_mean`.
    baseline_features : float32 array, shape (n, *record)
        ``features`` with the private attributes at their public baseline.
    attribute_clip_norm : float
        C_p > 0, public or released.

    Returns
    -------
    float64 array, shape (p,)
        ``sum(g0) + sum(clip_Cp(g - g0))`` over ``denominator``, with g and g0 clipped to ``clip_norm``.

    Notes
    -----
    Attribute relation (the private attributes of one record change, its other attributes and its label do
    not): the result moves by at most ``2 C_p / denominator``. Proof: g0 depends on no private attribute, so
    its sum keeps every bit; the one changed difference has norm at most C_p before and after.

    Record relation (one record changes as a whole): at most ``2 C / denominator``. Proof: ``clip_Cp(g - g0)``
    is ``t (g - g0)`` for a t in [0, 1], so a record adds ``(1 - t) g0 + t g``, a point between two points of
    the ball of radius C, which is convex.

    A non-finite g or g0 counts as 0, each by itself, which keeps both arguments. Feature differential
    privacy, arXiv 2506.19836, and semi-sensitive features, arXiv 2401.15246, treat the central case.
    """
    public, private = np.zeros(_size(arrays)), np.zeros(_size(arrays))
    radius = private_radius(clip_norm, num_records=len(features), size=public.size)
    attribute_radius = private_radius(
        attribute_clip_norm, num_records=len(features), size=public.size, beside=clip_norm
    )
    for at_record, at_baseline in _blocks(model, arrays, (features, baseline_features), labels):
        factors, baseline_factors = _clip_factors(at_record, radius), _clip_factors(at_baseline, radius)
        public += (baseline_factors @ at_baseline).numpy()
        # clipped g0 minus clipped g, in units of the baseline factor: one pass over the block, not three
        ratios = (factors / baseline_factors)[:, None]
        difference = torch.addcmul(at_baseline, at_record, ratios, value=-1, out=at_record)
        norms = baseline_factors * torch.linalg.vector_norm(difference, dim=1)
        private -= ((attribute_radius / norms).clamp(max=1.0) * baseline_factors @ difference).numpy()
    return (public + private) / denominator


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
        ``C (1 - m)`` with ``m = 1e-9 + 4 u (n^2 (1 + beside/C) + p)`` and u = 2^-53.

    Raises
    ------
    ValueError
        If a norm is outside 1e-30 .. 1e30, or m would pass 1/2.

    Notes
    -----
    With real arithmetic m = 0 would do. A computed norm of p numbers has a relative error of at most
    (p + 4) u, and a clipped record of a few roundings more. A computed sum of n records of norm C, in any
    order, is off by at most n (n + 4) u C (Higham, Accuracy and Stability of Numerical Algorithms, section
    4.2), and the sum beside it by n (n + 4) u ``beside``; adding the two and dividing rounds twice more.
    Each of two neighbours may be off by that much, in opposite directions, and between their stated sums
    lies 2 C: so m C covers it.
    """
    if not (_SMALLEST <= clip_norm <= 1 / _SMALLEST and 0 <= beside <= 1 / _SMALLEST):
        raise ValueError(
            f"a clipping norm must lie between {_SMALLEST} and {1 / _SMALLEST}, got {clip_norm}."
        )
    margin = 1e-9 + 4 * _UNIT * (float(num_records) ** 2 * (1 + beside / clip_norm) + size)
    if margin > 0.5:
        raise ValueError(
            f"clipping norm {clip_norm} with {num_records} records and {size} parameters leaves no room for "
            "float64 rounding; raise the norm or split the client's records."
        )
    return clip_norm * (1 - margin)


def _clip_factors(rows: Tensor, radius: float) -> Tensor:
    """min(1, radius / norm) of each row; a row that is not finite is set to 0 in place."""
    norms = torch.linalg.vector_norm(rows, dim=1)
    finite = torch.isfinite(norms)  # the squares of finite float32 numbers cannot overflow in float64
    if not bool(finite.all()):
        rows[~finite] = 0.0
        norms = torch.where(finite, norms, 0.0)
    factors: Tensor = (radius / norms).clamp(max=1.0)
    return factors


def _blocks(
    model: nn.Module, arrays: Arrays, views: tuple[NDArray[np.float32], ...], labels: NDArray[np.int64]
) -> Iterator[tuple[Tensor, ...]]:
    """Per-record gradients at each view of the records, block by block, in float64 buffers used again.

    How the records fall into blocks is a function of the number of parameters, hence public.
    """
    # copies lie on torch's own alignment, on which the bits of BLAS may depend
    parameters = {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()}

    def record_loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, values, (record[None],))
        return nn.functional.cross_entropy(outputs, label[None])

    gradients_of = vmap(grad(record_loss), in_dims=(None, 0, 0))
    size = _size(arrays)
    rows = max(1, min(len(labels), _CHUNK // size))
    buffers = [torch.empty((rows, size), dtype=torch.float64) for _ in views]
    for start in range(0, len(labels), rows):
        part = slice(start, start + rows)
        batch = torch.cat([torch.tensor(view[part]) for view in views])
        gradients = gradients_of(parameters, batch, torch.tensor(labels[part]).repeat(len(views)))
        by_view = zip(*(gradients[name].flatten(1).chunk(len(views)) for name in parameters), strict=True)
        yield tuple(_fill(buffer, parts) for buffer, parts in zip(buffers, by_view, strict=True))


def _fill(buffer: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """Copy the gradients of the parameters beside each other into the first rows of the buffer."""
    count, start = len(parts[0]), 0
    for part in parts:
        buffer[:count, start : start + part.shape[1]] = part
        start += part.shape[1]
    return buffer[:count]


def _size(arrays: Arrays) -> int:
    return sum(int(np.size(value)) for value in arrays.values())
