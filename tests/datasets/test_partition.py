"""Who holds which record."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from fedveil.datasets.partition import Partition, partition, sizes_line
from fedveil.datasets.schema import Records
from fedveil.datasets.split import split_rows

Parts = Partition | list[np.ndarray]


def records(num: int = 600, num_classes: int = 4, clients: int | None = None) -> Records:
    labels = np.random.default_rng(0).integers(0, num_classes, num)
    ids = None if clients is None else np.arange(num) * 7 % clients
    return Records(np.zeros((num, 2), np.float32), labels.astype(np.int64), ids)


def assert_covers(parts: Parts, num: int) -> None:
    assert all(part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num))


def equal(left: Parts, right: Parts) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "classes"])
def test_a_partition_covers_every_record_once_and_follows_the_seed(scheme: str) -> None:
    parts = partition(records(), scheme, 7, 1.0, seed=3)  # type: ignore[arg-type]
    assert len(parts) == 7
    assert_covers(parts, 600)
    assert equal(parts, partition(records(), scheme, 7, 1.0, seed=3))  # type: ignore[arg-type]
    assert not equal(parts, partition(records(), scheme, 7, 1.0, seed=4))  # type: ignore[arg-type]


def test_iid_parts_differ_by_at_most_one_record_and_are_not_blocks() -> None:
    parts = partition(records(), "iid", 7, seed=0)
    assert sorted(map(len, parts)) == [85, 85, 86, 86, 86, 86, 86]
    assert all(np.diff(part).max() > 1 for part in parts)


def test_iid_parts_do_not_depend_on_the_labels() -> None:
    others = Records(np.zeros((600, 2), np.float32), np.zeros(600, np.int64))
    assert equal(partition(records(), "iid", 5, seed=2), partition(others, "iid", 5, seed=2))


def test_dirichlet_deals_what_flowers_partitioner_deals() -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    from datasets import Dataset

    plain = DirichletPartitioner(5, "label", 0.5, min_partition_size=1, seed=11)
    plain.dataset = Dataset.from_dict({"row": list(range(600)), "label": records().labels.tolist()})
    expected = [np.sort(np.array(plain.load_partition(client)["row"][:])) for client in range(5)]
    assert equal(partition(records(), "dirichlet", 5, 0.5, seed=11), expected)


def test_a_small_alpha_gives_clients_fewer_classes_than_a_large_one() -> None:
    def share_of_largest_class(alpha: float) -> float:
        parts = partition(records(), "dirichlet", 6, alpha, seed=0)
        labels = records().labels
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert share_of_largest_class(0.1) > 0.6
    assert share_of_largest_class(1000.0) < 0.4


def test_a_partition_is_the_same_in_another_process() -> None:
    code = (
        "import numpy as np; from fedveil.datasets.schema import Records;"
        "from fedveil.datasets.partition import partition;"
        "r = Records(np.zeros((90, 1), np.float32), np.arange(90) % 3, np.arange(90) % 4);"
        "print([p.tolist() for s in ('iid', 'dirichlet', 'classes') for p in partition(r, s, 4, 0.7, seed=5)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    here = Records(np.zeros((90, 1), np.float32), np.arange(90) % 3, np.arange(90) % 4)
    schemes = ("iid", "dirichlet", "classes")
    parts = [part for scheme in schemes for part in partition(here, scheme, 4, 0.7, seed=5)]  # type: ignore[arg-type]
    assert done.stdout.strip() == str([part.tolist() for part in parts])


def test_natural_parts_follow_the_client_ids_in_increasing_order() -> None:
    owned = Records(np.zeros((6, 1), np.float32), np.zeros(6, np.int64), np.array([40, 7, 40, 9, 7, 40]))
    parts = partition(owned, "natural")
    assert parts.dropped == {}
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2, 5]]
    assert equal(parts, partition(owned, "natural", 3))
    assert equal(parts, partition(owned, "natural", 0))
    assert_covers(partition(records(clients=13), "natural"), 600)


def test_the_global_generators_are_left_alone() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    partition(records(), "dirichlet", 5, 0.5, seed=1)
    partition(records(), "iid", 5, seed=1)
    partition(records(), "classes", 5, seed=1)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("iid", 601), "num-clients 601 .* 600"),
        (("iid", 0), "num-clients must be at least 1"),
        (("iid", None), "num-clients must be at least 1"),
        (("dirichlet", 5, 0.0), "dirichlet-alpha must be a positive number, got 0.0"),
        (("dirichlet", 5, -1.0), "dirichlet-alpha must be a positive number"),
        (("dirichlet", 5, float("nan")), "dirichlet-alpha must be a positive number"),
        (
            ("dirichlet", 40, 0.001),
            r"Client \d+ has 0 records in the dirichlet partition.*larger dirichlet-alpha",
        ),
        (("dirichlet", 5, 1.0, 0, 120), r"Client \d+ has \d+ records in the dirichlet.*min-records is 120"),
        (("iid", 7, 1.0, 0, 86), "num-clients 7 with min-records 86 needs at least 602 records"),
        (("iid", 6, 1.0, 0, 0), "min-records must be at least 1"),
        (("iid", 6, 1.0, -1), "data-seed must be a non-negative integer"),
        (("irid", 6), "partition must be one of iid, dirichlet, classes, natural, got 'irid'; nearest: iid"),
        (("natural",), "client column"),
        (("classes", 8, 1.0, 0, 1, 5), "classes-per-client must be 1 to 4, .* got 5"),
        (("classes", 8, 1.0, 0, 1, 0), "classes-per-client must be 1 to 4, .* got 0"),
        (("classes", 3, 1.0, 0, 1, 1), "leave out 1 of the 4 classes: use at least 4 clients"),
        (("classes", 500, 1.0, 0, 1, 2), "gives some class to more clients than it has records"),
        (("classes", 601), "num-clients 601 .* 600"),
        (("classes", 8, 1.0, 0, 76), "num-clients 8 with min-records 76 needs at least 608 records"),
        (("iid", 7, 1.0, 0, 1, 2, "skip"), "small-clients must be one of error, drop, got 'skip'"),
        (("iid", 601, 1.0, 0, 2, 2, "drop"), "num-clients 601 .* 600"),
        (
            ("iid", 7, 1.0, 0, 87, 2, "drop"),
            "All 7 clients have fewer records than min-records = 87 .* most 86",
        ),
    ],
)
def test_a_partition_that_cannot_be_is_refused_by_name(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(records(), *arguments)  # type: ignore[arg-type]


def test_a_natural_client_with_too_few_records_or_another_number_of_clients_is_refused() -> None:
    owned = Records(np.zeros((5, 1), np.float32), np.zeros(5, np.int64), np.array([0, 0, 1, 2, 2]))
    with pytest.raises(
        ValueError, match="Client 1 has 1 records in the natural partition, but min-records is 2"
    ):
        partition(owned, "natural", min_records=2)
    with pytest.raises(ValueError, match=r"gives 3 clients .* num-clients = 4"):
        partition(owned, "natural", 4)


def test_each_client_of_the_classes_partition_holds_its_number_of_classes() -> None:
    labels = records(num_classes=10).labels
    for per_client in (1, 2, 3, 10):
        parts = partition(records(num_classes=10), "classes", 20, seed=1, classes_per_client=per_client)
        held = [np.unique(labels[part]) for part in parts]
        assert [len(classes) for classes in held] == [per_client] * 20
        assert all(client % 10 in classes for client, classes in enumerate(held))
        assert_covers(parts, 600)
        for digit in range(10):  # a class is cut in equal pieces among its holders
            pieces = [np.sum(labels[part] == digit) for part in parts]
            pieces = [piece for piece in pieces if piece]
            assert max(pieces) - min(pieces) <= 1


def test_classes_are_dealt_to_whom_flowers_partitioner_deals_them() -> None:
    from flwr_datasets.partitioner import PathologicalPartitioner

    from datasets import Dataset

    plain = PathologicalPartitioner(9, "label", 2, "first-deterministic", seed=11)
    plain.dataset = Dataset.from_dict({"row": list(range(600)), "label": records().labels.tolist()})
    expected = [sorted(plain.load_partition(client)["label"][:]) for client in range(9)]
    parts = partition(records(), "classes", 9, seed=11)
    assert [sorted(records().labels[part].tolist()) for part in parts] == expected


def test_a_class_is_dealt_in_random_order() -> None:
    sorted_rows = Records(np.zeros((600, 2), np.float32), np.repeat(np.arange(2), 300))
    parts = partition(sorted_rows, "classes", 4, seed=0, classes_per_client=1)
    # a contiguous piece of 150 of 300 rows would span 149
    assert all(np.ptp(part) > 250 for part in parts)


def test_too_few_clients_for_all_classes_are_refused_only_where_a_class_is_left_out() -> None:
    assert_covers(partition(records(), "classes", 1, classes_per_client=4), 600)
    for seed in range(5):
        assert_covers(partition(records(), "classes", 2, seed=seed, classes_per_client=4), 600)


def test_small_clients_are_dropped_and_told_by_the_number_they_had() -> None:
    owned = Records(np.zeros((8, 1), np.float32), np.zeros(8, np.int64), np.array([5, 5, 1, 3, 3, 3, 9, 1]))
    parts = partition(owned, "natural", min_records=2, small="drop")
    assert [part.tolist() for part in parts] == [[2, 7], [3, 4, 5], [0, 1]]
    assert parts.dropped == {3: 1}
    assert len(parts) == 3
    assert parts[0].tolist() == [2, 7]
    more = partition(owned, "natural", min_records=3, small="drop")
    assert [part.tolist() for part in more] == [[3, 4, 5]]
    assert more.dropped == {0: 2, 2: 2, 3: 1}


def test_who_is_dropped_depends_on_numbers_of_records_only() -> None:
    ids = np.random.default_rng(0).integers(0, 50, 200)
    some = Records(np.zeros((200, 1), np.float32), np.arange(200) % 2, ids)
    other = Records(np.ones((200, 1), np.float32), np.arange(200) // 100, ids)
    left, right = (partition(rows, "natural", min_records=4, small="drop") for rows in (some, other))
    assert left.dropped == right.dropped != {}
    assert equal(left, right)
    counts = np.unique(ids, return_counts=True)[1]
    assert left.dropped == {client: n for client, n in enumerate(counts) if n < 4}
    assert sum(map(len, left)) == counts[counts >= 4].sum()


def test_a_dirichlet_draw_with_empty_clients_can_drop_them() -> None:
    parts = partition(records(), "dirichlet", 40, 0.01, seed=0, small="drop")
    assert 0 in parts.dropped.values()
    assert len(parts) + len(parts.dropped) == 40
    assert_covers(parts, 600)


def test_nobody_is_dropped_where_all_have_enough() -> None:
    kept = partition(records(), "dirichlet", 5, 100.0, seed=0, min_records=3, small="drop")
    assert kept.dropped == {}
    assert equal(kept, partition(records(), "dirichlet", 5, 100.0, seed=0, min_records=3))


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ([7], "1 client with 7 records"),
        ([3, 10, 4], "3 clients with 3 / 4 / 10 records (min / median / max): 3, 10, 4"),
        ([1, 2], "2 clients with 1 / 1.5 / 2 records (min / median / max): 1, 2"),
        ([5] * 10 + [6], "11 clients with 5 / 5 / 6 records (min / median / max)"),
    ],
)
def test_the_sizes_of_clients_fit_into_a_line(sizes: list[int], line: str) -> None:
    assert sizes_line(sizes) == line


def test_no_records_cannot_be_partitioned() -> None:
    with pytest.raises(ValueError, match="no records to partition"):
        partition(records(0), "iid", 2)


def test_the_split_depends_on_the_number_of_rows_and_the_seed_alone() -> None:
    train, test = split_rows(50, 0.3, 4)
    assert len(test) == 15
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(50))
    np.testing.assert_array_equal(split_rows(50, 0.3, 4)[1], test)
    assert not np.array_equal(split_rows(50, 0.3, 5)[1], test)


@pytest.mark.parametrize(("num_rows", "fraction"), [(3, 0.1), (3, 0.9), (1, 0.5), (2, 0.25)])
def test_a_split_that_would_leave_a_part_empty_is_refused(num_rows: int, fraction: float) -> None:
    with pytest.raises(ValueError, match="leaves none"):
        split_rows(num_rows, fraction, 0)
