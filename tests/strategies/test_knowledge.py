"""What the server knows of clients from their own releases: asked for once, kept, sent back, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedveil import wire
from fedveil.privacy import (
    ContributionRelease,
    Known,
    NoisePlan,
    QuantileRelease,
    StepMechanism,
)
from fedveil.strategies import BadReply, Expected, Knowledge, NoGoodReplies, TrainReply, check_reply

VECTOR = {client: (0.1 * client, 0.3, -0.05) for client in range(6)}


def plan(client: int, **changes: Any) -> NoisePlan:
    n = 10 * (client + 1)
    plain: dict[str, Any] = {
        "num_records": n,
        "clip_norm": 1.0,
        "calibration": "attribute",
        "epsilon": 8.0,
        "delta": 1e-5,
        "num_steps": 10,
        "clip_rule": "contribution",
        "start_attribute_clip_norm": 0.2,
        "contribution_scale": 0.5,
        "contribution": ContributionRelease("shapley", 3, 1, n, 0.01),
        "share": 0.7,
    }
    return NoisePlan(**{**plain, **changes})


def sized_plan(client: int) -> NoisePlan:
    n = 10 * (client + 1)
    return plan(client, clip_rule="quantile", contribution=None, quantile=QuantileRelease(n, 0.02))


def quantile_share(client: int) -> float:
    return 0.1 + 0.11 * client


Node = Callable[[Message], RecordDict]


def node_with(scene: Any, plans: dict[int, Any], steps: int = 1) -> Node:
    """An honest node of these plans: what it is told it knows, what it is asked for it releases."""

    def answer(request: Message) -> RecordDict:
        content = scene.honest(request, steps=steps)
        config = request.content.config_records[wire.CONFIG]
        known, measure = wire.decode_known(config[wire.KNOWN]), config[wire.MEASURE]
        rows: list[Any] = []
        released: dict[int, dict[str, tuple[float, ...]]] = {}
        for client in config[wire.CLIENTS]:
            rows += plans[client].rows(
                client, config[wire.ROUND], steps, known.get(client, Known()), measure=client in measure
            )
            values = {"contribution": VECTOR[client]} if client in measure else {}
            if plans[client].quantile is not None:
                values["quantile"] = (quantile_share(client),)
            released |= {client: values} if values else {}
        ledger = dict(content.config_records[wire.LEDGER])
        ledger |= {wire.ROWS: wire.encode_releases(rows), wire.RELEASED: wire.encode_released(released)}
        return RecordDict({**dict(content), wire.LEDGER: ConfigRecord(ledger)})

    return answer


def knowledge_of(plans: dict[int, Any], **settings: Any) -> Knowledge:
    return Knowledge(plans, private=(0,), **{"first_round": 2, **settings})


def requests_of(grid: Any) -> list[tuple[int, dict[int, Known], list[int]]]:
    """Round, what was said to be known, and who was to measure, of every request."""
    found = []
    for message in grid.sent:
        config = message.content.config_records[wire.CONFIG]
        found.append((config[wire.ROUND], wire.decode_known(config[wire.KNOWN]), list(config[wire.MEASURE])))
    return found


PLANS = {client: plan(client) for client in range(6)}
RATE = {client: 0.1 * client / (0.1 * client + 0.3) for client in range(6)}  # the negative value is clamped


# contributions


def test_contributions_are_asked_for_once_from_their_round_on_and_sent_back_from_then_on(scene):
    grid, knowledge = scene.grid(node_with(scene, PLANS)), knowledge_of(PLANS)
    scene.run(scene.strategy(num_nodes=2, plans=PLANS, knowledge=knowledge), grid, rounds=4)
    asked = requests_of(grid)
    assert [(server_round, measure) for server_round, _, measure in asked] == [
        (1, []),
        (1, []),
        (2, [0, 1, 2]),
        (2, [3, 4, 5]),
        (3, []),
        (3, []),
        (4, []),
        (4, []),
    ]
    for server_round, known, _ in asked:
        assert bool(known) is (server_round >= 3)
        for client, facts in known.items():
            assert facts.contribution == pytest.approx(RATE[client], rel=1e-12)
            assert facts.attribute_clip_norm is None
    assert {client for server_round, known, _ in asked if server_round == 3 for client in known} == set(
        range(6)
    )
    assert [outcome.contributions for outcome in scene.outcomes] == [(), (), tuple(range(6)), (), ()]
    assert [outcome.failures for outcome in scene.outcomes] == [()] * 5
    # the rows of a round follow from what was known in it
    chosen = [
        {row.chosen for row in outcome.releases if row.name == "gradient"} for outcome in scene.outcomes[1:]
    ]
    assert chosen == [{"fixed"}, {"fixed"}, {"released"}, {"released"}]
    assert {knowledge.measured_in(client) for client in range(6)} == {2}


def test_a_client_that_is_sampled_later_is_asked_then(scene):
    grid, knowledge = scene.grid(node_with(scene, PLANS)), knowledge_of(PLANS)
    scene.run(scene.strategy(plans=PLANS, knowledge=knowledge, fraction_train=0.5), grid, rounds=12)
    first: dict[int, int] = {}
    measured: list[int] = []
    for message in grid.sent:
        config = message.content.config_records[wire.CONFIG]
        measured += list(config[wire.MEASURE])
        for client in config[wire.CLIENTS]:
            if config[wire.ROUND] >= 2:
                first.setdefault(client, config[wire.ROUND])
    assert sorted(measured) == sorted(first)  # each once
    assert len(set(first.values())) > 1
    assert {client: knowledge.measured_in(client) for client in first} == first


def test_a_contribution_whose_reply_is_lost_is_assumed_to_be_spent_and_asked_for_again(scene):
    good = node_with(scene, PLANS)

    def answer(message: Message) -> RecordDict | None:
        lost = message.metadata.dst_node_id == 102 and message.metadata.group_id == "2"
        return None if lost else good(message)

    grid, knowledge = scene.grid(answer), knowledge_of(PLANS)
    scene.run(scene.strategy(plans=PLANS, knowledge=knowledge), grid, rounds=4)
    assumed = scene.outcomes[2].assumed
    assert list(assumed) == [
        row for client in (2, 3) for row in PLANS[client].rows(client, 2, 1, measure=True)
    ]
    assert {row.name for row in assumed} == {"gradient", "contribution"}
    measured = [(server_round, measure) for server_round, _, measure in requests_of(grid) if measure]
    assert measured == [(2, [0, 1]), (2, [2, 3]), (2, [4, 5]), (3, [2, 3])]
    assert [outcome.contributions for outcome in scene.outcomes] == [(), (), (0, 1, 4, 5), (2, 3), ()]
    # in the round after, what is assumed follows from what is known
    assert (knowledge.measured_in(0), knowledge.measured_in(2)) == (2, 3)


def test_what_is_assumed_follows_from_what_was_known_in_that_round(scene):
    good = node_with(scene, PLANS)

    def answer(message: Message) -> RecordDict | None:
        lost = message.metadata.dst_node_id == 102 and message.metadata.group_id == "4"
        return None if lost else good(message)

    scene.run(scene.strategy(plans=PLANS, knowledge=knowledge_of(PLANS)), scene.grid(answer), rounds=4)
    expected = [row for client in (2, 3) for row in PLANS[client].rows(client, 4, 1, Known(RATE[client]))]
    assert [(row.client, row.relation, row.chosen) for row in scene.outcomes[4].assumed] == [
        (row.client, row.relation, row.chosen) for row in expected
    ]
    for got, row in zip(scene.outcomes[4].assumed, expected, strict=True):
        assert (got.sensitivity, got.sigma) == pytest.approx((row.sensitivity, row.sigma), rel=1e-12)


def test_clients_whose_noise_private_data_decide_owe_no_rows_and_are_assumed_to_have_released_none(scene):
    secret = {
        client: plan(client, calibration="paper", clip_rule=None, contribution=None, is_data_dependent=True)
        for client in range(6)
    }

    def answer(message: Message) -> RecordDict | None:
        if message.metadata.dst_node_id == 102:
            return None
        content = scene.honest(message)
        content[wire.LEDGER][wire.ROWS] = wire.encode_releases(())
        return content

    scene.run(scene.strategy(plans=secret, knowledge=knowledge_of(secret)), scene.grid(answer))
    assert (scene.outcomes[1].releases, scene.outcomes[1].assumed) == ((), ())
    assert len(scene.outcomes[1].failures) == 1
    scene.outcomes.clear()
    with pytest.raises(NoGoodReplies, match="brings 4 ledger rows and owes 0"):
        scene.run(scene.strategy(plans=secret, knowledge=knowledge_of(secret)), scene.grid(scene.honest))


# checkpoints


def test_a_checkpoint_keeps_what_is_known_to_the_bit():
    plans = {0: plan(0), 1: sized_plan(1), 2: None}
    before = knowledge_of(plans, attribute_clip_norm=0.2)
    released = {0: {"contribution": (0.1 + 0.2, 1 / 3, -5e-324)}, 1: {"quantile": (0.1,)}}
    before.take(7, [TrainReply({}, 1, (0, 1), (), (), released)], {0: 10, 1: 20})
    after = knowledge_of(plans, attribute_clip_norm=0.2)
    after.restore(json.loads(json.dumps(before.state())))
    assert after.known([0, 1, 2]) == before.known([0, 1, 2])
    assert after.contribution(0) == before.contribution(0)
    assert after.measured_in(0) == 7
    assert after.due(8, [0, 1, 2]) == []
    assert after.attribute_clip_norm == before.attribute_clip_norm != 0.2
    assert after.state() == before.state()


def test_a_checkpoint_from_before_anything_was_released_holds_nothing():
    plans = {0: plan(0), 1: sized_plan(1)}
    before, after = knowledge_of(plans), knowledge_of(plans)
    after.restore(json.loads(json.dumps(before.state())))
    assert after.known([0, 1]) == {0: Known(), 1: Known()}
    assert after.due(2, [0, 1]) == [0]
    assert after.contribution(0) is None


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_that_goes_on_from_a_checkpoint_asks_and_tells_what_an_unbroken_one_does(scene, bits, stop):
    def settings(knowledge: Knowledge) -> dict[str, Any]:
        return {"plans": PLANS, "knowledge": knowledge, "fraction_train": 0.5}

    whole = scene.grid(node_with(scene, PLANS))
    end = scene.run(scene.strategy(**settings(knowledge_of(PLANS))), whole, rounds=5)
    first = knowledge_of(PLANS)
    half = scene.run(scene.strategy(**settings(first)), scene.grid(node_with(scene, PLANS)), rounds=stop)
    second = knowledge_of(PLANS)
    second.restore(json.loads(json.dumps(first.state())))
    grid = scene.grid(node_with(scene, PLANS))
    strategy = scene.strategy(completed_rounds=stop, **settings(second))
    resumed = scene.run(strategy, grid, rounds=5, initial=half.arrays)
    assert bits(resumed.arrays) == bits(end.arrays)
    assert requests_of(grid) == [request for request in requests_of(whole) if request[0] > stop]


# quantiles


def test_the_clip_follows_the_quantiles_of_all_clients_weighted_by_their_records(scene):
    plans = {client: sized_plan(client) for client in range(6)}
    grid = scene.grid(node_with(scene, plans))
    knowledge = knowledge_of(plans, quantile=0.4, attribute_clip_norm=0.2, clip_norm=1.0)
    scene.run(scene.strategy(plans=plans, knowledge=knowledge), grid, rounds=3)
    mean = sum(quantile_share(c) * scene.examples[c] for c in range(6)) / sum(scene.examples.values())
    for server_round, known, measure in requests_of(grid):
        assert measure == []
        expected = 0.2 * math.exp(-0.2 * (mean - 0.4)) ** (server_round - 1)
        norms = [facts.attribute_clip_norm for facts in known.values()]
        assert norms == [] if server_round == 1 else norms == [pytest.approx(expected, rel=1e-12)] * 2
    assert {row.name for row in scene.outcomes[1].releases} == {"gradient", "quantile"}
    assert len(scene.outcomes[1].releases) == 6 * 4


def test_the_clip_has_the_same_bits_however_clients_are_grouped_and_replies_come(scene):
    plans = {client: sized_plan(client) for client in range(6)}
    norms = set()
    for num_nodes in (1, 2, 3, 6):
        for arrange in (list, lambda found: found[::-1]):
            knowledge = knowledge_of(plans, attribute_clip_norm=0.2)
            grid = scene.grid(node_with(scene, plans), arrange=arrange)
            scene.run(scene.strategy(num_nodes=num_nodes, plans=plans, knowledge=knowledge), grid, rounds=3)
            norms.add(knowledge.attribute_clip_norm)
    assert len(norms) == 1


def test_clients_without_a_quantile_are_told_no_clip():
    plans = {0: plan(0), 1: sized_plan(1), 2: None, 3: StepMechanism(5, 1.0, 0.1)}
    knowledge = knowledge_of(plans)
    knowledge.take(1, [TrainReply({}, 1, (1,), (), (), {1: {"quantile": (0.9,)}})], {1: 20})
    known = knowledge.known(range(4))
    assert known[1].attribute_clip_norm is not None
    assert {known[client] for client in (0, 2, 3)} == {Known()}


# replies


def owed(clients: list[int], sizes: dict[int, dict[str, int]], scene: Any, measure: bool = True) -> Expected:
    rows = {client: PLANS[client].rows(client, 2, 1, measure=measure) for client in clients}
    return Expected(clients, scene.examples, scene.shapes, "sum", 2, scene.code, rows, sizes)


def measured_reply(scene: Any, released: bytes | None = None) -> tuple[RecordDict, Message]:
    request = scene.request([0, 1], server_round=2)
    config = request.content.config_records[wire.CONFIG]
    config[wire.KNOWN], config[wire.MEASURE] = wire.encode_known({0: Known(), 1: Known()}), [0, 1]
    content = node_with(scene, PLANS)(request)
    if released is not None:
        content[wire.LEDGER][wire.RELEASED] = released
    return content, request


SIZES = {0: {"contribution": 3}, 1: {"contribution": 3}}
GOOD = {str(client): {"contribution": list(VECTOR[client])} for client in (0, 1)}
MALFORMED = {
    "nothing": {},
    "one client's alone": {"0": GOOD["0"]},
    "a third client's": {**GOOD, "2": GOOD["0"]},
    "a client's that is none": {**GOOD, "x": GOOD["0"]},
    "too few values": {**GOOD, "1": {"contribution": [0.1, 0.2]}},
    "too many values": {**GOOD, "1": {"contribution": [0.1, 0.2, 0.3, 0.4]}},
    "no values": {**GOOD, "1": {"contribution": []}},
    "another name": {**GOOD, "1": {"contributions": [0.1, 0.2, 0.3]}},
    "a name too much": {**GOOD, "1": {**GOOD["1"], "quantile": [0.5]}},
    "nan": {**GOOD, "1": {"contribution": [0.1, 0.2, math.nan]}},
    "infinity": {**GOOD, "1": {"contribution": [0.1, 0.2, math.inf]}},
    "a huge value": {**GOOD, "1": {"contribution": [0.1, 0.2, 1e301]}},
    "a value beyond all measure": {**GOOD, "1": {"contribution": [0.1, 0.2, -1e120]}},
    "a whole number without end": {**GOOD, "1": {"contribution": [0.1, 0.2, 10**400]}},
    "a truth value": {**GOOD, "1": {"contribution": [0.1, 0.2, True]}},
    "a text": {**GOOD, "1": {"contribution": [0.1, 0.2, "0.3"]}},
    "a number for a list": {**GOOD, "1": {"contribution": 0.3}},
    "a list for a table": [GOOD["0"], GOOD["1"]],
    "a list for a client's": {**GOOD, "1": [0.1, 0.2, 0.3]},
}


def test_an_honest_reply_with_contributions_is_read_as_it_is(scene):
    content, request = measured_reply(scene)
    reply = check_reply(Message(content, reply_to=request), owed([0, 1], SIZES, scene))
    assert reply.released == {client: {"contribution": VECTOR[client]} for client in (0, 1)}
    assert len(reply.releases) == 2 * 4


@pytest.mark.parametrize("released", MALFORMED.values(), ids=MALFORMED)
def test_a_reply_that_releases_something_else_than_it_owes_is_refused(scene, released):
    content, request = measured_reply(scene, json.dumps(released).encode())
    with pytest.raises(BadReply, match=r"releas"):
        check_reply(Message(content, reply_to=request), owed([0, 1], SIZES, scene))


def test_a_reply_that_releases_a_contribution_without_its_rows_is_refused(scene):
    content, request = measured_reply(scene)
    rows = [row for row in wire.decode_releases(content[wire.LEDGER][wire.ROWS]) if row.name == "gradient"]
    content[wire.LEDGER][wire.ROWS] = wire.encode_releases(rows)
    with pytest.raises(BadReply, match="brings 4 ledger rows and owes 8"):
        check_reply(Message(content, reply_to=request), owed([0, 1], SIZES, scene))


def test_rows_of_a_release_that_nobody_asked_for_are_refused(scene):
    content, request = measured_reply(scene, b"{}")
    with pytest.raises(BadReply, match="brings 8 ledger rows and owes 4"):
        check_reply(Message(content, reply_to=request), owed([0, 1], {}, scene, measure=False))
