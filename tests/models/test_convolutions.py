"""The convolutional networks: sizes from the literature, a second implementation, and one record at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedveil.models import build_learner, cnn, initial_arrays, refuse_record_coupling, resnet_18
from fedveil.models.trial import try_forward, try_gradient, try_local_step, try_loss
from fedveil.streams import Streams


def size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def drawn(module: nn.Module) -> nn.Module:
    """The module at drawn parameters, scales and shifts of normalisations among them."""
    stream = Streams.seeded("c", 3).stream("model")
    with torch.no_grad():
        for name, value in initial_arrays(module, stream).items():
            module.get_parameter(name).copy_(torch.from_numpy(value))
        for value in module.parameters():
            if value.dim() == 1:
                value.add_(torch.from_numpy(0.2 * stream.normal(tuple(value.shape))))
    return module


def test_the_cnn_has_the_size_of_leafs_network_for_femnist() -> None:
    assert size(build_learner("cnn", (1, 28, 28), 62).module) == 6_603_710


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (3, 32, 32)])
def test_the_cnn_is_leafs_for_images_of_any_size(shape: tuple[int, int, int]) -> None:
    """The formula of LEAF's network, layer by layer, with the maximum taken by hand."""
    module = drawn(build_learner("cnn", shape, 5).module)
    weights = [value.detach() for value in module.parameters()]
    images = torch.from_numpy(Streams.seeded("c", 4).stream("x").uniform((2, *shape))).float()

    def halve(values: Tensor) -> Tensor:
        height, width = (2 * (side // 2) for side in values.shape[2:])
        values = values[:, :, :height, :width]
        corners = [values[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return torch.stack(corners).amax(dim=0)

    def convolve(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        columns = nn.functional.unfold(values, 5, padding=2)
        out = weight.flatten(1) @ columns + bias[:, None]
        return out.unflatten(2, values.shape[2:])

    out = halve(convolve(images, weights[0], weights[1]).clamp(min=0))
    out = halve(convolve(out, weights[2], weights[3]).clamp(min=0)).flatten(1)
    out = (out @ weights[4].T + weights[5]).clamp(min=0) @ weights[6].T + weights[7]
    assert weights[4].shape[0] == 2048
    torch.testing.assert_close(module(images), out, rtol=1e-4, atol=1e-5)


def test_resnet_18_is_torchvisions_with_another_stem_and_group_normalisation() -> None:
    torchvision = pytest.importorskip("torchvision")
    ours = drawn(build_learner("resnet-18", (3, 32, 32), 10).module)
    assert size(ours) == 11_173_962  # as in every ResNet-18 for CIFAR-10
    with torch.random.fork_rng(devices=[]):
        theirs = torchvision.models.resnet18(
            num_classes=10, norm_layer=lambda channels: nn.GroupNorm(32, channels)
        )
        theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    names = [name for name, _ in theirs.named_parameters()]
    values = list(ours.parameters())
    assert len(names) == len(values)
    theirs.load_state_dict({name: value.detach() for name, value in zip(names, values, strict=True)})
    images = torch.from_numpy(Streams.seeded("c", 4).stream("x").uniform((2, 3, 32, 32))).float()
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn", "resnet-18"])
def test_built_in_networks_pass_the_trial_that_a_users_own_must_pass(name: str) -> None:
    learner = build_learner(name, (1, 8, 8), 3)
    refuse_record_coupling(learner.module)
    try_forward(learner.module, (1, 8, 8), 3)
    try_loss(learner, (1, 8, 8), 3)
    try_gradient(learner, (1, 8, 8), 3)
    try_local_step(learner)


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 7, 28), (3, 32, 4)])
def test_records_that_are_no_images_are_refused_with_what_to_use(shape: tuple[int, ...]) -> None:
    for name in ("cnn", "resnet-18"):
        with pytest.raises(ValueError, match=rf"model = '{name}' needs images .* use softmax or mlp"):
            build_learner(name, shape, 10)


def test_the_name_of_a_network_and_its_factory_build_the_same() -> None:
    for name, factory in (("cnn", cnn), ("resnet-18", resnet_18)):
        left, right = build_learner(name, (1, 8, 8), 3).module, build_learner(factory, (1, 8, 8), 3).module
        assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))
