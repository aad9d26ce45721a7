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
from torch.func import functional_call, grad

from fedveil.clients.gradients import Arrays, attribute_mean_and_share, clipped_mean
from fedveil.clients.record_gradients import GradientFailed, failures_named
from fedveil.models import Learner
from fedveil.privacy import Release, StepMechanism
from fedveil.streams import Stream

__all__ = ["ClientData", "LocalStepFailed", "LocalUpdate", "local_update"]

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
    within : float, optional
        If asked for: share of records whose private attributes add at most C_p to the clipped gradient at the received
        model, the round's first step. It is exact and no row pays for it: it never leaves the client without noise.
    """

    delta: dict[str, NDArray[np.float64]]
    releases: tuple[Release, ...]
    within: float | None = None


class LocalStepFailed(ValueError):
    """A learner failed on a client's records, perhaps after noised means were drawn.

    Parameters
    ----------
    message : str
    releases : tuple of Release
        The rows of those means: a failure is an outcome of them and tells of them, so they count.
    """

    def __init__(self, message: str, releases: tuple[Release, ...]) -> None:
        super().__init__(message)
        self.releases = releases


def local_update(
    learner: Learner,
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
    count_within: bool = False,
) -> LocalUpdate:
    """Run ``steps`` local steps from ``arrays`` on one client's records.

    Parameters
    ----------
    learner : Learner
        Network, loss and local step; the network's own parameter values are not used and not changed.
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
    count_within : bool
        Count the share of records inside the attribute clip; needs a mechanism with one.

    Returns
    -------
    LocalUpdate

    Raises
    ------
    ValueError
        If ``steps < 1``, the mechanism was planned for another number of records, or something it needs is
        missing.
    LocalStepFailed
        If the learner's network or loss raises on a record, or its local step fails or returns something of another
        shape; it carries the rows of the means drawn until then.

    Notes
    -----
    With a mechanism, ``delta`` is a function of the received model, public values and ``steps`` noised means.
    Each mean has the sensitivities of :func:`fedveil.clients.gradients.clipped_mean` or
    ``attribute_mean_and_share`` and noise N(0, sigma^2 I), so under each relation of its rows the round is
    mu-GDP with mu^2 the sum of the rows' mu^2, whatever the learner's local step makes of them.
    """
    if steps < 1:
        raise ValueError(f"local steps must be at least 1, got {steps}.")
    if count_within and (mechanism is None or mechanism.attribute_clip_norm is None):
        raise ValueError(
            f"client {client} clips no attributes: count_within needs an attribute-level mechanism."
        )
    if mechanism is not None:
        _check(mechanism, data, client, batches)
    start = {name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()}
    delta = np.zeros(sum(value.size for value in start.values()))
    gradients: tuple[NDArray[np.float64], ...] = ()
    releases: tuple[Release, ...] = ()
    within = None
    for step in range(steps):
        here = {name: start[name] + change for name, change in _split(delta, start).items()}
        try:
            if mechanism is None:
                mean, share = _noiseless_mean(learner, here, data, clip_norm), None
            else:
                mean, share = _mean(mechanism, learner, here, data, batches)
        except GradientFailed as error:
            raise LocalStepFailed(f"client {client}: {error}", releases) from error
        if mechanism is not None:
            mean += mechanism.sigma * noise.normal(delta.size)
            releases += tuple(mechanism.releases(client, round, step))
            within = share if count_within and step == 0 else within
        gradients += (mean,)
        try:
            delta = learner.advance(delta, gradients, learning_rate)
        except ValueError as error:
            raise LocalStepFailed(f"client {client}: {error}", releases) from error
    return LocalUpdate(_split(delta, start), releases, within)


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
    mechanism: StepMechanism, learner: Learner, arrays: Arrays, data: ClientData, batches: Stream | None
) -> tuple[NDArray[np.float64], float | None]:
    """The mean that the mechanism adds noise to, and the share of records inside the attribute clip if it has one."""
    shape = (-1, *data.record_shape)
    features, labels = data.features, data.labels
    if mechanism.attribute_clip_norm is not None and data.baseline_features is not None:
        return attribute_mean_and_share(
            learner,
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
    mean = clipped_mean(
        learner,
        arrays,
        features.reshape(shape),
        labels,
        mechanism.clip_norm,
        denominator=mechanism.denominator,
        included=included,
    )
    return mean, None


def _noiseless_mean(
    learner: Learner, arrays: Arrays, data: ClientData, clip_norm: float
) -> NDArray[np.float64]:
    """The mean gradient, clipped record by record where a norm is given."""
    if math.isinf(clip_norm):
        return _mean_gradient(learner, arrays, data)
    features = data.features.reshape(-1, *data.record_shape)
    return clipped_mean(learner, arrays, features, data.labels, clip_norm, denominator=len(data))


def _mean_gradient(learner: Learner, arrays: Arrays, data: ClientData) -> NDArray[np.float64]:
    """The plain gradient of the mean loss over all records."""
    parameters = {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()}

    def total_loss(
        values: dict[str, torch.Tensor], records: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(learner.module, values, (records,))
        return learner.loss(outputs, labels) * len(labels)

    total = np.zeros(sum(np.size(value) for value in arrays.values()))
    for start in range(0, len(data), _BATCH):
        part = slice(start, start + _BATCH)
        records = torch.tensor(data.features[part].reshape(-1, *data.record_shape))
        with failures_named():
            gradients = grad(total_loss)(parameters, records, torch.tensor(data.labels[part]))
        total += np.concatenate([gradients[name].numpy().ravel() for name in parameters])
    return total / len(data)


def _split(
    flat: NDArray[np.float64], like: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """A flat vector as arrays of the given names and shapes, in their order."""
    parts = np.split(flat, np.cumsum([value.size for value in like.values()])[:-1])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
