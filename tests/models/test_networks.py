"""Networks, where they start, and what they may not contain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.models import build_learner, initial_arrays, refuse_record_coupling
from fedveil.streams import Streams


def build(factory: Any, input_shape: tuple[int, ...], num_outputs: int, hidden: int = 64) -> nn.Module:
    return build_learner(factory, input_shape, num_outputs, hidden).module


def parameters(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "count"), [("softmax", 784 * 10 + 10), ("mlp", 784 * 32 + 32 + 32 * 10 + 10)]
)
def test_a_network_takes_images_and_flat_records_alike(name: str, count: int) -> None:
    model = build(name, (1, 28, 28), 10, hidden=32)
    assert sum(math.prod(shape) for shape in parameters(model).values()) == count
    images = torch.linspace(0, 1, 3 * 784).reshape(3, 1, 28, 28)
    assert model(images).shape == (3, 10)
    torch.testing.assert_close(model(images), model(images.reshape(3, 784)))


def test_softmax_is_one_linear_layer() -> None:
    model = build("softmax", (3,), 2)
    arrays = initial_arrays(model, Streams.seeded("c", 1).stream("model"))
    weight, bias = arrays.values()
    x = np.array([[0.1, 0.5, 0.9]], dtype=np.float32)
    scores = torch.func.functional_call(
        model, {name: torch.tensor(value) for name, value in arrays.items()}, (torch.tensor(x),)
    )
    np.testing.assert_allclose(scores.detach().numpy(), x @ weight.T + bias, rtol=1e-6)


def test_building_is_deterministic_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    left = build("mlp", (4,), 3)
    torch.rand(5)
    right = build("mlp", (4,), 3)
    torch.random.set_rng_state(before)
    build("mlp", (4,), 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_a_users_own_factory_gets_the_shape_and_the_number_of_outputs() -> None:
    def convolution(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        side = input_shape[-1] - 2
        return nn.Sequential(
            nn.Conv2d(input_shape[0], 4, 3),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * side**2, num_outputs),
        )

    model = build(convolution, (1, 8, 8), 5)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    arrays = initial_arrays(model, Streams.seeded("c", 1).stream("model"))
    assert (arrays["1.weight"] == 1).all()  # the scale of a normalisation stays as built
    assert (arrays["1.bias"] == 0).all()
    assert np.abs(arrays["0.weight"]).max() < 1 / 3  # fan-in 9


def test_initial_arrays_are_fan_in_scaled_uniform_with_zero_biases() -> None:
    """A uniform law on (-b, b): mean 0 and variance b^2/3 within 5 standard errors (false alarm 1e-6)."""
    model = build("mlp", (400,), 10, hidden=100)
    arrays = initial_arrays(model, Streams.seeded("c", 7).stream("model"))
    assert list(arrays) == list(parameters(model))
    assert {name: value.shape for name, value in arrays.items()} == parameters(model)
    assert all(value.dtype == np.float32 for value in arrays.values())
    weight = arrays["1.weight"].astype(np.float64) * math.sqrt(400)
    assert np.abs(weight).max() <= 1
    assert abs(weight.mean()) < 5 * math.sqrt(1 / 3 / weight.size)
    assert abs((weight**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / weight.size)
    assert not arrays["1.bias"].any()
    assert not arrays["3.bias"].any()


def test_initial_arrays_are_the_streams_words_in_order() -> None:
    model = build("mlp", (4,), 3, hidden=2)
    arrays = initial_arrays(model, Streams.seeded("c", 7).stream("model"))
    draws = 2 * Streams.seeded("c", 7).stream("model").uniform(8 + 6) - 1
    np.testing.assert_array_equal(arrays["1.weight"].ravel(), (draws[:8] / 2).astype(np.float32))
    np.testing.assert_array_equal(arrays["3.weight"].ravel(), (draws[8:] / math.sqrt(2)).astype(np.float32))


def test_frozen_parameters_are_no_arrays() -> None:
    model = build("mlp", (4,), 3)
    next(model.parameters()).requires_grad_(False)
    assert "1.weight" not in initial_arrays(model, Streams.seeded("c", 0).stream("model"))
    with pytest.raises(ValueError, match="no trainable parameter"):
        initial_arrays(nn.Flatten(), Streams.seeded("c", 0).stream("model"))


COUPLED = [
    nn.BatchNorm1d(4),
    nn.BatchNorm2d(4),
    nn.BatchNorm3d(4),
    nn.BatchNorm1d(4, track_running_stats=False),
    nn.SyncBatchNorm(4),
    nn.LazyBatchNorm1d(),
    nn.InstanceNorm1d(4, track_running_stats=True),
    nn.InstanceNorm2d(4, track_running_stats=True),
]


@pytest.mark.parametrize("layer", COUPLED, ids=repr)
def test_a_layer_in_which_records_meet_is_refused_by_name(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), layer))
    with pytest.raises(ValueError, match=rf"Layer '1\.1' \({type(layer).__name__}\).*GroupNorm"):
        refuse_record_coupling(model)


def test_a_custom_layer_with_running_statistics_is_refused() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(4))

    model = nn.Sequential(nn.Linear(4, 4))
    model.add_module("centre", Centred())
    with pytest.raises(ValueError, match=r"Layer 'centre' .*running statistics"):
        refuse_record_coupling(model)


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.RMSNorm(4)], ids=repr
)
def test_layers_that_normalise_one_record_are_allowed(layer: nn.Module) -> None:
    refuse_record_coupling(nn.Sequential(nn.Linear(4, 4), layer))


def test_a_factory_with_batch_normalisation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"BatchNorm1d"):
        build(lambda shape, outputs: nn.Sequential(nn.Linear(4, outputs), nn.BatchNorm1d(outputs)), (4,), 3)


def test_a_custom_forward_that_mixes_records_is_found_by_running_it() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, records: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.linear(records)
            return scores - scores.mean(dim=0)

    with pytest.raises(ValueError, match=r"Mixing.*depends on the other records"):
        build(lambda shape, outputs: Mixing(), (4,), 3)


def test_an_unknown_name_a_wrong_output_and_a_factory_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'sofmax' is unknown.*nearest: 'softmax'"):
        build("sofmax", (4,), 3)
    with pytest.raises(ValueError, match=r"shape \(2, 7\).*must be \(2, 3\)"):
        build(lambda shape, outputs: nn.Linear(4, 7), (4,), 3)
    with pytest.raises(ValueError, match="returned NoneType"):
        build(lambda shape, outputs: None, (4,), 3)


@pytest.mark.parametrize(
    ("shape", "outputs", "hidden"), [((4,), 1, 8), ((4,), 3, 0), ((), 3, 8), ((0, 4), 3, 8)]
)
def test_sizes_out_of_range_are_refused(shape: tuple[int, ...], outputs: int, hidden: int) -> None:
    with pytest.raises(ValueError, match="record shape of positive sizes"):
        build("mlp", shape, outputs, hidden)


class Custom(nn.Module):
    """A network whose forward is given; it has a buffer for those that change one."""

    def __init__(self, forward: Callable[[Custom, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(3))
        self._forward = forward

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self._forward(self, records)


def mixing(mode: bool) -> Callable[[Custom, torch.Tensor], torch.Tensor]:
    def forward(model: Custom, records: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = model.linear(records)
        return scores - scores.mean(0) if model.training is mode else scores

    return forward


@pytest.mark.parametrize("mode", [True, False])
def test_records_that_mix_in_one_mode_only_are_found(mode: bool) -> None:
    with pytest.raises(ValueError, match="Custom for a record depends on the other records"):
        build(lambda shape, outputs: Custom(mixing(mode)), (4,), 3)


def branching(model: Custom, records: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = model.linear(records)
    return scores if bool(scores.sum() > 1e9) else 2 * scores


def counting(model: Custom, records: torch.Tensor) -> torch.Tensor:
    model.count += records.mean() + 1
    scores: torch.Tensor = model.linear(records)
    return scores


def growing(model: Custom, records: torch.Tensor) -> torch.Tensor:
    model.count = torch.cat([model.count, model.count[:1]])
    scores: torch.Tensor = model.linear(records)
    return scores


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(1e-9)),
        Custom(branching),
        Custom(counting),
        Custom(growing),
    ],
    ids=["dropout", "rare dropout", "branch", "running sum", "growing buffer"],
)
def test_what_per_record_gradients_cannot_do_is_refused_in_one_sentence(model: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=r"model = '.*<lambda>': .*no random layers such as Dropout"
    ) as error:
        build(lambda shape, outputs: model, (4,), 3)
    said = str(error.value)
    assert "vmap" not in said
    assert "\n" not in said
    assert "no branches on values" in said
    assert "no buffers that forward() changes" in said
    assert error.value.__cause__ is None


def test_a_trial_leaves_the_mode_of_each_layer_and_the_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[1].eval()
    before = [value.clone() for value in model.parameters()]
    assert build(lambda shape, outputs: model, (4,), 3) is model
    assert [layer.training for layer in model] == [True, False, True]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert all(value.grad is None for value in model.parameters())


def test_outputs_that_are_not_finite_are_refused() -> None:
    def normed(model: Custom, records: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = model.linear(records / records.norm(dim=1, keepdim=True))
        return scores

    with pytest.raises(ValueError, match="NaN or infinite on a record of zeros"):
        build(lambda shape, outputs: Custom(normed), (4,), 3)


def no_arguments() -> nn.Module:
    return nn.Linear(4, 3)


def broken(shape: tuple[int, ...], outputs: int) -> nn.Module:
    raise KeyError("depth")


def another_size(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(5, outputs)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (no_arguments, r":no_arguments': calling it as factory\(\(4,\), 3\).* failed \(TypeError: "),
        (broken, r":broken': calling it .* failed \(KeyError: 'depth'\): correct the factory"),
        (another_size, r":another_size': it fails on records of shape \(4,\).*\(RuntimeError: mat1"),
        (7, r"model = 'int': it cannot be called"),
        (lambda shape, outputs: nn.Identity(), r"must be \(2, 3\)"),
        (lambda shape, outputs: nn.LSTM(4, 3), r"forward\(\) returned tuple"),
    ],
)
def test_a_factory_that_fails_is_named(factory: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^model = '.*{message.removeprefix('model = ').lstrip(chr(39))}"):
        build(factory, (4,), 3)


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        build(lambda shape, outputs: nn.Identity(), (3,), 3)


def test_lazy_layers_are_built_by_the_trial() -> None:
    model = build(lambda shape, outputs: nn.Sequential(nn.LazyLinear(outputs)), (4,), 3)
    assert parameters(model) == {"0.weight": (3, 4), "0.bias": (3,)}
