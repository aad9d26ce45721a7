"""Per-record gradients, clipping and the sensitivities of the released means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedveil.clients import attribute_clipped_mean, clipped_mean
from fedveil.clients.gradients import attribute_mean_and_share, private_radius
from fedveil.clients.record_gradients import gradient_blocks
from fedveil.models import Learner, build_learner

Floats = NDArray[np.float32]


def arrays_of(learner: Learner, rng: np.random.Generator, scale: float = 1.0) -> dict[str, Floats]:
    return {
        name: (scale * rng.standard_normal(tuple(value.shape))).astype(np.float32)
        for name, value in learner.module.named_parameters()
    }


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
    got = attribute_clipped_mean(learner, arrays, features, labels, baseline, 1.0, 0.6, denominator=50)
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
        alone = attribute_clipped_mean(learner, arrays, features, labels, baseline, 1.0, norm, denominator=50)
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
    whole = attribute_clipped_mean(learner, arrays, features, labels, 0 * features, 1.0, 0.5, denominator=50)
    monkeypatch.setattr("fedveil.clients.record_gradients._CHUNK", 24 * 7)  # 7 records a block
    parts = attribute_clipped_mean(learner, arrays, features, labels, 0 * features, 1.0, 0.5, denominator=50)
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
    got = attribute_clipped_mean(learner, arrays, features, labels, baseline, 1.0, 0.25, denominator=1)
    # g = 0, so d = -g0 is clipped to 0.25
    np.testing.assert_allclose(got, at_baseline * (1 - 0.25 / np.linalg.norm(at_baseline)), rtol=1e-6)


SPECIAL = (0.0, 1e-38, 1e-3, 1.0, 1e4, 1e18, 3e38, math.inf, math.nan)


def strange_records(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> Floats:
    """Records of every magnitude float32 has, zeros, infinities and NaN among them."""
    scale = rng.choice(
        SPECIAL, size=(count,) + (1,) * len(shape), p=[0.1, 0.05, 0.1, 0.4, 0.1, 0.1, 0.05, 0.05, 0.05]
    )
    with np.errstate(all="ignore"):
        return (scale * rng.standard_normal((count, *shape))).astype(np.float32)


def cases(
    seed: int, count: int
) -> Iterator[tuple[Learner, dict[str, Floats], Floats, NDArray[np.int64], float]]:
    """Random models, parameters, data sets and clipping norms."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        shape = ((6,), (1, 3, 2))[rng.integers(2)]
        learner = build_learner(("softmax", "mlp")[rng.integers(2)], shape, 4, hidden=5)
        n = int(rng.choice([1, 2, 3, 17]))
        arrays = arrays_of(learner, rng, scale=float(rng.choice([0.0, 1.0, 30.0])))
        features, labels = strange_records(rng, n, shape), rng.integers(0, 4, n)
        yield learner, arrays, features, labels, float(rng.choice([1e-12, 0.3, 1.0, 1e9]))


@pytest.fixture(params=["blocks", "one at a time"])
def num_cases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Both ways in which gradients are computed, many records at once or one by one; fewer cases of the slow one."""
    if request.param == "blocks":
        return 150
    monkeypatch.setattr("fedveil.clients.record_gradients._CHUNK", 1)
    monkeypatch.setattr("fedveil.clients.record_gradients._PIECE", 16)
    return 40


def moved(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    assert np.all(np.isfinite(before))
    assert np.all(np.isfinite(after))
    return math.sqrt(math.fsum(float(x) ** 2 for x in after - before))


def test_replacing_one_record_moves_a_record_level_mean_by_at_most_its_sensitivity(num_cases: int) -> None:
    rng = np.random.default_rng(7)
    for learner, arrays, features, labels, norm in cases(8, num_cases):
        n = len(labels)
        other, other_labels, i = features.copy(), labels.copy(), rng.integers(n)
        other[i], other_labels[i] = strange_records(rng, 1, features.shape[1:])[0], rng.integers(4)
        before = clipped_mean(learner, arrays, features, labels, norm, denominator=n)
        after = clipped_mean(learner, arrays, other, other_labels, norm, denominator=n)
        assert moved(before, after) <= 2 * norm / n


def test_replacing_one_record_moves_an_attribute_level_mean_by_at_most_both_sensitivities(
    num_cases: int,
) -> None:
    rng = np.random.default_rng(9)
    for learner, arrays, features, labels, norm in cases(10, num_cases):
        n, share = len(labels), float(rng.choice([1.0, 0.3, 1e-3]))
        private = rng.random(features.shape[1:]) < 0.5
        i = rng.integers(n)
        replacement = strange_records(rng, 1, features.shape[1:])[0]
        attribute, record, record_labels = features.copy(), features.copy(), labels.copy()
        attribute[i] = np.where(private, replacement, features[i])
        record[i], record_labels[i] = replacement, rng.integers(4)
        before, after_attribute, after_record = (
            attribute_clipped_mean(
                learner,
                arrays,
                x,
                y,
                np.where(private, np.float32(0.5), x),
                norm,
                share * norm,
                denominator=n,
            )
            for x, y in ((features, labels), (attribute, labels), (record, record_labels))
        )
        assert moved(before, after_attribute) <= 2 * share * norm / n
        assert moved(before, after_record) <= 2 * norm / n


def opposite_records(n: int) -> tuple[Learner, dict[str, Floats], Floats, Floats, NDArray[np.int64]]:
    """A pair of neighbours whose one changed record has opposite gradients: the worst case."""
    learner = build_learner(lambda shape, outputs: torch.nn.Linear(*shape, outputs, bias=False), (3,), 2)
    features = np.zeros((n, 3), dtype=np.float32)
    features[1:, 1] = 1.0
    features[0, 0] = 1e6
    return (
        learner,
        {"weight": np.zeros((2, 3), dtype=np.float32)},
        features,
        -features,
        np.zeros(n, dtype=np.int64),
    )


@pytest.mark.parametrize("n", [1, 4, 3000])
def test_the_sensitivities_are_attained_by_opposite_records(n: int) -> None:
    learner, arrays, features, negative, labels = opposite_records(n)
    other = features.copy()
    other[0] = negative[0]
    before = clipped_mean(learner, arrays, features, labels, 0.5, denominator=n)
    after = clipped_mean(learner, arrays, other, labels, 0.5, denominator=n)
    assert 2 * 0.5 / n * (1 - 1e-7) < moved(before, after) <= 2 * 0.5 / n
    baseline = features.copy()
    baseline[:, 0] = 0.0
    before = attribute_clipped_mean(learner, arrays, features, labels, baseline, 0.5, 0.05, denominator=n)
    after = attribute_clipped_mean(learner, arrays, other, labels, baseline, 0.5, 0.05, denominator=n)
    assert 2 * 0.05 / n * (1 - 1e-6) < moved(before, after) <= 2 * 0.05 / n


def convolution(_: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.Conv2d(4, 4, 3, stride=2),
        torch.nn.GroupNorm(2, 4),
        torch.nn.Flatten(),
        torch.nn.Linear(36, outputs),
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [(name, count) for name in ("softmax", "mlp", convolution) for count in (3, 333)] + [("cnn", 3)],
)
def test_another_record_changes_no_bit_of_a_record_gradient(name: str, count: int) -> None:
    # the proof of every sensitivity needs it
    rng = np.random.default_rng(11)
    learner = build_learner(name, (1, 8, 8), 10, hidden=700)
    arrays = arrays_of(learner, rng, scale=0.1)
    features, labels = rng.standard_normal((count, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, count)

    def rows() -> NDArray[np.float64]:
        blocks = gradient_blocks(learner, arrays, (features, features), labels)
        return np.concatenate(
            [np.concatenate([part.numpy() for part in block[0]], axis=1) for block in blocks]
        )

    before = rows()
    features[0] = np.nan
    features[count // 2] *= 1e20
    after = rows()
    kept = np.delete(np.arange(count), [0, count // 2])
    np.testing.assert_array_equal(before[kept], after[kept])
    assert np.isnan(after[0]).any()


def test_rounding_of_a_long_sum_stays_inside_the_margin() -> None:
    # n equal records: the rounding errors of the additions all have the same sign
    learner, arrays, features, _, labels = opposite_records(20_000)
    features[:] = features[0]
    mean = clipped_mean(learner, arrays, features, labels, 0.1, denominator=len(labels))
    assert np.linalg.norm(mean) <= 0.1
    assert np.linalg.norm(mean) > 0.1 * (1 - 1e-5)


def test_the_radius_leaves_room_for_rounding_and_is_refused_where_there_is_none() -> None:
    assert private_radius(1.0, num_records=400, size=7850) == pytest.approx(1 - 1e-9, rel=0, abs=1e-9)
    assert private_radius(1.0, num_records=1, size=1) < 1.0
    assert private_radius(1.0, num_records=10**6, size=1) == pytest.approx(1, rel=1e-3)
    with pytest.raises(ValueError, match="leaves no room"):
        private_radius(1.0, num_records=10**9, size=1)
    for norm in (0.0, -1.0, math.nan, math.inf, 1e-40):
        with pytest.raises(ValueError, match="clipping norm"):
            private_radius(norm, num_records=1, size=1)


def test_no_records_give_a_zero_mean() -> None:
    learner = build_learner("softmax", (4,), 3)
    arrays = arrays_of(learner, np.random.default_rng(0))
    empty = clipped_mean(
        learner,
        arrays,
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.int64),
        1.0,
        denominator=2.5,
    )
    np.testing.assert_array_equal(empty, np.zeros(15))


def test_who_else_is_in_the_sample_changes_no_bit_of_a_record_s_gradient() -> None:
    """Under Poisson sampling the batch's size is secret: shapes must not depend on it."""
    rng = np.random.default_rng(5)
    learner = build_learner("mlp", (12,), 3)
    arrays = arrays_of(learner, rng)
    features = rng.random((40, 12), dtype=np.float32)
    labels = rng.integers(0, 3, 40)
    only = np.zeros(40, np.bool_)
    only[7] = True
    alone = clipped_mean(learner, arrays, features, labels, 1.0, denominator=12.0, included=only)
    for other in range(40):
        if other != 7:
            pair = only.copy()
            pair[other] = True
            both = clipped_mean(learner, arrays, features, labels, 1.0, denominator=12.0, included=pair)
            single = pair.copy()
            single[7] = False
            rest = clipped_mean(learner, arrays, features, labels, 1.0, denominator=12.0, included=single)
            np.testing.assert_allclose(both, alone + rest, rtol=0, atol=1e-16)
