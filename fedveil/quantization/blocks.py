"""Which weights share a scale: an array cut into blocks, a tensor, a channel or a group of a channel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["GRANULARITIES", "Blocks", "Granularity"]

Granularity = Literal["tensor", "channel", "group"]
"""``tensor``: one block; ``channel``: one for each index of axis 0; ``group``: runs of weights of a channel."""

GRANULARITIES: tuple[str, ...] = get_args(Granularity)

_Array = NDArray[Any]


@dataclass(frozen=True)
class Blocks:
    """The blocks of an array of one shape.

    A channel is a row: the weights with one index of axis 0, in C order. An array with fewer than two dimensions is
    one row. A group is ``length`` consecutive weights of a row; the last one of each row may be shorter.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array; every side at least 1.
    granularity : {"tensor", "channel", "group"}
    group_size : int or None
        Weights in a group, for granularity "group"; a row with fewer is one group.

    Notes
    -----
    Blocks of equal length form one 2-dimensional piece, so an array has at most two pieces: the whole blocks, and the
    shorter last group of every row.
    """

    shape: tuple[int, ...]
    granularity: Granularity
    group_size: int | None

    @property
    def num_rows(self) -> int:
        """Rows: 1 for a whole tensor, else channels."""
        return 1 if self.granularity == "tensor" or len(self.shape) < 2 else self.shape[0]

    @property
    def num_columns(self) -> int:
        """Weights in a row."""
        return math.prod(self.shape) // self.num_rows

    @property
    def length(self) -> int:
        """Weights in a whole block."""
        return self.num_columns if self.group_size is None else min(self.group_size, self.num_columns)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """(rows, blocks in a row): the shape of an array with one value for each block."""
        return self.num_rows, -(-self.num_columns // self.length)

    def split(self, array: _Array) -> list[_Array]:
        """Cut an array of this shape into pieces (blocks, weights)."""
        rows = array.reshape(self.num_rows, self.num_columns)
        whole = self._whole_blocks * self.length
        pieces = [rows[:, :whole].reshape(-1, self.length)]
        return pieces if whole == self.num_columns else [*pieces, rows[:, whole:]]

    def join(self, pieces: Sequence[_Array]) -> _Array:
        """Put pieces together again; undoes :meth:`split`."""
        return self._side_by_side(pieces).reshape(self.shape)

    def split_grid(self, values: _Array) -> list[_Array]:
        """Cut an array of :attr:`grid_shape` as :meth:`split` cuts the weights: one vector (blocks,) a piece."""
        whole = self._whole_blocks
        vectors = [values[:, :whole].reshape(-1)]
        return vectors if whole == values.shape[1] else [*vectors, values[:, whole:].reshape(-1)]

    def join_grid(self, vectors: Sequence[_Array]) -> _Array:
        """Put the vectors of all pieces together; undoes :meth:`split_grid`."""
        return self._side_by_side(vectors)

    def repeated(self, count: int) -> Blocks:
        """The blocks of so many arrays of this shape, one after the other."""
        # rows of one array after rows of another: a whole tensor is a channel there
        inner: Granularity = "channel" if self.group_size is None else "group"
        return Blocks((count * self.num_rows, self.num_columns), inner, self.group_size)

    @property
    def _whole_blocks(self) -> int:
        return self.num_columns // self.length

    def _side_by_side(self, parts: Sequence[_Array]) -> _Array:
        return np.concatenate([part.reshape(self.num_rows, -1) for part in parts], axis=1)
