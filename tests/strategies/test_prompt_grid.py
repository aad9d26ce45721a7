"""Replies are fetched as they come, and waiting ends by a clock that cannot be set."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedveil.flower import ObjectPushError, Run, set_task_identity, stamp_message
from fedveil.strategies import prompt_grid
from fedveil.strategies.prompt_grid import PromptGrid


class SlowGrid(Grid):
    """A Grid on which the reply to the k-th message is there after ``after[k]`` seconds of the test's clock."""

    def __init__(self, after: list[float], refused: frozenset[int] = frozenset()) -> None:
        self.after, self.refused, self.now, self.sent = after, refused, 100.0, {}
        self.starts: dict[int, list[float]] = {}
        self.looks: list[tuple[float, set[str]]] = []

    def set_run(self, run: Run) -> None:
        raise AssertionError("not part of a test")

    @property
    def run(self) -> Run:
        return Run.create_empty(7)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated")

    def get_node_ids(self) -> Iterable[int]:
        return [3, 4]

    def get_nodes(self) -> Iterable[Any]:
        """Nodes, and when each was last started."""
        starts = {
            node: max([when for when in self.starts.get(node, ()) if when <= self.now], default=0)
            for node in (3, 4)
        }
        return [SimpleNamespace(node_id=node, last_activated_at=str(when)) for node, when in starts.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for index, message in enumerate(messages):
            stamp_message(message, run_id=1, message_id=f"m{index}", src_node_id=1)
            self.sent[f"m{index}"] = message
        # Flower gives None for what the SuperLink refuses, and fails when it is asked for the reply to that
        return [None if int(name[1:]) in self.refused else name for name in self.sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks.append((self.now, set(message_ids)))
        assert None not in self.looks[-1][1]
        there = [name for name in sorted(message_ids) if self.now - 100 >= self.after[int(name[1:])]]
        return [Message(RecordDict({"a": ConfigRecord()}), reply_to=self.sent[name]) for name in there]

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise AssertionError("the Grid's own waiting is what is replaced")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a SlowGrid, whose clock alone passes when somebody sleeps."""

    def make(after: list[float], refused: frozenset[int] = frozenset()) -> SlowGrid:
        set_task_identity(1)
        grid = SlowGrid(after, refused)
        monkeypatch.setattr(prompt_grid.time, "monotonic", lambda: grid.now)
        monkeypatch.setattr(
            prompt_grid.time, "sleep", lambda seconds: setattr(grid, "now", grid.now + seconds)
        )
        monkeypatch.setattr(prompt_grid.time, "time", lambda: pytest.fail("a date can be set"))
        return grid

    return make


def messages(count: int) -> list[Message]:
    return [
        Message(RecordDict({"a": ConfigRecord()}), dst_node_id=node + 3, message_type="train")
        for node in range(count)
    ]


def test_it_stops_at_the_first_look_at_which_every_reply_is_there(slow: Any) -> None:
    grid = slow([0.0, 1.1])
    replies = list(PromptGrid(grid, every=0.5).send_and_receive(messages(2), timeout=600))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ["m0", "m1"]
    assert grid.now == 101.5
    assert [asked for _, asked in grid.looks] == [{"m0", "m1"}, {"m1"}, {"m1"}, {"m1"}]


def test_what_came_until_the_timeout_is_given_and_nothing_is_waited_for_after_it(slow: Any) -> None:
    grid = slow([0.2, 1e9])
    replies = list(PromptGrid(grid, every=0.25).send_and_receive(messages(2), timeout=2))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ["m0"]
    assert grid.now == 102.0


def test_the_last_look_is_when_the_time_is_over_also_between_two_looks(slow: Any) -> None:
    grid = slow([1e9])
    assert list(PromptGrid(grid, every=0.4).send_and_receive(messages(1), timeout=1)) == []
    assert [when for when, _ in grid.looks] == pytest.approx([100, 100.4, 100.8, 101])


def test_a_message_that_the_superlink_refuses_has_no_reply_and_the_others_have_theirs(slow: Any) -> None:
    grid = slow([0.0, 0.0, 1.0], refused=frozenset({1}))
    replies = list(PromptGrid(grid).send_and_receive(messages(3), timeout=600))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ["m0", "m2"]
    assert grid.now == 101.0


def test_where_every_message_is_refused_nothing_is_waited_for(slow: Any) -> None:
    grid = slow([0.0], refused=frozenset({0}))
    assert list(PromptGrid(grid).send_and_receive(messages(1), timeout=600)) == []
    assert grid.looks == []


def test_a_timeout_of_none_waits_as_long_as_it_takes(slow: Any) -> None:
    grid = slow([50_000.0])
    assert len(list(PromptGrid(grid, every=1000).send_and_receive(messages(1)))) == 1


def test_no_message_needs_no_look(slow: Any) -> None:
    grid = slow([])
    assert list(PromptGrid(grid).send_and_receive([], timeout=5)) == []
    assert grid.looks == []


def test_all_else_is_the_other_grids(slow: Any) -> None:
    grid = slow([0.0])
    prompt = PromptGrid(grid)
    assert list(prompt.get_node_ids()) == [3, 4]
    assert prompt.run.run_id == 7
    identifiers = list(prompt.push_messages(messages(1)))
    assert [reply.metadata.reply_to_message_id for reply in prompt.pull_messages(identifiers)] == identifiers


@pytest.mark.parametrize("every", [0.0, -1.0, float("nan")])
def test_looks_must_be_apart(slow: Any, every: float) -> None:
    with pytest.raises(ValueError, match="every"):
        PromptGrid(slow([]), every)


def test_what_a_node_lost_because_it_was_started_again_is_answered_in_its_place(slow: Any) -> None:
    grid = slow([1.0, 1e9])
    grid.starts = {4: [90.0, 107.0]}
    first, second = PromptGrid(grid).send_and_receive(messages(2), timeout=600)
    assert not first.has_error()
    assert second.has_error()
    assert second.metadata.reply_to_message_id == "m1"
    assert "started again" in second.error.reason
    assert 107 + 30 <= grid.now <= 107 + 30 + 5 + 5  # seen within 5 s, and it had 30 s to answer all the same


def test_a_node_that_was_started_again_before_it_fetched_its_request_may_still_answer(slow: Any) -> None:
    grid = slow([25.0])
    grid.starts = {3: [90.0, 104.0]}
    (reply,) = PromptGrid(grid).send_and_receive(messages(1), timeout=600)
    assert not reply.has_error()


def test_a_node_that_has_gone_or_come_is_not_taken_for_one_that_was_started_again(slow: Any) -> None:
    grid = slow([1e9])
    grid.starts = {3: [90.0], 4: [104.0]}
    assert list(PromptGrid(grid).send_and_receive(messages(1), timeout=100)) == []


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_messages_that_the_superlink_had_already_when_the_connection_broke_are_sent_again(
    slow: Any, lost: int
) -> None:
    grid = slow([0.0, 0.0])
    push, left = grid.push_messages, [lost]

    def broken(sent: Iterable[Message]) -> Iterable[str]:
        names = push(sent)
        if left[0]:
            left[0] -= 1
            raise ObjectPushError("an object", 1, "a session")
        return names

    grid.push_messages = broken
    replies = list(PromptGrid(grid, every=0.5).send_and_receive(iter(messages(2)), timeout=600))
    assert {reply.metadata.reply_to_message_id for reply in replies} == {"m0", "m1"}
    assert grid.now == 100.0 + 0.5 * lost


def test_a_superlink_that_never_takes_messages_in_ends_the_run(slow: Any) -> None:
    grid = slow([0.0])

    def broken(_: Iterable[Message]) -> Iterable[str]:
        raise ObjectPushError("an object", 1, "a session")

    grid.push_messages = broken
    with pytest.raises(ObjectPushError):
        PromptGrid(grid, every=0.5).send_and_receive(messages(1), timeout=600)
