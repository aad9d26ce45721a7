"""Meeting the nodes: all of them, each once, running the server's code, or a clear end."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedveil import wire
from fedveil.flower import ErrorCode
from fedveil.strategies import Fleet, FleetError, identify
from fedveil.strategies.fleet import require_examples

NODES = (907, 13, 550)
"""Flower's ids are random; node number i of the run is the i-th here."""


def honest_answer(index: int, scene, **changed) -> RecordDict:
    """Node i of three, with clients 2 i and 2 i + 1."""
    clients = [2 * index, 2 * index + 1]
    values = {
        wire.PARTITION: index,
        wire.PARTITIONS: 3,
        wire.CLIENTS: clients,
        wire.EXAMPLES: [scene.examples[client] for client in clients],
        **scene.code,
        **changed,
    }
    return RecordDict({wire.CONFIG: ConfigRecord({k: v for k, v in values.items() if v is not None})})


@pytest.fixture
def meet(scene):
    """Identify three nodes of which some answer otherwise; give the fleet, the grid is in ``meet.grid``."""

    def run(changed=None, *, looks=(NODES,), timeout=5.0, arrange=list) -> Fleet:
        answers = changed or {}

        def answer(message):
            index = NODES.index(message.metadata.dst_node_id)
            return answers.get(index, lambda: honest_answer(index, scene))()

        run.grid = scene.grid(answer, looks=looks, arrange=arrange)
        return identify(run.grid, expected=scene.code, timeout=timeout, say=scene.said.append)

    return run


def test_every_client_is_found_with_its_node_and_its_records(meet, scene):
    fleet = meet()
    assert fleet.node_of == {client: NODES[client // 2] for client in range(6)}
    assert fleet.examples == scene.examples
    assert fleet.clients == [0, 1, 2, 3, 4, 5]
    assert fleet.num_nodes == 3
    assert scene.said == ["3 nodes serve 6 clients, 210 records (10 to 60 a client)"]


def test_every_node_is_asked_once_and_nothing_else(meet):
    meet()
    asked = [(message.metadata.dst_node_id, message.metadata.message_type) for message in meet.grid.sent]
    assert sorted(asked) == sorted((node, wire.QUERY_IDENTIFY) for node in NODES)


def test_the_question_expires_when_its_answers_are_no_longer_waited_for(meet):
    now = time.time()
    meet(timeout=20.0)
    for request in meet.grid.sent:
        assert 20 + 5 <= request.metadata.created_at + request.metadata.ttl - now < 20 + 100


def test_it_waits_until_all_nodes_have_registered(meet):
    looks = [(), (), NODES[:1], NODES[:1], NODES[:2], NODES[:2], NODES]
    fleet = meet(looks=looks)
    assert meet.grid.looked == len(looks)
    assert fleet.num_nodes == 3


@pytest.mark.parametrize("order", [NODES, NODES[::-1], (550, 907, 13)])
def test_the_order_in_which_nodes_register_and_answer_changes_nothing(meet, order):
    fleet = meet(looks=[order[:1], order], arrange=lambda found: found[::-1])
    assert fleet == meet()
    assert list(fleet.node_of) == list(range(6))


def test_a_lone_node_serves_everyone(scene):
    content = honest_answer(
        0,
        scene,
        **{wire.PARTITIONS: 1, wire.CLIENTS: list(range(6)), wire.EXAMPLES: list(scene.examples.values())},
    )
    grid = scene.grid(lambda message: content, looks=[(77,)])
    assert identify(grid, expected=scene.code, timeout=5, say=scene.said.append).num_nodes == 1
    assert scene.said == ["1 node serves 6 clients, 210 records (10 to 60 a client)"]


def test_clients_are_grouped_by_node_in_order():
    fleet = Fleet({0: 9, 1: 4, 2: 9, 3: 4}, dict.fromkeys(range(4), 1))
    assert fleet.by_node([3, 0, 2]) == {9: [0, 2], 4: [3]}
    assert list(fleet.by_node([3, 0, 2])) == [9, 4]
    assert fleet.by_node([]) == {}


# what is refused


@pytest.mark.parametrize(("key", "value"), [("library", "0.0.9"), ("source", "beef"), ("source", None)])
def test_a_node_with_other_code_is_refused_by_number(meet, scene, key, value):
    with pytest.raises(FleetError, match=f"node 1 runs other code than the server .{key} {value!r}, here"):
        meet({1: lambda: honest_answer(1, scene, **{key: value})})


def test_a_client_on_two_nodes_is_refused(meet, scene):
    answer = honest_answer(1, scene, **{wire.CLIENTS: [1, 3]})
    with pytest.raises(
        FleetError, match="client 1 is served by two nodes; give every node its own partition-id"
    ):
        meet({1: lambda: answer})


def test_two_nodes_with_one_number_are_refused(meet, scene):
    with pytest.raises(FleetError, match="client 0 is served by two nodes"):
        meet({1: lambda: honest_answer(0, scene)})


@pytest.mark.parametrize("count", [1, 2, 4])
def test_nodes_must_agree_on_how_many_they_are_and_be_as_many(meet, scene, count):
    with pytest.raises(FleetError, match=rf"different num-partitions \(node 0: {count}; node 1-2: 3\)"):
        meet({0: lambda: honest_answer(0, scene, **{wire.PARTITIONS: count})})
    everybody = {
        index: lambda index=index: honest_answer(index, scene, **{wire.PARTITIONS: count})
        for index in range(3)
    }
    words = f"3 nodes answer, and num-partitions is {count}" if count < 3 else "3 of 4 nodes are connected"
    with pytest.raises(FleetError, match=words):
        meet(everybody, timeout=0.1)


def test_the_reason_of_a_node_is_cut(meet):
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "x" * 1_000_000)
    with pytest.raises(FleetError, match=r"cannot start: x+\.\.\.$") as refused:
        meet({1: lambda: error})
    assert len(str(refused.value)) < 600


def test_a_client_twice_on_one_node_is_refused(meet, scene):
    with pytest.raises(FleetError, match="client 2 is served by two nodes"):
        meet({1: lambda: honest_answer(1, scene, **{wire.CLIENTS: [2, 2]})})


@pytest.mark.parametrize("value", [None, "1", 1.0, -1, [1], b"1", True])
@pytest.mark.parametrize(
    ("index", "key"),
    [(0, wire.PARTITION), (1, wire.PARTITION), (0, wire.PARTITIONS), (1, wire.PARTITIONS)],
)
def test_a_node_without_its_number_is_told_how_to_give_it(meet, scene, key, value, index):
    with pytest.raises(
        FleetError, match=f"node {NODES[index]} did not say its {key}; set partition-id and num-partitions"
    ):
        meet({index: lambda: honest_answer(index, scene, **{key: value})})


MALFORMED = {
    "clients are a text": {wire.CLIENTS: "2, 3"},
    "clients are a number": {wire.CLIENTS: 2},
    "clients are texts": {wire.CLIENTS: ["2", "3"]},
    "clients are floats": {wire.CLIENTS: [2.0, 3.0]},
    "clients are booleans": {wire.CLIENTS: [True, False]},
    "a client is negative": {wire.CLIENTS: [2, -1]},
    "there are no counts": {wire.EXAMPLES: None},
    "there are too few counts": {wire.EXAMPLES: [30]},
    "there are too many counts": {wire.EXAMPLES: [30, 40, 50]},
    "there are no clients to the counts": {wire.CLIENTS: None},
    "counts are texts": {wire.EXAMPLES: ["30", "40"]},
    "counts are floats": {wire.EXAMPLES: [30.0, 40.0]},
    "counts are booleans": {wire.EXAMPLES: [True, True]},
    "a count is zero": {wire.EXAMPLES: [30, 0]},
    "a count is negative": {wire.EXAMPLES: [30, -40]},
    "counts are a number": {wire.EXAMPLES: 70},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_is_refused(meet, scene, name):
    with pytest.raises(FleetError):
        meet({1: lambda: honest_answer(1, scene, **MALFORMED[name])})


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({"config": MetricRecord({"x": 1})}), RecordDict({"answer": ConfigRecord({})})],
)
def test_a_node_that_is_not_fedveils_is_refused(meet, content):
    with pytest.raises(
        FleetError, match=r"node 13 does not run a FedVeil ClientApp: .* name FedVeil's there"
    ):
        meet({1: lambda: content})


def test_an_answer_with_neither_content_nor_error_is_refused(meet, scene):
    def empty(message):
        reply = Message(RecordDict(), reply_to=message)
        reply.__dict__["_content"] = None
        return reply

    grid = scene.grid(empty, looks=[NODES])
    with pytest.raises(FleetError):
        identify(grid, expected=scene.code, timeout=1, say=scene.said.append)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_node_that_fails_is_named_with_its_reason(meet, index):
    """The error reply comes from the SuperLink, node 1, and is still that node's."""
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "client 3 has no records")
    with pytest.raises(FleetError, match=f"node {NODES[index]} cannot start: client 3 has no records"):
        meet({index: lambda: error})


def test_nodes_that_do_not_answer_are_named(meet):
    words = r"1 of 3 nodes did not say who they are within 5 s \(node 907\): look into their logs, and raise round-t"
    with pytest.raises(FleetError, match=words):
        meet({0: lambda: None})
    with pytest.raises(FleetError, match=r"2 of 3 nodes .* \(node 13, 550\)"):
        meet({1: lambda: None, 2: lambda: None})


def test_a_fleet_that_is_as_the_server_has_counted_it_is_accepted(scene):
    require_examples(scene.fleet(), dict(reversed(scene.examples.items())))


def test_a_node_that_claims_other_numbers_of_records_than_the_server_counts_is_refused(scene):
    """It would be given nearly all the weight."""
    fleet = replace(scene.fleet(), examples={**scene.examples, 3: 2**30})
    words = r"client 3 \(of node 102\) says it has 1073741824 records, and the server's data gives it 40: give that"
    with pytest.raises(FleetError, match=words):
        require_examples(fleet, scene.examples)


def test_clients_that_nobody_serves_or_that_the_data_does_not_have_are_named(scene):
    fleet, examples = scene.fleet(), dict(scene.examples)
    with pytest.raises(
        FleetError, match=r"6 clients and the data has 8: nobody serves client 6-7; give all nodes"
    ):
        require_examples(fleet, {**examples, 6: 1, 7: 1})
    del examples[4]
    words = (
        r"6 clients and the data has 6: nobody serves client 9 and the data has no client 4 \(of node 103\)"
    )
    with pytest.raises(FleetError, match=words):
        require_examples(fleet, {**examples, 9: 1})


def test_nodes_that_never_come_end_the_wait(meet):
    with pytest.raises(FleetError, match="0 of 1 nodes are connected after 0 s; start the others"):
        meet(looks=[()], timeout=0.1)
    with pytest.raises(FleetError, match="2 of 3 nodes are connected after 0 s"):
        meet(looks=[NODES[:2]], timeout=0.1)


def test_a_fleet_without_clients_is_refused(scene):
    nothing = {wire.PARTITIONS: 1, wire.CLIENTS: [], wire.EXAMPLES: []}
    grid = scene.grid(lambda message: honest_answer(0, scene, **nothing), looks=[(77,)])
    with pytest.raises(FleetError, match="no node serves any client"):
        identify(grid, expected=scene.code, timeout=5, say=scene.said.append)
