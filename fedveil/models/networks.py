"""Networks by name: softmax regression and a small perceptron, or a user's own factory."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches

import torch
from torch import nn

from fedveil.models.coupling import refuse_record_coupling
from fedveil.models.trial import first_line, try_forward, try_gradient

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
        If the name is unknown, a number is out of range, or a user's factory fails, or makes a network that
        private training cannot use (:func:`try_forward` and :func:`try_gradient` say which).
    """
    if num_outputs < 2 or hidden < 1 or not input_shape or min(input_shape) < 1:
        raise ValueError(
            "A model needs a record shape of positive sizes, at least 2 outputs and 1 hidden unit, got"
            f" {input_shape}, {num_outputs} and {hidden}."
        )
    with torch.random.fork_rng(devices=[]):
        # the forked generator: what layers draw here is thrown away or constant
        torch.default_generator.manual_seed(0)
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
            model = _call(name_or_factory, input_shape, num_outputs)
            refuse_record_coupling(model)
            try_forward(model, input_shape, num_outputs, _name(name_or_factory))
            try_gradient(model, input_shape, num_outputs, _name(name_or_factory))
    return model


def _call(factory: ModelFactory, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Call a user's factory; whatever it raises becomes one sentence that names it."""
    who = f"model = {_name(factory)!r}"
    if not callable(factory):
        raise ValueError(f"{who}: it cannot be called: name a function of (input_shape, num_outputs).")
    try:
        model = factory(input_shape, num_outputs)
    except Exception as error:
        raise ValueError(
            f"{who}: calling it as factory({input_shape}, {num_outputs}), the shape of one record and the number"
            f" of outputs, failed ({first_line(error)}): correct the factory."
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{who}: it returned {type(model).__name__}: return a torch.nn.Module.")
    return model


def _name(factory: object) -> str:
    """A factory as a configuration names it, ``module:function``; other objects by their type."""
    name = getattr(factory, "__qualname__", None)
    return type(factory).__qualname__ if name is None else f"{getattr(factory, '__module__', '')}:{name}"
