"""Rows dealt to clients: Flower Datasets' partitioners, and the data's own clients."""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.schema import Records
from fedveil.datasets.split import public_stream

__all__ = ["class_parts", "dirichlet_parts", "iid_parts", "natural_parts"]


def natural_parts(records: Records, num_clients: int | None) -> list[NDArray[np.int64]]:
    """Give each client id its rows, in increasing order of the ids."""
    if records.client_ids is None:
        raise ValueError(
            "The natural partition needs records that say whose they are, by a client column or a data set with"
            " clients of its own, and these do not: set client-column."
        )
    ids, owner = np.unique(records.client_ids, return_inverse=True)
    if num_clients is not None and num_clients != len(ids):
        raise ValueError(
            f"The data gives {len(ids)} clients with training records, not num-clients = {num_clients}: set"
            f" num-clients to {len(ids)}."
        )
    order = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=len(ids)))[:-1])


def iid_parts(num_records: int, num_clients: int, seed: int) -> list[NDArray[np.int64]]:
    """Cut a random order into pieces that differ by at most one record."""
    from flwr_datasets.partitioner import IidPartitioner

    # Flower's partitioner cuts contiguous blocks, so the order must be random already (flower issue 7290).
    order = public_stream("partition", seed).permutation(num_records)
    return _deal(IidPartitioner(num_clients), {"row": order}, num_clients)


def class_parts(
    labels: NDArray[np.int64], num_clients: int, classes_per_client: int, seed: int
) -> list[NDArray[np.int64]]:
    """Cut each class among its holders: client i has class i mod K and others at random."""
    classes = np.unique(labels)
    if not 1 <= classes_per_client <= len(classes):
        raise ValueError(
            f"classes-per-client must be 1 to {len(classes)}, the number of classes among the records, got"
            f" {classes_per_client}."
        )
    from flwr_datasets.partitioner import PathologicalPartitioner

    # Of Flower's orders only this one, the published one, uses every class as soon as there are as many clients.
    partitioner = PathologicalPartitioner(
        num_clients, "label", classes_per_client, "first-deterministic", shuffle=False, seed=seed
    )
    # It cuts a class at the rows' order, so the order must be random already, as for iid.
    order = public_stream("partition", seed).permutation(len(labels))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a class that nobody holds; that becomes our error
            parts = _deal(partitioner, {"row": order, "label": labels[order]}, num_clients)
    except ValueError:
        raise ValueError(
            f"num-clients {num_clients} with classes-per-client {classes_per_client} gives some class to more clients"
            " than it has records: use fewer clients or fewer classes-per-client."
        ) from None
    absent = np.setdiff1d(classes, labels[np.concatenate(parts)])
    if len(absent):
        raise ValueError(
            f"{num_clients} clients with classes-per-client {classes_per_client} leave out {len(absent)} of the"
            f" {len(classes)} classes: use at least {len(classes)} clients, or more classes-per-client."
        )
    return parts


def dirichlet_parts(
    labels: NDArray[np.int64], num_clients: int, alpha: float, seed: int, fewest: int
) -> list[NDArray[np.int64]]:
    """Divide each class in proportions of a Dirichlet distribution; redraw while a client has too few."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"dirichlet-alpha must be a positive number, got {alpha}.")
    from flwr_datasets.partitioner import DirichletPartitioner

    def draw(size: int) -> list[NDArray[np.int64]]:
        partitioner = DirichletPartitioner(
            num_clients, "label", float(alpha), min_partition_size=size, seed=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each redraw; running out of them becomes our error
            return _deal(partitioner, {"row": np.arange(len(labels)), "label": labels}, num_clients)

    try:
        parts = draw(fewest)
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
