"""The arrays that training starts from, drawn from a stream of the run."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedveil.streams import Stream

__all__ = ["initial_arrays"]


def initial_arrays(model: nn.Module, stream: Stream) -> dict[str, NDArray[np.float32]]:
    """Draw the first value of every trainable parameter.

    Weights of two or more dimensions are uniform in (-1/sqrt(fan_in), 1/sqrt(fan_in)), where fan_in counts
    the values that enter one output (the rule of torch's linear and convolution layers). Biases are 0. Other
    parameters, such as the scale of a normalisation, keep the value that the model was built with.

    Parameters
    ----------
    model : torch.nn.Module
        Gives names, shapes and order of the arrays; it is not changed.
    stream : Stream
        One word for each weight is taken from it, in the order of the arrays.

    Returns
    -------
    dict of str to float32 array
        In the order of ``model.named_parameters()``, frozen parameters left out.

    Raises
    ------
    ValueError
        If the model has no trainable parameter.
    """
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        shape = tuple(parameter.shape)
        if len(shape) >= 2:
            bound = 1.0 / math.sqrt(math.prod(shape[1:]))
            value = bound * (2.0 * stream.uniform(shape) - 1.0)
        elif name.rpartition(".")[2].startswith("bias"):
            value = np.zeros(shape)
        else:
            value = parameter.detach().cpu().numpy()
        arrays[name] = value.astype(np.float32)
    if not arrays:
        raise ValueError(
            f"The model {type(model).__name__} has no trainable parameter: there is nothing to learn."
        )
    return arrays
