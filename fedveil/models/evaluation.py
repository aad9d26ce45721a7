"""How good a model is on labelled records: accuracy and cross-entropy.

Both are releases when the records are private; the server calls this on its public test set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

__all__ = ["Evaluation", "evaluate"]

_BATCH_VALUES = 1 << 22  # feature values in a batch: 16 MB in float32


@dataclass(frozen=True)
class Evaluation:
    """A model's figures on some records.

    Parameters
    ----------
    accuracy : float
        Share of records whose most probable class is their label, in [0, 1].
    loss : float
        Mean cross-entropy in nats.
    num_records : int
        Number of records.
    """

    accuracy: float
    loss: float
    num_records: int


def evaluate(
    model: nn.Module,
    arrays: Mapping[str, NDArray[np.float32]],
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    shape: tuple[int, ...] | None = None,
) -> Evaluation:
    """Evaluate a model at given arrays.

    Parameters
    ----------
    model : torch.nn.Module
        Maps a batch of records to one score (logit) a class; its own parameters are neither used nor changed.
    arrays : mapping of str to float32 array
        A value for every trainable parameter, by name.
    features : float32 array of shape (n, p), or (n, *shape)
        Scaled features.
    labels : int64 array of shape (n,)
        Class of each record.
    shape : tuple of int, optional
        Shape in which the model takes one record; features are passed as they are when not given.

    Returns
    -------
    Evaluation
        Computed in batches whose size depends on p only, without gradients, summed in float64.

    Raises
    ------
    ValueError
        If there are no records, the numbers of features and labels differ, or arrays do not fit the model.
    """
    if len(labels) == 0 or len(features) != len(labels):
        raise ValueError(
            f"Evaluation needs as many labels as records and at least one, got {len(features)} records and"
            f" {len(labels)} labels."
        )
    device = _check_arrays(model, arrays)
    values = {name: torch.tensor(array, device=device) for name, array in arrays.items()}
    batch = max(1, min(4096, _BATCH_VALUES // max(1, math.prod(features.shape[1:]))))
    was_training = model.training
    correct, loss = 0, 0.0
    try:
        model.eval()
        with torch.no_grad():
            for start in range(0, len(labels), batch):
                records = torch.tensor(features[start : start + batch], device=device)
                truth = torch.tensor(labels[start : start + batch], device=device)
                records = records if shape is None else records.reshape(-1, *shape)
                scores = torch.func.functional_call(model, values, (records,)).double()
                loss += float(cross_entropy(scores, truth, reduction="sum"))
                correct += int((scores.argmax(dim=1) == truth).sum())
    finally:
        model.train(was_training)
    return Evaluation(correct / len(labels), loss / len(labels), len(labels))


def _check_arrays(model: nn.Module, arrays: Mapping[str, NDArray[np.float32]]) -> torch.device:
    """Refuse arrays that are not the model's, and say where the model lives."""
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if arrays.keys() != parameters.keys():
        odd = sorted(arrays.keys() ^ parameters.keys())
        raise ValueError(
            f"Arrays and model disagree about {', '.join(odd)}: pass one array for each parameter."
        )
    for name, parameter in parameters.items():
        if tuple(arrays[name].shape) != tuple(parameter.shape):
            raise ValueError(
                f"Array {name!r} has shape {tuple(arrays[name].shape)}, but the model needs"
                f" {tuple(parameter.shape)}: pass arrays of this model."
            )
    return next(iter(parameters.values())).device
