"""Who holds which record: public partitions of a data set into logical clients.

IID, Dirichlet and classes-per-client partitions are those of Flower Datasets; natural ones follow the data's own
clients. A partition is a function of the labels (Dirichlet and classes only), the client ids (natural only), the
number of records and the public data seed: every process that asks gets the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from statistics import median
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.dealing import class_parts, dirichlet_parts, iid_parts, natural_parts
from fedveil.datasets.schema import Records

__all__ = ["Partition", "Scheme", "SmallClients", "partition", "sizes_line"]

Scheme = Literal["iid", "dirichlet", "classes", "natural"]
SmallClients = Literal["error", "drop"]

_FEW = 10  # clients whose sizes fit into one line


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds which record: the sequence of its clients' parts, and who was left out.

    Parameters
    ----------
    parts : tuple of int64 arrays
        Rows of each client, increasing; clients are numbered 0, 1, ... as they stand here.
    dropped : mapping of int to int
        Number of records of each client that was left out, by the number it had before; empty otherwise.
    """

    parts: tuple[NDArray[np.int64], ...]
    dropped: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the clients."""
        return len(self.parts)

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        """Rows of one client."""
        return self.parts[client]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Go through the clients' rows."""
        return iter(self.parts)


def partition(
    records: Records,
    scheme: Scheme,
    num_clients: int | None = None,
    alpha: float = 1.0,
    seed: int = 0,
    min_records: int = 1,
    classes_per_client: int = 2,
    small: SmallClients = "error",
) -> Partition:
    """Divide records among clients.

    Parameters
    ----------
    records : Records
        The records to divide.
    scheme : "iid", "dirichlet", "classes" or "natural"
        ``iid``: a random order cut into pieces that differ by at most one record. ``dirichlet``: each class
        divided in proportions drawn from Dirichlet(alpha, ..., alpha) (arXiv 1905.12022); redrawn, up to ten
        times, while a client has fewer than ``min_records`` and those are an error. ``classes``: client i holds
        class i mod K of the K classes and ``classes_per_client`` - 1 random others, and each class is cut in equal
        pieces among its holders (arXiv 2102.02079). These two read the labels, so they belong to simulations.
        ``natural``: one client for each different client id, in increasing order.
    num_clients : int, optional
        Number of clients; for ``natural`` it may be left out (or 0), and is checked where given.
    alpha : float
        Concentration of ``dirichlet``, positive; small values give clients few classes each.
    seed : int
        Public data seed, non-negative.
    min_records : int
        Fewest records of a client, at least 1.
    classes_per_client : int
        Classes of each client of ``classes``, from 1 to K.
    small : "error" or "drop"
        What becomes of a client with fewer than ``min_records``. ``drop`` leaves it and its records out, and numbers
        the others anew in their order; it looks at numbers of records only, which are public.

    Returns
    -------
    Partition
        Every row is in exactly one part, or was a dropped client's.

    Raises
    ------
    ValueError
        If an argument is out of range, there are more clients than records, a class would go to nobody, or a
        client would have fewer than ``min_records`` (named by its index) and is not dropped, or no client would be
        left.
    """
    for key, value, allowed in (("partition", scheme, Scheme), ("small-clients", small, SmallClients)):
        if value not in get_args(allowed):
            near = get_close_matches(str(value), get_args(allowed), n=1, cutoff=0.4)
            hint = f"; nearest: {near[0]}" if near else ""
            raise ValueError(f"{key} must be one of {', '.join(get_args(allowed))}, got {value!r}{hint}.")
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
        parts = natural_parts(records, num_clients or None)
    else:
        if num_clients is None or num_clients < 1:
            raise ValueError(f"num-clients must be at least 1 for the {scheme} partition, got {num_clients}.")
        fewest = min_records if small == "error" else 1
        if num_clients * fewest > len(records):
            raise ValueError(
                f"num-clients {num_clients} with min-records {min_records} needs at least {num_clients * fewest}"
                f" records, but there are {len(records)}: use fewer clients or a smaller min-records."
            )
        if scheme == "iid":
            parts = iid_parts(len(records), num_clients, seed)
        elif scheme == "classes":
            parts = class_parts(records.labels, num_clients, classes_per_client, seed)
        else:
            parts = dirichlet_parts(
                records.labels, num_clients, alpha, seed, min_records if small == "error" else 0
            )
    return _without_small(parts, scheme, min_records, small)


def _without_small(
    parts: list[NDArray[np.int64]], scheme: Scheme, min_records: int, small: SmallClients
) -> Partition:
    dropped = {client: len(part) for client, part in enumerate(parts) if len(part) < min_records}
    if not dropped:
        return Partition(tuple(parts))
    if small == "drop":
        if len(dropped) == len(parts):
            raise ValueError(
                f"All {len(parts)} clients have fewer records than min-records = {min_records} in the {scheme}"
                f" partition, at most {max(dropped.values())}: lower min-records, or use fewer clients."
            )
        kept = tuple(part for part in parts if len(part) >= min_records)
        return Partition(kept, dropped)
    smallest = min(dropped, key=lambda client: dropped[client])
    cure = {
        "iid": "use fewer clients",
        "dirichlet": "use a larger dirichlet-alpha, fewer clients",
        "classes": "use fewer clients",
        "natural": "remove its rows from the data",
    }[scheme]
    raise ValueError(
        f"Client {smallest} has {dropped[smallest]} records in the {scheme} partition, but min-records is"
        f' {min_records}: {cure}, lower min-records, or leave such clients out with small-clients = "drop".'
    )


def sizes_line(examples: Iterable[int]) -> str:
    """Say how many records clients hold: their number, the least, the median and the most; each one's where few."""
    sizes = list(examples)
    if len(sizes) == 1:
        return f"1 client with {sizes[0]} records"
    line = f"{len(sizes)} clients with {min(sizes)} / {median(sizes):g} / {max(sizes)} records (min / median / max)"
    return f"{line}: {', '.join(map(str, sizes))}" if len(sizes) <= _FEW else line
