"""The configurations of one quantizer along a run: distinct codes on the final model's scales, and their indicator r_Q.

A configuration is its integer codes. Every model of the trajectory is encoded on the scales, zero points and thresholds
of the final one, equal codes are one candidate, and those of least loss are compared (THEORY 3, arXiv 2502.06567).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import (
    LEAST_RECORDS,
    LossMoments,
    MembershipIndicator,
    MembershipInterval,
    membership_indicator,
    record_interval,
)
from fedveil.quantization import Quantized, QuantizedModel, dequantize_all

__all__ = ["Judged", "code_entropy", "distinct_configurations", "judge", "late_models", "stacked"]

_LEAST_KEPT = 8  # with fewer candidates a ranking says little
_CLEAR = 2.0  # standard errors
_WEIGHTS_AT_ONCE = 1 << 23  # of models that are encoded together, in float64

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Judged:
    """The indicator of one quantizer.

    Attributes
    ----------
    indicator : MembershipIndicator
        Its candidates are counted in the order of `rounds`.
    interval : MembershipInterval
        From the records as independent units.
    rounds : tuple of int
        The first round at which each kept candidate occurred, the candidates of least loss first.
    num_distinct : int
        Distinct configurations along the run, before the best were kept.
    warning : str or None
        Where the best candidate is another than the published one, and clearly better: r_Q is then about a model that
        is not published.
    """

    indicator: MembershipIndicator
    interval: MembershipInterval
    rounds: tuple[int, ...]
    num_distinct: int
    warning: str | None = None


def late_models(trajectory: Sequence[tuple[int, Arrays]], skip: float) -> Sequence[tuple[int, Arrays]]:
    """The models that are candidates: without those of the beginning, which training leaves far behind.

    Parameters
    ----------
    skip : float
        Share of the trajectory that is left out, in [0, 1); at least 8 models stay, where there are as many.
    """
    kept = max(_LEAST_KEPT, math.ceil((1 - skip) * len(trajectory)))
    return trajectory[-kept:]


def code_entropy(model: QuantizedModel) -> float:
    """Entropy of a model's codes in bits a weight: what they can tell of their training at most, names aside."""
    counts: Counter[int] = Counter()
    for codes in model.codes.values():
        values, numbers = np.unique(codes, return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    shares = np.array(list(counts.values()), dtype=np.float64) / counts.total()
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # no negative zero


def distinct_configurations(
    final: QuantizedModel, final_round: int, trajectory: Iterable[tuple[int, Arrays]]
) -> list[tuple[int, QuantizedModel]]:
    """Models on the final one's grid, each set of codes once, with its first round; the final one comes last."""
    found: dict[bytes, tuple[int, QuantizedModel]] = {}
    course = list(trajectory)
    weights = sum(part.codes.size for part in final.quantized.values())
    step = max(1, _WEIGHTS_AT_ONCE // weights)
    for start in range(0, len(course), step):
        some = course[start : start + step]
        encoded_models = final.encode_all([arrays for _, arrays in some])
        for (server_round, _), encoded in zip(some, encoded_models, strict=True):
            found.setdefault(_fingerprint(encoded), (server_round, encoded))
    published = found.pop(_fingerprint(final), (final_round, final))
    return [*found.values(), published]


def stacked(models: Sequence[QuantizedModel]) -> dict[str, NDArray[np.float32]]:
    """What the codes of several models on one grid stand for, one model above the other."""
    codes = [model.codes for model in models]
    return {
        name: dequantize_all(np.stack([one[name] for one in codes]), part)
        if isinstance(part, Quantized)
        else np.repeat(part[None], len(models), axis=0)
        for name, part in models[0].parts.items()
    }


def judge(rounds: Sequence[int], losses: NDArray[np.float64], *, most: int) -> Judged:
    """The indicator from the losses of the distinct configurations on records that were not trained on.

    Parameters
    ----------
    rounds : sequence of int
        The round of each candidate.
    losses : float64 array (n, M)
        The published model's last.
    most : int
        Candidates that are kept, those of least mean loss.

    Raises
    ------
    ValueError
        If a loss is not finite.
    """
    order = np.argsort(losses.mean(axis=0), kind="stable")[:most]
    kept = losses[:, order]
    moments = LossMoments.from_losses(kept)
    indicator = membership_indicator(moments)
    return Judged(
        indicator,
        record_interval(kept, moments=moments),
        tuple(rounds[index] for index in order),
        losses.shape[1],
        _warning(rounds[order[indicator.best]], losses[:, -1] - kept[:, indicator.best]),
    )


def _warning(best_round: int, behind: NDArray[np.float64]) -> str | None:
    """A sentence where the published model's losses are clearly above the best candidate's."""
    gap, error = float(behind.mean()), float(behind.std()) / math.sqrt(len(behind))
    if len(behind) < LEAST_RECORDS:
        return None  # nothing is clear from so few
    if gap <= _CLEAR * error or gap <= 0:
        return None
    return (
        f"The best candidate is of round {best_round}, and the published codes' loss is clearly above its (by "
        f"{gap:.3g}): r_Q is then about a model that is not published."
    )


def _fingerprint(model: QuantizedModel) -> bytes:
    digest = blake2b(digest_size=16)
    for codes in model.codes.values():
        digest.update(np.ascontiguousarray(codes).tobytes())
    return digest.digest()
