"""The census of sites: every node says how many records it has, and the server numbers them; or a clear end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedveil import wire
from fedveil.strategies import Census, FleetError, identify_sites

NODES = (907, 13, 550)
"""Flower's ids are random; site number i of the run is the i-th here."""
COUNTS = (4, 5, 2)


@pytest.fixture
def meet(scene: Any):
    """Identify three sites of which some answer otherwise."""

    def run(changed: Any = None, *, arrange: Any = list, looks: Any = (NODES,)) -> Census:
        def answer(message: Any) -> RecordDict:
            index = NODES.index(message.metadata.dst_node_id)
            values = {
                wire.PARTITION: index,
                wire.PARTITIONS: 3,
                wire.COUNT: COUNTS[index],
                wire.SCHEMA: "d1ge57",
                **scene.code,
                **(changed or {}).get(index, {}),
            }
            return RecordDict({wire.CONFIG: ConfigRecord({k: v for k, v in values.items() if v is not None})})

        grid = scene.grid(answer, looks=looks, arrange=arrange)
        return identify_sites(grid, expected=scene.code, schema="d1ge57", timeout=5.0, say=scene.said.append)

    return run


@pytest.mark.parametrize("order", [NODES, NODES[::-1], (550, 907, 13)])
def test_clients_are_numbered_by_partitions_in_whatever_order_nodes_register_and_answer(
    meet: Any, scene: Any, order: Any
):
    census = meet(looks=[order[:1], order], arrange=lambda found: found[::-1])
    assert list(census.ranges.items()) == [(907, (0, 4)), (13, (4, 5)), (550, (9, 2))]
    assert census.num_clients == 11
    assert [census.origin(node) for node in NODES] == [0, 4, 9]
    assert scene.said == ["3 sites bring 11 clients of one record each"]
    groups = census.by_node(np.array([1, 3, 4, 10]))
    assert {node: group.tolist() for node, group in groups.items()} == {907: [1, 3], 13: [4], 550: [10]}


def test_blocks_of_a_share_of_one_data_set_begin_at_the_first_of_all_clients():
    assert Census({7: (4, 6), 5: (0, 4)}, 10).origin(7) == 0


def test_a_site_of_one_record_is_told_by_name(meet: Any, scene: Any):
    meet({1: {wire.COUNT: 1}})
    assert scene.said[0].startswith(
        "node 1 has one record: the sums that it sends are that record's own message"
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({1: {wire.COUNT: 0}}, "node 1 says that it has 0 records; a site has 1 to"),
        ({2: {wire.COUNT: 10**12}}, "node 2 says that it has 1000000000000 records"),
        ({2: {wire.COUNT: -1}}, "node 2 says that it has -1 records"),
        ({0: {wire.COUNT: True}}, "node 0 says that it has True records"),
        ({0: {wire.COUNT: 4.0}}, "node 0 says that it has 4.0 records"),
        ({0: {wire.COUNT: None}}, "node 0 says that it has None records"),
        ({1: {wire.SCHEMA: "other"}}, "node 1 describes its records in another way than the server"),
        ({1: {wire.SCHEMA: None}}, "node 1 describes its records in another way than the server"),
        (
            {1: {wire.PARTITION: 0}},
            "node 0 is there twice: give every node its own partition-id, from 0 to 2",
        ),
        ({0: {wire.PARTITION: 2}}, "node 2 is there twice"),
        ({2: {wire.PARTITION: 3}}, "node 3 is there and node 2 is not"),
        *(
            (
                {node: {wire.PARTITIONS: 2}},
                f"different num-partitions .*node {node}: 2.*the number of all nodes",
            )
            for node in range(3)
        ),
        ({0: {wire.PARTITIONS: 1}, 2: {wire.PARTITIONS: 5}}, r"\(node 0: 1; node 1: 3; node 2: 5\)"),
        ({node: {wire.PARTITIONS: 1} for node in range(3)}, "3 nodes answer, and num-partitions is 1"),
        ({2: {wire.SOURCE: "beef"}}, "node 2 runs other code than the server"),
    ],
)
def test_anything_but_every_site_once_with_records_as_described_is_refused_by_name(
    meet: Any, changed: Any, words: str
):
    with pytest.raises(FleetError, match=words):
        meet(changed)


@pytest.mark.parametrize("early", [NODES[:2], NODES[1:], NODES[::2]])
def test_a_site_is_not_left_out_because_one_node_says_that_there_are_fewer(meet: Any, early: Any):
    for node in (NODES.index(found) for found in early):
        with pytest.raises(FleetError, match=f"node {node}: 2"):
            meet({node: {wire.PARTITIONS: 2}}, looks=[early])


@pytest.mark.parametrize("key", [wire.SCHEMA, wire.COUNT, wire.SOURCE])
def test_what_a_node_writes_is_cut_in_an_error(meet: Any, key: str):
    with pytest.raises(FleetError, match=r"node 1 .*xxx[.]{3}") as refused:
        meet({1: {key: "x" * 1_000_000}})
    assert len(str(refused.value)) < 500
