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
    FIRST,
    MECHANISM,
    NUM_CLIENTS,
    REPLY,
    ROUND,
    RUN,
    SPREAD,
    VARIANT,
    Mechanism,
    decode_clients,
)
from fedveil.wire_arrays import read_as_labelled

__all__ = ["MessageRequest", "read_request"]

_KEYS = (ROUND, RUN, REPLY, CLIENT_MASK, MECHANISM, VARIANT)
_NUMBERING = (FIRST, NUM_CLIENTS)
# Standardised features are of order 1. Beyond these a record within its public range could overflow, and the error
# would tell of it.
_LARGEST = 1e12
_LARGEST_RUN = 2**40  # clients; beyond it a ledger could not file them

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
        Whether every client's message is wanted instead of sums, which gradients do not come as.
    coefficients : float64 array (d + 1,)
        The model, intercept last.
    directions : float64 array (m, d)
        Orthonormal rows.
    center, spread : float64 array (d,), optional
        Estimated means and spreads of the features, released before; both or none.
    first, num_clients : int, optional
        At a site: the run's number of its first client, and the clients of the run; both or none.

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
    first: int | None = None
    num_clients: int | None = None

    def __post_init__(self) -> None:
        """Check every array."""
        if type(self.round) is not int or self.round < 0:
            raise ValueError(f"{ROUND} must be a whole number of at least 0, got {self.round!r}.")
        if self.mechanism not in get_args(Mechanism):
            raise ValueError(
                f"{MECHANISM} must be one of {', '.join(get_args(Mechanism))}, got {self.mechanism!r}."
            )
        if self.each and self.mechanism == "gradient":
            raise ValueError(
                f"{REPLY} 'each' is not for gradients, which leave a node as sums only: ask for 'sum'."
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
        if (self.first, self.num_clients) != (None, None):
            _check_numbering(self.first, self.num_clients)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return len(self.coefficients) - 1


def read_request(request: RecordDict, max_client: int, *, at_site: bool = False) -> MessageRequest:
    """Read a request from the wire.

    Parameters
    ----------
    request : RecordDict
        ``arrays`` with ``coefficients`` (d + 1,), ``directions`` (m, d) and perhaps ``center`` and ``spread`` (d,), all
        float64; ``config`` with ``server-round``, ``run``, ``reply``, ``client-mask``, ``mechanism``, ``variant``, and
        for a site ``first`` and ``num-clients``.
    max_client : int
        Largest client of the run; at a site its own largest, counted from 0.
    at_site : bool
        Whether the node brings its own records, whose numbers in the run the request tells.

    Raises
    ------
    ValueError
        If something is missing or not what it must be.
    """
    arrays, config = request.get(ARRAYS), request.get(CONFIG)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ValueError(f"a request needs an ArrayRecord {ARRAYS!r} and a ConfigRecord {CONFIG!r}.")
    missing = [key for key in (*_KEYS, *(_NUMBERING if at_site else ())) if key not in config] + [
        name for name in (COEFFICIENTS, DIRECTIONS) if name not in arrays
    ]
    if missing:
        raise ValueError(f"a request for messages needs {missing[0]!r}.")
    if not at_site and (told := [key for key in _NUMBERING if key in config]):
        raise ValueError(
            f"{told[0]} is for sites that bring their own records, and this node has a share of all."
        )
    reply = config[REPLY]
    if reply not in ("sum", "each"):
        raise ValueError(f"{REPLY} must be 'sum' or 'each' where clients hold one record, got {reply!r}.")
    values = {
        name: read_as_labelled(name, arrays[name], np.dtype(np.float64), finite=False)
        for name in (COEFFICIENTS, DIRECTIONS, CENTER, SPREAD)
        if name in arrays
    }
    first, num_clients = (config[key] for key in _NUMBERING) if at_site else (None, None)
    start = 0 if first is None else _check_numbering(first, num_clients)
    return MessageRequest(
        round=cast(int, config[ROUND]),
        run=str(config[RUN]),
        variant=str(config[VARIANT]),
        mechanism=cast(Mechanism, config[MECHANISM]),
        clients=decode_clients(cast(bytes, config[CLIENT_MASK]), start + max_client, start),
        each=reply == "each",
        first=cast(int | None, first),
        num_clients=cast(int | None, num_clients),
        **_named(values),
    )


def _check_numbering(first: object, num_clients: object) -> int:
    """Refuse numbers of clients that there cannot be, before anything is as large as they say; the first one."""
    for key, value, least in ((FIRST, first, 0), (NUM_CLIENTS, num_clients, 1)):
        if type(value) is not int or not least <= value <= _LARGEST_RUN:  # no bools
            raise ValueError(
                f"{key} must be a whole number from {least} to {_LARGEST_RUN} where a site brings its own records, got "
                f"{value!r}."
            )
    return cast(int, first)


def _named(values: Mapping[str, NDArray[np.float64]]) -> dict[str, FloatArray]:
    return {name: np.array(value) for name, value in values.items()}
