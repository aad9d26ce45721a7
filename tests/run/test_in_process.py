"""The in-process Grid: Flower's semantics, without waiting for anyone."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import ErrorCode, is_simulated
from fedveil.run import InProcessGrid


def client(train: Callable[[Message, Context], Message]) -> ClientApp:
    """A ClientApp with this train function."""
    app = ClientApp()
    app.train()(train)
    return app


def request(node: int, group: str = "1", value: float = 0.0) -> Message:
    """A train message with one array."""
    record = RecordDict({"arrays": ArrayRecord([np.full(3, value)])})
    return Message(record, dst_node_id=node, message_type="train", group_id=group)


def add_one(message: Message, context: Context) -> Message:
    """Add one to the model."""
    arrays = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}),
        reply_to=message,
    )


def test_flowers_own_strategy_runs_on_it():
    grid = InProcessGrid(client(add_one), num_nodes=4)
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=3)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [3.0, 3.0, 3.0]
    assert grid.rounds_without_reply == ()


def test_a_node_knows_its_partition_and_keeps_its_state():
    def count(message: Message, context: Context) -> Message:
        seen = context.state["seen"]["times"] + 1 if "seen" in context.state else 1
        context.state["seen"] = MetricRecord({"times": seen})
        values = {
            "times": seen,
            "partition": context.node_config["partition-id"],
            "rate": context.run_config["rate"],
        }
        return Message(RecordDict({"found": ConfigRecord(values)}), reply_to=message)

    grid = InProcessGrid(client(count), num_nodes=3, run_config={"rate": 0.5})
    nodes = grid.get_node_ids()
    for times in (1, 2):
        replies = grid.send_and_receive([request(node) for node in nodes])
        found = [dict(reply.content["found"]) for reply in replies]
        assert found == [{"times": times, "partition": index, "rate": 0.5} for index in range(3)]


def test_node_ids_are_the_same_every_time_and_not_in_partition_order():
    ids = [list(InProcessGrid(client(add_one), num_nodes=20).get_node_ids()) for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 20
    assert ids[0] != sorted(ids[0])
    assert all(0 < node < 2**63 for node in ids[0])


def test_replies_come_from_their_nodes_in_the_order_asked_for():
    for reverse in (False, True):
        grid = InProcessGrid(client(add_one), num_nodes=3, reverse_replies=reverse)
        nodes = list(grid.get_node_ids())
        sources = [reply.metadata.src_node_id for reply in grid.send_and_receive([request(n) for n in nodes])]
        assert sources == (nodes[::-1] if reverse else nodes)


def test_a_client_cannot_change_what_other_clients_get():
    def greedy(message: Message, context: Context) -> Message:
        reply = add_one(message, context)
        message.content.pop("arrays")
        return reply

    grid = InProcessGrid(client(greedy), num_nodes=2)
    shared = RecordDict({"arrays": ArrayRecord([np.zeros(3)])})
    messages = [Message(shared, dst_node_id=node, message_type="train") for node in grid.get_node_ids()]
    assert [reply.has_error() for reply in grid.send_and_receive(messages)] == [False, False]
    assert "arrays" in shared


def fail(message: Message, context: Context) -> Message:
    """Raise."""
    raise KeyError("column")


def leave(message: Message, context: Context) -> Message:
    """Exit."""
    raise SystemExit(1)


def say_nothing(message: Message, context: Context) -> Message:
    """Return None, which makes a SuperNode wait for ever."""
    return None  # type: ignore[return-value]


def diverge(message: Message, context: Context) -> Message:
    """Return NaN."""
    record = {"arrays": ArrayRecord([np.array([1.0, np.nan], dtype=np.float32)])}
    return Message(RecordDict(record), reply_to=message)


@pytest.mark.parametrize(
    ("train", "reason"),
    [(fail, "column"), (leave, "SystemExit"), (say_nothing, "NoneType"), (diverge, "not finite in arrays/0")],
)
def test_whatever_a_client_does_wrong_is_an_error_reply_with_the_reason(train, reason: str):
    grid = InProcessGrid(client(train), num_nodes=2)
    replies = list(grid.send_and_receive([request(node) for node in grid.get_node_ids()], timeout=3600))
    assert [reply.has_error() for reply in replies] == [True, True]
    assert replies[0].error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reason in replies[0].error.reason
    assert reason in grid.last_error
    assert replies[0].metadata.src_node_id == next(iter(grid.get_node_ids()))
    assert grid.rounds_without_reply == ("1",)


def test_integer_arrays_need_no_check_for_nan():
    def count(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"sums": ArrayRecord([np.array([1, 2], dtype=np.int64)])}), reply_to=message
        )

    grid = InProcessGrid(client(count), num_nodes=1)
    assert not next(iter(grid.send_and_receive([request(*grid.get_node_ids())]))).has_error()


def test_a_round_counts_as_answered_when_one_client_answers_well():
    def second_only(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            raise ValueError("the first fails")
        return add_one(message, context)

    grid = InProcessGrid(client(second_only), num_nodes=2)
    nodes = list(grid.get_node_ids())
    grid.send_and_receive([request(node, "1") for node in nodes])
    grid.send_and_receive([request(nodes[0], "2")])
    assert grid.rounds_without_reply == ("2",)


def test_a_message_to_nobody_comes_back_as_an_error():
    grid = InProcessGrid(client(add_one), num_nodes=1)
    reply = next(iter(grid.send_and_receive([request(42)])))
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE


def test_ctrl_c_is_not_a_clients_failure():
    def interrupted(message: Message, context: Context) -> Message:
        raise KeyboardInterrupt

    grid = InProcessGrid(client(interrupted), num_nodes=1)
    with pytest.raises(KeyboardInterrupt):
        grid.send_and_receive([request(*grid.get_node_ids())])


def test_only_the_clients_know_that_they_are_simulated():
    answers: list[bool] = []

    def ask(message: Message, context: Context) -> Message:
        answers.append(is_simulated())
        return add_one(message, context)

    grid = InProcessGrid(client(ask), num_nodes=1)
    grid.send_and_receive([request(*grid.get_node_ids())])
    assert (answers, is_simulated()) == ([True], False)


def test_no_nodes_are_refused():
    with pytest.raises(ValueError, match="at least 1 node, got 0"):
        InProcessGrid(client(add_one), num_nodes=0)
