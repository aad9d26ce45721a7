"""Asking again: only those whose reply is missing, an error or bad, and every release that may have left counts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from fedveil.flower import ErrorCode
from fedveil.strategies import CentralMechanism, NoGoodReplies
from fedveil.strategies.attempts import check_attempts
from fedveil.strategies.judging import TooFewReplies
from fedveil.strategies.request_life import live_for
from fedveil.streams import Streams

NODES = [(101, 102, 103)]
CENTRAL = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=1.0, num_clients=6)
GONE = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")


def failing(scene: Any, failures: dict[int, int], reply: Any = None) -> Any:
    """Nodes that answer honestly once they have failed so often; ``reply`` is what they answer until then."""
    asked: Counter[tuple[int, str]] = Counter()

    def answer(message: Message) -> Any:
        key = (message.metadata.dst_node_id, message.metadata.group_id)
        asked[key] += 1
        return reply if asked[key] <= failures.get(key[0], 0) else scene.honest(message)

    return answer


def nodes_of(grid: Any) -> list[tuple[str, int]]:
    return [(message.metadata.group_id, message.metadata.dst_node_id) for message in grid.sent]


@pytest.mark.parametrize("reply", [None, GONE, RecordDict()], ids=["silent", "an error", "a bad reply"])
@pytest.mark.parametrize("central", [None, CENTRAL], ids=["local", "central"])
def test_only_nodes_without_a_good_reply_are_asked_again(scene, bits, central, reply):
    alone = bits(scene.run(scene.strategy(central=central), scene.grid(scene.honest), rounds=2).arrays)
    grid = scene.grid(failing(scene, {102: 1, 103: 2}, reply), looks=NODES)
    strategy = scene.strategy(central=central, round_attempts=3)
    assert bits(scene.run(strategy, grid, rounds=2).arrays) == alone
    one = [101, 102, 103, 102, 103, 103]
    assert nodes_of(grid) == [("1", node) for node in one] + [("2", node) for node in one]
    outcome = scene.outcomes[-1]
    assert outcome.num_clients == 6
    assert [reason.partition(":")[0] for reason in outcome.failures] == [
        "the reply for clients 2-3 in attempt 1",
        "the reply for clients 4-5 in attempt 1",
        "the reply for clients 4-5 in attempt 2",
    ]
    said = [line for line in scene.said if "asked again" in line]
    assert len(said) == 4
    assert said[0].startswith(
        "round 1: attempt 2 of 3: 2 of 3 nodes are asked again, for the reply for clients 2-3"
    )
    assert said[1].startswith("round 1: attempt 3 of 3: 1 of 3 nodes are asked again, for ")


def test_a_repeated_request_is_the_same_request(scene):
    grid = scene.grid(failing(scene, {102: 1}), looks=NODES)
    scene.run(scene.strategy(round_attempts=2), grid)
    first, second = (message for message in grid.sent if message.metadata.dst_node_id == 102)
    assert first.content == second.content
    assert first.metadata.message_id != second.metadata.message_id
    assert first.metadata.group_id == second.metadata.group_id


def expiry(message: Message, now: float) -> float:
    return message.metadata.created_at + message.metadata.ttl - now


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_request_lives_until_the_last_attempt_ends_and_not_for_hours(scene, attempts):
    """As a late reply to an earlier attempt is taken in; a node's clock may be 5 s ahead."""
    now = time.time()
    grid = scene.grid(failing(scene, {102: 1, 103: 2}), looks=NODES)
    scene.run(scene.strategy(round_attempts=attempts), grid, timeout=200.0)
    left = [expiry(message, now) for message in grid.sent]
    given = [600] * 3 + [400] * 2 + [200] if attempts == 3 else [200] * 3
    assert all(seconds + 5 <= found < seconds + 100 for seconds, found in zip(given, left, strict=True))


def test_the_time_that_passed_since_a_request_was_made_does_not_shorten_its_life(scene):
    request = scene.request([0, 1])
    request.metadata.created_at -= 1000
    now = time.time()
    live_for([request], 30.0)
    assert 35 <= expiry(request, now) < 130


def test_the_superlinks_answer_for_an_expired_request_is_a_failed_reply(scene, bits):
    alone = bits(scene.run(scene.strategy(), scene.grid(scene.honest)).arrays)
    expired = Error(ErrorCode.MESSAGE_UNAVAILABLE, "Message Unavailable: it may have expired due to its TTL")
    grid = scene.grid(failing(scene, {102: 1}, expired), looks=NODES)
    assert bits(scene.run(scene.strategy(round_attempts=2), grid).arrays) == alone
    (failure,) = scene.outcomes[-1].failures
    assert failure.startswith("the reply for clients 2-3 in attempt 1: Message Unavailable")


def test_without_a_failure_nobody_is_asked_again(scene):
    grid = scene.grid(scene.honest)
    scene.run(scene.strategy(round_attempts=9), grid)
    assert len(grid.sent) == 3


def test_clients_out_of_budget_are_an_answer(scene):
    grid = scene.grid(lambda message: scene.honest(message, out_of_budget=[2, 3]))
    scene.run(scene.strategy(round_attempts=5), grid)
    assert len(grid.sent) == 3
    assert scene.outcomes[-1].failures == ()


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_with_fresh_noise_every_attempt_may_have_been_a_release(scene, fails):
    grid = scene.grid(failing(scene, {102: fails}), looks=NODES)
    scene.run(scene.strategy(round_attempts=3, streams=Streams.system()), grid)
    outcome = scene.outcomes[-1]
    once = [row for client in (2, 3) for row in scene.planned(client).releases(client, 1, 0)]
    assert Counter(outcome.assumed) == Counter(once * fails)
    assert {row.client for row in outcome.releases} == ({0, 1, 4, 5} | ({2, 3} if fails < 3 else set()))


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_a_seeded_run_repeats_itself_so_its_attempts_are_one_release(scene, fails):
    grid = scene.grid(failing(scene, {102: fails}), looks=NODES)
    scene.run(scene.strategy(round_attempts=3), grid)
    once = [row for client in (2, 3) for row in scene.planned(client).releases(client, 1, 0)]
    assert list(scene.outcomes[-1].assumed) == (once if fails == 3 else [])


def test_a_late_reply_is_taken_in_and_the_other_release_is_assumed(scene, bits):
    """A slow node: its first reply comes while the second attempt runs, its second one never."""
    alone = bits(scene.run(scene.strategy(streams=Streams.system()), scene.grid(scene.honest)).arrays)
    held: list[tuple[str, Message]] = []

    class Late(scene.grid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            names = list(self.push_messages(messages))
            if len(self.sent) == 3:
                held.append((names[1], self._replies.pop(names[1])))
                return self.pull_messages(names)
            self._replies.pop(names[0])
            self._replies[held[0][0]] = held[0][1]
            return self.pull_messages(names)

    grid = Late(scene.honest, looks=NODES)
    strategy = scene.strategy(round_attempts=2, streams=Streams.system())
    assert bits(scene.run(strategy, grid).arrays) == alone
    outcome = scene.outcomes[-1]
    once = [row for client in (2, 3) for row in scene.planned(client).releases(client, 1, 0)]
    assert list(outcome.assumed) == once
    assert len(outcome.releases) == 12
    assert outcome.failures == ("the reply for clients 2-3 in attempt 2: none came in time",)


def test_a_node_that_has_gone_is_waited_for(scene):
    looks = [(101, 103), (101, 103), (101, 102, 103)]
    grid = scene.grid(failing(scene, {102: 1}, GONE), looks=looks)
    scene.run(scene.strategy(round_attempts=2), grid, timeout=30)
    assert grid.looked == 3
    assert scene.outcomes[-1].num_clients == 6


def test_a_node_that_stays_away_is_waited_for_no_longer_than_an_attempt(scene):
    grid = scene.grid(failing(scene, {102: 9}, GONE), looks=[(101, 103)])
    scene.run(scene.strategy(round_attempts=2), grid, timeout=0.2)
    assert scene.outcomes[-1].num_clients == 4
    assert nodes_of(grid)[3:] == [("1", 102)]


def test_what_may_have_left_is_told_before_nodes_are_asked_again(scene):
    told = []
    grid = scene.grid(failing(scene, {102: 2, 103: 1}), looks=NODES)
    strategy = scene.strategy(
        round_attempts=3,
        streams=Streams.system(),
        on_repeat=lambda number, rows: told.append((number, len(grid.sent), rows)),
    )
    scene.run(strategy, grid)
    rows = {c: list(scene.planned(c).releases(c, 1, 0)) for c in range(6)}
    assert [(number, sent) for number, sent, _ in told] == [(1, 3), (1, 5)]
    assert Counter(told[0][2]) == Counter(rows[2] + rows[3] + rows[4] + rows[5])
    assert Counter(told[1][2]) == Counter(2 * rows[2] + 2 * rows[3] + rows[4] + rows[5])
    assert Counter(scene.outcomes[-1].assumed) == Counter(told[1][2])


def test_a_seeded_run_has_nothing_to_tell_before_it_repeats_itself(scene):
    told = []
    grid = scene.grid(failing(scene, {102: 1}), looks=NODES)
    scene.run(scene.strategy(round_attempts=2, on_repeat=lambda *given: told.append(given)), grid)
    assert told == []


# too few


@pytest.mark.parametrize("central", [None, CENTRAL], ids=["local", "central"])
def test_a_round_with_too_few_good_replies_is_skipped_and_booked(scene, bits, central):
    def answer(message: Message) -> Any:
        lost = message.metadata.group_id == "1" and message.metadata.dst_node_id > 101
        return None if lost else scene.honest(message)

    grid = scene.grid(answer, looks=NODES)
    strategy = scene.strategy(
        central=central, min_replies=2, round_attempts=2, streams=Streams.seeded("c0", 1)
    )
    result = scene.run(strategy, grid, rounds=2)
    assert any(line.startswith("round 1: 1 of 3 nodes") and "the model stays" in line for line in scene.said)
    start, skipped, done = scene.outcomes
    assert [outcome.server_round for outcome in scene.outcomes] == [0, 1, 2]
    assert bits(skipped.arrays) == bits(start.arrays) != bits(done.arrays) == bits(result.arrays)
    # the good reply was released and arrived, the others may have left; the server released nothing
    assert {row.client for row in skipped.releases} == (set() if central else {0, 1})
    assert {row.client for row in skipped.assumed} == (set() if central else {2, 3, 4, 5})
    assert {row.client for row in done.releases} == ({-1} if central else set(range(6)))


def test_as_many_good_replies_as_are_needed_are_enough(scene):
    grid = scene.grid(failing(scene, {103: 1}))
    scene.run(scene.strategy(min_replies=2), grid)
    assert not any("skipped" in line for line in scene.said)
    assert scene.outcomes[-1].num_clients == 4


def test_a_reply_of_clients_out_of_budget_is_nothing_to_average(scene, bits):
    grid = scene.grid(lambda message: scene.honest(message, out_of_budget=[2, 3]))
    result = scene.run(scene.strategy(min_replies=3), grid)
    assert bits(result.arrays) == bits(scene.start())
    assert any("2 of 3 nodes sent something to average, and min-replies is 3" in line for line in scene.said)


def test_nobody_is_asked_for_a_round_that_too_few_nodes_could_answer(scene, bits):
    strategy = scene.strategy(num_nodes=6, fraction_train=0.5, min_replies=4)
    grid = scene.grid(scene.honest)
    result = scene.run(strategy, grid, rounds=2)
    assert grid.sent == []
    assert bits(result.arrays) == bits(scene.start())
    assert (
        "round 1: its clients are on 3 node(s), and min-replies is 4: nobody is asked, and the model stays"
        in scene.said
    )
    assert [outcome.assumed for outcome in scene.outcomes] == [(), (), ()]


def test_training_ends_when_too_few_nodes_have_a_client_with_budget(scene):
    strategy = scene.strategy(min_replies=2, out_of_budget=(0, 1, 4, 5))
    grid = scene.grid(scene.honest)
    scene.run(strategy, grid, rounds=9)
    assert grid.sent == []
    assert any(
        "left on 1 node(s), and min-replies is 2: the run ends after round 0" in line for line in scene.said
    )


@pytest.mark.parametrize("attempts", [1, 3])
def test_nobody_at_all_ends_the_run_after_the_last_attempt(scene, attempts):
    grid = scene.grid(lambda message: None, looks=NODES)
    with pytest.raises(
        NoGoodReplies, match=r"round 1: no node sent a usable reply: .*clients 0-1.*none came in time"
    ):
        scene.run(scene.strategy(round_attempts=attempts), grid)
    assert len(grid.sent) == 3 * attempts


@pytest.mark.parametrize(("min_replies", "attempts"), [(0, 1), (4, 1), (1, 0), (True, 1)])
def test_settings_that_no_round_can_meet_are_refused(scene, min_replies, attempts):
    with pytest.raises(ValueError, match=r"min-replies = 4 can never be met|must be|is not allowed"):
        check_attempts(min_replies, attempts, 3)
    grid = scene.grid(scene.honest)
    with pytest.raises(ValueError, match=r"."):
        scene.run(scene.strategy(min_replies=min_replies, round_attempts=attempts), grid)
    assert grid.sent == []


# messages of clients of one record


def silent(grid: Any, failures: dict[int, int]) -> Any:
    """The town's nodes, silent at first: they have made and recorded their messages all the same."""
    asked: Counter[tuple[int, str]] = Counter()
    honest = grid.answer

    def answer(message: Message) -> Any:
        key = (message.metadata.dst_node_id, message.metadata.group_id)
        asked[key] += 1
        content = honest(message)
        return None if asked[key] <= failures.get(key[0], 0) else content

    grid.answer, grid.looks = answer, NODES
    return grid


WAYS = {
    "one-shot": lambda town, plan, **settings: town.one_shot(3, plan, **settings),
    "one-shot, each": lambda town, plan, **settings: town.one_shot(3, plan, reply="each", **settings),
    "iterative": lambda town, plan, **settings: town.iterative(3, plan, **settings),
    "dp-sgd": lambda town, plan, **settings: town.dp_sgd(3, plan, **settings),
}


@pytest.mark.parametrize("name", WAYS)
def test_nodes_that_answer_when_asked_again_leave_the_bits_of_an_unbroken_round(new_town, name):
    whole, town = new_town(), new_town()
    plan = whole.gradients() if name == "dp-sgd" else whole.plan()
    told = {"mechanism": "gradient", "bound": 2.0, "largest_label": None} if name == "dp-sgd" else {}
    expected = whole.run(WAYS[name](whole, plan), whole.grid(3, plan, **told))
    grid = silent(town.grid(3, plan, **told), {101: 2, 103: 1})
    got = town.run(WAYS[name](town, plan, round_attempts=3), grid)
    assert got.tobytes() == expected.tobytes()
    outcome = town.outcomes[-1]
    assert outcome.assumed == ()  # a seeded run: the same bits
    assert outcome.num_clients == 300
    assert len(outcome.failures) == 3
    assert [message.metadata.dst_node_id for message in grid.sent] == [101, 102, 103, 101, 103, 101]


def test_fresh_messages_count_each_time(town):
    told = []
    plan = town.plan(num_releases=4)
    strategy = town.iterative(
        3, plan, round_attempts=3, streams=Streams.system(), on_repeat=lambda *given: told.append(given)
    )
    town.run(strategy, silent(town.grid(3, plan), {101: 2, 103: 1}))
    outcome = town.outcomes[-1]
    lost = [[*range(100), *range(200, 300)], list(range(100))]
    assert [cohort.clients.tolist() for cohort in outcome.assumed] == lost
    assert outcome.releases[0].count == 300
    assert [number for number, _ in told] == [1, 1]
    assert [[cohort.clients.tolist() for cohort in cohorts] for _, cohorts in told] == [lost[:1], lost]
    counts = strategy.state()["paid"]
    assert (counts[:100] == 3).all()
    assert (counts[100:200] == 1).all()
    assert (counts[200:] == 2).all()


def test_a_round_of_messages_with_too_few_replies_is_skipped_and_spent(town):
    plan = town.plan(num_releases=4)
    strategy = town.iterative(3, plan, min_replies=2)
    grid = silent(town.grid(3, plan), {101: 1, 103: 1})
    ended = town.run(strategy, grid, rounds=2)
    start, skipped, _ = town.outcomes
    assert skipped.coefficients.tobytes() == start.coefficients.tobytes()
    assert ended.tobytes() == start.coefficients.tobytes()  # the nodes fail once in each round
    assert skipped.releases == ()
    assert sorted(itertools.chain(*(c.clients.tolist() for c in skipped.assumed))) == list(range(300))
    assert (skipped.num_clients, len(skipped.failures)) == (0, 2)
    reason = "1 of 3 nodes sent something to average, and min-replies is 2"
    assert f"round 1: {reason}: the round is skipped, and the model stays" in town.said
    assert strategy.state()["paid"].tolist() == [2] * 300


def test_one_shot_learning_with_too_few_replies_says_so(town):
    plan = town.plan()
    strategy = town.one_shot(3, plan, min_replies=2)
    with pytest.raises(
        TooFewReplies, match=r"1 of 3 nodes sent something to average, .*one-shot learning has no other"
    ):
        town.run(strategy, silent(town.grid(3, plan), {101: 1, 103: 1}))


def test_a_run_of_messages_that_needs_more_nodes_than_there_are_asks_nobody(town):
    plan = town.plan()
    grid = town.grid(3, plan)
    with pytest.raises(ValueError, match="min-replies = 4 can never be met"):
        town.run(town.one_shot(3, plan, min_replies=4), grid)
    assert grid.sent == []


def test_the_state_told_with_an_attempt_is_that_before_its_round(town):
    """So that a run which dies in the next attempt draws the same clients again, and assumes that they have sent."""
    states = []
    plan = town.plan(num_releases=1)
    strategy = town.iterative(
        3,
        plan,
        round_attempts=2,
        streams=Streams.system(),
        on_repeat=lambda *_: states.append(strategy.state()),
    )
    town.run(strategy, silent(town.grid(3, plan), {101: 1}))
    assert not np.any(states[0]["paid"])
    fresh = town.iterative(3, plan, streams=Streams.system())
    fresh.restore(states[0])
    assert [cohort.clients.tolist() for cohort in fresh.interrupted(1, 1)] == [list(range(300))]
