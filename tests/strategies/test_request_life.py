"""What Flower's own SuperLink makes of a request that expires, and of replies by clocks that go wrong."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from flwr.app import Message, RecordDict
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedveil.flower import set_task_identity, stamp_message
from fedveil.strategies.request_life import live_for

WAITED = 30.0
CLOCKS = (5.0, 0.0, -300.0)  # ahead of the SuperLink's: what a registered node's may be
SUPERLINK = 1


@contextmanager
def clock(seconds: float, package: str) -> Iterator[None]:
    """Let modules of Flower read another time."""

    def shifted_now() -> datetime:
        return now() + timedelta(seconds=seconds)

    modules = [m for name, m in list(sys.modules.items()) if name.startswith(package) and hasattr(m, "now")]
    with ExitStack() as shifted:
        for module in modules:
            shifted.enter_context(mock.patch.object(module, "now", shifted_now))
        yield


@pytest.fixture(scope="module", params=["in memory", "SQL"])
def superlink(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A SuperLink's state."""
    file = tmp_path_factory.mktemp("superlink") / "state.db"
    database = FLWR_IN_MEMORY_DB_NAME if request.param == "in memory" else str(file)
    return LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory()).state()


@pytest.fixture
def state(superlink: Any) -> Any:
    """The same with a fresh node and a fresh run."""
    superlink.node = superlink.create_node("owner", "owner", os.urandom(8), 1e5)
    superlink.activate_node(superlink.node, 1e5)
    app = ("app", "1", "hash", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    superlink.run = superlink.create_run(*app)
    set_task_identity(superlink.run, node_id=SUPERLINK)
    return superlink


def sent(state: Any) -> Message:
    """A request that is waited for so long."""
    request = Message(RecordDict(), state.node, "train", group_id="1")
    live_for([request], WAITED)
    stamp_message(request, run_id=state.run, message_id=request.object_id, src_node_id=SUPERLINK)
    assert state.store_message_ins(request)
    return request


def answered(state: Any, request: Message, after: float, ahead: float) -> list[Message]:
    """What the server gets for a request to which its node replies so much later by its own clock."""
    with clock(after + ahead, "flwr.app"):
        reply = Message(RecordDict(), reply_to=request)
    stamp_message(reply, run_id=state.run, message_id=reply.object_id, src_node_id=state.node)
    with clock(after, "flwr.server."):
        state.store_message_res(reply)
        return list(state.get_message_res({request.metadata.message_id}, state.run))


@pytest.mark.parametrize("ahead", CLOCKS)
@pytest.mark.parametrize("after", [0.0, WAITED / 2, WAITED])
def test_a_reply_in_time_is_taken_whatever_a_registered_nodes_clock_says(
    state: Any, after: float, ahead: float
) -> None:
    request = sent(state)
    assert state.get_message_ins(state.node, 1)[0].metadata.message_id == request.metadata.message_id
    (reply,) = answered(state, request, after, ahead)
    assert not reply.has_error()


@pytest.mark.parametrize("ahead", CLOCKS)
def test_a_reply_long_after_is_refused_and_the_server_gets_an_error_that_names_the_request(
    state: Any, ahead: float
) -> None:
    request = sent(state)
    (reply,) = answered(state, request, WAITED + 100, ahead)
    assert reply.has_error()
    assert "expired" in reply.error.reason
    assert reply.metadata.reply_to_message_id == request.metadata.message_id


def test_a_node_that_is_late_gets_the_current_request_and_none_that_is_over(state: Any) -> None:
    sent(state)
    later = time.time() + WAITED + 100
    with (
        clock(WAITED + 100, "flwr."),
        mock.patch("fedveil.strategies.request_life.time.time", return_value=later),
    ):
        current = sent(state)
        found = state.get_message_ins(state.node, 1)
    assert [message.metadata.message_id for message in found] == [current.metadata.message_id]
