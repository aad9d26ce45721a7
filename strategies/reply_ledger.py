"""What the ledger record of a reply tells: its clients, the rows that they owe, and what they released for them.

Nothing is decoded that is longer than what is owed can be.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ConfigRecord

from fedveil import wire
from fedveil.privacy import Relation, Release
from fedveil.strategies.planned_rows import same_release, told
from fedveil.strategies.reply_arrays import BadReply

__all__ = ["clients_under", "owed_released", "owed_rows"]

_ROW_BYTES, _VALUE_BYTES = 1024, 64  # a row and a released value take less, as JSON


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


def owed_rows(
    record: ConfigRecord, planned: Mapping[int, tuple[Release, ...]], server_round: int
) -> tuple[Release, ...]:
    """The ledger rows of a reply, which are those that the server's own plan has, in the order of their clients.

    Parameters
    ----------
    record : ConfigRecord
    planned : mapping of int to tuple of Release
        What each client that took part owes, one row a release and relation.
    server_round : int

    Raises
    ------
    BadReply
        If they are missing, malformed, too many or too few, or not the planned ones.
    """
    payload = record.get(wire.ROWS)
    if not isinstance(payload, bytes):
        raise BadReply("it has no ledger rows")
    owed = sorted((row for rows in planned.values() for row in rows), key=_place)
    releases = tuple(sorted(_decoded(payload, len(owed)), key=_place))
    for release in releases:
        if release.client not in planned or release.round != server_round:
            raise BadReply(f"a ledger row is about client {release.client}, round {release.round}")
    if [_place(row) for row in releases] != [_place(row) for row in owed]:
        raise BadReply(
            f"it brings {len(releases)} ledger rows and owes {len(owed)}: one a release and relation"
        )
    for given, row in zip(releases, owed, strict=True):
        if not same_release(given, row):
            raise BadReply(
                f"a ledger row of client {given.client} is {told(given)}, and the plan of the run says {told(row)}"
            )
    return releases


def owed_released(record: ConfigRecord, sizes: Mapping[int, Mapping[str, int]]) -> wire.Released:
    """What a reply's clients released by name, which has exactly the names and lengths that they owe.

    Parameters
    ----------
    record : ConfigRecord
    sizes : mapping of int to mapping
        Names and lengths, by client; clients that owe nothing are left out.

    Raises
    ------
    BadReply
        If it is missing, malformed, or anything else.
    """
    payload = record.get(wire.RELEASED)
    if not isinstance(payload, bytes):
        raise BadReply("it does not say what was released")
    count = sum(size for named in sizes.values() for size in named.values())
    if len(payload) > _VALUE_BYTES * (count + 64 * (len(sizes) + 1)):
        raise BadReply(f"what it released is {len(payload)} bytes, for the {count} values that it owes")
    try:
        released = wire.decode_released(payload)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error
    given = {
        client: {name: len(values) for name, values in named.items()} for client, named in released.items()
    }
    if given != sizes:
        raise BadReply("what it released is not what its clients were to release")
    return released


def _decoded(payload: bytes, num_owed: int) -> tuple[Release, ...]:
    if len(payload) > _ROW_BYTES * (num_owed + 64):  # a few too many are told as what they are
        raise BadReply(f"its ledger rows are {len(payload)} bytes, for the {num_owed} rows that it owes")
    try:
        return wire.decode_releases(payload)
    except wire.MalformedReply as error:
        raise BadReply(str(error)) from error


def _place(row: Release) -> tuple[int, str, int, Relation]:
    return row.client, row.name, row.step, row.relation
