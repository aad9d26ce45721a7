"""The ledger table of cohorts has the rows, the order and the bytes of one made row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.artifacts import cohort_table, ledger_table, releases_of, sorted_ledger, table_bytes
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


def test_a_million_rows_are_made_without_an_object_each():
    template = Release(-1, 1, 0, "modulated-message", "attribute", 1.4, 3.0)
    table = cohort_table([CohortRelease(template, np.arange(1_000_000))])
    assert table.num_rows == 1_000_000
    assert len(table_bytes(table)) < 6_000_000
    assert np.array_equal(table["client"].to_numpy(), np.arange(1_000_000))
    assert releases_of(table.slice(999_999)) == ((replace(template, client=999_999),), ())
