"""What FedVeil's server and clients say to each other: message types, record keys, payloads.

A request is one ArrayRecord (the model) and one ConfigRecord. A train reply is one ArrayRecord, one MetricRecord with
``num-examples`` and one ConfigRecord, so that plain Flower strategies can use FedVeil's clients. Sets of clients of one
record each, up to a million, travel as compressed bitmaps. Nothing here is pickled, and everything that is read from
the wire is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil import __version__
from fedveil.client_mask import NotAMask, pack_clients, unpack_clients
from fedveil.privacy import Known, Release

__all__ = [
    "ARRAYS",
    "CENTER",
    "CLIENTS",
    "CLIENT_MASK",
    "COEFFICIENTS",
    "CONFIG",
    "COUNT",
    "DIRECTIONS",
    "EXAMPLES",
    "FIRST",
    "KNOWN",
    "LEDGER",
    "LIBRARY",
    "MAIN",
    "MEASURE",
    "MECHANISM",
    "METRICS",
    "NUM_CLIENTS",
    "NUM_EXAMPLES",
    "OUT_OF_BUDGET",
    "PARTITION",
    "PARTITIONS",
    "QUERY_IDENTIFY",
    "RANGE",
    "RELEASED",
    "REPLY",
    "ROUND",
    "ROWS",
    "RUN",
    "SCHEMA",
    "SOURCE",
    "SPREAD",
    "TRAIN",
    "VARIANT",
    "MalformedReply",
    "Mechanism",
    "Released",
    "ReplyMode",
    "check_mode",
    "decode_clients",
    "decode_known",
    "decode_released",
    "decode_releases",
    "encode_clients",
    "encode_known",
    "encode_released",
    "encode_releases",
    "fingerprint",
    "from_fixed",
    "to_fixed",
]

TRAIN = "train"
QUERY_IDENTIFY = "query.identify"

# records of a message
ARRAYS, CONFIG, METRICS, LEDGER = "arrays", "config", "metrics", "ledger"
# keys of a request's config ("server-round" is Flower's own); those of the second line may be missing
ROUND, CLIENTS, RUN, REPLY = "server-round", "clients", "run", "reply"
KNOWN, MEASURE = "known", "measure"
# keys of a reply; CLIENTS names there the clients that took part
NUM_EXAMPLES, ROWS, OUT_OF_BUDGET, LIBRARY, SOURCE, RELEASED = (
    "num-examples",
    "rows",
    "out-of-budget",
    "library",
    "source",
    "released",
)
# keys of the answer to QUERY_IDENTIFY, beside CLIENTS, LIBRARY and SOURCE; the last one, a digest of the public
# description of records, where every node brings its own
PARTITION, PARTITIONS, EXAMPLES, SCHEMA = "partition-id", "num-partitions", "examples", "schema"

# clients of one record each, asked for messages: keys of a request's config beside ROUND, RUN and REPLY, and of a
# reply's LEDGER beside ROWS, OUT_OF_BUDGET (a mask there too), LIBRARY and SOURCE
CLIENT_MASK, MECHANISM, VARIANT = "client-mask", "mechanism", "variant"
# variants that are the run itself; every other one is a comparator's
MAIN, RANGE = "main", "range"
# arrays of such a request; the last two only where means and spreads were estimated
COEFFICIENTS, DIRECTIONS, CENTER, SPREAD = "coefficients", "directions", "center", "spread"
# keys of such a node's answer to QUERY_IDENTIFY in place of CLIENTS and EXAMPLES: which consecutive clients it hosts.
# A site knows only how many: each request tells it its first one, and how many there are on all sites.
FIRST, COUNT, NUM_CLIENTS = "first", "count", "num-clients"

Mechanism = Literal["modulated", "range", "gradient", "unnoised"]
"""What a client of one record is asked for.

``modulated``: its modulated record. ``range``: the record without modulation, before means and spreads are known.
``gradient``: the clipped gradient of its squared error (local DP-SGD). ``unnoised``: the record without any noise, in
simulations only.
"""

ReplyMode = Literal["sum", "mean", "each"]
"""What a train reply's arrays are.

``sum``: int64 fixed-point sums of n_i times the update, over the node's clients. ``mean``: a float32 model, the
weighted mean of the clients' models, for plain Flower strategies. ``each``: float64 updates of the clients, stacked in
the order of CLIENTS, for the server that clips and adds noise itself (privacy "central").
"""

_FRACTION_BITS = 32
_LIMIT = 2.0**62  # two such blocks still add without leaving int64
_MOST_RELEASED = 1 << 20


class MalformedReply(ValueError):
    """Something read from the wire is not what it must be."""


def to_fixed(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round to the fixed-point grid of step 2^-32, as int64: sums of these are the same in any order.

    Raises
    ------
    ValueError
        If a value is not finite or does not fit (magnitude 2^30 or more): the training diverged.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused in words
        scaled = np.rint(np.asarray(values, dtype=np.float64) * 2.0**_FRACTION_BITS)
    if not np.all(np.abs(scaled) < _LIMIT):  # also false for NaN
        raise ValueError(
            "an update is not finite or has an entry beyond 2^30 in magnitude: training diverged; "
            "lower learning-rate or clip-norm."
        )
    return scaled.astype(np.int64)


def from_fixed(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """The real values of fixed-point numbers."""
    return values.astype(np.float64) * 2.0**-_FRACTION_BITS


def encode_releases(releases: Iterable[Release]) -> bytes:
    """Ledger rows as JSON; floats keep every bit."""
    return json.dumps([asdict(release) for release in releases], separators=(",", ":")).encode()


def decode_releases(payload: bytes, *, max_rows: int = 1_000_000) -> tuple[Release, ...]:
    """Ledger rows from the wire.

    Raises
    ------
    MalformedReply
        If the payload is not JSON rows with exactly the fields of a Release, each of a valid type and range.
    """
    names = {field.name for field in fields(Release)}
    try:
        rows = json.loads(payload.decode())
        if not isinstance(rows, list) or len(rows) > max_rows or any(set(row) != names for row in rows):
            raise MalformedReply(
                f"ledger rows must be a list of at most {max_rows} records with keys {sorted(names)}."
            )
        return tuple(Release(**row) for row in rows)
    except MalformedReply:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedReply(f"ledger rows cannot be read: {error}") from error


Released = Mapping[int, Mapping[str, tuple[float, ...]]]
"""Released values by client and name: ``"contribution"``, a vector; ``"quantile"``, one share."""


def encode_released(released: Released) -> bytes:
    """Released values as JSON; floats keep every bit."""
    return json.dumps(
        {str(client): values for client, values in released.items()}, separators=(",", ":")
    ).encode()


def decode_released(payload: bytes) -> dict[int, dict[str, tuple[float, ...]]]:
    """Released values from the wire.

    Raises
    ------
    MalformedReply
        If the payload is not a JSON table of clients, each with lists of finite numbers by name, or holds more than
        2^20 of them.
    """
    try:
        table = json.loads(payload.decode())
        released = {
            int(client): {str(name): tuple(map(_finite, values)) for name, values in named.items()}
            for client, named in table.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise MalformedReply(f"released values cannot be read: {error}") from error
    if sum(len(values) for named in released.values() for values in named.values()) > _MOST_RELEASED:
        raise MalformedReply(f"there are more than {_MOST_RELEASED} released values.")
    return released


def encode_clients(clients: ArrayLike) -> bytes:
    """A set of clients, strictly increasing, as a compressed bitmap; see :func:`fedveil.client_mask.pack_clients`."""
    return pack_clients(clients)


def decode_clients(payload: bytes, max_client: int, min_client: int = 0) -> NDArray[np.int64]:
    """A set of clients from the wire, strictly increasing; none above `max_client` or below `min_client`.

    Raises
    ------
    MalformedReply
        If the payload is anything else. No more memory than for so many clients is ever taken.
    """
    try:
        return unpack_clients(payload, max_client, min_client)
    except NotAMask as error:
        raise MalformedReply(str(error)) from error


def _finite(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(cast(float, value)):
        raise ValueError(f"{value!r} is not a finite number")
    return float(cast(float, value))


def encode_known(known: Mapping[int, Known]) -> bytes:
    """What is known of clients from their own releases, as JSON."""
    return json.dumps(
        {str(client): asdict(value) for client, value in known.items()}, separators=(",", ":")
    ).encode()


def decode_known(payload: bytes) -> dict[int, Known]:
    """What the server says it knows of clients.

    Nothing in it has to be believed: a client's noise follows from it, and its ledger and filter from the noise.

    Raises
    ------
    MalformedReply
        If the payload is not a JSON table of clients with values in their ranges.
    """
    try:
        return {int(client): Known(**values) for client, values in json.loads(payload.decode()).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedReply(f"what is known of clients cannot be read: {error}") from error


def check_mode(mode: str) -> ReplyMode:
    """The reply mode a request asked for.

    Raises
    ------
    MalformedReply
        If it is none of "sum", "mean", "each".
    """
    for known in get_args(ReplyMode):
        if mode == known:
            return cast(ReplyMode, known)
    raise MalformedReply(f"reply must be one of {', '.join(get_args(ReplyMode))}, got {mode!r}.")


@lru_cache(maxsize=8)
def fingerprint(app_folder: Path | None = None) -> Mapping[str, str]:
    """Library version and hash of the source that runs here, FedVeil's and the app's.

    Simulated clients can run stale code from another folder, or another installation than the server's, and Flower
    does not notice; server and nodes compare these two strings in every reply.
    """
    digest = blake2b(digest_size=16)
    package = Path(__file__).resolve().parent
    roots = [package] + ([Path(app_folder)] if app_folder is not None else [])
    for root in roots:
        # rooms are links in a checkout and folders in a wheel: walk them by name, so that both give the same list
        for path in sorted(_python_files(root)):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return {LIBRARY: __version__, SOURCE: digest.hexdigest()}


def _python_files(folder: Path) -> Iterable[Path]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _python_files(entry)
        elif entry.suffix == ".py":
            yield entry
