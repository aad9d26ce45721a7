"""Losses of many candidate models at once, against one model after the other and one record after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedveil.models import Learner, build_learner, candidate_losses, cnn, evaluate, mlp, softmax

IMAGE = (1, 12, 12)
CLASSES = 3


def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores, labels, label_smoothing=0.1)


def candidates_of(module: nn.Module, count: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """So many models of one architecture."""
    rng = np.random.default_rng(seed)
    return {
        name: (0.05 * rng.normal(size=(count, *value.shape))).astype(np.float32)
        for name, value in module.named_parameters()
    }


def records_of(count: int, seed: int = 1) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.random((count, 144)).astype(np.float32), rng.integers(0, CLASSES, count)


def one_by_one(
    learner: Learner, candidates: dict[str, Any], features: NDArray[Any], labels: NDArray[Any]
) -> NDArray[np.float64]:
    """Each record by itself, in each model by itself."""
    count = len(next(iter(candidates.values())))
    losses = np.empty((len(labels), count))
    for index in range(count):
        values = {name: torch.tensor(array[index]) for name, array in candidates.items()}
        for place, (record, label) in enumerate(zip(features, labels, strict=True)):
            batch = torch.tensor(record).reshape(1, *IMAGE)
            scores = torch.func.functional_call(learner.module, values, (batch,)).double()
            losses[place, index] = float(learner.loss(scores, torch.tensor([label])))
    return losses


@pytest.mark.parametrize("loss", [cross_entropy, smoothed])
@pytest.mark.parametrize("factory", [softmax, mlp, cnn])
def test_losses_are_those_of_each_record_in_each_model(
    factory: Callable[..., Any], loss: Callable[[Tensor, Tensor], Tensor]
):
    learner = Learner(build_learner(factory, IMAGE, CLASSES, 5).module, loss)
    candidates = candidates_of(learner.module, 3)
    features, labels = records_of(4)
    found = candidate_losses(learner, candidates, features, labels, IMAGE)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, one_by_one(learner, candidates, features, labels), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factory", [softmax, cnn])
def test_mean_losses_are_those_of_the_runs_own_evaluation(factory: Callable[..., Any]):
    learner = build_learner(factory, IMAGE, CLASSES)
    candidates = candidates_of(learner.module, 3)
    features, labels = records_of(50)
    found = candidate_losses(learner, candidates, features, labels, IMAGE)
    for index in range(3):
        model = {name: array[index] for name, array in candidates.items()}
        expected = evaluate(learner.module, model, features, labels, IMAGE).loss
        assert found[:, index].mean() == pytest.approx(expected, rel=1e-6)


def test_batches_meet_without_a_seam():
    """16 candidates of 144 features fill a batch with 1,820 records."""
    learner = build_learner(softmax, IMAGE, CLASSES)
    candidates = candidates_of(learner.module, 16)
    features, labels = records_of(4000)
    found = candidate_losses(learner, candidates, features, labels, IMAGE)
    for start in (0, 1800, 3990):
        part = candidate_losses(
            learner, candidates, features[start : start + 10], labels[start : start + 10], IMAGE
        )
        np.testing.assert_allclose(found[start : start + 10], part, rtol=1e-6)


def test_the_networks_own_parameters_and_state_stay():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, CLASSES))
    module.train()
    before = [value.detach().clone() for value in module.parameters()]
    features, labels = records_of(5)
    given = (Learner(module), candidates_of(module, 2), features, labels, IMAGE)
    first, second = candidate_losses(*given), candidate_losses(*given)
    np.testing.assert_array_equal(first, second)  # nothing is dropped
    assert module.training
    assert all(torch.equal(value, old) for value, old in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("fault", ["missing", "other shape", "other count", "none", "further"])
def test_candidates_of_another_network_are_refused(fault: str):
    learner = build_learner(softmax, IMAGE, CLASSES)
    candidates = candidates_of(learner.module, 3)
    name = next(iter(candidates))
    if fault == "missing":
        del candidates[name]
    elif fault == "other shape":
        candidates[name] = candidates[name][:, :, 1:]
    elif fault == "other count":
        candidates[name] = candidates[name][:2]
    elif fault == "none":
        candidates = {name: array[:0] for name, array in candidates.items()}
    else:
        candidates["more"] = candidates[name]
    features, labels = records_of(5)
    with pytest.raises(ValueError, match="the candidates do not fit the model"):
        candidate_losses(learner, candidates, features, labels, IMAGE)


@pytest.mark.parametrize("count", [0, 4])
def test_records_without_labels_are_refused(count: int):
    learner = build_learner(softmax, IMAGE, CLASSES)
    features, labels = records_of(5)
    with pytest.raises(ValueError, match="as many labels"):
        candidate_losses(learner, candidates_of(learner.module, 2), features[: count + 1], labels[:count])
