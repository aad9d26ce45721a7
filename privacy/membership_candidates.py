"""Candidates of the indicator r_Q: distinct quantized configurations, and the few that lead."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.domain import whole
from fedveil.privacy.loss_moments import LossMoments
from fedveil.privacy.membership import membership_indicator

Codes = NDArray[np.integer] | Mapping[str, NDArray[np.integer]]


def distinct_candidates(codes: Sequence[Codes]) -> tuple[int, ...]:
    """Drop candidates whose codes an earlier one has.

    A configuration is its integer codes: all candidates of one quantizer share scales and zero points (THEORY 3).

    Parameters
    ----------
    codes : sequence of integer arrays, or of mappings from name to integer array
        One a candidate; all with the same names, shapes and types.

    Returns
    -------
    tuple of int
        Indices of the candidates kept, the first of each content, in order.

    Raises
    ------
    ValueError
        When there is no candidate, codes are not integers, or names, shapes or types differ.
    """
    if not len(codes):
        raise ValueError("There is no candidate: give the codes of at least one.")
    first: dict[bytes, int] = {}
    form = None
    for index, one in enumerate(codes):
        arrays = (
            {name: np.asarray(value) for name, value in one.items()} if isinstance(one, Mapping) else None
        )
        named = {"": np.asarray(one)} if arrays is None else dict(sorted(arrays.items()))
        for name, array in named.items():
            if array.dtype.kind not in "iu":
                raise ValueError(
                    f"Candidate {index} has codes of type {array.dtype}{f' in {name!r}' if name else ''}: "
                    "give integer codes on common scales."
                )
        mine = [(name, array.shape, array.dtype) for name, array in named.items()]
        if form is None:
            form = mine
        elif mine != form:
            raise ValueError(
                f"Candidate {index} has codes of other names, shapes or types than candidate 0: "
                "give candidates of one network and one quantizer."
            )
        content = blake2b(digest_size=32)
        for array in named.values():
            content.update(np.ascontiguousarray(array).data)
        first.setdefault(content.digest(), index)
    return tuple(first.values())


def leading_candidates(moments: LossMoments, number: int) -> tuple[int, ...]:
    """The best candidate and the `number` competitors with the smallest pairwise r, from public records.

    Their losses are what a federated release of r_Q tells (`LossRelease`): the best is its reference.

    Parameters
    ----------
    moments : LossMoments
        On PUBLIC records; choosing by private losses would be a release for every candidate.
    number : int
        q >= 1, competitors wanted; fewer are returned where there are fewer.

    Returns
    -------
    tuple of int
        The best, then competitors by increasing r.

    Raises
    ------
    ValueError
        When r_Q is undefined on these records.
    """
    number = whole("number", number, minimum=1)
    indicator = membership_indicator(moments)
    if indicator.runner_up is None:
        raise ValueError(f"No pair of candidates leads: {indicator.statement}")
    order = np.argsort(
        np.array(indicator.rates), kind="stable"
    )  # NaN, candidates that are no competitors, last
    competitors = [int(k) for k in order if not np.isnan(indicator.rates[k])]
    return (indicator.best, *competitors[:number])
