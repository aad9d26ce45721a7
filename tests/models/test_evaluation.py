"""Accuracy and cross-entropy of a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import nn

from fedveil.models import Evaluation, build_learner, evaluate, initial_arrays
from fedveil.streams import Streams

Arrays = dict[str, np.ndarray]


def problem(
    num: int = 57, features: int = 6, classes: int = 4
) -> tuple[nn.Module, Arrays, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    model = build_learner("softmax", (features,), classes).module
    arrays = initial_arrays(model, Streams.seeded("c", 2).stream("model"))
    x = rng.uniform(size=(num, features)).astype(np.float32)
    return model, arrays, x, rng.integers(0, classes, num)


def test_figures_agree_with_scipy_in_float64() -> None:
    model, arrays, x, y = problem()
    scores = x.astype(np.float64) @ arrays["1.weight"].astype(np.float64).T + arrays["1.bias"]
    figures = evaluate(model, arrays, x, y)
    assert figures.num_records == 57
    assert figures.accuracy == np.mean(scores.argmax(axis=1) == y)
    np.testing.assert_allclose(figures.loss, -log_softmax(scores, axis=1)[np.arange(57), y].mean(), rtol=1e-6)


def test_zero_arrays_give_the_loss_of_a_uniform_guess() -> None:
    model, arrays, x, y = problem()
    zeros = {name: np.zeros_like(value) for name, value in arrays.items()}
    assert evaluate(model, zeros, x, y).loss == pytest.approx(np.log(4), rel=1e-12)
    assert evaluate(model, zeros, x, y).accuracy == np.mean(y == 0)


def test_records_are_all_counted_when_they_need_several_batches() -> None:
    model, arrays, x, y = problem(num=9000)
    parts = [evaluate(model, arrays, x[part], y[part]) for part in (slice(0, 2500), slice(2500, 9000))]
    figures = evaluate(model, arrays, x, y)
    assert figures.num_records == 9000
    correct = sum(part.accuracy * part.num_records for part in parts)
    assert figures.accuracy == pytest.approx(correct / 9000, abs=1e-12)
    assert figures.loss == pytest.approx(sum(p.loss * p.num_records for p in parts) / 9000, rel=1e-6)


def test_records_of_a_shape_are_given_to_the_model_in_it() -> None:
    def factory(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, outputs))

    model = build_learner(factory, (1, 3, 3), 2).module
    arrays = initial_arrays(model, Streams.seeded("c", 0).stream("model"))
    x = np.random.default_rng(0).uniform(size=(5, 9)).astype(np.float32)
    y = np.array([0, 1, 0, 1, 1])
    flat = evaluate(model, arrays, x, y, shape=(1, 3, 3))
    assert flat == evaluate(model, arrays, x.reshape(5, 1, 3, 3), y)


def test_the_model_itself_is_neither_used_nor_changed() -> None:
    model, arrays, x, y = problem()
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert model.training
    first = evaluate(model, arrays, x, y)
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(1e9)
    assert evaluate(model, arrays, x, y) == first
    assert model.training
    assert isinstance(first, Evaluation)
    assert set(before) == set(arrays)


def test_a_model_that_has_diverged_has_a_loss_that_is_not_a_number() -> None:
    model, arrays, x, y = problem()
    broken = {name: np.full_like(value, np.nan) for name, value in arrays.items()}
    assert np.isnan(evaluate(model, broken, x, y).loss)


def test_no_records_other_arrays_and_other_shapes_are_refused() -> None:
    model, arrays, x, y = problem()
    with pytest.raises(ValueError, match="at least one, got 0 records and 0 labels"):
        evaluate(model, arrays, x[:0], y[:0])
    with pytest.raises(ValueError, match="57 records and 56 labels"):
        evaluate(model, arrays, x, y[1:])
    with pytest.raises(ValueError, match=r"disagree about 1\.bias"):
        evaluate(model, {"1.weight": arrays["1.weight"]}, x, y)
    with pytest.raises(ValueError, match=r"'1\.weight' has shape \(6, 4\), but the model needs \(4, 6\)"):
        evaluate(model, {**arrays, "1.weight": arrays["1.weight"].T}, x, y)
