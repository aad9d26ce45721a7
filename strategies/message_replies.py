"""Checking the reply to a request for messages: who sent, under which ledger row, and arrays of the right kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Release
from fedveil.strategies.reply_arrays import BadReply, read_array

_LAST_BITS = 1e-12
"""Relative difference between machines in what both compute from the same settings; calibration rounds by more."""

__all__ = ["ExpectedMessages", "MessageReply", "check_messages"]


@dataclass(frozen=True, eq=False)
class ExpectedMessages:
    """What a good reply of one node must look like; all of it is known to the server beforehand.

    Attributes
    ----------
    clients : int64 array (K,)
        The clients the node was asked for, sorted.
    num_clients : int
        All clients of the run.
    shapes : mapping of str to tuple
        Names and shapes of the sums, or of one client's message where ``stacked``.
    stacked : bool
        Whether the reply holds every client's message (float64) instead of fixed-point sums (int64).
    row : Release or None
        The ledger row of each message, as the server's own plan has it; None for messages without noise.
    code : mapping of str to str
        Library version and source hash.
    """

    clients: NDArray[np.int64]
    num_clients: int
    shapes: Mapping[str, tuple[int, ...]]
    stacked: bool
    row: Release | None
    code: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class MessageReply:
    """A checked reply: arrays by name, and the clients that took part or are out of budget, sorted."""

    arrays: Mapping[str, NDArray[Any]]
    took_part: NDArray[np.int64]
    out_of_budget: NDArray[np.int64]


def check_messages(message: Message, expected: ExpectedMessages) -> MessageReply:
    """Read one reply.

    Raises
    ------
    BadReply
        If anything in it is missing, malformed, not finite, of the wrong shape or dtype, about clients that were not
        asked, under another ledger row than planned, or if its count of clients is not that of its mask.
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
        raise BadReply("a reply must hold one ArrayRecord, one MetricRecord and the ledger row")
    record = content.config_records[wire.LEDGER]
    for key, value in expected.code.items():
        if record.get(key) != value:
            raise BadReply(f"it runs other code than the server: {key} {record.get(key)!r}, here {value!r}")
    took_part = _clients(record, wire.CLIENT_MASK, expected)
    out_of_budget = _clients(record, wire.OUT_OF_BUDGET, expected)
    if not np.array_equal(np.sort(np.concatenate([took_part, out_of_budget])), expected.clients):
        raise BadReply(
            f"it speaks of {len(took_part)} clients that took part and {len(out_of_budget)} out of budget, and they "
            f"are not the {len(expected.clients)} that were asked"
        )
    counted = next(iter(content.metric_records.values())).get(wire.NUM_EXAMPLES)
    if counted != len(took_part):
        raise BadReply(f"it counts {counted!r} clients, and names {len(took_part)} that took part")
    _check_row(record, len(took_part), expected.row)
    return MessageReply(_arrays(content, expected, len(took_part)), took_part, out_of_budget)


def _clients(record: ConfigRecord, key: str, expected: ExpectedMessages) -> NDArray[np.int64]:
    payload = record.get(key)
    if not isinstance(payload, bytes):
        raise BadReply(f"it has no {key}")
    try:
        return wire.decode_clients(payload, expected.num_clients - 1)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error


def _check_row(record: ConfigRecord, count: int, row: Release | None) -> None:
    payload = record.get(wire.ROWS)
    if not isinstance(payload, bytes):
        raise BadReply("it has no ledger row")
    try:
        rows = wire.decode_releases(payload, max_rows=1)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
    owed = () if row is None or count == 0 else (row,)
    if row is not None and (rows == owed or (len(rows) == 1 and _same_noise(rows[0], row))):
        return
    if rows != owed:
        raise BadReply(f"its messages cost {_told(rows)}, and the plan of the run says {_told(owed)}")


def _same_noise(given: Release, planned: Release) -> bool:
    """Whether a row is the planned one, but for the last bits of what was computed on another kind of machine."""
    close = (
        abs(getattr(given, name) - getattr(planned, name)) <= _LAST_BITS * getattr(planned, name)
        for name in ("sensitivity", "sigma")
    )
    return all(close) and replace(given, sensitivity=planned.sensitivity, sigma=planned.sigma) == planned


def _told(rows: tuple[Release, ...]) -> str:
    if not rows:
        return "no ledger row"
    row = rows[0]
    return (
        f"{row.name!r} of round {row.round}, relation {row.relation!r}, sensitivity {row.sensitivity!r}, sigma "
        f"{row.sigma!r}"
    )


def _arrays(content: RecordDict, expected: ExpectedMessages, count: int) -> dict[str, NDArray[Any]]:
    record = next(iter(content.array_records.values()))
    if set(record) != set(expected.shapes):
        raise BadReply(f"its arrays are named {sorted(record)}, expected {sorted(expected.shapes)}")
    dtype = np.dtype(np.float64 if expected.stacked else np.int64)
    stack = (count,) if expected.stacked else ()
    arrays = {
        name: read_array(name, record[name], dtype, stack + shape) for name, shape in expected.shapes.items()
    }
    # the grid has room for the sums of all clients in 2^62: each node keeps to its clients' part, so nothing overflows
    part = count * 2**62 // expected.num_clients + count
    for name, values in arrays.items():
        if not expected.stacked and (np.any(values > part) or np.any(values < -part)):
            raise BadReply(f"the sum {name!r} is beyond what {count} messages can add up to")
    return arrays
