"""What server and nodes say to each other about losses: the question for r_Q on clients' records, and its answers.

The question holds the leading candidates of every quantizer, one above the other, and how their differences are
clipped; all of it is public. In a private run an answer is one noised vector a client. For study, in a simulation, it
is the exact moments of a client's losses, from which its records' losses could be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, cast, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedveil.privacy import LossMoments
from fedveil.privacy.membership_release import LARGEST_CLIP_NORM, LEAST_CLIP_NORM
from fedveil.wire import ARRAYS, CLIENTS, CONFIG, ROUND, RUN, MalformedReply
from fedveil.wire_arrays import read_as_labelled

__all__ = [
    "MOMENTS",
    "QUERY_LOSSES",
    "LossQuery",
    "moments_from_vector",
    "moments_size",
    "moments_vector",
    "split_moments",
]

QUERY_LOSSES = "query.losses"
MOMENTS = "loss-moments"  # name of what an answer holds for study; that of a release is its ledger rows'
# keys of a question's config, beside ROUND, RUN and CLIENTS
_KIND, _PAIRS, _CLIP_NORMS = "kind", "pairs", "clip-norms"
_MOST = 1024  # quantizers
_MOST_PAIRS = 64  # of one: products of all of them are summed

Kind = Literal["released", "study"]


@dataclass(frozen=True, eq=False)
class LossQuery:
    """A question for the losses of some clients.

    Parameters
    ----------
    round : int
        Under which clients file it in their ledgers.
    run : str
    kind : {"released", "study"}
        Noised differences, or exact moments, which are not private.
    pairs : tuple of int
        Of each quantizer, how many candidates are compared with its reference.
    clip_norms : tuple of float
        Of each quantizer, Lambda: the L2 bound on a record's differences.
    candidates : mapping of str to float32 array (M, ...)
        Every parameter's values in the M = sum (q + 1) candidates: the reference and the others of the first quantizer,
        those of the next, and so on.

    Raises
    ------
    ValueError
        If a number is outside its range, or the parts do not fit together.
    """

    round: int
    run: str
    kind: Kind
    pairs: tuple[int, ...]
    clip_norms: tuple[float, ...]
    candidates: Mapping[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        """Check what would be asked."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind = {self.kind!r} must be one of {', '.join(get_args(Kind))}.")
        if type(self.round) is not int or self.round < 1 or not self.run:
            raise ValueError(
                f"round = {self.round!r} of run {self.run!r}: give a round from 1 and a run's name."
            )
        if not 0 < len(self.pairs) == len(self.clip_norms) <= _MOST:
            raise ValueError(
                f"{len(self.pairs)} numbers of pairs and {len(self.clip_norms)} clip norms: give one of each a "
                "quantizer."
            )
        if any(type(pairs) is not int or not 1 <= pairs <= _MOST_PAIRS for pairs in self.pairs):
            raise ValueError(f"pairs = {list(self.pairs)} must be whole numbers from 1 to {_MOST_PAIRS}.")
        if any(
            type(norm) is not float or not LEAST_CLIP_NORM <= norm <= LARGEST_CLIP_NORM
            for norm in self.clip_norms
        ):
            raise ValueError(
                f"clip-norms = {list(self.clip_norms)} must be numbers from {LEAST_CLIP_NORM:g} to "
                f"{LARGEST_CLIP_NORM:g}."
            )
        shapes = {name: array.shape for name, array in self.candidates.items()}
        if not shapes or any(shape[:1] != (self.num_candidates,) for shape in shapes.values()):
            raise ValueError(f"the arrays do not hold {self.num_candidates} candidates each: {shapes}.")
        if any(array.dtype != np.float32 for array in self.candidates.values()):
            raise ValueError("the candidates are not of type float32.")

    @property
    def digest(self) -> str:
        """What tells this question from any other."""
        hashed = blake2b(repr((self.kind, self.pairs, self.clip_norms)).encode(), digest_size=16)
        for name, array in self.candidates.items():
            hashed.update(name.encode() + b"\0" + np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()

    @property
    def num_candidates(self) -> int:
        """M, over all quantizers."""
        return sum(self.pairs) + len(self.pairs)

    def request(self, clients: Sequence[int]) -> RecordDict:
        """The content of the message that asks these clients of one node."""
        config = ConfigRecord(
            {
                ROUND: self.round,
                RUN: self.run,
                CLIENTS: list(clients),
                _KIND: self.kind,
                _PAIRS: list(self.pairs),
                _CLIP_NORMS: list(self.clip_norms),
            }
        )
        arrays = {name: Array(np.asarray(value, order="C")) for name, value in self.candidates.items()}
        return RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: config})

    @classmethod
    def read(cls, content: RecordDict) -> tuple[LossQuery, tuple[int, ...]]:
        """The question in a message, and the clients that are asked.

        Raises
        ------
        ValueError
            If something is missing or is not what it must be.
        """
        arrays, config = content.get(ARRAYS), content.get(CONFIG)
        if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
            raise ValueError(
                f"a request for losses needs an ArrayRecord {ARRAYS!r} and a ConfigRecord {CONFIG!r}."
            )
        missing = [key for key in (ROUND, RUN, CLIENTS, _KIND, _PAIRS, _CLIP_NORMS) if key not in config]
        if missing:
            raise ValueError(f"a request for losses needs {missing[0]!r} in its {CONFIG!r} record.")
        clients, pairs, norms = config[CLIENTS], config[_PAIRS], config[_CLIP_NORMS]
        if not all(isinstance(value, list) for value in (clients, pairs, norms)):
            raise ValueError(f"{CLIENTS}, {_PAIRS} and {_CLIP_NORMS} of a request for losses must be lists.")
        query = cls(
            cast(int, config[ROUND]),
            str(config[RUN]),
            cast(Kind, config[_KIND]),
            tuple(cast("list[int]", pairs)),
            tuple(cast("list[float]", norms)),
            {
                name: read_as_labelled(name, array, np.dtype(np.float32), finite=False)
                for name, array in arrays.items()
            },
        )
        return query, tuple(cast("list[int]", clients))


def moments_size(num_candidates: int) -> int:
    """Numbers in :func:`moments_vector`."""
    return num_candidates * (num_candidates - 1) + num_candidates


def moments_vector(moments: LossMoments) -> NDArray[np.float64]:
    """Exact moments as one vector: gaps and scatter of the pairs (j, k), j < k, then the rounding of each candidate."""
    upper = np.triu_indices(moments.num_candidates, 1)
    return np.concatenate([moments.gaps[upper], moments.scatter[upper], moments.rounding])


def moments_from_vector(vector: NDArray[np.float64], num_candidates: int, num_records: int) -> LossMoments:
    """The moments that :func:`moments_vector` has made a vector of.

    Raises
    ------
    MalformedReply
        If the vector has another length, or its numbers are no moments.
    """
    if vector.shape != (moments_size(num_candidates),):
        raise MalformedReply(
            f"{vector.size} numbers are not the moments of {num_candidates} candidates' losses."
        )
    upper, count = np.triu_indices(num_candidates, 1), num_candidates * (num_candidates - 1) // 2
    gaps, scatter = np.zeros((num_candidates, num_candidates)), np.zeros((num_candidates, num_candidates))
    gaps[upper], scatter[upper] = vector[:count], vector[count : 2 * count]
    try:
        return LossMoments(num_records, gaps - gaps.T, scatter + scatter.T, vector[2 * count :])
    except ValueError as error:
        raise MalformedReply(f"they are no moments of losses: {error}") from error


def split_moments(
    vector: NDArray[np.float64], pairs: Sequence[int], num_records: int
) -> tuple[LossMoments, ...]:
    """The moments of each quantizer's candidates, from their vectors one after another.

    Raises
    ------
    MalformedReply
        As :func:`moments_from_vector`.
    """
    ends = np.cumsum([moments_size(q + 1) for q in pairs])[:-1]
    parts = np.split(vector, ends)
    return tuple(moments_from_vector(part, q + 1, num_records) for part, q in zip(parts, pairs, strict=True))
