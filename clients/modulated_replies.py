"""How a node of one-record clients answers: requests in, replies out, and nothing that is not accounted for.

A reply holds, and nothing else: sums or single messages (noised, or labels in the clear where there is no label
privacy), ``num-examples`` (how many took part), the one ledger row that each of them has, who took part and who is out
of budget (functions of public facts), and which library and source ran.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedveil.clients.modulated_cohort import ModulatedCohort
from fedveil.clients.modulated_request import read_request
from fedveil.wire import (
    ARRAYS,
    CLIENT_MASK,
    CONFIG,
    COUNT,
    FIRST,
    LEDGER,
    LIBRARY,
    METRICS,
    NUM_EXAMPLES,
    OUT_OF_BUDGET,
    PARTITION,
    PARTITIONS,
    ROWS,
    SCHEMA,
    SOURCE,
    encode_clients,
    encode_releases,
)

__all__ = ["handle_identify_modulated", "handle_message"]


def handle_identify_modulated(
    cohort: ModulatedCohort,
    partition: int,
    num_partitions: int,
    fingerprint: Mapping[str, str],
    schema: str | None = None,
) -> RecordDict:
    """Answer the server's question who is here.

    Parameters
    ----------
    cohort : ModulatedCohort
    partition, num_partitions : int
        Which share of the clients this node hosts, of how many shares.
    fingerprint : mapping of str to str
        Library version and source hash, from :func:`fedveil.wire.fingerprint`.
    schema : str, optional
        Digest of the public description of the records, where this node brings its own.

    Returns
    -------
    RecordDict
        ``config`` with ``partition-id``, ``num-partitions``, ``first`` and ``count`` (the consecutive clients of this
        node), ``library`` and ``source``. A site says ``schema`` and no ``first``: of its records it tells how many
        they are, and nothing else.
    """
    answer = ConfigRecord(
        {
            PARTITION: partition,
            PARTITIONS: num_partitions,
            COUNT: cohort.count,
            LIBRARY: fingerprint[LIBRARY],
            SOURCE: fingerprint[SOURCE],
        }
    )
    if cohort.first is not None:
        answer[FIRST] = cohort.first
    if schema is not None:
        answer[SCHEMA] = schema
    return RecordDict({CONFIG: answer})


def handle_message(
    request: RecordDict, cohort: ModulatedCohort, fingerprint: Mapping[str, str]
) -> RecordDict:
    """Answer a request for messages.

    Parameters
    ----------
    request : RecordDict
        See :func:`fedveil.clients.modulated_request.read_request`.
    cohort : ModulatedCohort
    fingerprint : mapping of str to str

    Returns
    -------
    RecordDict
        ``arrays``, see :class:`fedveil.clients.modulated_cohort.ModulatedResult`; ``metrics`` with ``num-examples``;
        ``ledger`` with ``rows`` (one template row, of client -1; none for messages without noise), ``client-mask``,
        ``out-of-budget``, ``library`` and ``source``.

    Raises
    ------
    ValueError
        If the request lacks something or is not one for this node, or its ledger refuses.
    """
    result = cohort.answer(read_request(request, cohort.max_client, at_site=cohort.is_site))
    rows = () if result.release is None else (result.release.release,)
    return RecordDict(
        {
            ARRAYS: ArrayRecord(
                {name: Array(np.asarray(value, order="C")) for name, value in result.arrays.items()}
            ),
            METRICS: MetricRecord({NUM_EXAMPLES: int(result.took_part.size)}),
            LEDGER: ConfigRecord(
                {
                    ROWS: encode_releases(rows),
                    CLIENT_MASK: encode_clients(result.took_part),
                    OUT_OF_BUDGET: encode_clients(result.out_of_budget),
                    LIBRARY: fingerprint[LIBRARY],
                    SOURCE: fingerprint[SOURCE],
                }
            ),
        }
    )
