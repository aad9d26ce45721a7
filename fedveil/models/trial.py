"""A user's own learner, tried on made-up records before any real one: what private training could not use.

Training takes one gradient per record by ``torch.func`` and every guarantee rests on its depending on that
record alone. Whatever breaks this in the network, the loss or the local step is found here, in one sentence,
instead of in round 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedveil.models.learner import Learner, first_line, name_of

__all__ = ["try_forward", "try_gradient", "try_local_step", "try_loss"]

_REMEDY = (
    "use no random layers such as Dropout, no branches on values of the records, and no buffers that forward()"
    " changes"
)


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


def try_loss(
    learner: Learner, input_shape: tuple[int, ...], num_outputs: int, name: str | None = None
) -> None:
    """Take the loss of two made-up records, together and alone.

    Parameters
    ----------
    learner : Learner
        Its network has passed :func:`try_forward`.
    input_shape : tuple of int
        Shape of one record.
    num_outputs : int
        Number of classes; the records are of the first and the last.
    name : str, optional
        What errors call the network; its class when not given.

    Raises
    ------
    ValueError
        If the loss fails, is no finite scalar, changes from call to call, or is not the mean of the losses of the
        records alone.
    """
    who = f"{_who(learner.module, name)}: its loss {name_of(learner.loss)!r}"
    records = _records(learner.module, input_shape)
    labels = _labels(num_outputs, records)
    with torch.no_grad():
        scores = _scores(learner.module, records)
        try:
            together, again = learner.loss(scores.clone(), labels), learner.loss(scores.clone(), labels)
            alone = [learner.loss(scores[i : i + 1].clone(), labels[i : i + 1]) for i in range(2)]
        except Exception as error:
            raise ValueError(
                f"{who} fails on scores of shape (2, {num_outputs}) or (1, {num_outputs}) and int64 labels"
                f" ({first_line(error)}): correct it."
            ) from error
    for value in (together, again, *alone):
        if not isinstance(value, Tensor) or value.dim() != 0 or not bool(value.isfinite()):
            got = repr(value) if not isinstance(value, Tensor) else f"shape {tuple(value.shape)}"
            got = f"{float(value):g}" if isinstance(value, Tensor) and value.dim() == 0 else got
            raise ValueError(f"{who} gives {got}: return one finite number, the mean over the records.")
    if not _close(together, again):
        raise ValueError(f"{who} changes from one call to the next: draw nothing and keep no state.")
    if not _close(together, (alone[0] + alone[1]) / 2):
        raise ValueError(
            f"{who} of two records is not the mean of the losses of each alone, so records would meet in it: return"
            " the mean of one value a record."
        )


def try_gradient(
    learner: Learner, input_shape: tuple[int, ...], num_outputs: int, name: str | None = None
) -> None:
    """Take the gradients of two made-up records one by one, as private training does.

    Parameters
    ----------
    learner : Learner
        Its network and its loss; each layer is in the same mode afterwards.
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
    model, who = learner.module, _who(learner.module, name)
    records = _records(model, input_shape)
    labels = _labels(num_outputs, records)
    values = {key: value.detach() for key, value in model.named_parameters() if value.requires_grad}
    if not values:
        raise ValueError(f"{who}: it has no trainable parameter, so there is nothing to learn: add a layer.")

    for mode in (False, True):
        with _mode(model, mode):
            if _can_differentiate(learner, values, records, labels):
                continue
            if _can_differentiate(Learner(model), values, records, labels):
                raise ValueError(
                    f"{who}: the gradient of its loss {name_of(learner.loss)!r} cannot be taken for one record at a"
                    " time, as private training does: use no branches on values, nothing random, and no one_hot()"
                    " (compare labels with torch.arange() instead)."
                )
        raise ValueError(
            f"{who}: the gradient of {type(model).__name__} cannot be taken for one record at a time, as"
            f" private training does: {_REMEDY}."
        )


def _can_differentiate(learner: Learner, values: dict[str, Tensor], records: Tensor, labels: Tensor) -> bool:
    """Whether per-record gradients can be taken, and taking them changes no buffer."""

    def loss(parameters: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        scores: Tensor = functional_call(learner.module, parameters, (record[None],))
        return learner.loss(scores, label[None])

    buffers = {key: (value, value.clone()) for key, value in learner.module.named_buffers()}
    try:
        vmap(grad(loss), in_dims=(None, 0, 0))(values, records, labels)
    except Exception:  # whatever torch.func cannot do; its own text speaks of vmap
        return False
    return _changed(learner.module, buffers) is None


def try_local_step(learner: Learner, name: str | None = None) -> None:
    """Take two local steps along made-up gradients, twice.

    Parameters
    ----------
    learner : Learner
        Its local step; the network says how many parameters there are.
    name : str, optional
        What errors call the network; its class when not given.

    Raises
    ------
    ValueError
        If the local step fails, gives another shape, NaN or infinity, or changes from call to call.
    """
    who = _who(learner.module, name)
    size = sum(value.numel() for value in learner.module.parameters() if value.requires_grad)
    first = np.linspace(-1.0, 1.0, size)
    results = []
    for _ in range(2):
        try:
            change = learner.advance(np.zeros(size), (first,), 0.1)
            results.append(learner.advance(change, (first, first**2), 0.1))
        except ValueError as error:
            raise ValueError(f"{who}: its {error}") from error
    step = f"{who}: its local step {name_of(learner.local_step)!r}"
    if not np.all(np.isfinite(results)):
        raise ValueError(f"{step} gives NaN or infinity from gradients between -1 and 1: correct it.")
    if not np.array_equal(results[0], results[1]):
        raise ValueError(
            f"{step} gives something else when it is called again: keep no state, which would carry one client into"
            " another, and draw nothing."
        )


def _who(model: nn.Module, name: str | None) -> str:
    return f"model = {name or type(model).__name__!r}"


def _records(model: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    """Two records of values from 0 to 1."""
    device = next((parameter.device for parameter in model.parameters()), None)
    return torch.linspace(0.0, 1.0, 2 * math.prod(input_shape), device=device).reshape(2, *input_shape)


def _labels(num_outputs: int, records: Tensor) -> Tensor:
    """The first and the last class."""
    return torch.tensor([0, num_outputs - 1], device=records.device)


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
