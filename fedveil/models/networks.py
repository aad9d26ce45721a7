"""Small networks: softmax regression, a perceptron, and the convolutional network of LEAF's FEMNIST task."""

from __future__ import annotations

import math

from torch import nn

__all__ = ["cnn", "mlp", "refuse_other_than_images", "softmax"]


def softmax(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Softmax regression: one linear layer on the flattened record; p*k + k parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs))


def mlp(input_shape: tuple[int, ...], num_outputs: int, hidden: int = 64) -> nn.Module:
    """One hidden layer of tanh units.

    Bounded activations lose less to clipping and noise than ReLU (Papernot et al., arXiv 2007.14191).
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), hidden),
        nn.Tanh(),
        nn.Linear(hidden, num_outputs),
    )


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The network of the FEMNIST task of LEAF (Caldas et al., arXiv 1812.01097).

    Two 5x5 convolutions of 32 and 64 channels, each with ReLU and a 2x2 maximum, then 2,048 ReLU units; 6.6 million
    parameters for 62 classes of 28x28 pixels.

    Raises
    ------
    ValueError
        If records are no images of at least 8x8 pixels.
    """
    refuse_other_than_images("cnn", input_shape)
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 2048),
        nn.ReLU(),
        nn.Linear(2048, num_outputs),
    )


def refuse_other_than_images(name: str, input_shape: tuple[int, ...]) -> None:
    """Refuse records that a convolutional network cannot take.

    Parameters
    ----------
    name : str
        The network's name in a configuration.
    input_shape : tuple of int
        Shape of one record.

    Raises
    ------
    ValueError
        If the shape is not (channels, height, width) with both sides at least 8.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        raise ValueError(
            f"model = {name!r} needs images of shape (channels, height, width) with sides of at least 8 pixels, but"
            f" records have shape {input_shape}: use softmax or mlp."
        )
