"""Networks by name: softmax regression and a small perceptron, or a user's own factory."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches

import torch
from torch import nn

from fedveil.models.coupling import refuse_record_coupling

__all__ = ["ModelFactory", "build_model", "mlp", "softmax"]

ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
"""A user's own network: called with the shape of one record and the number of outputs."""


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


def build_model(
    name_or_factory: str | ModelFactory, input_shape: tuple[int, ...], num_outputs: int, hidden: int = 64
) -> nn.Module:
    """Build a network and refuse one that private training cannot use.

    Building is deterministic and leaves torch's global generator as it was; training starts from
    :func:`fedveil.models.initial_arrays`, not from the parameters built here.

    Parameters
    ----------
    name_or_factory : str or callable
        ``"softmax"``, ``"mlp"``, or a factory called as ``factory(input_shape, num_outputs)``.
    input_shape : tuple of int
        Shape of one record.
    num_outputs : int
        Number of classes, at least 2.
    hidden : int
        Units of the hidden layer of ``"mlp"``, at least 1.

    Returns
    -------
    torch.nn.Module
        Maps float32 records of shape (n, *input_shape) to scores (logits) of shape (n, num_outputs).
        ``softmax`` and ``mlp`` take flat records (n, p) as well.

    Raises
    ------
    ValueError
        If the name is unknown, a number is out of range, the network's output has another shape, or a
        record's output depends on another record.
    """
    if num_outputs < 2 or hidden < 1 or not input_shape or min(input_shape) < 1:
        raise ValueError(
            "A model needs a record shape of positive sizes, at least 2 outputs and 1 hidden unit, got"
            f" {input_shape}, {num_outputs} and {hidden}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            0
        )  # the forked one: what layers draw here is thrown away or constant
        if name_or_factory == "softmax":
            model = softmax(input_shape, num_outputs)
        elif name_or_factory == "mlp":
            model = mlp(input_shape, num_outputs, hidden)
        elif isinstance(name_or_factory, str):
            near = get_close_matches(name_or_factory, ("softmax", "mlp"), n=1) or ["softmax"]
            raise ValueError(
                f"Model {name_or_factory!r} is unknown: use 'softmax' or 'mlp'; nearest: {near[0]!r}."
            )
        else:
            model = name_or_factory(input_shape, num_outputs)
            if not isinstance(model, nn.Module):
                raise ValueError(
                    f"The model factory returned {type(model).__name__}: return a torch.nn.Module."
                )
        refuse_record_coupling(model)
        _try_on_two_records(model, input_shape, num_outputs)
    return model


def _try_on_two_records(model: nn.Module, input_shape: tuple[int, ...], num_outputs: int) -> None:
    """Run two records together and each alone, and compare: this finds mixing in a custom ``forward``."""
    device = next((parameter.device for parameter in model.parameters()), None)
    records = torch.linspace(0.0, 1.0, 2 * math.prod(input_shape), device=device).reshape(2, *input_shape)
    was_training = model.training
    with torch.no_grad():
        model.eval()
        together = model(records)
        alone = torch.cat([model(record[None]) for record in records])
    model.train(was_training)
    if tuple(together.shape) != (2, num_outputs):
        raise ValueError(
            f"The model gives an output of shape {tuple(together.shape)} for 2 records: it must be (2,"
            f" {num_outputs})."
        )
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4):
        raise ValueError(
            f"The output of {type(model).__name__} for a record depends on the other records of its batch:"
            " remove what mixes them."
        )
