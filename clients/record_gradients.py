"""The gradient of every record by itself, in blocks that fit memory: what clipping works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fedveil.models import Learner

__all__ = ["Arrays", "GradientFailed", "Rows", "failures_named", "gradient_blocks", "pieces"]

Arrays = Mapping[str, NDArray[np.floating]]

Rows = tuple[Tensor, ...]
"""Gradients of some records, shape (records, p), cut between parameters into one tensor or several."""

_CHUNK = 2**21  # numbers in one block of per-record gradients, rows a function of p only
_PIECE = 2**16  # numbers of a block that are worked on at a time: 512 kB in float64


class GradientFailed(ValueError):
    """A network or its loss raised on some record; the text of that, which may tell of the record, is its cause's."""


@contextmanager
def failures_named() -> Iterator[None]:
    """Turn whatever a network or a loss raises in the block into a :class:`GradientFailed` that tells its kind."""
    try:
        yield
    except Exception as error:
        raise GradientFailed(
            f"the model or its loss raised {type(error).__name__} on a record: let them take every record of the "
            "description's shape and range; the node's own log has the rest."
        ) from error


def pieces(gradients: Rows) -> Iterator[tuple[slice, Tensor]]:
    """The rows in float64, each piece with its place among the p parameters.

    Float32 rows come a few columns at a time: such a piece fits a processor's cache, and a float64 copy of a large
    network's gradient would go through memory several times. Float64 rows are whole.

    Parameters
    ----------
    gradients : Rows

    Yields
    ------
    slice
        Columns of the piece among p.
    float64 tensor of shape (records, columns)
        Perhaps a view of the gradients: read it only.
    """
    start = 0
    for part in gradients:
        columns = part.shape[1] if part.dtype == torch.float64 else max(1, _PIECE // len(part))
        for piece in part.split(columns, dim=1):
            stop = start + piece.shape[1]
            yield slice(start, stop), piece.double()
            start = stop


def gradient_blocks(
    learner: Learner, arrays: Arrays, views: tuple[NDArray[np.float32], ...], labels: NDArray[np.int64]
) -> Iterator[tuple[Rows, ...]]:
    """Per-record gradients at each view of the records, block by block.

    Parameters
    ----------
    learner : Learner
        Network and loss.
    arrays : mapping of str to array
        Values of the network's parameters by name, in the order of the gradients' columns.
    views : tuple of float32 arrays of shape (n, *record)
        The records, and perhaps the same records changed.
    labels : int64 array, shape (n,)

    Yields
    ------
    tuple of Rows
        The gradients of the block's records at each view.

    Raises
    ------
    GradientFailed
        If the network or the loss raises.

    Notes
    -----
    A row depends on its own record and on public shapes alone. How the records fall into blocks, and whether a block
    is computed as one batch, is a function of the numbers of parameters and records, hence public. What a block holds
    is overwritten by the next.
    """
    # copies lie on torch's own alignment, on which the bits of BLAS may depend
    parameters = {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()}

    def record_loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        outputs: Tensor = functional_call(learner.module, values, (record[None],))
        return learner.loss(outputs, label[None])

    gradient_of = grad(record_loss)
    gradients_of = vmap(gradient_of, in_dims=(None, 0, 0))
    if learner.loss is cross_entropy and all(value.ndim <= 2 for value in parameters.values()):
        gradients_of = partial(_by_autograd, learner.module)  # of convolutions this is slower
    size = sum(int(np.size(value)) for value in arrays.values())
    rows = max(1, min(len(labels), _CHUNK // size))
    if rows == 1:  # a large network: vmap of one takes longer, and a float64 copy of a gradient too
        for features, label in zip(zip(*views, strict=True), torch.tensor(labels), strict=True):
            with failures_named():
                each = [gradient_of(parameters, torch.tensor(record), label) for record in features]
            yield tuple(tuple(grads[name].reshape(1, -1) for name in parameters) for grads in each)
        return
    buffers = [torch.empty((rows, size), dtype=torch.float64) for _ in views]
    for start in range(0, len(labels), rows):
        part = slice(start, start + rows)
        batch = torch.cat([torch.tensor(view[part]) for view in views])
        with failures_named():
            gradients = gradients_of(parameters, batch, torch.tensor(labels[part]).repeat(len(views)))
        by_view = zip(*(gradients[name].flatten(1).chunk(len(views)) for name in parameters), strict=True)
        yield tuple((_fill(buffer, parts),) for buffer, parts in zip(buffers, by_view, strict=True))


def _by_autograd(
    module: nn.Module, parameters: dict[str, Tensor], batch: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """The gradient of each record's cross entropy by ordinary autograd, at a view of the parameters for every record.

    The first use of ``torch.func.grad`` loads PyTorch's compiler: a second, in every process that answers a message.
    """
    own = {
        name: value.expand(len(batch), *value.shape).requires_grad_() for name, value in parameters.items()
    }
    scores = vmap(lambda values, record: functional_call(module, values, (record[None],)))(own, batch)
    loss = cross_entropy(scores.flatten(0, 1), labels, reduction="sum")
    found = torch.autograd.grad(loss, tuple(own.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(own, found, strict=True))


def _fill(buffer: Tensor, parts: Rows) -> Tensor:
    """Copy the gradients of the parameters beside each other into the first rows of the buffer."""
    count, start = len(parts[0]), 0
    for part in parts:
        buffer[:count, start : start + part.shape[1]] = part
        start += part.shape[1]
    return buffer[:count]
