"""What a server asks the clients of a node for, checked: nothing in it decides how much noise is added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedveil.privacy import check_directions
from fedveil.wire import (
    ARRAYS,
    CENTER,
    CLIENT_MASK,
    COEFFICIENTS,
    CONFIG,
    DIRECTIONS,
    MECHANISM,
    REPLY,
    ROUND,
    RUN,
    SPREAD,
    VARIANT,
    Mechanism,
    decode_clients,
)

__all__ = ["MessageRequest", "read_request"]

_KEYS = (ROUND, RUN, REPLY, CLIENT_MASK, MECHANISM, VARIANT)
# Standardised features are of order 1. Beyond these a record within its public range could overflow, and the error
# would tell of it.
_LARGEST = 1e12

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MessageRequest:
    """One round's request for messages.

    Parameters
    ----------
    round : int
        Round of the run, from 0.
    run, variant, mechanism : str
        Which run, which variant of it, and what is asked for.
    clients : int64 array (k,)
        Who is asked, strictly increasing.
    each : bool
        Whether every client's message is wanted instead of sums.
    coefficients : float64 array (d + 1,)
        The model, intercept last.
    directions : float64 array (m, d)
        Orthonormal rows.
    center, spread : float64 array (d,), optional
        Estimated means and spreads of the features, released before; both or none.

    Raises
    ------
    ValueError
        If a value is outside its range or shapes do not fit.
    """

    round: int
    run: str
    variant: str
    mechanism: Mechanism
    clients: NDArray[np.int64]
    each: bool
    coefficients: FloatArray
    directions: FloatArray
    center: FloatArray | None = None
    spread: FloatArray | None = None

    def __post_init__(self) -> None:
        """Check every array."""
        if type(self.round) is not int or self.round < 0:
            raise ValueError(f"{ROUND} must be a whole number of at least 0, got {self.round!r}.")
        if self.mechanism not in get_args(Mechanism):
            raise ValueError(
                f"{MECHANISM} must be one of {', '.join(get_args(Mechanism))}, got {self.mechanism!r}."
            )
        shape = np.shape(self.coefficients)
        if len(shape) != 1 or shape[0] < 2:
            raise ValueError(
                f"{COEFFICIENTS} must be one per feature and the intercept, got the shape {shape}."
            )
        for name, length in (
            (COEFFICIENTS, self.dimension + 1),
            (CENTER, self.dimension),
            (SPREAD, self.dimension),
        ):
            values = getattr(self, name)
            if values is not None and (values.shape != (length,) or not np.all(np.abs(values) <= _LARGEST)):
                raise ValueError(f"{name} must be {length} finite numbers of magnitude up to {_LARGEST:g}.")
        if (self.center is None) != (self.spread is None):
            raise ValueError(f"{CENTER} and {SPREAD} must be sent together, or none of them.")
        if self.spread is not None and not np.all(self.spread >= 1 / _LARGEST):
            raise ValueError(f"{SPREAD} must be above 0, and at least {1 / _LARGEST:g}.")
        if self.center is not None and self.mechanism == "range":
            raise ValueError(f"{CENTER} and {SPREAD} make no sense in the request that is to estimate them.")
        object.__setattr__(self, "directions", check_directions(self.directions, self.dimension))

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return len(self.coefficients) - 1


def read_request(request: RecordDict, max_client: int) -> MessageRequest:
    """Read a request from the wire.

    Parameters
    ----------
    request : RecordDict
        ``arrays`` with ``coefficients`` (d + 1,), ``directions`` (m, d) and perhaps ``center`` and ``spread`` (d,), all
        float64; ``config`` with ``server-round``, ``run``, ``reply``, ``client-mask``, ``mechanism``, ``variant``.
    max_client : int
        Largest client of the run.

    Raises
    ------
    ValueError
        If something is missing or not what it must be.
    """
    arrays, config = request.get(ARRAYS), request.get(CONFIG)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ValueError(f"a request needs an ArrayRecord {ARRAYS!r} and a ConfigRecord {CONFIG!r}.")
    missing = [key for key in _KEYS if key not in config] + [
        name for name in (COEFFICIENTS, DIRECTIONS) if name not in arrays
    ]
    if missing:
        raise ValueError(f"a request for messages needs {missing[0]!r}.")
    reply = config[REPLY]
    if reply not in ("sum", "each"):
        raise ValueError(f"{REPLY} must be 'sum' or 'each' where clients hold one record, got {reply!r}.")
    values = {
        name: arrays[name].numpy() for name in (COEFFICIENTS, DIRECTIONS, CENTER, SPREAD) if name in arrays
    }
    for name, value in values.items():
        if value.dtype != np.float64:
            raise ValueError(f"{name} must be float64, got {value.dtype}.")
    return MessageRequest(
        round=cast(int, config[ROUND]),
        run=str(config[RUN]),
        variant=str(config[VARIANT]),
        mechanism=cast(Mechanism, config[MECHANISM]),
        clients=decode_clients(cast(bytes, config[CLIENT_MASK]), max_client),
        each=reply == "each",
        **_named(values),
    )


def _named(values: Mapping[str, NDArray[np.float64]]) -> dict[str, FloatArray]:
    return {name: np.array(value) for name, value in values.items()}
