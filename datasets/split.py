"""The public split into training and test rows, drawn from the public data seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedveil.streams import Stream, Streams

__all__ = ["public_stream", "public_streams", "split_rows"]


def public_streams(seed: int) -> Streams:
    """The streams of public draws: functions of the public data seed, whatever else is configured."""
    return Streams.seeded("fedveil public data", seed)


def public_stream(purpose: str, seed: int) -> Stream:
    """Open the stream of one public draw."""
    return public_streams(seed).stream(purpose)


def split_rows(
    num_rows: int, test_fraction: float, seed: int, strata: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows 0..num_rows-1 into training and test rows.

    Without ``strata`` the split depends on the number of rows and the public seed only: no value of a record
    can move a row between the parts.

    Parameters
    ----------
    num_rows : int
        Number of rows, public.
    test_fraction : float
        Share of test rows in [0, 1); 0 gives no test rows.
    seed : int
        Public data seed, non-negative.
    strata : int64 array of shape (num_rows,), optional
        Each stratum gives the same share of test rows. Only for data that is public itself.

    Returns
    -------
    train, test : int64 arrays
        Increasing; together every row exactly once.

    Raises
    ------
    ValueError
        If the fraction is outside [0, 1), or leaves a part empty.
    """
    if not 0.0 <= test_fraction < 1.0:
        raise ValueError(f"test-fraction must be at least 0 and less than 1, got {test_fraction}.")
    order = public_stream("split", seed).permutation(num_rows)
    groups = [order] if strata is None else [order[strata[order] == s] for s in np.unique(strata)]
    is_test = np.zeros(num_rows, dtype=np.bool_)
    for group in groups:
        is_test[group[: round(test_fraction * len(group))]] = True
    if is_test.all() or (test_fraction > 0.0 and not is_test.any()):
        part, cure = ("training", "smaller") if is_test.all() else ("testing", "larger")
        raise ValueError(
            f"test-fraction {test_fraction} of {num_rows} rows leaves none for {part}: choose a {cure} fraction or"
            " bring more rows."
        )
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
