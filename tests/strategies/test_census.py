"""The census: all clients at one node each, all nodes with the server's code, or a clear end."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedveil import wire
from fedveil.strategies import Census, FleetError, identify_nodes

NODES = (907, 13, 550)
"""Flower's ids are random; node number i of the run is the i-th here."""
SHARES = ((0, 4), (4, 5), (9, 1))


@pytest.fixture
def meet(scene):
    """Identify three nodes of which some answer otherwise."""

    def run(changed=None, *, num_clients=10, arrange=list, looks=(NODES,), timeout=5.0) -> Census:
        def answer(message):
            index = NODES.index(message.metadata.dst_node_id)
            first, count = SHARES[index]
            values = {
                wire.PARTITION: index,
                wire.PARTITIONS: 3,
                wire.FIRST: first,
                wire.COUNT: count,
                **scene.code,
                **(changed or {}).get(index, {}),
            }
            return RecordDict({wire.CONFIG: ConfigRecord({k: v for k, v in values.items() if v is not None})})

        grid = scene.grid(answer, looks=looks, arrange=arrange)
        return identify_nodes(
            grid, expected=scene.code, num_clients=num_clients, timeout=timeout, say=scene.said.append
        )

    return run


def test_every_node_is_found_with_its_range(meet, scene):
    census = meet()
    assert census.ranges == dict(zip(NODES, SHARES, strict=True))
    assert census.num_nodes == 3
    assert scene.said == ["3 nodes serve 10 clients of one record each"]


@pytest.mark.parametrize("order", [NODES, NODES[::-1], (550, 907, 13)])
def test_the_order_in_which_nodes_register_and_answer_changes_nothing(meet, order):
    census = meet(looks=[order[:1], order], arrange=lambda found: found[::-1])
    assert list(census.ranges.items()) == list(zip(NODES, SHARES, strict=True))


def test_real_nodes_say_what_the_server_expects(town):
    grid = town.grid(3, town.plan(), looks=[(103, 101, 102)])
    census = identify_nodes(
        grid, expected=town.code, num_clients=town.num_clients, timeout=5, say=town.said.append
    )
    assert census == town.census(3)


def test_a_node_without_clients_is_no_node_of_the_run(meet):
    census = meet({1: {wire.FIRST: 4, wire.COUNT: 6}, 2: {wire.FIRST: 10, wire.COUNT: 0}})
    assert census.num_nodes == 2
    assert 550 not in census.ranges


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({1: {wire.FIRST: 3}}, "client 3 is hosted by two nodes"),
        ({1: {wire.FIRST: 0, wire.COUNT: 4}}, "client 0 is hosted by two nodes"),
        ({1: {wire.COUNT: 4}}, "no node hosts client 8"),
        ({0: {wire.COUNT: 0}}, "no node hosts clients 0 to 3"),
        ({2: {wire.COUNT: 0}}, "no node hosts client 9"),
        ({2: {wire.COUNT: 2}}, "hosts client 10, and the run has 10"),
        ({2: {wire.COUNT: 10**12}}, "hosts 1000000000000 clients from 9"),
        ({0: {wire.FIRST: -1}}, "hosts 4 clients from -1"),
        ({0: {wire.FIRST: True}}, "hosts 4 clients from True"),
        ({0: {wire.COUNT: 4.0}}, "hosts 4.0 clients"),
        ({0: {wire.COUNT: None}}, "hosts None clients"),
        ({2: {wire.SOURCE: "beef"}}, "node 2 runs other code than the server"),
        ({2: {wire.LIBRARY: None}}, "node 2 runs other code than the server"),
    ],
)
def test_anything_but_all_clients_once_is_refused(meet, changed, words):
    with pytest.raises(FleetError, match=words):
        meet(changed)


def test_a_missing_node_is_not_waited_for_for_ever(meet):
    with pytest.raises(FleetError, match="2 of 3 nodes are connected"):
        meet(looks=[NODES[:2]], timeout=0.1)


def test_clients_are_grouped_by_node_in_order():
    census = Census({7: (4, 6), 5: (0, 4), 6: (10, 0)}, 10)
    groups = census.by_node(np.array([1, 3, 4, 9]))
    assert [(node, group.tolist()) for node, group in groups.items()] == [(5, [1, 3]), (7, [4, 9])]
    assert list(census.by_node(np.array([8]))) == [7]
    assert census.by_node(np.zeros(0, np.int64)) == {}


def test_a_million_clients_are_no_objects():
    census = Census({node: (node * 62_500, 62_500) for node in range(16)}, 1_000_000)
    groups = census.by_node(np.arange(1_000_000))
    assert all(group.base is not None for group in groups.values())  # views of one array
    assert sum(map(len, groups.values())) == 1_000_000
