"""Per-record gradients and their clipped means: what is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedveil.clients import attribute_mean_and_share, clipped_mean
from fedveil.models import Learner, build_learner

Floats = NDArray[np.float32]


def arrays_of(learner: Learner, rng: np.random.Generator, scale: float = 1.0) -> dict[str, Floats]:
    return {
        name: (scale * rng.standard_normal(tuple(value.shape))).astype(np.float32)
        for name, value in learner.module.named_parameters()
    }


def attribute_mean(*arguments: Any, **options: Any) -> NDArray[np.float64]:
    """The mean of an attribute-level step, without the share."""
    return attribute_mean_and_share(*arguments, **options)[0]


def softmax_gradients(
    weight: NDArray[np.float64],
    bias: NDArray[np.float64],
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Closed form, float64: (softmax - one-hot) times the record, then the bias."""
    scores = features @ weight.T + bias
    scores -= scores.max(axis=1, keepdims=True)
    error = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    outer = error[:, :, None] * features[:, None, :]
    return np.concatenate([outer.reshape(len(labels), -1), error], axis=1)


def clip(rows: NDArray[np.float64], norm: float) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, norm / np.maximum(norms, 1e-300))


def test_clipped_mean_of_softmax_regression_is_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    learner = build_learner("softmax", (7,), 3)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((50, 7)).astype(np.float32), rng.integers(0, 3, 50)
    weight, bias = (value.astype(np.float64) for value in arrays.values())
    rows = softmax_gradients(weight, bias, features.astype(np.float64), labels)
    assert 0.1 < np.mean(np.linalg.norm(rows, axis=1) > 1) < 0.9  # some are clipped, some are not
    got = clipped_mean(learner, arrays, features, labels, 1.0, denominator=50)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, clip(rows, 1.0).mean(axis=0), rtol=0, atol=1e-6)


def test_attribute_mean_of_softmax_regression_is_the_closed_form() -> None:
    rng = np.random.default_rng(2)
    learner = build_learner("softmax", (7,), 3)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((50, 7)).astype(np.float32), rng.integers(0, 3, 50)
    baseline = features.copy()
    baseline[:, 2:5] = 0.5
    weight, bias = (value.astype(np.float64) for value in arrays.values())
    here = clip(softmax_gradients(weight, bias, features.astype(np.float64), labels), 1.0)
    there = clip(softmax_gradients(weight, bias, baseline.astype(np.float64), labels), 1.0)
    assert 0.2 < np.mean(np.linalg.norm(here - there, axis=1) > 0.6) < 0.9
    expected = there.mean(axis=0) + clip(here - there, 0.6).mean(axis=0)
    got = attribute_mean(learner, arrays, features, labels, baseline, 1.0, 0.6, denominator=50)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_the_share_inside_the_attribute_clip_is_the_count_of_the_closed_form() -> None:
    rng = np.random.default_rng(12)
    learner = build_learner("softmax", (7,), 3)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((50, 7)).astype(np.float32), rng.integers(0, 3, 50)
    baseline = features.copy()
    baseline[:, 2:5] = 0.5
    weight, bias = (value.astype(np.float64) for value in arrays.values())
    here = clip(softmax_gradients(weight, bias, features.astype(np.float64), labels), 1.0)
    there = clip(softmax_gradients(weight, bias, baseline.astype(np.float64), labels), 1.0)
    norms = np.linalg.norm(here - there, axis=1)
    for norm in (0.05, 0.6, 1.9, 2.0):  # none of the 50 is within rounding of these
        mean, share = attribute_mean_and_share(
            learner, arrays, features, labels, baseline, 1.0, norm, denominator=50
        )
        assert share == np.mean(norms <= norm)
        alone = attribute_mean(learner, arrays, features, labels, baseline, 1.0, norm, denominator=50)
        np.testing.assert_array_equal(mean, alone)
    assert share == 1.0  # two points of the unit ball are never further apart


def test_the_loss_of_the_learner_is_what_gradients_are_of() -> None:
    """Half the squared distance to the one-hot label: the gradient is (scores - one-hot) times the record."""
    rng = np.random.default_rng(13)

    def distance(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wanted = (labels[:, None] == torch.arange(3)).to(scores.dtype)
        return 0.5 * ((scores - wanted) ** 2).sum(dim=1).mean()

    learner = replace(build_learner("softmax", (4,), 3), loss=distance)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 3, 20)
    weight, bias = (value.astype(np.float64) for value in arrays.values())
    error = features @ weight.T + bias - np.eye(3)[labels]
    rows = np.concatenate([(error[:, :, None] * features[:, None, :]).reshape(20, -1), error], axis=1)
    assert 0.05 < np.mean(np.linalg.norm(rows, axis=1) > 3.0) < 0.95
    got = clipped_mean(learner, arrays, features, labels, 3.0, denominator=20)
    np.testing.assert_allclose(got, clip(rows, 3.0).mean(axis=0), rtol=0, atol=1e-5)


def test_gradients_of_a_perceptron_are_those_of_backward_record_by_record() -> None:
    rng = np.random.default_rng(3)
    learner = build_learner("mlp", (1, 4, 4), 5, hidden=6)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((9, 1, 4, 4)).astype(np.float32), rng.integers(0, 5, 9)
    with torch.no_grad():
        for name, value in learner.module.named_parameters():
            value.copy_(torch.from_numpy(arrays[name]))
    rows = []
    for record, label in zip(features, labels, strict=True):
        learner.module.zero_grad()
        torch.nn.functional.cross_entropy(
            learner.module(torch.from_numpy(record[None])), torch.tensor([label])
        ).backward()
        rows.append(np.concatenate([value.grad.numpy().ravel() for value in learner.module.parameters()]))
    expected = clip(np.array(rows, dtype=np.float64), 2.0).mean(axis=0)
    got = clipped_mean(learner, arrays, features, labels, 2.0, denominator=9)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_many_blocks_give_the_mean_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    learner = build_learner("softmax", (7,), 3)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((50, 7)).astype(np.float32), rng.integers(0, 3, 50)
    whole = attribute_mean(learner, arrays, features, labels, 0 * features, 1.0, 0.5, denominator=50)
    monkeypatch.setattr("fedveil.clients.record_gradients._CHUNK", 24 * 7)  # 7 records a block
    parts = attribute_mean(learner, arrays, features, labels, 0 * features, 1.0, 0.5, denominator=50)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-7)


def test_a_network_too_large_for_a_block_gives_the_mean_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(14)
    learner = build_learner("mlp", (7,), 3, hidden=5)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((9, 7)).astype(np.float32), rng.integers(0, 3, 9)
    features[4, 2] = np.inf
    baseline = np.where(np.arange(7) < 3, np.float32(0.5), features)

    def means() -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        step = clipped_mean(learner, arrays, features, labels, 1.0, denominator=9, included=labels > 0)
        return step, *attribute_mean_and_share(
            learner, arrays, features, labels, baseline, 1.0, 0.3, denominator=9
        )

    together = means()
    monkeypatch.setattr("fedveil.clients.record_gradients._CHUNK", 1)  # one record at a time
    monkeypatch.setattr("fedveil.clients.record_gradients._PIECE", 4)  # a parameter lies in several pieces
    for one, other in zip(together, means(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)


def test_a_gradient_that_is_not_finite_counts_as_zero_and_leaves_the_others() -> None:
    rng = np.random.default_rng(5)
    learner = build_learner("softmax", (4,), 3)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((6, 4)).astype(np.float32), rng.integers(0, 3, 6)
    good = clipped_mean(learner, arrays, features[:3], labels[:3], 1.0, denominator=6)
    features[3, 0], features[4, 1], features[5, :] = np.nan, np.inf, -np.inf
    bad = clipped_mean(learner, arrays, features, labels, 1.0, denominator=6)
    np.testing.assert_allclose(bad, good, rtol=0, atol=1e-9)


def test_at_an_attribute_step_each_of_the_two_gradients_counts_as_zero_by_itself() -> None:
    rng = np.random.default_rng(6)
    learner = build_learner("softmax", (4,), 3)
    arrays = arrays_of(learner, rng)
    features, labels = rng.standard_normal((1, 4)).astype(np.float32), rng.integers(0, 3, 1)
    baseline = features.copy()
    baseline[:, 0] = 0.0
    features[:, 0] = np.nan
    at_baseline = clipped_mean(learner, arrays, baseline, labels, 1.0, denominator=1)
    got = attribute_mean(learner, arrays, features, labels, baseline, 1.0, 0.25, denominator=1)
    # g = 0, so d = -g0 is clipped to 0.25
    np.testing.assert_allclose(got, at_baseline * (1 - 0.25 / np.linalg.norm(at_baseline)), rtol=1e-6)
