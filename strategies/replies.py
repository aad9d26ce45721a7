"""Checking a train reply: shape, dtype, finite values, known clients, honest counts, the same code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Relation, Release
from fedveil.strategies.reply_arrays import BadReply, read_array

Row = tuple[str, int, Relation]
"""Name, step and relation of a ledger row."""

__all__ = ["BadReply", "Expected", "TrainReply", "check_reply", "clients_under"]


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
    rows : mapping of int to frozenset
        Name, step and relation of every ledger row that a client owes when it takes part.
    released : mapping of int to mapping
        Names and lengths of what a client owes beside its update.
    """

    clients: Sequence[int]
    examples: Mapping[int, int]
    shapes: Mapping[str, tuple[int, ...]]
    mode: wire.ReplyMode
    round: int
    code: Mapping[str, str]
    rows: Mapping[int, frozenset[Row]]
    released: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


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
        If anything in it is missing, malformed, not finite, of the wrong shape or dtype, about unknown clients, or if
        its count of records is not the public one.
    """
    if message.has_error():
        raise BadReply(message.error.reason or f"error {message.error.code}")
    if not message.has_content():
        raise BadReply("it is empty")
    content = message.content
    if (
        len(content.array_records) != 1
        or len(content.metric_records) != 1
        or wire.LEDGER not in content.config_records
    ):
        raise BadReply("a reply must hold one ArrayRecord, one MetricRecord and the ledger rows")
    record = content.config_records[wire.LEDGER]
    for key, value in expected.code.items():
        if record.get(key) != value:
            raise BadReply(f"it runs other code than the server: {key} {record.get(key)!r}, here {value!r}")
    took_part, out_of_budget = clients_under(record, wire.CLIENTS), clients_under(record, wire.OUT_OF_BUDGET)
    if sorted(took_part + out_of_budget) != sorted(expected.clients):
        raise BadReply(
            f"it speaks of clients {sorted(took_part + out_of_budget)}, asked were {sorted(expected.clients)}"
        )
    num_examples = next(iter(content.metric_records.values())).get(wire.NUM_EXAMPLES)
    if num_examples != sum(expected.examples[client] for client in took_part):
        raise BadReply(f"it counts {num_examples!r} records, and its clients have told otherwise")
    return TrainReply(
        arrays=_arrays(next(iter(content.array_records.values())), expected, len(took_part)),
        num_examples=int(num_examples),
        took_part=took_part,
        out_of_budget=out_of_budget,
        releases=_releases(record, took_part, expected),
        released=_released(record, took_part, expected),
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
    record: ArrayRecord, expected: Expected, num_clients: int
) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
    dtype = np.dtype(np.int64 if expected.mode == "sum" else np.float64)
    stacked = () if expected.mode == "sum" else (num_clients,)
    if list(record) != list(expected.shapes):
        raise BadReply(f"its arrays are named {list(record)}, the model's {list(expected.shapes)}")
    arrays: dict[str, NDArray[np.int64] | NDArray[np.float64]] = {}
    for name, array in record.items():
        shape = stacked + tuple(expected.shapes[name])
        arrays[name] = read_array(name, array, dtype, shape)
    return arrays


def _releases(record: ConfigRecord, took_part: tuple[int, ...], expected: Expected) -> tuple[Release, ...]:
    payload = record.get(wire.ROWS)
    if not isinstance(payload, bytes):
        raise BadReply("it has no ledger rows")
    try:
        releases = wire.decode_releases(payload)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
    for release in releases:
        if release.client not in took_part or release.round != expected.round:
            raise BadReply(f"a ledger row is about client {release.client}, round {release.round}")
        # so that what is computed from it stays finite
        if not 1e-100 < release.sensitivity / release.sigma < 1e100:
            raise BadReply(
                f"a ledger row has sensitivity {release.sensitivity:g} and sigma {release.sigma:g}: beyond all measure"
            )
    owed = {(client, *row) for client in took_part for row in expected.rows[client]}
    if sorted((row.client, row.name, row.step, row.relation) for row in releases) != sorted(owed):
        raise BadReply(
            f"it brings {len(releases)} ledger rows and owes {len(owed)}: one a release and relation"
        )
    return releases


def _released(record: ConfigRecord, took_part: tuple[int, ...], expected: Expected) -> wire.Released:
    payload = record.get(wire.RELEASED)
    if not isinstance(payload, bytes):
        raise BadReply("it does not say what was released")
    try:
        released = wire.decode_released(payload)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
    sizes = {
        client: {name: len(values) for name, values in named.items()} for client, named in released.items()
    }
    owed = {client: dict(expected.released[client]) for client in took_part if expected.released.get(client)}
    if sizes != owed:
        raise BadReply("what it released beside the update is not what its clients were to release")
    # so that what is computed from it stays finite
    if any(
        abs(value) > 1e100 for named in released.values() for values in named.values() for value in values
    ):
        raise BadReply("a released value is beyond all measure")
    return released
