"""Releases as a table whose bytes depend on its rows alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from fedveil.artifacts import (
    DamagedFile,
    ledger_table,
    releases_of,
    sorted_ledger,
    table_bytes,
    table_from_bytes,
)
from fedveil.artifacts.metrics_table import metrics_table
from fedveil.privacy import Release

COLUMNS = "client round step release relation sensitivity sigma mu chosen sampling_rate source"


def releases() -> list[Release]:
    rows = []
    for round in range(1, 4):
        for client in range(20):
            rows.append(Release(client, round, 0, "gradient", "attribute", 0.1 / 3, 1 / 7))
            rows.append(Release(client, round, 0, "gradient", "record", 0.2 / 3, 1 / 7, "released"))
    rows.append(Release(-1, 3, 0, "sum", "client", 1.0, 2.0, sampling_rate=0.25))
    return rows


def test_the_table_has_the_named_columns_and_no_other() -> None:
    assert ledger_table(releases()).schema.names == COLUMNS.split()


def test_rows_come_back_to_the_bit_with_their_source_and_order() -> None:
    rows = releases()
    arrived, assumed = rows[::-2], rows[1::2]
    table = table_from_bytes(table_bytes(ledger_table(arrived, assumed)), "ledger.parquet")
    assert releases_of(table) == (tuple(arrived), tuple(assumed))


def test_mu_is_sensitivity_over_sigma_and_null_where_records_were_sampled() -> None:
    table = ledger_table(releases()).to_pydict()
    assert table["mu"][0] == pytest.approx(0.7 / 3, rel=1e-15)
    assert table["mu"][1] == pytest.approx(1.4 / 3, rel=1e-15)
    assert table["mu"][-1] is None


def test_sorted_bytes_do_not_depend_on_the_order_of_replies() -> None:
    rows = releases()
    expected = table_bytes(sorted_ledger(ledger_table(rows, rows[:3])))
    generator = np.random.default_rng(1)
    for _ in range(5):
        shuffled = [rows[i] for i in generator.permutation(len(rows))]
        again = table_bytes(sorted_ledger(ledger_table(shuffled, rows[2::-1])))
        assert again == expected


def test_another_process_writes_the_same_bytes() -> None:
    code = """
import sys
from fedveil.artifacts import ledger_table, table_bytes
from fedveil.privacy import Release
table = ledger_table([Release(3, 1, 0, "gradient", "record", 0.1, 0.3)])
sys.stdout.buffer.write(table_bytes(table))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == table_bytes(ledger_table([Release(3, 1, 0, "gradient", "record", 0.1, 0.3)]))


def test_an_empty_ledger_is_a_table_without_rows() -> None:
    table = table_from_bytes(table_bytes(sorted_ledger(ledger_table([]))), "ledger.parquet")
    assert table.schema.names == COLUMNS.split()
    assert releases_of(table) == ((), ())


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_named(keep: int) -> None:
    with pytest.raises(DamagedFile, match=r"a/ledger.parquet is truncated"):
        table_from_bytes(table_bytes(ledger_table(releases()))[:keep], "a/ledger.parquet")


def test_a_table_of_other_columns_or_values_is_refused() -> None:
    with pytest.raises(DamagedFile, match="a ledger has the columns"):
        releases_of(pa.table({"client": [1]}))
    table = ledger_table(releases())
    wrong = table.set_column(table.schema.get_field_index("sigma"), "sigma", pa.array([-1.0] * len(table)))
    with pytest.raises(DamagedFile, match="sigma"):
        releases_of(wrong)


def test_metrics_become_typed_columns_with_nulls_where_a_round_lacks_one() -> None:
    table = metrics_table(
        [{"round": 1, "accuracy": 1, "all": True}, {"round": np.int64(2), "accuracy": 0.5, "note": "slow"}]
    )
    assert table.schema.names == ["round", "accuracy", "all", "note"]
    assert table.to_pydict() == {
        "round": [1, 2],
        "accuracy": [1.0, 0.5],
        "all": [True, None],
        "note": [None, "slow"],
    }
    assert table.schema.field("round").type == pa.int64()
    assert len(table_from_bytes(table_bytes(metrics_table([])), "metrics.parquet")) == 0


@pytest.mark.parametrize("values", [[1.0, "a"], [True, 3], [[1.0]]])
def test_a_metric_of_mixed_kinds_is_named(values: list[object]) -> None:
    with pytest.raises(ValueError, match="metric 'loss' must be all numbers"):
        metrics_table([{"loss": value} for value in values])
