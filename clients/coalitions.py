"""Coalitions of groups of attributes or of records: what each of them uses.

A coalition is a bit mask: bit j is set when group j belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedveil.privacy.shapley import MAX_EXACT, MAX_PLAYERS

__all__ = [
    "Arrays",
    "AttributeGroups",
    "Labelled",
    "RecordGroups",
    "check_records",
    "evaluating",
    "num_correct",
]

Arrays = Mapping[str, NDArray[np.floating]]


class Labelled(NamedTuple):
    """Records with labels: float32 features of shape (n, *record), int64 labels of shape (n,)."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AttributeGroups:
    """A partition of the attributes.

    Parameters
    ----------
    masks : bool array, shape (N, p)
        Attributes of each group, of a flattened record; each of the p attributes is in one group.
    baseline : float32 array, shape (p,)
        Public value of each attribute, which it has outside a coalition.

    Raises
    ------
    ValueError
        When the masks are no partition, or the baseline does not fit.
    """

    masks: NDArray[np.bool_]
    baseline: NDArray[np.float32]

    def __post_init__(self) -> None:
        masks, baseline = np.asarray(self.masks), np.asarray(self.baseline)
        if masks.ndim != 2 or masks.dtype != np.bool_ or not masks.any(axis=1).all():
            raise ValueError(
                f"masks of shape {masks.shape} and type {masks.dtype} are no groups: give a bool mask for each group, "
                "none empty."
            )
        if (masks.sum(axis=0) != 1).any():
            raise ValueError(
                "masks overlap or leave attributes out: put each attribute into exactly one group."
            )
        if baseline.shape != masks.shape[1:] or not np.isfinite(baseline).all():
            raise ValueError(
                f"baseline of shape {baseline.shape} does not fit: give a finite value for each of {masks.shape[1]} "
                "attributes."
            )

    @property
    def num_groups(self) -> int:
        """N."""
        return len(self.masks)

    def check(self, features: NDArray[np.float32]) -> None:
        """Refuse records with another number of attributes."""
        size = int(np.prod(features.shape[1:]))
        if size != self.masks.shape[1]:
            raise ValueError(
                f"masks of {self.masks.shape[1]} attributes do not fit records of {size}: take both from one data set."
            )

    def views(self, records: Tensor, coalitions: NDArray[np.int64]) -> Tensor:
        """Records (n, *record) as each coalition sees them: (K, n, *record)."""
        kept = torch.tensor(_members(coalitions, self.num_groups) @ self.masks)
        base = torch.tensor(self.baseline, dtype=torch.float32)
        return torch.where(kept[:, None, :], records.flatten(1), base).unflatten(-1, records.shape[1:])

    def weights(self, coalitions: NDArray[np.int64], num_records: int) -> Tensor:
        """Weight of each training record in the loss of each coalition, float32 (K, n): the same for all."""
        return torch.full((len(coalitions), num_records), 1 / num_records)


@dataclass(frozen=True, eq=False)
class RecordGroups:
    """A partition of the training records.

    Parameters
    ----------
    owner : int64 array, shape (n,)
        Group 0..N-1 of each record.
    num_groups : int
        N.

    Raises
    ------
    ValueError
        When a record has no such group.
    """

    owner: NDArray[np.int64]
    num_groups: int

    def __post_init__(self) -> None:
        owner = np.asarray(self.owner)
        inside = owner.dtype.kind in "iu" and bool(((owner >= 0) & (owner < self.num_groups)).all())
        if owner.ndim != 1 or not inside:
            raise ValueError(
                f"owner of shape {owner.shape} and type {owner.dtype} is not allowed: give each record the number of "
                f"its group, from 0 to {self.num_groups - 1}."
            )

    def check(self, features: NDArray[np.float32]) -> None:
        """Refuse another number of records."""
        if len(features) != len(self.owner):
            raise ValueError(
                f"owner has {len(self.owner)} entries for {len(features)} training records: give one each."
            )

    def views(self, records: Tensor, coalitions: NDArray[np.int64]) -> Tensor:
        """The records themselves, for each coalition: (K, n, *record), without a copy."""
        return records.expand(len(coalitions), *records.shape)

    def weights(self, coalitions: NDArray[np.int64], num_records: int) -> Tensor:
        """Weight of each training record in the loss of each coalition, float32 (K, n): 0 outside of it."""
        inside = _members(coalitions, self.num_groups)[:, self.owner]
        sizes = np.maximum(1, inside.sum(axis=1, keepdims=True))
        return torch.tensor(inside / sizes, dtype=torch.float32)


def check_coalitions(coalitions: NDArray[np.int64] | None, num_groups: int) -> NDArray[np.int64]:
    """Return the coalitions to evaluate, all of them in order when none are given."""
    if num_groups > (MAX_EXACT if coalitions is None else MAX_PLAYERS):
        raise ValueError(
            f"{num_groups} groups have too many coalitions: give at most {MAX_EXACT} groups, or up to {MAX_PLAYERS} "
            "and the coalitions of sampled permutations."
        )
    chosen = np.arange(1 << num_groups) if coalitions is None else np.asarray(coalitions)
    allowed = chosen.ndim == 1 and chosen.dtype.kind in "iu"
    if not allowed or bool(((chosen < 0) | (chosen >= 1 << num_groups)).any()):
        raise ValueError(
            f"coalitions of shape {chosen.shape} and type {chosen.dtype} are not allowed: give bit masks of "
            f"{num_groups} groups, from 0 to 2^{num_groups} - 1."
        )
    return chosen.astype(np.int64)


def check_records(what: str, records: Labelled) -> None:
    """Refuse no records, or another number of labels."""
    features, labels = records
    if len(labels) == 0 or len(features) != len(labels):
        raise ValueError(
            f"{len(features)} {what} with {len(labels)} labels cannot be used: give one label each and at least one."
        )


def num_correct(scores: Tensor, labels: Tensor) -> Tensor:
    """Right predictions in each row of scores (K, n, k); a record whose scores are not finite is wrong."""
    right = (scores.argmax(dim=-1) == labels) & torch.isfinite(scores).all(dim=-1)
    return right.sum(dim=-1)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, without gradients, for a while."""
    before = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(before)


def _members(coalitions: NDArray[np.int64], num_groups: int) -> NDArray[np.bool_]:
    """Which groups each coalition holds: bool (K, N)."""
    held: NDArray[np.bool_] = (coalitions[:, None] >> np.arange(num_groups)) & 1 == 1
    return held
