"""The configurations of one quantizer along a run: distinct codes on the final model's scales, and their indicator r_Q.

A configuration is its integer codes. Every model of the trajectory is encoded on the scales, zero points and thresholds
of the final one, equal codes are one candidate, and those of least loss are compared (THEORY 3, arXiv 2502.06567).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import (
    LossMoments,
    MembershipIndicator,
    MembershipInterval,
    membership_indicator,
    record_interval,
)
from fedveil.quantization import QuantizedModel

__all__ = ["Judged", "distinct_configurations", "judge", "stacked"]

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
    """

    indicator: MembershipIndicator
    interval: MembershipInterval
    rounds: tuple[int, ...]
    num_distinct: int


def distinct_configurations(
    final: QuantizedModel, final_round: int, trajectory: Iterable[tuple[int, Arrays]]
) -> list[tuple[int, QuantizedModel]]:
    """The final model and the models of a trajectory on its grid, each set of codes once, with its first round."""
    found: dict[bytes, tuple[int, QuantizedModel]] = {}
    for server_round, arrays in trajectory:
        encoded = final.encode(arrays)
        found.setdefault(_fingerprint(encoded), (server_round, encoded))
    found.setdefault(_fingerprint(final), (final_round, final))
    return list(found.values())


def stacked(models: Sequence[QuantizedModel]) -> dict[str, NDArray[np.float32]]:
    """What the codes of several models stand for, one model above the other."""
    arrays = [model.arrays() for model in models]
    return {name: np.stack([one[name] for one in arrays]) for name in arrays[0]}


def judge(rounds: Sequence[int], losses: NDArray[np.float64], *, most: int) -> Judged:
    """The indicator from the losses of the distinct configurations on records that were not trained on.

    Parameters
    ----------
    rounds : sequence of int
        The round of each candidate.
    losses : float64 array (n, M)
    most : int
        Candidates that are kept, those of least mean loss.

    Raises
    ------
    ValueError
        If a loss is not finite.
    """
    order = np.argsort(losses.mean(axis=0), kind="stable")[:most]
    kept = losses[:, order]
    return Judged(
        membership_indicator(LossMoments.from_losses(kept)),
        record_interval(kept),
        tuple(rounds[index] for index in order),
        losses.shape[1],
    )


def _fingerprint(model: QuantizedModel) -> bytes:
    digest = blake2b(digest_size=16)
    for codes in model.codes.values():
        digest.update(np.ascontiguousarray(codes).tobytes())
    return digest.digest()
