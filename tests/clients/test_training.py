"""One client's round: noise, steps, rows, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2

from fedveil.clients import ClientData, attribute_mean_and_share, clipped_mean, local_update
from fedveil.clients.training import LocalStepFailed
from fedveil.models import Learner, build_learner, initial_arrays
from fedveil.privacy import StepMechanism
from fedveil.streams import Stream, Streams

STREAMS = Streams.seeded("test", 0)


class NoNoise(Stream):
    def normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        return np.zeros(shape)


SILENT = NoNoise(lambda count: np.zeros(count, dtype=np.uint64))


def client_data(seed: int, n: int, p: int = 6, classes: int = 3) -> ClientData:
    rng = np.random.default_rng(seed)
    features = rng.random((n, p), dtype=np.float32)
    baseline = features.copy()
    baseline[:, : p // 2] = 0.0
    return ClientData(features, rng.integers(0, classes, n), baseline, (p,))


def flat(delta: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([value.ravel() for value in delta.values()])


def test_a_noised_round_is_gradient_descent_on_noised_means() -> None:
    learner = build_learner("mlp", (6,), 3, hidden=4)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    data = client_data(1, 12)
    mechanism = StepMechanism(12, 1.0, 0.3, attribute_clip_norm=0.2)
    got = local_update(
        learner,
        arrays,
        data,
        mechanism=mechanism,
        steps=3,
        learning_rate=0.5,
        noise=STREAMS.stream("noise", round=2, client=5),
        round=2,
        client=5,
    )
    noise, here = (
        STREAMS.stream("noise", round=2, client=5),
        {k: v.astype(np.float64) for k, v in arrays.items()},
    )
    size = sum(value.size for value in arrays.values())
    for _ in range(3):
        mean, _ = attribute_mean_and_share(
            learner, here, data.features, data.labels, data.baseline_features, 1.0, 0.2, denominator=12
        )
        step = 0.5 * (mean + 0.3 * noise.normal(size))
        parts = np.split(step, np.cumsum([value.size for value in arrays.values()])[:-1])
        here = {k: v - part.reshape(v.shape) for (k, v), part in zip(here.items(), parts, strict=True)}
    assert list(got.delta) == list(arrays)
    for name in arrays:
        assert got.delta[name].dtype == np.float64
        # delta carries its last bits through another order of additions: equal but for them
        np.testing.assert_allclose(got.delta[name], here[name] - arrays[name], rtol=0, atol=1e-6)
    assert got.releases == tuple(row for step in range(3) for row in mechanism.releases(5, 2, step))
    assert len(got.releases) == 6


def test_the_noise_added_has_the_stated_sigma() -> None:
    """Chi-square on 314,000 draws over rounds and clients; false-alarm probability 1e-6 (two-sided)."""
    learner = build_learner("softmax", (1, 28, 28), 10)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    rng = np.random.default_rng(3)
    data = ClientData(
        rng.random((5, 784), dtype=np.float32),
        rng.integers(0, 10, 5),
        np.zeros((5, 784), np.float32),
        (1, 28, 28),
    )
    draws = []
    for attribute_clip_norm, mean in (
        (
            None,
            clipped_mean(
                learner, arrays, data.features.reshape(-1, 1, 28, 28), data.labels, 2.0, denominator=5
            ),
        ),
        (
            0.5,
            attribute_mean_and_share(
                learner,
                arrays,
                data.features.reshape(-1, 1, 28, 28),
                data.labels,
                np.zeros((5, 1, 28, 28), np.float32),
                2.0,
                0.5,
                denominator=5,
            )[0],
        ),
    ):
        mechanism = StepMechanism(5, 2.0, 0.7, attribute_clip_norm=attribute_clip_norm)
        for round in range(10):
            for client in range(2):
                update = local_update(
                    learner,
                    arrays,
                    data,
                    mechanism=mechanism,
                    steps=1,
                    learning_rate=0.25,
                    noise=STREAMS.stream(
                        "noise", round=round, client=client + 2 * (attribute_clip_norm is None)
                    ),
                    round=round,
                    client=client,
                )
                draws.append((-flat(update.delta) / 0.25 - mean) / 0.7)
    noise = np.array(draws)
    low, high = chi2.ppf([0.5e-6, 1 - 0.5e-6], noise.size)
    assert low < (noise**2).sum() < high
    # no two of the forty vectors share their noise: correlations beyond 6 sigma have probability 1.5e-6 in all
    correlations = np.corrcoef(noise)[np.triu_indices(len(noise), 1)]
    assert np.abs(correlations).max() < 6 / np.sqrt(noise.shape[1])


def test_the_share_inside_the_attribute_clip_is_that_of_the_first_step() -> None:
    learner = build_learner("softmax", (6,), 3)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    data = client_data(11, 30)
    first = attribute_mean_and_share(
        learner, arrays, data.features, data.labels, data.baseline_features, 1.0, 0.55, denominator=30
    )[1]
    assert 0 < first < 1
    mechanism = StepMechanism(30, 1.0, 5.0, attribute_clip_norm=0.55)

    def within(steps: int, count: bool) -> float | None:
        return local_update(
            learner,
            arrays,
            data,
            mechanism=mechanism,
            steps=steps,
            learning_rate=5.0,
            noise=STREAMS.stream("noise"),
            round=1,
            client=0,
            count_within=count,
        ).within

    assert within(1, True) == within(2, True) == within(3, True) == first
    assert within(3, False) is None


def test_a_local_step_sees_the_change_and_the_noised_means_of_the_round_alone() -> None:
    seen = []

    def heavy_ball(
        change: NDArray[np.float64], gradients: tuple[NDArray[np.float64], ...], learning_rate: float
    ) -> NDArray[np.float64]:
        seen.append((change.copy(), [gradient.copy() for gradient in gradients]))
        velocity = np.zeros_like(change)
        for gradient in gradients:
            velocity = 0.9 * velocity + gradient
        return change - learning_rate * velocity

    plain = build_learner("softmax", (6,), 3)
    arrays = initial_arrays(plain.module, STREAMS.stream("model"))
    data, mechanism = client_data(12, 8), StepMechanism(8, 1.0, 0.3)

    def run(learner: Learner, steps: int) -> NDArray[np.float64]:
        update = local_update(
            learner,
            arrays,
            data,
            mechanism=mechanism,
            steps=steps,
            learning_rate=0.5,
            noise=STREAMS.stream("noise"),
            round=1,
            client=0,
        )
        assert len(update.releases) == steps
        return flat(update.delta)

    learner = replace(plain, local_step=heavy_ball)
    changes = [run(learner, steps) for steps in (1, 2, 3)]
    np.testing.assert_array_equal(changes[0], run(plain, 1))  # the first step is the same
    change, gradients = seen[-1]
    assert len(gradients) == 3
    np.testing.assert_array_equal(change, changes[1])
    # torch's momentum, on the same means
    value = torch.zeros(change.size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.5, momentum=0.9)
    for gradient in gradients:
        value.grad = torch.tensor(gradient)
        optimizer.step()
    np.testing.assert_allclose(changes[2], value.detach().numpy(), rtol=0, atol=1e-12)


def test_a_local_step_that_fails_takes_no_row_of_the_ledger_with_it() -> None:
    def short(
        change: NDArray[np.float64], gradients: tuple[NDArray[np.float64], ...], learning_rate: float
    ) -> NDArray[np.float64]:
        return change if len(gradients) < 2 else change[:1]

    learner = replace(build_learner("softmax", (6,), 3), local_step=short)
    mechanism = StepMechanism(4, 1.0, 1.0)
    with pytest.raises(LocalStepFailed, match=r"client 3: local step '.*short'.* shape \(1,\)") as error:
        local_update(
            learner,
            initial_arrays(learner.module, STREAMS.stream("model")),
            client_data(13, 4),
            mechanism=mechanism,
            steps=5,
            learning_rate=1.0,
            noise=STREAMS.stream("noise"),
            round=2,
            client=3,
        )
    assert error.value.releases == mechanism.releases(3, 2, 0) + mechanism.releases(3, 2, 1)


def test_counting_without_an_attribute_clip_is_refused() -> None:
    learner = build_learner("softmax", (6,), 3)
    for mechanism in (None, StepMechanism(4, 1.0, 1.0)):
        with pytest.raises(ValueError, match="client 0 clips no attributes"):
            local_update(
                learner,
                initial_arrays(learner.module, STREAMS.stream("model")),
                client_data(13, 4),
                mechanism=mechanism,
                steps=1,
                learning_rate=1.0,
                noise=STREAMS.stream("noise"),
                round=2,
                client=0,
                count_within=True,
            )


def test_without_a_mechanism_it_is_plain_gradient_descent() -> None:
    learner = build_learner("mlp", (6,), 3, hidden=4)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    data = client_data(4, 20)
    got = local_update(
        learner, arrays, data, mechanism=None, steps=4, learning_rate=0.5, noise=SILENT, round=1, client=0
    )
    with torch.no_grad():
        for name, value in learner.module.named_parameters():
            value.copy_(torch.from_numpy(arrays[name]))
    optimizer = torch.optim.SGD(learner.module.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        outputs = learner.module(torch.from_numpy(data.features))
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(data.labels)).backward()
        optimizer.step()
    for name, value in learner.module.named_parameters():
        np.testing.assert_allclose(arrays[name] + got.delta[name], value.detach().numpy(), rtol=0, atol=1e-6)
    assert got.releases == ()


def test_the_model_object_keeps_its_parameters() -> None:
    learner = build_learner("softmax", (6,), 3)
    before = {name: value.clone() for name, value in learner.module.named_parameters()}
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    for mechanism in (None, StepMechanism(4, 1.0, 1.0)):
        local_update(
            learner,
            arrays,
            client_data(5, 4),
            mechanism=mechanism,
            steps=2,
            learning_rate=1.0,
            noise=STREAMS.stream("noise"),
            round=0,
            client=0,
        )
    assert all(torch.equal(value, before[name]) for name, value in learner.module.named_parameters())


def test_sampled_steps_divide_by_the_expected_batch_and_draw_from_their_own_stream() -> None:
    learner = build_learner("softmax", (6,), 3)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    data = client_data(6, 40)
    mechanism = StepMechanism(40, 1.0, 0.1, sampling_rate=0.3, num_releases=2)
    got = local_update(
        learner,
        arrays,
        data,
        mechanism=mechanism,
        steps=1,
        learning_rate=1.0,
        noise=SILENT,
        batches=STREAMS.stream("batch"),
        round=0,
        client=0,
    )
    chosen = STREAMS.stream("batch").uniform(40) < 0.3
    assert chosen.sum() != 12  # so that dividing by the realised size would show
    expected = clipped_mean(learner, arrays, data.features[chosen], data.labels[chosen], 1.0, denominator=12)
    np.testing.assert_allclose(-flat(got.delta), expected, rtol=0, atol=1e-9)


def test_a_sampled_batch_may_be_empty() -> None:
    learner = build_learner("softmax", (2, 3), 3)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    data = replace(client_data(7, 2), shape=(2, 3))
    got = local_update(
        learner,
        arrays,
        data,
        mechanism=StepMechanism(2, 1.0, 0.1, sampling_rate=1e-9, num_releases=1),
        steps=1,
        learning_rate=1.0,
        noise=SILENT,
        batches=STREAMS.stream("batch"),
        round=0,
        client=0,
    )
    np.testing.assert_allclose(flat(got.delta), 0, atol=1e-15)


@pytest.mark.parametrize(
    ("mechanism", "steps", "data", "message"),
    [
        (StepMechanism(4, 1.0, 1.0), 0, client_data(8, 4), "steps must be at least 1"),
        (StepMechanism(5, 1.0, 1.0), 1, client_data(8, 4), "client 7 has 4 records"),
        (
            StepMechanism(4, 1.0, 1.0, attribute_clip_norm=0.5),
            1,
            replace(client_data(8, 4), baseline_features=None),
            "client 7 has no baseline features",
        ),
        (StepMechanism(4, 1.0, 1.0, sampling_rate=0.5), 1, client_data(8, 4), "needs a stream"),
    ],
)
def test_a_round_that_cannot_be_private_is_refused(
    mechanism: StepMechanism, steps: int, data: ClientData, message: str
) -> None:
    learner = build_learner("softmax", (6,), 3)
    arrays = initial_arrays(learner.module, STREAMS.stream("model"))
    with pytest.raises(ValueError, match=message):
        local_update(
            learner,
            arrays,
            data,
            mechanism=mechanism,
            steps=steps,
            learning_rate=1.0,
            noise=STREAMS.stream("noise"),
            round=0,
            client=7,
        )


def test_records_of_another_shape_or_type_are_refused() -> None:
    good = client_data(9, 4)
    for change, message in (
        ({"features": good.features[0]}, "shape"),
        ({"labels": good.labels[:3]}, "labels"),
        ({"labels": good.labels.astype(np.int32)}, "int64"),
        ({"features": good.features.astype(np.float64)}, "float32"),
        ({"baseline_features": good.features[:, :2]}, "baseline features"),
        ({"shape": (2, 2)}, "cannot take the shape"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(good, **change)
    assert len(good) == 4
    assert replace(good, shape=()).record_shape == (6,)
