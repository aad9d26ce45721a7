"""Who holds which record: public partitions of a data set into logical clients.

IID and Dirichlet partitions are those of Flower Datasets; natural ones follow the data's own client column. A
partition is a function of the labels (Dirichlet only), the client ids (natural only), the number of records
and the public data seed: every process that asks gets the same one.
"""

from __future__ import annotations

import math
import warnings
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.schema import Records
from fedveil.datasets.split import public_stream

__all__ = ["Scheme", "partition"]

Scheme = Literal["iid", "dirichlet", "natural"]


def partition(
    records: Records,
    scheme: Scheme,
    num_clients: int | None = None,
    alpha: float = 1.0,
    seed: int = 0,
    min_records: int = 1,
) -> list[NDArray[np.int64]]:
    """Divide records among clients.

    Parameters
    ----------
    records : Records
        The records to divide.
    scheme : "iid", "dirichlet" or "natural"
        ``iid``: a random order cut into pieces that differ by at most one record. ``dirichlet``: each class
        divided in proportions drawn from Dirichlet(alpha, ..., alpha) (arXiv 1905.12022); redrawn, up to ten
        times, while a client has fewer than ``min_records``. It reads the labels, so it belongs to
        simulations. ``natural``: one client for each different client id, in increasing order.
    num_clients : int, optional
        Number of clients; for ``natural`` it may be left out (or 0), and is checked where given.
    alpha : float
        Concentration of ``dirichlet``, positive; small values give clients few classes each.
    seed : int
        Public data seed, non-negative.
    min_records : int
        Fewest records of a client, at least 1.

    Returns
    -------
    list of int64 arrays
        Rows of each client, increasing; together every row exactly once.

    Raises
    ------
    ValueError
        If an argument is out of range, there are more clients than records, or a client would have fewer than
        ``min_records`` (named by its index).
    """
    if scheme not in get_args(Scheme):
        near = get_close_matches(str(scheme), get_args(Scheme), n=1, cutoff=0.4)
        hint = f"; nearest: {near[0]}" if near else ""
        raise ValueError(f"partition must be one of {', '.join(get_args(Scheme))}, got {scheme!r}{hint}.")
    if len(records) == 0:
        raise ValueError(
            "There are no records to partition: load a data set with at least one training record."
        )
    if min_records < 1:
        raise ValueError(
            f"min-records must be at least 1, since an empty client cannot train, got {min_records}."
        )
    if seed < 0:
        raise ValueError(f"data-seed must be a non-negative integer, got {seed}.")
    if scheme == "natural":
        parts = _natural(records, num_clients or None)
    else:
        if num_clients is None or num_clients < 1:
            raise ValueError(f"num-clients must be at least 1 for the {scheme} partition, got {num_clients}.")
        if num_clients * min_records > len(records):
            raise ValueError(
                f"num-clients {num_clients} with min-records {min_records} needs {num_clients * min_records}"
                f" records, but there are {len(records)}: use fewer clients or a smaller min-records."
            )
        if scheme == "iid":
            parts = _iid(len(records), num_clients, seed)
        else:
            parts = _dirichlet(records.labels, num_clients, alpha, seed, min_records)
    smallest = min(range(len(parts)), key=lambda client: len(parts[client]))
    if len(parts[smallest]) < min_records:
        cure = {
            "iid": "use fewer clients",
            "dirichlet": "use a larger dirichlet-alpha, fewer clients",
            "natural": "remove its rows from the data",
        }[scheme]
        raise ValueError(
            f"Client {smallest} has {len(parts[smallest])} records in the {scheme} partition, but min-records"
            f" is {min_records}: {cure}, or lower min-records."
        )
    return parts


def _natural(records: Records, num_clients: int | None) -> list[NDArray[np.int64]]:
    if records.client_ids is None:
        raise ValueError(
            "The natural partition needs a client column, and these records have none: set client-column."
        )
    ids, owner = np.unique(records.client_ids, return_inverse=True)
    if num_clients is not None and num_clients != len(ids):
        raise ValueError(
            f"The client column gives {len(ids)} clients with training records, not num-clients ="
            f" {num_clients}: set num-clients to {len(ids)}."
        )
    order = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=len(ids)))[:-1])


def _iid(num_records: int, num_clients: int, seed: int) -> list[NDArray[np.int64]]:
    from flwr_datasets.partitioner import IidPartitioner

    # Flower's partitioner cuts contiguous blocks, so the order must be random already (flower issue 7290).
    order = public_stream("partition", seed).permutation(num_records)
    return _deal(IidPartitioner(num_clients), {"row": order}, num_clients)


def _dirichlet(
    labels: NDArray[np.int64], num_clients: int, alpha: float, seed: int, min_records: int
) -> list[NDArray[np.int64]]:
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"dirichlet-alpha must be a positive number, got {alpha}.")
    from flwr_datasets.partitioner import DirichletPartitioner

    def draw(fewest: int) -> list[NDArray[np.int64]]:
        partitioner = DirichletPartitioner(
            num_clients, "label", float(alpha), min_partition_size=fewest, seed=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each redraw; running out of them becomes our error
            return _deal(partitioner, {"row": np.arange(len(labels)), "label": labels}, num_clients)

    try:
        parts = draw(min_records)
    except ValueError:  # eleven draws left a client too small; the first one, as it is, says which
        parts = draw(0)
    if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels))):
        raise ValueError(
            f"dirichlet-alpha {alpha} is too extreme to draw proportions from: use 0.01 to 1000."
        )
    return parts


def _deal(
    partitioner: Any, columns: dict[str, NDArray[np.int64]], num_clients: int
) -> list[NDArray[np.int64]]:
    """The values of column "row" in each of a Flower partitioner's parts, increasing."""
    # Hugging Face's package, by a text: in this checkout a type checker takes `datasets` for our folder.
    partitioner.dataset = import_module("datasets").Dataset.from_dict(columns)
    parts = (partitioner.load_partition(client).with_format("numpy") for client in range(num_clients))
    return [np.sort(np.asarray(part["row"][:], dtype=np.int64)) for part in parts]
