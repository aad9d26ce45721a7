"""Private gradient descent on one client's records: what a logical client computes in one round.

Every step is full batch (or Poisson-sampled), clipped record by record, noised and a row of the ledger, so
that what leaves is a function of noised means only. Clipping the whole update of several steps instead would
have a sensitivity of twice the clipping norm whatever the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad

from fedveil.clients.gradients import Arrays, attribute_clipped_mean, clipped_mean
from fedveil.privacy import Release, StepMechanism
from fedveil.streams import Stream

__all__ = ["ClientData", "LocalUpdate", "local_update"]

_BATCH = 4096  # records of one block of a plain gradient


@dataclass(frozen=True, eq=False)
class ClientData:
    """The records of one logical client.

    Parameters
    ----------
    features : float32 array, shape (n, p)
        Scaled by public bounds.
    labels : int64 array, shape (n,)
    baseline_features : float32 array, shape (n, p), optional
        The features with the private attributes at their public baseline; needed by attribute-level privacy.
    shape : tuple of int, optional
        Shape of one record as the model takes it; default (p,).
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    baseline_features: NDArray[np.float32] | None = None
    shape: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        features = np.shape(self.features)
        if len(features) != 2 or np.shape(self.labels) != features[:1]:
            raise ValueError(
                f"features must have shape (n, p) and labels (n,), got {features}, {np.shape(self.labels)}."
            )
        for name, value in (("features", self.features), ("baseline features", self.baseline_features)):
            if value is not None and (value.shape != features or value.dtype != np.float32):
                raise ValueError(
                    f"{name} must be float32 of shape {features}, got {value.dtype} of shape {value.shape}."
                )
        if self.labels.dtype != np.int64:
            raise ValueError(f"labels must be int64, got {self.labels.dtype}.")
        if math.prod(self.record_shape) != features[1]:
            raise ValueError(f"records of {features[1]} features cannot take the shape {self.record_shape}.")

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record as the model takes it."""
        return tuple(self.shape) or (int(np.shape(self.features)[1]),)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class LocalUpdate:
    """What one client's round produced.

    Parameters
    ----------
    delta : dict of str to float64 array
        Change of every parameter, in the order and shapes of the model that was sent.
    releases : tuple of Release
        The ledger rows that pay for ``delta``; empty without local privacy.
    """

    delta: dict[str, NDArray[np.float64]]
    releases: tuple[Release, ...]


def local_update(
    model: nn.Module,
    arrays: Arrays,
    data: ClientData,
    *,
    mechanism: StepMechanism | None,
    steps: int,
    learning_rate: float,
    noise: Stream,
    round: int,
    client: int,
    batches: Stream | None = None,
    clip_norm: float = math.inf,
) -> LocalUpdate:
    """Run ``steps`` steps of gradient descent from ``arrays`` on one client's records.

    Parameters
    ----------
    model : torch.nn.Module
        The architecture; its own parameter values are not used and not changed.
    arrays : mapping of str to array
        The model that was sent.
    data : ClientData
    mechanism : StepMechanism or None
        The noised step. None: no local privacy, gradient descent without noise.
    steps : int
        Public number of steps, at least 1.
    learning_rate : float
    noise : Stream
        Standard normal draws, one a parameter and step, consumed in order; as secret as the records.
    round, client : int
        For the ledger rows.
    batches : Stream, optional
        Draws of the Poisson samples; needed when the mechanism's sampling rate is below 1.
    clip_norm : float
        Without a mechanism: clip each record's gradient all the same, so that a private run can be compared with
        one that differs in its noise alone.

    Returns
    -------
    LocalUpdate

    Raises
    ------
    ValueError
        If ``steps < 1``, the mechanism was planned for another number of records, or something it needs is
        missing.

    Notes
    -----
    With a mechanism, ``delta`` is a function of the received model, public values and ``steps`` noised means.
    Each mean has the sensitivities of :func:`fedveil.clients.gradients.clipped_mean` or
    ``attribute_clipped_mean`` and noise N(0, sigma^2 I), so under each relation of its rows the round is
    mu-GDP with mu^2 the sum of the rows' mu^2.
    """
    if steps < 1:
        raise ValueError(f"local steps must be at least 1, got {steps}.")
    if mechanism is not None:
        _check(mechanism, data, client, batches)
    start = {name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()}
    delta = np.zeros(sum(value.size for value in start.values()))
    for _ in range(steps):
        here = {name: start[name] + change for name, change in _split(delta, start).items()}
        if mechanism is None:
            delta -= learning_rate * _noiseless_mean(model, here, data, clip_norm)
        else:
            noised = _mean(mechanism, model, here, data, batches) + mechanism.sigma * noise.normal(delta.size)
            delta -= learning_rate * noised
    rows = (mechanism.releases(client, round, step) for step in range(steps)) if mechanism is not None else ()
    return LocalUpdate(_split(delta, start), tuple(row for step_rows in rows for row in step_rows))


def _check(mechanism: StepMechanism, data: ClientData, client: int, batches: Stream | None) -> None:
    if mechanism.num_records != len(data):
        raise ValueError(
            f"client {client} has {len(data)} records but its mechanism was planned for "
            f"{mechanism.num_records}; plan one mechanism for each client."
        )
    if mechanism.attribute_clip_norm is not None and data.baseline_features is None:
        raise ValueError(f"client {client} has no baseline features, which attribute-level privacy needs.")
    if mechanism.sampling_rate < 1:
        if mechanism.attribute_clip_norm is not None:
            raise ValueError("attribute-level privacy is full batch only: set sampling-rate to 1.")
        if batches is None:
            raise ValueError("a sampling rate below 1 needs a stream to draw the batches from.")


def _mean(
    mechanism: StepMechanism, model: nn.Module, arrays: Arrays, data: ClientData, batches: Stream | None
) -> NDArray[np.float64]:
    """The mean that the mechanism adds noise to."""
    shape = (-1, *data.record_shape)
    features, labels = data.features, data.labels
    if mechanism.attribute_clip_norm is not None and data.baseline_features is not None:
        return attribute_clipped_mean(
            model,
            arrays,
            features.reshape(shape),
            labels,
            data.baseline_features.reshape(shape),
            mechanism.clip_norm,
            mechanism.attribute_clip_norm,
            denominator=mechanism.denominator,
        )
    included = None
    if batches is not None and mechanism.sampling_rate < 1:
        included = batches.uniform(len(data)) < mechanism.sampling_rate
    return clipped_mean(
        model,
        arrays,
        features.reshape(shape),
        labels,
        mechanism.clip_norm,
        denominator=mechanism.denominator,
        included=included,
    )


def _noiseless_mean(
    model: nn.Module, arrays: Arrays, data: ClientData, clip_norm: float
) -> NDArray[np.float64]:
    """The mean gradient, clipped record by record where a norm is given."""
    if math.isinf(clip_norm):
        return _mean_gradient(model, arrays, data)
    features = data.features.reshape(-1, *data.record_shape)
    return clipped_mean(model, arrays, features, data.labels, clip_norm, denominator=len(data))


def _mean_gradient(model: nn.Module, arrays: Arrays, data: ClientData) -> NDArray[np.float64]:
    """The plain gradient of the mean loss over all records."""
    parameters = {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()}

    def total_loss(
        values: dict[str, torch.Tensor], records: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(model, values, (records,))
        return nn.functional.cross_entropy(outputs, labels, reduction="sum")

    total = np.zeros(sum(np.size(value) for value in arrays.values()))
    for start in range(0, len(data), _BATCH):
        part = slice(start, start + _BATCH)
        records = torch.tensor(data.features[part].reshape(-1, *data.record_shape))
        gradients = grad(total_loss)(parameters, records, torch.tensor(data.labels[part]))
        total += np.concatenate([gradients[name].numpy().ravel() for name in parameters])
    return total / len(data)


def _split(
    flat: NDArray[np.float64], like: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """A flat vector as arrays of the given names and shapes, in their order."""
    parts = np.split(flat, np.cumsum([value.size for value in like.values()])[:-1])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
