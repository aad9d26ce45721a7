"""Utilities of coalitions, from which a client computes the contribution of its private attributes.

The utility of a coalition of groups is the accuracy when only the groups in it are used. `mask_utilities` evaluates the
received model with the other attributes at their public baseline: a record's correctness depends on that record alone,
so Shapley values of these utilities have a sensitivity and can be released. ``fedveil.clients.retraining`` trains a
model on each coalition instead.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from fedveil.clients.coalitions import (
    Arrays,
    AttributeGroups,
    Labelled,
    check_coalitions,
    check_records,
    evaluating,
    num_correct,
)
from fedveil.streams import Stream

__all__ = ["mask_utilities", "split_validation"]

_BATCH_VALUES = 2**22  # feature values in a batch: 16 MB in float32
_BATCH_ROWS = 4096


def mask_utilities(
    module: nn.Module,
    arrays: Arrays,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    masks: NDArray[np.bool_],
    baseline: NDArray[np.float32],
    coalitions: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Accuracy of a model on the records with the attributes outside each coalition at their baseline.

    Parameters
    ----------
    module : torch.nn.Module
        Maps float32 records (n, *record) to scores (n, k). No layer may mix records
        (``fedveil.models.refuse_record_coupling``).
    arrays : mapping of str to array
        Values of the module's parameters; for a release they must be a function of earlier releases.
    features : float32 array, shape (m, *record)
    labels : int64 array, shape (m,)
    masks : bool array, shape (N, p)
        Attributes of each group, of a flattened record; each of the p attributes is in one group.
    baseline : float32 array, shape (p,)
        Public value of each attribute.
    coalitions : int64 array, shape (K,), optional
        Bit masks; all 2^N (N <= 12) in order when left out.

    Returns
    -------
    float64 array, shape (K,)
        Whole numbers over m. A record whose scores are not all finite counts as predicted wrong.

    Raises
    ------
    ValueError
        When the groups are no partition of the attributes, a coalition holds an unknown group, there are no records,
        or N > 12 without coalitions.

    Notes
    -----
    Replacing one record changes each utility by at most 1/m: a record's scores are computed from the record itself and
    from public shapes. Replacing its private attributes leaves the utility of every coalition without a private group
    as it is, to the bit.
    """
    check_records("records", Labelled(features, labels))
    groups = AttributeGroups(masks, baseline)
    groups.check(features)
    chosen = check_coalitions(coalitions, groups.num_groups)
    values = {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()}
    batch = max(1, min(_BATCH_ROWS, _BATCH_VALUES // masks.shape[1]))
    rows = min(len(labels), batch)
    together = batch // rows
    correct = np.zeros(len(chosen), dtype=np.int64)
    with evaluating(module):
        for start in range(0, len(labels), rows):
            records = torch.tensor(features[start : start + rows])
            truth = torch.tensor(labels[start : start + rows])
            for first in range(0, len(chosen), together):
                part = slice(first, first + together)
                views = groups.views(records, chosen[part])
                scores = functional_call(module, values, (views.flatten(0, 1),))
                correct[part] += num_correct(scores.unflatten(0, views.shape[:2]), truth).numpy()
    return correct / len(labels)


def split_validation(
    num_records: int, fraction: float, stream: Stream
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose the records on which utilities are measured.

    Parameters
    ----------
    num_records : int
        n >= 1, public.
    fraction : float
        Share of validation records in (0, 1], public; with 1 none is left for training.
    stream : Stream
        A public stream: no value of a record may decide where it goes.

    Returns
    -------
    training, validation : int64 arrays
        Increasing row numbers; together every row once. Validation has round(fraction n) rows, at least one.

    Raises
    ------
    ValueError
        When an argument is outside its range.
    """
    if num_records < 1 or not 0 < fraction <= 1:
        raise ValueError(
            f"validation-fraction = {fraction} of {num_records} records is not allowed: give a share above 0 and at "
            "most 1, of at least one record."
        )
    order = stream.permutation(num_records)
    count = max(1, round(fraction * num_records))
    return np.sort(order[count:]), np.sort(order[:count])
