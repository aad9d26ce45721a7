"""ResNet-18 for small images, with group normalisation in place of batch normalisation."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import relu

from fedveil.models.networks import refuse_other_than_images

__all__ = ["resnet_18"]

_GROUPS = 32  # of Wu & He, arXiv 1803.08494; every width here is a multiple


def resnet_18(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """ResNet-18 (He et al., arXiv 1512.03385) for images of about 32x32 pixels.

    The stem is one 3x3 convolution of stride 1 without a maximum, as in the publication's networks for CIFAR-10, and
    group normalisation stands for batch normalisation, so that no records meet. Layers come in torchvision's
    order; 11.2 million parameters.

    Raises
    ------
    ValueError
        If records are no images of at least 8x8 pixels.
    """
    refuse_other_than_images("resnet-18", input_shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=_conv3x3(input_shape[0], 64), norm1=nn.GroupNorm(_GROUPS, 64), relu=nn.ReLU()
    )
    before = 64
    for number, width in enumerate((64, 128, 256, 512), start=1):
        stride = 1 if number == 1 else 2
        layers[f"layer{number}"] = nn.Sequential(_Block(before, width, stride), _Block(width, width, 1))
        before = width
    layers["pool"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["linear"] = nn.Linear(before, num_outputs)
    return nn.Sequential(layers)


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv3x3(before, width, stride), nn.GroupNorm(_GROUPS, width)
        self.conv2, self.norm2 = _conv3x3(width, width), nn.GroupNorm(_GROUPS, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.GroupNorm(_GROUPS, width)
            )

    def forward(self, images: Tensor) -> Tensor:
        out = relu(self.norm1(self.conv1(images)))
        return relu(self.norm2(self.conv2(out)) + self.shortcut(images))


def _conv3x3(before: int, width: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
