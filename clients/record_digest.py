"""A site's records stay what they were while a run lasts: budgets are filed by where records stand."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import BindingMismatch, NodeLedger

__all__ = ["RecordsChanged", "refuse_changed_records"]


class RecordsChanged(ValueError):
    """A site's records are not those that it began a run with."""


def refuse_changed_records(
    ledger: NodeLedger,
    run: str,
    features: NDArray[np.float32],
    targets: NDArray[np.float64],
    site: str,
) -> None:
    """Compare the records with those of the run's first request; at that request, remember them.

    A record that moved to another client's place would have that client's budget beside its own.

    Parameters
    ----------
    ledger : NodeLedger
        Keeps a digest, as private as the records, with what else the run is bound to; it never leaves the node.
    run : str
        The run, as the ledger files it.
    features, targets : arrays (n, d) and (n,)
    site : str
        The site, as an error names it.

    Raises
    ------
    RecordsChanged
        If they are others, or stand in another order.
    """
    digest = blake2b(repr(features.shape).encode(), digest_size=16)
    for values in (features, targets):
        digest.update(np.ascontiguousarray(values).tobytes())
    try:
        ledger.bind(run, "the records of this site", digest.hexdigest())
    except BindingMismatch as error:
        raise RecordsChanged(
            f"{site}: the records are not those that run {run!r} began with, and what was spent for each is known by "
            "its place: put them back as they were, start a new run, or give every node of this machine a FEDVEIL_HOME "
            "of its own."
        ) from error
