"""One client's round: noise, steps, rows, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2

from fedveil.clients import ClientData, attribute_clipped_mean, clipped_mean, local_update
from fedveil.models import build_model, initial_arrays
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
    model = build_model("mlp", (6,), 3, hidden=4)
    arrays = initial_arrays(model, STREAMS.stream("model"))
    data = client_data(1, 12)
    mechanism = StepMechanism(12, 1.0, 0.3, attribute_clip_norm=0.2)
    got = local_update(
        model,
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
        mean = attribute_clipped_mean(
            model, here, data.features, data.labels, data.baseline_features, 1.0, 0.2, denominator=12
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
    model = build_model("softmax", (1, 28, 28), 10)
    arrays = initial_arrays(model, STREAMS.stream("model"))
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
                model, arrays, data.features.reshape(-1, 1, 28, 28), data.labels, 2.0, denominator=5
            ),
        ),
        (
            0.5,
            attribute_clipped_mean(
                model,
                arrays,
                data.features.reshape(-1, 1, 28, 28),
                data.labels,
                np.zeros((5, 1, 28, 28), np.float32),
                2.0,
                0.5,
                denominator=5,
            ),
        ),
    ):
        mechanism = StepMechanism(5, 2.0, 0.7, attribute_clip_norm=attribute_clip_norm)
        for round in range(10):
            for client in range(2):
                update = local_update(
                    model,
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


def test_without_a_mechanism_it_is_plain_gradient_descent() -> None:
    model = build_model("mlp", (6,), 3, hidden=4)
    arrays = initial_arrays(model, STREAMS.stream("model"))
    data = client_data(4, 20)
    got = local_update(
        model, arrays, data, mechanism=None, steps=4, learning_rate=0.5, noise=SILENT, round=1, client=0
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.from_numpy(arrays[name]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        outputs = model(torch.from_numpy(data.features))
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(data.labels)).backward()
        optimizer.step()
    for name, value in model.named_parameters():
        np.testing.assert_allclose(arrays[name] + got.delta[name], value.detach().numpy(), rtol=0, atol=1e-6)
    assert got.releases == ()


def test_the_model_object_keeps_its_parameters() -> None:
    model = build_model("softmax", (6,), 3)
    before = {name: value.clone() for name, value in model.named_parameters()}
    arrays = initial_arrays(model, STREAMS.stream("model"))
    for mechanism in (None, StepMechanism(4, 1.0, 1.0)):
        local_update(
            model,
            arrays,
            client_data(5, 4),
            mechanism=mechanism,
            steps=2,
            learning_rate=1.0,
            noise=STREAMS.stream("noise"),
            round=0,
            client=0,
        )
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_sampled_steps_divide_by_the_expected_batch_and_draw_from_their_own_stream() -> None:
    model = build_model("softmax", (6,), 3)
    arrays = initial_arrays(model, STREAMS.stream("model"))
    data = client_data(6, 40)
    mechanism = StepMechanism(40, 1.0, 0.1, sampling_rate=0.3, num_releases=2)
    got = local_update(
        model,
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
    expected = clipped_mean(model, arrays, data.features[chosen], data.labels[chosen], 1.0, denominator=12)
    np.testing.assert_allclose(-flat(got.delta), expected, rtol=0, atol=1e-9)


def test_a_sampled_batch_may_be_empty() -> None:
    model = build_model("softmax", (2, 3), 3)
    arrays = initial_arrays(model, STREAMS.stream("model"))
    data = replace(client_data(7, 2), shape=(2, 3))
    got = local_update(
        model,
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
    model = build_model("softmax", (6,), 3)
    arrays = initial_arrays(model, STREAMS.stream("model"))
    with pytest.raises(ValueError, match=message):
        local_update(
            model,
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
