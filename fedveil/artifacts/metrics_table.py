"""What was measured each round, as a table: one row a round, one column a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["metrics_table"]

Metric = bool | int | float | str | None


def metrics_table(rounds: Sequence[Mapping[str, Metric]]) -> pa.Table:
    """Make the table of metrics by round, columns in the order in which they first appear.

    Parameters
    ----------
    rounds : sequence of mappings
        One mapping a round; a metric that a round lacks is null there.

    Raises
    ------
    ValueError
        If a metric mixes numbers with text, or has a value that is neither.
    """
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rounds for name in row))
    columns = {name: _column(name, [row.get(name) for row in rounds]) for name in names}
    return pa.table(columns)


def _column(name: str, values: list[Metric]) -> pa.Array:
    import pyarrow as pa

    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    found = {_type(value) for value in plain} - {pa.null()}
    if found == {pa.int64(), pa.float64()}:
        found = {pa.float64()}  # a metric that happens to be whole in one round
    if len(found) > 1 or None in found:
        raise ValueError(
            f"metric {name!r} must be all numbers, all truth values or all text, got {plain!r:.200}."
        )
    return pa.array(plain, type=found.pop() if found else pa.float64())


def _type(value: object) -> pa.DataType | None:
    import pyarrow as pa

    if value is None:
        return pa.null()
    # bool first: it is an int too
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return next((kinds[kind] for kind in kinds if isinstance(value, kind)), None)
