"""A user's own network, tried on made-up records before any real one: what private training could not use.

Training takes one gradient per record by ``torch.func`` and every guarantee rests on its depending on that
record alone. Whatever breaks this in ``forward`` is found here, in one sentence, instead of in round 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

__all__ = ["first_line", "try_forward", "try_gradient"]

_REMEDY = (
    "use no random layers such as Dropout, no branches on values of the records, and no buffers that forward()"
    " changes"
)


def first_line(error: Exception) -> str:
    """Name an error and quote the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip(' .')}" if lines else type(error).__name__


def try_forward(
    model: nn.Module, input_shape: tuple[int, ...], num_outputs: int, name: str | None = None
) -> None:
    """Run made-up records through a network, together and alone, in training and in evaluation mode.

    Parameters
    ----------
    model : torch.nn.Module
        The network; each of its layers is in the same mode afterwards.
    input_shape : tuple of int
        Shape of one record.
    num_outputs : int
        Number of classes.
    name : str, optional
        What errors call the network; its class when not given.

    Raises
    ------
    ValueError
        If it fails, its output has another shape, is not finite on zeros or on values from 0 to 1, changes
        from call to call or with the other records of its batch, or if it changes a buffer.
    """
    who = _who(model, name)
    records = _records(model, input_shape)
    for mode in (False, True):
        with _mode(model, mode), torch.no_grad():
            try:
                together, zero = _scores(model, records), _scores(model, torch.zeros_like(records[:1]))
                buffers = {key: (value, value.clone()) for key, value in model.named_buffers()}
                again = _scores(model, records)
                alone = torch.cat([_scores(model, record[None]) for record in records])
            except Exception as error:
                raise ValueError(
                    f"{who}: it fails on records of shape {input_shape}, one or two at a time"
                    f" ({first_line(error)}): correct its forward()."
                ) from error
            changed = _changed(model, buffers)
        if tuple(together.shape) != (2, num_outputs):
            raise ValueError(
                f"{who}: it gives an output of shape {tuple(together.shape)} for 2 records, but it must be (2,"
                f" {num_outputs}), one score for each class."
            )
        if not (together.isfinite().all() and zero.isfinite().all()):
            raise ValueError(
                f"{who}: its output is NaN or infinite on a record of zeros or of values from 0 to 1: divide by"
                " nothing that can be 0, and take no logarithm of it."
            )
        if changed is not None:
            raise ValueError(
                f"{who}: its forward() changes the buffer {changed!r}, which would carry records into later"
                f" gradients: {_REMEDY}."
            )
        if not _close(together, again):
            raise ValueError(
                f"{who}: its output changes from one call to the next on the same records: {_REMEDY}."
            )
        if not _close(together, alone):
            raise ValueError(
                f"{who}: the output of {type(model).__name__} for a record depends on the other records of its"
                f" batch{' in training mode' if mode else ''}: remove what mixes them."
            )


def try_gradient(
    model: nn.Module, input_shape: tuple[int, ...], num_outputs: int, name: str | None = None
) -> None:
    """Take the gradients of two made-up records one by one, as private training does.

    Parameters
    ----------
    model : torch.nn.Module
        The network; each of its layers is in the same mode afterwards.
    input_shape : tuple of int
        Shape of one record.
    num_outputs : int
        Number of classes; the records are of the first and the last.
    name : str, optional
        What errors call the network; its class when not given.

    Raises
    ------
    ValueError
        If no layer can be trained, ``torch.func`` cannot take the gradients (random layers, branches on
        values, operations that it does not know), or taking them changes a buffer.
    """
    who = _who(model, name)
    records = _records(model, input_shape)
    labels = torch.tensor([0, num_outputs - 1], device=records.device)
    values = {key: value.detach() for key, value in model.named_parameters() if value.requires_grad}
    if not values:
        raise ValueError(f"{who}: it has no trainable parameter, so there is nothing to learn: add a layer.")

    def loss(parameters: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        scores: Tensor = functional_call(model, parameters, (record[None],))
        return nn.functional.cross_entropy(scores, label[None])

    for mode in (False, True):
        buffers = {key: (value, value.clone()) for key, value in model.named_buffers()}
        with _mode(model, mode):
            try:
                vmap(grad(loss), in_dims=(None, 0, 0))(values, records, labels)
                fails = _changed(model, buffers) is not None
            except Exception:  # whatever torch.func cannot do; its own text speaks of vmap
                fails = True
        if fails:
            raise ValueError(
                f"{who}: the gradient of {type(model).__name__} cannot be taken for one record at a time, as"
                f" private training does: {_REMEDY}."
            ) from None


def _who(model: nn.Module, name: str | None) -> str:
    return f"model = {name or type(model).__name__!r}"


def _records(model: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    """Two records of values from 0 to 1."""
    device = next((parameter.device for parameter in model.parameters()), None)
    return torch.linspace(0.0, 1.0, 2 * math.prod(input_shape), device=device).reshape(2, *input_shape)


def _scores(model: nn.Module, records: Tensor) -> Tensor:
    scores = model(records.clone())
    if not isinstance(scores, Tensor):
        raise TypeError(f"forward() returned {type(scores).__name__}, not one tensor of scores")
    return scores


def _close(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-3, atol=1e-4)


def _changed(model: nn.Module, before: dict[str, tuple[Tensor, Tensor]]) -> str | None:
    """Name a buffer that is another tensor, or holds other values, than before."""
    now = dict(model.named_buffers())
    for key in {**before, **now}:
        if key not in before or key not in now:
            return key
        same, value = before[key]
        if now[key] is not same or not torch.equal(same.nan_to_num(), value.nan_to_num()):
            return key
    return None


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put every layer into one mode, and back into its own."""
    before = [(layer, layer.training) for layer in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for layer, was_training in before:
            layer.training = was_training
