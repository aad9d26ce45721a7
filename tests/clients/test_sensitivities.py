"""What one record can do to a released mean: no more than the stated sensitivity, and nothing to other records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedveil.clients import attribute_mean_and_share, clipped_mean
from fedveil.clients.gradients import private_radius
from fedveil.clients.record_gradients import gradient_blocks
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
            attribute_mean(
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
    before = attribute_mean(learner, arrays, features, labels, baseline, 0.5, 0.05, denominator=n)
    after = attribute_mean(learner, arrays, other, labels, baseline, 0.5, 0.05, denominator=n)
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
