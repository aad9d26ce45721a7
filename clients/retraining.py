"""Utilities of coalitions by retraining: one model for each coalition, all of them trained as one batch.

This is the contribution as FedSVA publishes it (arXiv 2503.12958), and the only way to ask what a group of RECORDS
contributes. One record can change every prediction of every model, so no useful sensitivity is known: what is computed
from these utilities is data-dependent and stays on the client.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedveil.clients.coalitions import (
    Arrays,
    AttributeGroups,
    Labelled,
    RecordGroups,
    check_coalitions,
    check_records,
    evaluating,
    num_correct,
)
from fedveil.models import Learner

__all__ = ["RecordGroups", "retrain", "retrain_utilities"]

_BLOCK = 2**23  # activations and parameters held at once, roughly: 32 MB in float32


def retrain_utilities(
    learner: Learner,
    arrays: Arrays,
    training: Labelled,
    validation: Labelled,
    groups: AttributeGroups | RecordGroups,
    *,
    steps: int,
    learning_rate: float,
    coalitions: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Accuracy on held-out records of a model trained with each coalition alone.

    Parameters
    ----------
    learner : Learner
        Network and loss; its local step is not used. No layer may mix records.
    arrays : mapping of str to array
        Parameters at which every training starts.
    training, validation : Labelled
        Disjoint records (``fedveil.clients.contribution.split_validation``).
    groups : AttributeGroups or RecordGroups
        Attributes outside a coalition are at their baseline, in training and in validation; training records outside
        it weigh 0.
    steps, learning_rate
        Full-batch gradient descent on the mean loss of a coalition's records.
    coalitions : int64 array, shape (K,), optional
        Bit masks; all 2^N (N <= 12) in order when left out.

    Returns
    -------
    float64 array, shape (K,)
        In [0, 1]. The empty coalition of attributes predicts the most frequent training label (the smallest of
        several), that of records is the start model. A model that diverged predicts wrong.

    Raises
    ------
    ValueError
        When the groups do not fit the records, or an argument is outside its range.
    """
    check_records("training records", training)
    check_records("validation records", validation)
    groups.check(training.features)
    if isinstance(groups, AttributeGroups):
        groups.check(validation.features)
    chosen = check_coalitions(coalitions, groups.num_groups)
    utilities = np.empty(len(chosen))
    together = _together(learner.module, arrays, training)
    for first in range(0, len(chosen), together):
        part = slice(first, first + together)
        models = retrain(
            learner, arrays, training, groups, chosen[part], steps=steps, learning_rate=learning_rate
        )
        utilities[part] = _accuracies(learner.module, models, validation, groups, chosen[part])
    if isinstance(groups, AttributeGroups):
        majority = np.bincount(training.labels).argmax()
        utilities[chosen == 0] = np.mean(validation.labels == majority)
    return utilities


def retrain(
    learner: Learner,
    arrays: Arrays,
    training: Labelled,
    groups: AttributeGroups | RecordGroups,
    coalitions: NDArray[np.int64],
    *,
    steps: int,
    learning_rate: float,
) -> dict[str, Tensor]:
    """Train one model for each coalition, all at once.

    Parameters
    ----------
    learner : Learner
        Network and loss; its local step is not used. No layer may mix records.
    arrays : mapping of str to array
        Parameters at which every training starts.
    training : Labelled
    groups : AttributeGroups or RecordGroups
    coalitions : int64 array, shape (K,)
    steps, learning_rate
        Full-batch gradient descent on the mean loss of a coalition's records.

    Returns
    -------
    dict of str to float32 tensor of shape (K, *parameter)
        What K separate trainings would give, up to the order of additions. Data-dependent.

    Raises
    ------
    ValueError
        When the groups do not fit the records, or an argument is outside its range.
    """
    if steps < 1 or not 0 < learning_rate < math.inf:
        raise ValueError(
            f"{steps} retraining steps at learning rate {learning_rate} are not allowed: give at least one step and a "
            "finite rate above 0."
        )
    check_records("training records", training)
    groups.check(training.features)
    chosen = check_coalitions(coalitions, groups.num_groups)
    module, loss = learner.module, learner.loss
    scores_of = vmap(lambda values, records: functional_call(module, values, (records,)))
    losses_of = vmap(lambda score, label: loss(score[None], label[None]))
    if loss is cross_entropy:  # the same numbers without vmap, whose overhead counts where models are few
        losses_of = partial(cross_entropy, reduction="none")
    models = {
        name: torch.tensor(np.stack([value] * len(chosen)), dtype=torch.float32, requires_grad=True)
        for name, value in arrays.items()
    }
    features, labels = torch.tensor(training.features), torch.tensor(training.labels)
    weights = groups.weights(chosen, len(labels))
    rows = _rows(module, arrays, features, len(chosen))
    parts = [slice(start, start + rows) for start in range(0, len(labels), rows)]
    batches = [
        (groups.views(features[part], chosen), weights[:, part].flatten(), labels[part].repeat(len(chosen)))
        for part in parts
    ]
    everybody = bool((weights > 0).all())
    for _ in range(steps):
        gradients: tuple[Tensor, ...] = ()
        for view, weight, truth in batches:
            scores = scores_of(models, view).flatten(0, 1)
            if not everybody:
                # A record outside a coalition must not break its model, whatever its loss: 0 times infinity is not 0.
                scores = torch.where(weight[:, None] > 0, scores, 0.0)
            # One sum over all models: its gradient at a model's parameters is that of the model's own loss.
            total = weight @ losses_of(scores, truth)
            added = torch.autograd.grad(total, list(models.values()))
            gradients = tuple(map(torch.add, gradients, added)) if gradients else added
        # The gradient comes first: the sum takes its memory layout, transposed for dense layers, which halves the time.
        models = {
            name: (gradient * -learning_rate + value.detach()).requires_grad_()
            for (name, value), gradient in zip(models.items(), gradients, strict=True)
        }
    return {name: value.detach() for name, value in models.items()}


def _accuracies(
    module: nn.Module,
    models: dict[str, Tensor],
    validation: Labelled,
    groups: AttributeGroups | RecordGroups,
    coalitions: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Accuracy of each of the stacked models on the validation records as its coalition sees them."""
    scores_of = vmap(lambda values, records: functional_call(module, values, (records,)))
    correct = torch.zeros(len(coalitions), dtype=torch.int64)
    features, labels = torch.tensor(validation.features), torch.tensor(validation.labels)
    rows = _rows(
        module, {name: value[0].numpy() for name, value in models.items()}, features, len(coalitions)
    )
    with evaluating(module):
        for start in range(0, len(labels), rows):
            views = groups.views(features[start : start + rows], coalitions)
            correct += num_correct(scores_of(models, views), labels[start : start + rows])
    return correct.numpy() / len(labels)


def _together(module: nn.Module, arrays: Arrays, training: Labelled) -> int:
    """How many models to train at once: a function of public sizes, so that memory is bounded."""
    parameters = 3 * sum(int(np.size(value)) for value in arrays.values())
    records = len(training.labels) * _activations(module, arrays, torch.tensor(training.features))
    return max(1, _BLOCK // (parameters + records))


def _rows(module: nn.Module, arrays: Arrays, features: Tensor, num_models: int) -> int:
    """How many records to pass through this many models at once."""
    return max(1, _BLOCK // (num_models * _activations(module, arrays, features)))


def _activations(module: nn.Module, arrays: Arrays, features: Tensor) -> int:
    """Numbers that one record leaves behind in a forward pass, itself twice included; tried on a record of zeros."""
    count = 2 * math.prod(features.shape[1:])

    def add(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal count
        if isinstance(output, Tensor):
            count += output.numel()

    hooks = [layer.register_forward_hook(add) for layer in module.modules()]
    try:
        with evaluating(module):
            values = {name: torch.zeros(np.shape(value)) for name, value in arrays.items()}
            functional_call(module, values, (torch.zeros((1, *features.shape[1:])),))
    finally:
        for hook in hooks:
            hook.remove()
    return count
