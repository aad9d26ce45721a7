"""Flower's private names that FedVeil relies on, each used as FedVeil uses it: a new Flower breaks here first."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.message_pb2 import PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.serverapp.strategy import fedavg
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedveil import flower
from fedveil.flower import (
    ErrorCode,
    ObjectPushError,
    Run,
    in_process_node,
    is_simulated,
    is_simulation_grid,
    quiet,
    set_task_identity,
    stamp_message,
)


@pytest.fixture(autouse=True)
def same_identity():
    """Leave the identity of this process as it was."""
    before = {name: vars(TaskIdentity)[name] for name in ("_run_id", "_node_id", "_task_id")}
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)


def request() -> Message:
    return Message(RecordDict({"config": ConfigRecord({"key": 1})}), dst_node_id=77, message_type="train")


def test_the_flower_installed_is_the_one_these_names_were_read_in():
    assert version("flwr").split(".")[:2] == ["1", "42"]


def test_a_process_with_an_identity_can_build_messages():
    set_task_identity(9, node_id=4, task_id=3)
    message = request()
    assert (message.metadata.run_id, message.metadata.src_node_id) == (9, 4)
    assert TaskIdentity.task_id == 3


def test_a_stamped_message_is_found_by_its_reply():
    set_task_identity(9)
    message = request()
    assert message.metadata.message_id == ""
    stamp_message(message, run_id=9, message_id="m-1", src_node_id=1)
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == "m-1"
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (77, 1)


def test_an_error_reply_carries_its_code_and_reason():
    set_task_identity(9)
    message = request()
    stamp_message(message, run_id=9, message_id="m-1", src_node_id=1)
    for code in (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.NODE_UNAVAILABLE):
        reply = Message(Error(code, "why"), reply_to=message)
        assert reply.has_error()
        assert not reply.has_content()
        assert (reply.error.code, reply.error.reason) == (code, "why")


def test_a_superlink_that_refuses_an_object_is_an_error_of_its_own():
    push = make_push_object_fn_protobuf(lambda _: PushObjectResponse(stored=False), Node(), 7, "a session")
    with pytest.raises(ObjectPushError):
        push("an object", b"")


def test_a_run_can_be_made_without_a_superlink():
    assert Run.create_empty(12).run_id == 12


def test_a_test_process_is_not_simulated():
    assert not is_simulated()


def test_a_node_of_the_in_process_grid_is_simulated():
    token = in_process_node.set(True)
    try:
        assert is_simulated()
    finally:
        in_process_node.reset(token)
    assert not is_simulated()


@pytest.mark.parametrize(("mode", "simulated"), [("worker", True), ("driver", False), (None, False)])
def test_only_a_ray_worker_is_simulated_not_who_imported_ray(monkeypatch, mode, simulated):
    ray = ModuleType("ray")
    worker = SimpleNamespace(WORKER_MODE="worker", global_worker=SimpleNamespace(mode=mode))
    ray._private = SimpleNamespace(worker=worker)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert is_simulated() is simulated


def test_the_real_ray_has_the_names_that_are_looked_at():
    """Read from its source: importing Ray takes seconds, and this process would look like one with Ray."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    source = (folder / "_private" / "worker.py").read_text(encoding="utf-8")
    assert "\nWORKER_MODE = 1\n" in source
    assert "\nglobal_worker = Worker()\n" in source


def test_flowers_in_memory_grid_is_a_simulation():
    assert is_simulation_grid(InMemoryGrid.__new__(InMemoryGrid))


def test_a_grid_that_says_it_is_in_process_is_a_simulation_and_others_are_not():
    assert is_simulation_grid(SimpleNamespace(in_process=True))
    assert not is_simulation_grid(SimpleNamespace())


def test_the_grid_of_a_deployment_is_no_simulation():
    assert not is_simulation_grid(HttpGrid(token="none"))


def test_flowers_strategies_are_quiet_only_inside():
    logger = logging.getLogger("flwr")
    level = logger.level
    with quiet():
        assert logger.getEffectiveLevel() == logging.WARNING
        assert not logger.isEnabledFor(logging.INFO)
        assert logger.isEnabledFor(logging.WARNING)
    assert logger.level == level


def test_the_level_comes_back_after_an_error():
    logger = logging.getLogger("flwr")
    level = logger.level

    def fail_quietly() -> None:
        with quiet():
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_quietly()
    assert logger.level == level


def test_flowers_strategies_log_through_the_logger_that_is_quieted():
    assert fedavg.log.__self__ is logging.getLogger("flwr")


def test_every_private_name_is_tried_here():
    assert set(flower.__all__) == {
        "ErrorCode",
        "ObjectPushError",
        "Run",
        "in_process_node",
        "is_simulated",
        "is_simulation_grid",
        "quiet",
        "set_task_identity",
        "stamp_message",
    }
