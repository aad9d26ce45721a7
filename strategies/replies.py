"""Checking a train reply: shape, dtype, finite values, known clients, honest counts, planned noise, the same code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Release
from fedveil.strategies.reply_arrays import BadReply, opened, read_array
from fedveil.strategies.reply_ledger import clients_under, owed_released, owed_rows
from fedveil.strategies.update_bound import LARGEST_DRAW

__all__ = ["BadReply", "Expected", "TrainReply", "check_reply"]

_PER_UNIT = int(wire.to_fixed(np.ones(())))  # steps of the fixed-point grid in 1


@dataclass(frozen=True)
class Expected:
    """What a good reply of one node must look like; all of it is known to the server beforehand.

    Attributes
    ----------
    clients : sequence of int
        The logical clients the node was asked to train.
    shapes : mapping of str to tuple
        Array names and shapes of the model.
    code : mapping of str to str
        Library version and source hash.
    rows : mapping of int to tuple of Release
        Every ledger row that a client owes when it takes part, as the server's own plan has it.
    released : mapping of int to mapping
        Names and lengths of what a client owes beside its update.
    sigmas : mapping of int to mapping
        Planned noise of each of these by name: values lie in [-1, 1] before it.
    largest : mapping of int to float
        Most that a client can honestly add to a coordinate, its weight included; clients without such a bound are
        missing.
    room : int
        Largest magnitude of a fixed-point sum; a share of int64, so that no sum over nodes leaves it.
    """

    clients: Sequence[int]
    examples: Mapping[int, int]
    shapes: Mapping[str, tuple[int, ...]]
    mode: wire.ReplyMode
    round: int
    code: Mapping[str, str]
    rows: Mapping[int, tuple[Release, ...]]
    released: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    sigmas: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    largest: Mapping[int, float] = field(default_factory=dict)
    room: int = 2**62


@dataclass(frozen=True)
class TrainReply:
    """A checked reply: arrays as :data:`fedveil.wire.ReplyMode` says, who took part, rows and released values."""

    arrays: Mapping[str, NDArray[np.int64] | NDArray[np.float64]]
    num_examples: int
    took_part: tuple[int, ...]
    out_of_budget: tuple[int, ...]
    releases: tuple[Release, ...]
    released: wire.Released = field(default_factory=dict)


def check_reply(message: Message, expected: Expected) -> TrainReply:
    """Read one reply.

    Raises
    ------
    BadReply
        If anything in it is missing, malformed, not finite, of the wrong shape or dtype, about unknown clients, under
        other ledger rows than planned, beyond what clipping and that noise allow, or if its count of records is not the
        public one.
    """
    record, num_examples, ledger = opened(message, expected.code)
    took_part, out_of_budget = clients_under(ledger, wire.CLIENTS), clients_under(ledger, wire.OUT_OF_BUDGET)
    if sorted(took_part + out_of_budget) != sorted(expected.clients):
        raise BadReply(
            f"it speaks of clients {sorted(took_part + out_of_budget)}, asked were {sorted(expected.clients)}"
        )
    if num_examples != sum(expected.examples[client] for client in took_part):
        raise BadReply(f"it counts {num_examples!r} records, and its clients have told otherwise")
    arrays = _arrays(record, expected, took_part)
    return TrainReply(
        arrays=arrays,
        num_examples=num_examples,
        took_part=took_part,
        out_of_budget=out_of_budget,
        releases=owed_rows(ledger, {client: expected.rows[client] for client in took_part}, expected.round),
        released=_released(ledger, took_part, expected),
    )


def _arrays(
    record: ArrayRecord, expected: Expected, took_part: tuple[int, ...]
) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
    dtype = np.dtype(np.int64 if expected.mode == "sum" else np.float64)
    stacked = () if expected.mode == "sum" else (len(took_part),)
    if list(record) != list(expected.shapes):
        raise BadReply(f"its arrays are named {list(record)}, the model's {list(expected.shapes)}")
    arrays = {
        name: read_array(name, array, dtype, stacked + tuple(expected.shapes[name]))
        for name, array in record.items()
    }
    for name, values in arrays.items():
        if expected.mode == "sum":
            _check_sum(name, values, expected, took_part)
        else:
            _check_updates(name, values, expected, took_part)
    return arrays


def _check_sum(name: str, values: NDArray[np.int64], expected: Expected, took_part: tuple[int, ...]) -> None:
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))  # abs fails at the smallest int64
    if all(client in expected.largest for client in took_part):
        bound = sum(expected.largest[client] for client in took_part)
        # each client's part was rounded to the grid
        if largest > bound * _PER_UNIT + len(took_part):
            raise BadReply(
                f"its sum of {name} reaches {largest / _PER_UNIT:.4g}, beyond what clipping and the planned noise "
                f"allow ({bound:.4g})"
            )
    if largest > expected.room:
        raise BadReply(
            f"its sum of {name} reaches {largest / _PER_UNIT:.4g}, and leaves no room for those of other nodes: "
            "training diverged, so lower learning-rate, or the node lies"
        )


def _check_updates(
    name: str, values: NDArray[np.float64], expected: Expected, took_part: tuple[int, ...]
) -> None:
    for client, update in zip(took_part, values, strict=True):
        largest = float(np.max(np.abs(update), initial=0.0))
        if largest > expected.largest.get(client, np.inf):
            raise BadReply(
                f"client {client}'s update of {name} reaches {largest:.4g}, beyond what clipping allows "
                f"({expected.largest[client]:.4g})"
            )


def _released(record: ConfigRecord, took_part: tuple[int, ...], expected: Expected) -> wire.Released:
    owed = {client: dict(expected.released[client]) for client in took_part if expected.released.get(client)}
    released = owed_released(record, owed)
    for client, named in released.items():
        for name, values in named.items():
            bound = 1 + LARGEST_DRAW * expected.sigmas.get(client, {}).get(name, 1e99)
            if max(map(abs, values)) > bound * (1 + 1e-9):
                raise BadReply(
                    f"the released {name} of client {client} goes beyond {bound:.4g}, where its noise does not reach"
                )
    return released
