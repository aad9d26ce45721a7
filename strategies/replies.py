"""Checking a train reply: shape, dtype, finite values, known clients, honest counts, planned noise, the same code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Relation, Release
from fedveil.strategies.planned_rows import same_release, told
from fedveil.strategies.reply_arrays import BadReply, opened, read_array
from fedveil.strategies.update_bound import LARGEST_DRAW

__all__ = ["BadReply", "Expected", "TrainReply", "check_reply", "clients_under"]

_ROW_BYTES, _VALUE_BYTES = 1024, 64  # a row and a released value take less, as JSON
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
        releases=_releases(ledger, took_part, expected),
        released=_released(ledger, took_part, expected),
    )


def clients_under(record: ConfigRecord, key: str) -> tuple[int, ...]:
    """The list of clients that a reply holds under a key.

    Raises
    ------
    BadReply
        If it is something else.
    """
    value = record.get(key, [])
    if not isinstance(value, list) or not all(type(client) is int for client in value):  # no bools
        raise BadReply(f"{key} must be a list of client numbers")
    return tuple(int(client) for client in value)


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


def _releases(record: ConfigRecord, took_part: tuple[int, ...], expected: Expected) -> tuple[Release, ...]:
    payload = record.get(wire.ROWS)
    if not isinstance(payload, bytes):
        raise BadReply("it has no ledger rows")
    owed = sorted((row for client in took_part for row in expected.rows[client]), key=_place)
    releases = tuple(sorted(_decoded(payload, len(owed)), key=_place))
    for release in releases:
        if release.client not in took_part or release.round != expected.round:
            raise BadReply(f"a ledger row is about client {release.client}, round {release.round}")
    if [_place(row) for row in releases] != [_place(row) for row in owed]:
        raise BadReply(
            f"it brings {len(releases)} ledger rows and owes {len(owed)}: one a release and relation"
        )
    for given, planned in zip(releases, owed, strict=True):
        if not same_release(given, planned):
            raise BadReply(
                f"a ledger row of client {given.client} is {told(given)}, and the plan of the run says {told(planned)}"
            )
    return releases


def _decoded(payload: bytes, num_owed: int) -> tuple[Release, ...]:
    if len(payload) > _ROW_BYTES * (num_owed + 64):  # a few too many are told as what they are
        raise BadReply(f"its ledger rows are {len(payload)} bytes, for the {num_owed} rows that it owes")
    try:
        return wire.decode_releases(payload)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error


def _place(row: Release) -> tuple[int, str, int, Relation]:
    return row.client, row.name, row.step, row.relation


def _released(record: ConfigRecord, took_part: tuple[int, ...], expected: Expected) -> wire.Released:
    payload = record.get(wire.RELEASED)
    if not isinstance(payload, bytes):
        raise BadReply("it does not say what was released")
    owed = {client: dict(expected.released[client]) for client in took_part if expected.released.get(client)}
    count = sum(size for sizes in owed.values() for size in sizes.values())
    if len(payload) > _VALUE_BYTES * (count + 64 * (len(owed) + 1)):
        raise BadReply(f"what it released is {len(payload)} bytes, for the {count} values that it owes")
    try:
        released = wire.decode_released(payload)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
    sizes = {
        client: {name: len(values) for name, values in named.items()} for client, named in released.items()
    }
    if sizes != owed:
        raise BadReply("what it released beside the update is not what its clients were to release")
    for client, named in released.items():
        for name, values in named.items():
            bound = 1 + LARGEST_DRAW * expected.sigmas.get(client, {}).get(name, 1e99)
            if max(map(abs, values)) > bound * (1 + 1e-9):
                raise BadReply(
                    f"the released {name} of client {client} goes beyond {bound:.4g}, where its noise does not reach"
                )
    return released
