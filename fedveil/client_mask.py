"""A set of clients as bytes: a compressed bitmap, from the first client of the set to its last."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["NotAMask", "pack_clients", "unpack_clients"]

_FIRST = 8  # bytes of the first client's number
_LEVEL = 1  # half of a million clients at random cost 125 kB at every level


class NotAMask(ValueError):
    """Bytes that are no set of clients."""


def pack_clients(clients: ArrayLike) -> bytes:
    """Pack a set of clients.

    Parameters
    ----------
    clients : int array (k,)
        Client numbers of at least 0, strictly increasing.

    Returns
    -------
    bytes
        Equal sets give equal bytes with one version of zlib. Nothing for the empty set; a few bytes for a run of
        consecutive clients; at most one bit a client between the first and the last, and a little.

    Raises
    ------
    ValueError
        If the numbers are not whole, negative or not strictly increasing.
    """
    members = np.asarray(clients)
    if members.size == 0:
        return b""
    if members.ndim != 1 or members.dtype.kind not in "iu":
        raise ValueError(f"clients must be whole numbers in one row, got {members.dtype} of {members.shape}.")
    if members[0] < 0 or np.any(members[1:] <= members[:-1]):
        raise ValueError(
            "clients must be of at least 0 and strictly increasing: sort them and name each once."
        )
    first = int(members[0])
    bits = np.zeros(int(members[-1]) - first + 1, dtype=np.uint8)
    bits[members - members[0]] = 1
    packed = np.packbits(bits, bitorder="little").tobytes()
    return first.to_bytes(_FIRST, "little") + zlib.compress(packed, _LEVEL)


def unpack_clients(payload: bytes, max_client: int, min_client: int = 0) -> NDArray[np.int64]:
    """Unpack a set of clients that another process packed.

    Parameters
    ----------
    payload : bytes
        Of :func:`pack_clients`.
    max_client, min_client : int
        Largest and smallest client number that there can be: no more memory than for the clients between them is ever
        taken.

    Returns
    -------
    int64 array (k,)
        Strictly increasing, from `min_client` to `max_client`.

    Raises
    ------
    NotAMask
        If the payload is anything else.
    """
    if not isinstance(payload, bytes):
        raise NotAMask(f"a set of clients must be bytes, got {type(payload).__name__}.")
    if not payload:
        return np.zeros(0, dtype=np.int64)
    first = int.from_bytes(payload[:_FIRST], "little")
    if len(payload) <= _FIRST or not min_client <= first <= max_client:
        raise NotAMask(
            f"a set of clients must begin with a client from {min_client} to {max_client}, got {len(payload)} bytes "
            "that do not."
        )
    largest = (max_client - first) // 8 + 1
    reader = zlib.decompressobj()
    try:
        packed = reader.decompress(payload[_FIRST:], largest)
    except zlib.error as error:
        raise NotAMask(f"a set of clients cannot be read: {error}.") from error
    if not reader.eof or reader.unused_data:
        raise NotAMask(
            f"a set of clients must end with client {max_client} at the latest, and its bytes do not."
        )
    members = np.flatnonzero(np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")) + first
    if members.size == 0 or members[0] != first or members[-1] > max_client:
        raise NotAMask(f"a set of clients must hold the first it names and none above {max_client}.")
    return members.astype(np.int64, copy=False)
