"""The losses of many candidate models on the same records, as one batched model where that is faster."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedveil.models.learner import Learner

__all__ = ["candidate_losses"]

_BATCH_VALUES = 1 << 22  # feature values of all candidates in a batch: 16 MB in float32


def candidate_losses(
    learner: Learner,
    candidates: Mapping[str, NDArray[np.float32]],
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    shape: tuple[int, ...] | None = None,
) -> NDArray[np.float64]:
    """Loss of every record under every candidate.

    Parameters
    ----------
    learner : Learner
        The network, whose own parameters are neither used nor changed, and the loss of a record.
    candidates : mapping of str to float32 array of shape (M, ...)
        For every trainable parameter the values of the M candidates, one above the other.
    features : float32 array of shape (n, p)
    labels : int64 array of shape (n,)
    shape : tuple of int, optional
        Shape in which the network takes one record.

    Returns
    -------
    float64 array of shape (n, M)

    Raises
    ------
    ValueError
        If there are no records or candidates, or arrays do not fit the network.
    """
    parameters = {name: value for name, value in learner.module.named_parameters() if value.requires_grad}
    counts = {len(array) for array in candidates.values()}
    fits = candidates.keys() == parameters.keys() and all(
        candidates[name].shape[1:] == tuple(value.shape) for name, value in parameters.items()
    )
    if not fits or len(counts) != 1 or 0 in counts:
        raise ValueError(
            "the candidates do not fit the model: give each parameter's values of the same candidates."
        )
    if len(labels) == 0 or len(features) != len(labels):
        raise ValueError(
            f"{len(features)} records with {len(labels)} labels: give as many labels, and at least one."
        )
    (count,) = counts
    device = next(iter(parameters.values())).device
    values = {name: torch.tensor(candidates[name], device=device) for name in parameters}
    step = max(1, min(4096, _BATCH_VALUES // (count * max(1, math.prod(features.shape[1:])))))
    was_training = learner.module.training
    losses = np.empty((len(labels), count))
    try:
        learner.module.eval()
        with torch.no_grad():
            for start in range(0, len(labels), step):
                records = torch.tensor(features[start : start + step], device=device)
                truth = torch.tensor(labels[start : start + step], device=device)
                records = records if shape is None else records.reshape(-1, *shape)
                scores = _scores(learner.module, values, records)
                losses[start : start + step] = _losses(learner, scores.double(), truth).T.cpu().numpy()
    finally:
        learner.module.train(was_training)
    return losses


def _scores(module: nn.Module, values: Mapping[str, Tensor], records: Tensor) -> Tensor:
    """Scores (M, n, k): all candidates at once, but for convolutions, whose batched form takes 1.6 times as long."""
    if any(isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for layer in module.modules()):
        count = len(next(iter(values.values())))
        each = [{name: value[index] for name, value in values.items()} for index in range(count)]
        return torch.stack([torch.func.functional_call(module, one, (records,)) for one in each])
    batched: Tensor = torch.func.vmap(
        lambda one: torch.func.functional_call(module, one, (records,)), randomness="error"
    )(dict(values))
    return batched


def _losses(learner: Learner, scores: Tensor, labels: Tensor) -> Tensor:
    """Loss (M, n) of scores (M, n, k)."""
    count, records, classes = scores.shape
    if learner.loss is cross_entropy:
        flat = cross_entropy(scores.reshape(-1, classes), labels.repeat(count), reduction="none")
        return flat.reshape(count, records)
    # a record's loss is that of a batch of one
    each = torch.func.vmap(lambda score, label: learner.loss(score[None], label[None]))
    result: Tensor = torch.func.vmap(lambda one: each(one, labels))(scores)
    return result
