"""How a node answers the server: requests in, replies out, and nothing in a reply that is not accounted for.

A train reply holds, and nothing else: the arrays (a function of noised steps), ``num-examples`` (public), what
clients released beside them, the ledger rows of all of it, the clients that took part and those out of budget
(functions of public and released values), and which library and source ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedveil.clients.cohort import Cohort, CohortResult
from fedveil.clients.same_model import require_same_model
from fedveil.privacy import Known
from fedveil.wire import (
    ARRAYS,
    CLIENTS,
    CONFIG,
    EXAMPLES,
    KNOWN,
    LEDGER,
    LIBRARY,
    MEASURE,
    METRICS,
    NUM_EXAMPLES,
    OUT_OF_BUDGET,
    PARTITION,
    PARTITIONS,
    RELEASED,
    REPLY,
    ROUND,
    ROWS,
    RUN,
    SCHEMA,
    SOURCE,
    ReplyMode,
    check_mode,
    decode_known,
    encode_released,
    encode_releases,
    from_fixed,
)
from fedveil.wire_arrays import read_exactly

_LARGEST_ROUND = 2**31 - 1
_KNOWN_BYTES = 1024  # what is known of a client takes less, as JSON

__all__ = ["handle_identify", "handle_train", "make_train_reply"]


def handle_train(request: RecordDict, cohort: Cohort, fingerprint: Mapping[str, str]) -> RecordDict:
    """Answer a train request.

    Parameters
    ----------
    request : RecordDict
        The model under ``arrays`` and, under ``config``, ``server-round``, ``clients`` (list of int),
        ``reply`` and ``run``; and, where clients' contributions matter, ``known`` (what they have released
        before) and ``measure`` (list of clients that are to release their contribution now).
    cohort : Cohort
    fingerprint : mapping of str to str
        Library version and source hash, from :func:`fedveil.wire.fingerprint`.

    Returns
    -------
    RecordDict
        See :func:`make_train_reply`.

    Raises
    ------
    ValueError
        If the request lacks something, holds something that is not what it must be, is of another run, or asks for what
        this node cannot give. Nothing in it can take more memory than this node's own model and clients do.
    """
    arrays, config = _request(request, cohort)
    run = str(config[RUN])
    if run != cohort.run:
        raise ValueError(f"the request is of run {run!r}, but this cohort was set up for run {cohort.run!r}.")
    mode = check_mode(str(config[REPLY]))
    clients = _numbers(config, CLIENTS)
    result = cohort.train(
        _round(config),
        arrays,
        clients,
        known=_known(config, len(clients)),
        measure=frozenset(_numbers(config, MEASURE)),
        keep_updates=mode == "each",
    )
    return make_train_reply(result, arrays, mode, fingerprint)


def make_train_reply(
    result: CohortResult,
    arrays: Mapping[str, NDArray[np.floating]],
    mode: ReplyMode,
    fingerprint: Mapping[str, str],
) -> RecordDict:
    """Put a cohort's result into the records of a reply.

    Parameters
    ----------
    result : CohortResult
    arrays : mapping of str to array
        The model that was sent; "mean" adds the mean update to it.
    mode : {"sum", "mean", "each"}
        What the arrays are; see :data:`fedveil.wire.ReplyMode`.
    fingerprint : mapping of str to str

    Returns
    -------
    RecordDict
        ``arrays``; ``metrics`` with ``num-examples``; ``ledger`` with ``rows``, ``released``, ``clients``,
        ``out-of-budget``, ``library`` and ``source``. Where no client took part the sum is 0, the mean is the
        model that was sent and ``num-examples`` is 0.

    Raises
    ------
    ValueError
        If a row's noise was chosen from private data: such a row stays on the client.
    """
    if any(row.chosen == "data-dependent" for row in result.releases):
        raise ValueError(
            "the noise of a step was chosen from private data, so that its ledger row would reveal them: "
            "leave such rows out of the reply."
        )
    return RecordDict(
        {
            ARRAYS: _array_record(_reply_arrays(result, arrays, mode)),
            METRICS: MetricRecord({NUM_EXAMPLES: result.num_examples}),
            LEDGER: ConfigRecord(
                {
                    ROWS: encode_releases(result.releases),
                    RELEASED: encode_released(result.released),
                    CLIENTS: list(result.took_part),
                    OUT_OF_BUDGET: list(result.out_of_budget),
                    LIBRARY: fingerprint[LIBRARY],
                    SOURCE: fingerprint[SOURCE],
                }
            ),
        }
    )


def handle_identify(
    cohort: Cohort,
    partition: int,
    num_partitions: int,
    fingerprint: Mapping[str, str],
    schema: str | None = None,
) -> RecordDict:
    """Answer the server's question who is here.

    Parameters
    ----------
    cohort : Cohort
    partition, num_partitions : int
        Which share of the clients this node hosts, of how many shares.
    fingerprint : mapping of str to str
    schema : str, optional
        Digest of the public description of the records, where this node brings its own.

    Returns
    -------
    RecordDict
        ``config`` with ``partition-id``, ``num-partitions``, ``clients``, their public numbers of records
        ``examples`` in the same order, ``library`` and ``source``; and ``schema``, where one is given.
    """
    answer = ConfigRecord(
        {
            PARTITION: partition,
            PARTITIONS: num_partitions,
            CLIENTS: list(cohort.clients),
            EXAMPLES: [cohort.num_records(client) for client in cohort.clients],
            LIBRARY: fingerprint[LIBRARY],
            SOURCE: fingerprint[SOURCE],
        }
    )
    if schema is not None:
        answer[SCHEMA] = schema
    return RecordDict({CONFIG: answer})


def _request(request: RecordDict, cohort: Cohort) -> tuple[dict[str, NDArray[np.floating]], ConfigRecord]:
    """The arrays, which are those of this node's model, and the settings of a train request."""
    arrays, config = request.get(ARRAYS), request.get(CONFIG)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ValueError(f"a train request needs an ArrayRecord {ARRAYS!r} and a ConfigRecord {CONFIG!r}.")
    missing = [key for key in (ROUND, CLIENTS, REPLY, RUN) if key not in config]
    if missing:
        raise ValueError(f"a train request needs {missing[0]!r} in its {CONFIG!r} record.")
    # before any is read, so that none takes more memory than this node's own
    require_same_model(cohort.learner, {name: tuple(array.shape) for name, array in arrays.items()})
    return {name: _parameter(name, array) for name, array in arrays.items()}, config


def _parameter(name: str, array: Array) -> NDArray[np.floating]:
    if array.dtype not in ("float32", "float64"):
        raise ValueError(f"parameter {name!r} is {array.dtype}: a model must be sent as float32 or float64.")
    return read_exactly(f"parameter {name!r}", array, np.dtype(array.dtype), tuple(array.shape))


def _round(config: ConfigRecord) -> int:
    value = config[ROUND]
    if type(value) is not int or not 0 <= value <= _LARGEST_ROUND:  # no bools
        raise ValueError(f"{ROUND} must be a whole number from 0 to {_LARGEST_ROUND}, got {value!r}.")
    return value


def _numbers(config: ConfigRecord, key: str) -> list[int]:
    value = config.get(key, [])
    if not isinstance(value, list) or not all(type(client) is int for client in value):  # no bools
        raise ValueError(f"{key} must be a list of client numbers.")
    return cast("list[int]", value)


def _known(config: ConfigRecord, num_clients: int) -> dict[int, Known] | None:
    known = config.get(KNOWN)
    if known is None:
        return None
    if not isinstance(known, bytes) or len(known) > _KNOWN_BYTES * (num_clients + 1):
        raise ValueError(f"{KNOWN} must be what is known of {num_clients} clients, as JSON.")
    return decode_known(known)


def _reply_arrays(
    result: CohortResult, arrays: Mapping[str, NDArray[np.floating]], mode: ReplyMode
) -> Mapping[str, NDArray[np.generic]]:
    if mode == "sum":
        return result.totals
    if mode == "each":
        if result.updates is None:
            raise ValueError("this result was computed without the clients' own updates: keep them.")
        return result.updates
    weight = max(result.num_examples, 1)
    return {
        name: (arrays[name] + from_fixed(total) / weight).astype(np.float32)
        for name, total in result.totals.items()
    }


def _array_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})
