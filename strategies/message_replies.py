"""Checking the reply to a request for messages: who sent, under which ledger row, and arrays of the right kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedveil import wire
from fedveil.privacy import Release
from fedveil.strategies.planned_rows import same_release, told
from fedveil.strategies.reply_arrays import BadReply, opened, read_array

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
    arrays, counted, record = opened(message, expected.code)
    took_part = _clients(record, wire.CLIENT_MASK, expected)
    out_of_budget = _clients(record, wire.OUT_OF_BUDGET, expected)
    if not np.array_equal(np.sort(np.concatenate([took_part, out_of_budget])), expected.clients):
        raise BadReply(
            f"it speaks of {len(took_part)} clients that took part and {len(out_of_budget)} out of budget, and they "
            f"are not the {len(expected.clients)} that were asked"
        )
    if counted != len(took_part):
        raise BadReply(f"it counts {counted!r} clients, and names {len(took_part)} that took part")
    _check_row(record, len(took_part), expected.row)
    return MessageReply(_arrays(arrays, expected, len(took_part)), took_part, out_of_budget)


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
    if not rows and not count:
        return  # one row stands for all who sent, so it may be there for nobody
    owed = () if row is None else (row,)
    if len(rows) != len(owed) or not all(map(same_release, rows, owed)):
        raise BadReply(f"its messages cost {_told(rows)}, and the plan of the run says {_told(owed)}")


def _told(rows: tuple[Release, ...]) -> str:
    return told(rows[0]) if rows else "no ledger row"


def _arrays(record: ArrayRecord, expected: ExpectedMessages, count: int) -> dict[str, NDArray[Any]]:
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
