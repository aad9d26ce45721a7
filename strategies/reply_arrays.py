"""Opening a reply: its records, of the server's own code, and arrays of exactly the bytes that numpy writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedveil import wire
from fedveil.wire_arrays import read_exactly

__all__ = ["BadReply", "check_code", "content_of", "opened", "read_array"]


class BadReply(ValueError):
    """A reply that must not reach the model; the message says why."""


def content_of(message: Message) -> RecordDict:
    """What a reply holds.

    Raises
    ------
    BadReply
        If it is an error or empty.
    """
    if message.has_error():
        raise BadReply(message.error.reason or f"error {message.error.code}")
    if not message.has_content():
        raise BadReply("it is empty")
    return message.content


def check_code(ledger: ConfigRecord, code: Mapping[str, str]) -> None:
    """Refuse a reply of other code.

    Parameters
    ----------
    ledger : ConfigRecord
        The reply's record that says which code made it.
    code : mapping of str to str
        Library version and source hash that it must carry.

    Raises
    ------
    BadReply
        If it carries others.
    """
    for key, value in code.items():
        if ledger.get(key) != value:
            raise BadReply(f"it runs other code than the server: {key} {ledger.get(key)!r}, here {value!r}")


def opened(message: Message, code: Mapping[str, str]) -> tuple[ArrayRecord, int, ConfigRecord]:
    """The records of a reply of this code, unread: what every kind of train reply has in common.

    Parameters
    ----------
    message : Message
        The reply.
    code : mapping of str to str
        Library version and source hash that it must carry.

    Returns
    -------
    arrays : ArrayRecord
    num_examples : int
        The count it gives, whatever it is of.
    ledger : ConfigRecord

    Raises
    ------
    BadReply
        If it is an error, is empty, holds a record too few or too many, counts in anything but whole numbers, or is of
        other code.
    """
    content = content_of(message)
    arrays, metrics, records = content.array_records, content.metric_records, content.config_records
    if len(content) != 3 or len(arrays) != 1 or len(metrics) != 1 or wire.LEDGER not in records:
        raise BadReply(
            "a reply must hold one ArrayRecord, one MetricRecord and the ledger rows, and nothing else"
        )
    ledger = records[wire.LEDGER]
    check_code(ledger, code)
    count = next(iter(metrics.values())).get(wire.NUM_EXAMPLES)
    if type(count) is not int:  # no floats: 1e12 is one
        raise BadReply(f"it counts {count!r} {wire.NUM_EXAMPLES}, which is no whole number")
    return next(iter(arrays.values())), count, ledger


def read_array(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The values of an array from the wire, in the given shape and dtype.

    Raises
    ------
    BadReply
        If its label or its bytes say something else, or a value is not finite.
    """
    try:
        return read_exactly(name, array, dtype, shape)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
