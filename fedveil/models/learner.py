"""What a client trains: a network, the loss of a record, and what a local step does with noised gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = ["Learner", "LocalStep", "Loss", "gradient_descent"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(scores, labels)``: scores (n, k) and int64 labels (n,) to the mean loss of the n records, a scalar."""

LocalStep = Callable[[NDArray[np.float64], tuple[NDArray[np.float64], ...], float], NDArray[np.float64]]
"""``local_step(change, gradients, learning_rate)`` to the new change; see :class:`Learner`."""


def gradient_descent(
    change: NDArray[np.float64], gradients: tuple[NDArray[np.float64], ...], learning_rate: float
) -> NDArray[np.float64]:
    """Go against the latest gradient: ``change - learning_rate * gradients[-1]``."""
    return change - learning_rate * gradients[-1]


@dataclass(frozen=True, eq=False)
class Learner:
    """A network with its loss and its local step.

    Parameters
    ----------
    module : torch.nn.Module
        Maps float32 records (n, *shape) to scores (n, k). No layer may mix records.
    loss : callable
        ``loss(scores, labels)`` gives the mean loss of the records of a batch. A record's loss is that of a batch of
        one, ``loss(scores[i:i+1], labels[i:i+1])``, so it depends on no other record.
    local_step : callable
        ``local_step(change, gradients, learning_rate)`` gives the new displacement from the received model.
        ``change``, float64 (p,), is the displacement so far, 0 at the first step of a round. ``gradients`` holds the
        noised mean gradients of this round so far, the latest last, each float64 (p,); both are read-only and in the
        order of the trainable parameters. It must keep no state and draw nothing.

    Raises
    ------
    ValueError
        If ``module`` is no module or the others cannot be called.

    Notes
    -----
    The privacy of a round does not depend on ``local_step``: it sees the received model's displacement and
    releases that the ledger pays for, never a record, so whatever it computes is post-processing of releases.
    The loss decides what a gradient is; each gradient is clipped whatever the loss.
    """

    module: nn.Module
    loss: Loss = cross_entropy
    local_step: LocalStep = gradient_descent

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise ValueError(
                f"A Learner needs a torch.nn.Module, got {type(self.module).__name__}: pass a network."
            )
        for name, value in (("loss", self.loss), ("local_step", self.local_step)):
            if not callable(value):
                raise ValueError(
                    f"A Learner's {name} must be a function, got {type(value).__name__}: pass one or leave it out."
                )

    def advance(
        self,
        change: NDArray[np.float64],
        gradients: tuple[NDArray[np.float64], ...],
        learning_rate: float,
    ) -> NDArray[np.float64]:
        """Take the local step and check the form of what it gives.

        Parameters
        ----------
        change : float64 array, shape (p,)
            Displacement so far.
        gradients : tuple of float64 arrays of shape (p,)
            The round's gradients so far, at least one.
        learning_rate : float

        Returns
        -------
        float64 array, shape (p,)

        Raises
        ------
        ValueError
            If the step fails or gives anything but p real numbers. NaN and infinity pass: whether training diverged
            is decided by whoever sends the change, after its releases are in the ledger.
        """
        given = (_read_only(change), *map(_read_only, gradients))
        try:
            after = self.local_step(given[0], given[1:], learning_rate)
        except Exception as error:
            raise ValueError(
                f"{self._step_name} failed ({first_line(error)}): correct it; its arguments are read-only."
            ) from error
        if not isinstance(after, np.ndarray) or after.shape != change.shape or after.dtype.kind not in "fiu":
            got = (
                f"{after.dtype} of shape {after.shape}"
                if isinstance(after, np.ndarray)
                else type(after).__name__
            )
            raise ValueError(
                f"{self._step_name} returned {got}: return a float array of shape {change.shape}, the new change."
            )
        return np.array(after, dtype=np.float64)

    @property
    def _step_name(self) -> str:
        return f"local step {name_of(self.local_step)!r}"


def name_of(function: object) -> str:
    """A function as a configuration names it, ``module:function``; other objects by their type."""
    name = getattr(function, "__qualname__", None)
    return type(function).__qualname__ if name is None else f"{getattr(function, '__module__', '')}:{name}"


def first_line(error: Exception) -> str:
    """Name an error and quote the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip(' .')}" if lines else type(error).__name__


def _read_only(values: NDArray[np.float64]) -> NDArray[np.float64]:
    view = values.view()
    view.flags.writeable = False
    return view
