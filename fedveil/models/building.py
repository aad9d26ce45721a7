"""A learner by name or by a user's own factory, refused where private training could not use it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from fedveil.models.coupling import refuse_record_coupling
from fedveil.models.learner import Learner, first_line, name_of
from fedveil.models.networks import cnn, mlp, softmax
from fedveil.models.residual import resnet_18
from fedveil.models.trial import try_forward, try_gradient, try_local_step, try_loss

__all__ = ["ModelFactory", "build_learner"]

ModelFactory = Callable[..., nn.Module | Learner]
"""Called as ``factory(input_shape, num_outputs)``, with ``hidden=`` too where its signature names it."""

_BUILT_IN: dict[str, ModelFactory] = {"softmax": softmax, "mlp": mlp, "cnn": cnn, "resnet-18": resnet_18}


def build_learner(
    name_or_factory: str | ModelFactory, input_shape: tuple[int, ...], num_outputs: int, hidden: int = 64
) -> Learner:
    """Build what clients train and refuse what private training cannot use.

    Building is deterministic and leaves torch's global generator as it was; training starts from
    :func:`fedveil.models.initial_arrays`, not from the parameters built here.

    Parameters
    ----------
    name_or_factory : str or callable
        ``"softmax"``, ``"mlp"``, ``"cnn"``, ``"resnet-18"``, or a factory called as ``factory(input_shape,
        num_outputs)`` that returns a network or a :class:`Learner`.
    input_shape : tuple of int
        Shape of one record.
    num_outputs : int
        Number of classes, at least 2.
    hidden : int
        Units of a hidden layer, at least 1; given to factories with a parameter of this name.

    Returns
    -------
    Learner
        Its module maps float32 records of shape (n, *input_shape) to scores (logits) of shape (n, num_outputs).
        A network without a loss and a local step of its own gets cross-entropy and gradient descent.

    Raises
    ------
    ValueError
        If the name is unknown, a number is out of range, or a user's factory fails or makes something that
        private training cannot use (:mod:`fedveil.models.trial` says what that is).
    """
    if num_outputs < 2 or hidden < 1 or not input_shape or min(input_shape) < 1:
        raise ValueError(
            "A model needs a record shape of positive sizes, at least 2 outputs and 1 hidden unit, got"
            f" {input_shape}, {num_outputs} and {hidden}."
        )
    factory = _built_in(name_or_factory) if isinstance(name_or_factory, str) else name_or_factory
    with torch.random.fork_rng(devices=[]):
        # the forked generator: what layers draw here is thrown away or constant
        torch.default_generator.manual_seed(0)
        if factory in _BUILT_IN.values():  # tried by the tests, on every start they would cost seconds
            made = factory(input_shape, num_outputs, **_keywords(factory, hidden))
            return made if isinstance(made, Learner) else Learner(made)
        learner, name = _call(factory, input_shape, num_outputs, hidden), name_of(factory)
        refuse_record_coupling(learner.module)
        try_forward(learner.module, input_shape, num_outputs, name)
        try_loss(learner, input_shape, num_outputs, name)
        try_gradient(learner, input_shape, num_outputs, name)
        try_local_step(learner, name)
    return learner


def _built_in(name: str) -> ModelFactory:
    if name not in _BUILT_IN:
        near = get_close_matches(name, _BUILT_IN, n=1) or ["softmax"]
        allowed = ", ".join(repr(known) for known in _BUILT_IN)
        raise ValueError(f"Model {name!r} is unknown: use one of {allowed}; nearest: {near[0]!r}.")
    return _BUILT_IN[name]


def _keywords(factory: ModelFactory, hidden: int) -> dict[str, Any]:
    """The keywords that a factory's signature names; none where it has no signature, as some compiled callables."""
    try:
        names = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}
    return {"hidden": hidden} if "hidden" in names else {}


def _call(factory: ModelFactory, input_shape: tuple[int, ...], num_outputs: int, hidden: int) -> Learner:
    """Call a user's factory; whatever it raises becomes one sentence that names it."""
    who = f"model = {name_of(factory)!r}"
    if not callable(factory):
        raise ValueError(f"{who}: it cannot be called: name a function of (input_shape, num_outputs).")
    try:
        made = factory(input_shape, num_outputs, **_keywords(factory, hidden))
    except Exception as error:
        raise ValueError(
            f"{who}: calling it as factory({input_shape}, {num_outputs}), the shape of one record and the number"
            f" of outputs, failed ({first_line(error)}): correct the factory."
        ) from error
    if isinstance(made, Learner):
        return made
    if not isinstance(made, nn.Module):
        raise ValueError(f"{who}: it returned {type(made).__name__}: return a torch.nn.Module or a Learner.")
    return Learner(made)
