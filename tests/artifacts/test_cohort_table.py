"""The ledger table of cohorts has the rows, the order and the bytes of one made row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.artifacts import (
    DamagedFile,
    cohort_table,
    cohorts_of,
    ledger_table,
    sorted_ledger,
    table_bytes,
    table_from_bytes,
)
from fedveil.privacy import CohortRelease, Release

members = st.sets(st.integers(0, 9), max_size=6).map(
    lambda clients: np.array(sorted(clients), dtype=np.int64)
)
cohorts = st.builds(
    CohortRelease,
    st.builds(
        Release,
        st.just(-1),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from(["modulated-message", "range-message"]),
        st.sampled_from(["record", "attribute"]),
        st.sampled_from([1.0, 0.1]),
        st.sampled_from([2.0, 0.7]),
        st.sampled_from(["fixed", "released"]),
    ),
    members,
)


def by_rows(arrived: list[CohortRelease], assumed: list[CohortRelease]) -> pa.Table:
    return sorted_ledger(
        ledger_table((row for one in arrived for row in one), (row for one in assumed for row in one))
    )


@settings(deadline=None)
@given(st.lists(cohorts, max_size=5), st.lists(cohorts, max_size=3))
def test_the_table_is_the_sorted_table_of_all_rows(arrived, assumed):
    table = cohort_table(arrived, assumed)
    assert table.schema == ledger_table([]).schema
    assert table_bytes(table) == table_bytes(by_rows(arrived, assumed).combine_chunks())


@settings(deadline=None)
@given(st.lists(cohorts, max_size=5), st.lists(cohorts, max_size=3))
def test_cohorts_come_back_with_every_row(arrived, assumed):
    table = table_from_bytes(table_bytes(cohort_table(arrived, assumed)), "ledger.parquet")
    back = cohorts_of(table)
    assert cohort_table(*back).equals(cohort_table(arrived, assumed))
    # alike rows are one cohort, and more only where a client has a row twice
    kinds = {(source, one.release) for source in (0, 1) for one in back[source]}
    repeats = sum(len(part) for part in back) - len(kinds)
    rows = [row for part in back for one in part for row in one]
    assert (repeats == 0) or len(set(rows)) < len(rows)


def test_a_million_rows_are_made_and_read_without_an_object_each():
    template = Release(-1, 1, 0, "modulated-message", "attribute", 1.4, 3.0)
    table = cohort_table([CohortRelease(template, np.arange(1_000_000))])
    assert table.num_rows == 1_000_000
    assert len(table_bytes(table)) < 6_000_000
    ((only,), ()) = cohorts_of(table)
    assert only.release == template
    assert np.array_equal(only.clients, np.arange(1_000_000))


def test_another_table_is_no_ledger():
    with pytest.raises(DamagedFile, match="a ledger has the columns"):
        cohorts_of(pa.table({"client": [1]}))
    row = Release(3, 1, 0, "gradient", "record", 0.1, 0.7)
    wrong = ledger_table([row]).set_column(6, "sigma", pa.array([-1.0]))
    with pytest.raises(DamagedFile, match="is not a release"):
        cohorts_of(wrong)
