"""Whatever bad replies come among good ones, the model has the bits of the good ones alone, and each is named."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil import wire
from fedveil.flower import ErrorCode, stamp_message
from fedveil.strategies import CentralMechanism
from fedveil.strategies.update_bound import UpdateBound

MALFORMED = runpy.run_path(str(Path(__file__).with_name("malformed.py")))
CENTRAL = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=1.0, num_clients=6)
BOUND = UpdateBound(learning_rate=10.0, clip_norm=1.0)
"""Ten times what any honest update of a scene has, noise included."""

Content = RecordDict
Damage = Callable[[Content], Content | Error | None]
property_based = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# ways to damage an honest reply; none can leave it as good as it was


def ledger(**values: Any) -> Damage:
    """Other values in the ledger record; None leaves a key out."""

    def damage(content: Content) -> Content:
        record = {**dict(content.config_records[wire.LEDGER]), **values}
        kept = ConfigRecord({key: value for key, value in record.items() if value is not None})
        return RecordDict({**dict(content), wire.LEDGER: kept})

    return damage


def counted(change: Callable[[int], Any]) -> Damage:
    """Another count."""

    def damage(content: Content) -> Content:
        honest = content.metric_records[wire.METRICS][wire.NUM_EXAMPLES]
        return RecordDict({**dict(content), wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: change(honest)})})

    return damage


def array(change: Callable[[Array], Array]) -> Damage:
    """Another first array."""

    def damage(content: Content) -> Content:
        found = dict(content.array_records[wire.ARRAYS])
        name = next(iter(found))
        return RecordDict({**dict(content), wire.ARRAYS: ArrayRecord({**found, name: change(found[name])})})

    return damage


def entry(at: int, large: float) -> Damage:
    """One entry beyond all honesty: in integers far beyond, in floats as it is."""

    def change(honest: Array) -> Array:
        values = honest.numpy().copy()
        if values.dtype == np.int64:
            large_one = 2**62 - 1 if not np.isfinite(large) else int(np.clip(large, -1, 1) * 2**62)
            values.reshape(-1)[at % values.size] = large_one
        else:
            values.reshape(-1)[at % values.size] = large
        return Array(values)

    return array(change)


def bytes_at(at: int, cut: int, inserted: bytes) -> Damage:
    """Other bytes and the honest label: a different header, or another length."""

    def change(honest: Array) -> Array:
        place = at % 128  # in NumPy's header
        data = honest.data[:place] + inserted + honest.data[place + cut :]
        if data == honest.data:
            data = data[:-1]
        return Array(honest.dtype, honest.shape, honest.stype, data)

    return array(change)


def label(dtype: str, shape: tuple[int, ...], stype: str) -> Damage:
    """Another label and the honest bytes."""

    def change(honest: Array) -> Array:
        new = Array(dtype, shape, stype, honest.data)
        same = (new.dtype, new.shape, new.stype) == (honest.dtype, tuple(honest.shape), honest.stype)
        return Array(dtype, (*shape, 1), stype, honest.data) if same else new

    return array(change)


def rows(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Damage:
    """Other ledger rows; where none are owed, one that is not."""

    def damage(content: Content) -> Content:
        honest = json.loads(content.config_records[wire.LEDGER][wire.ROWS])
        changed = change([dict(row) for row in honest]) if honest else [MALFORMED["ROW"]]
        return ledger(rows=json.dumps(changed).encode())(content)

    return damage


def changed_row(key: str, value: Any) -> Damage:
    """One row with another value."""
    return rows(lambda honest: [{**honest[0], key: value}, *honest[1:]])


def scaled_row(key: str, factor: float) -> Damage:
    """One row with a number that is not the planned one."""
    return rows(lambda honest: [{**honest[0], key: honest[0][key] * factor}, *honest[1:]])


DAMAGES: st.SearchStrategy[Damage] = st.one_of(
    st.just(lambda content: None),
    st.builds(
        lambda code, reason: lambda content: Error(code, reason),
        st.sampled_from([ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_RAISED_EXCEPTION]),
        st.text(max_size=30),
    ),
    st.builds(
        entry,
        st.integers(0, 100),
        st.sampled_from([1e4, -1e9, 1e60, 1.7e308, -1e300, np.nan, np.inf, -np.inf]),
    ),
    st.builds(bytes_at, st.integers(0, 127), st.integers(0, 40), st.binary(max_size=40)),
    st.builds(
        label,
        st.sampled_from(["int64", "float64", "float32", "int8", ">i8", "O", "datetime64", "", "U3"]),
        st.lists(st.integers(-1, 3), max_size=4).map(tuple),
        st.sampled_from(["numpy.ndarray", "torch.tensor", ""]),
    ),
    st.sampled_from([10**12, -1, -(10**12), 2**62, 1e12, -0.5, float("nan"), float("inf")]).map(
        lambda value: counted(lambda honest: value)
    ),
    st.just(counted(float)),
    st.sampled_from([-1, 1]).map(lambda step: counted(lambda honest: honest + step)),
    st.builds(lambda text: ledger(source=text), st.text(max_size=6).filter(lambda text: text != "f00d")),
    st.sampled_from(
        [ledger(library=None), ledger(library="0.0.9"), ledger(source=b"f00d"), ledger(source=3)]
    ),
    st.binary(max_size=60).map(lambda payload: ledger(rows=payload)),
    st.just(rows(lambda honest: honest[1:])),
    st.just(rows(lambda honest: [*honest, honest[0]])),
    st.builds(
        scaled_row,
        st.sampled_from(["sigma", "sensitivity"]),
        st.sampled_from([1e50, 1e-50, 2.0, 0.5, 1 + 1e-9, 1 - 1e-9]),
    ),
    st.builds(
        changed_row,
        st.sampled_from(["client", "round", "step", "name", "relation", "sigma", "sampling_rate", "chosen"]),
        st.sampled_from([99, "released", "client", "other", None, float("nan"), [0], 0.25, True]),
    ),
    st.sampled_from(
        [
            lambda content: RecordDict(),
            lambda content: RecordDict({**dict(content), "more": ArrayRecord({})}),
            lambda content: RecordDict({**dict(content), "more": MetricRecord({})}),
            lambda content: RecordDict({**dict(content), "more": ConfigRecord({})}),
            *(
                lambda content, gone=gone: RecordDict(
                    {key: value for key, value in content.items() if key != gone}
                )
                for gone in (wire.ARRAYS, wire.METRICS, wire.LEDGER)
            ),
            lambda content: RecordDict({**dict(content), wire.ARRAYS: ArrayRecord({})}),
            lambda content: RecordDict(
                {
                    **dict(content),
                    wire.ARRAYS: ArrayRecord(
                        {f"{k}s": v for k, v in content.array_records[wire.ARRAYS].items()}
                    ),
                }
            ),
        ]
    ),
)
# a node of the scenes below has one client, so that two names are never right
LISTS = st.lists(st.integers(-1, 9), max_size=5).filter(lambda listed: len(listed) != 1)
OF_CLIENTS = st.one_of(
    DAMAGES,
    LISTS.map(lambda listed: ledger(clients=listed)),
    st.sampled_from([0, 3, 99, -1]).map(lambda client: ledger(**{wire.OUT_OF_BUDGET: [client] * 2})),
    st.binary(max_size=30).map(lambda payload: ledger(released=payload)),
)
OF_PEOPLE = st.one_of(
    DAMAGES,
    st.binary(max_size=40).map(lambda payload: ledger(**{wire.CLIENT_MASK: payload})),
    st.binary(min_size=1, max_size=40).map(lambda payload: ledger(**{wire.OUT_OF_BUDGET: payload})),
    st.lists(st.integers(0, 299), max_size=6, unique=True).map(
        lambda listed: ledger(**{wire.CLIENT_MASK: wire.encode_clients(np.array(sorted(listed), np.int64))})
    ),
    st.lists(st.integers(0, 299), min_size=1, max_size=6, unique=True).map(
        lambda listed: ledger(**{wire.OUT_OF_BUDGET: wire.encode_clients(np.array(sorted(listed), np.int64))})
    ),
)


def test_there_are_enough_ways_to_be_wrong():
    assert len(MALFORMED["ANY"]) + len(MALFORMED["SUM"]) + len(MALFORMED["EACH"]) >= 100


# private averaging


def run_of(scene: Any, mode: str, damages: dict[int, Damage], arrange: Callable[..., Any] = list) -> Any:
    """The model after a round of six nodes, some of whose replies are damaged."""

    def answer(request: Message) -> Content | Error | None:
        content = scene.honest(request)
        return damages.get(request.metadata.dst_node_id, lambda honest: honest)(content)

    scene.outcomes.clear()
    strategy = scene.strategy(num_nodes=6, central=CENTRAL if mode == "each" else None, bound=BOUND)
    return scene.run(strategy, scene.grid(answer, arrange=arrange)).arrays


@pytest.mark.parametrize("mode", ["sum", "each"])
@property_based
@given(data=st.data())
def test_damaged_replies_leave_the_bits_of_the_good_ones(scene, bits, mode, data):
    kinds = st.one_of(
        OF_CLIENTS, st.sampled_from(list((MALFORMED["ANY"] | MALFORMED[mode.upper()]).values()))
    )
    bad = data.draw(st.dictionaries(st.integers(101, 106), kinds, min_size=1, max_size=5))
    got = run_of(scene, mode, bad)
    outcome = scene.outcomes[-1]
    assert len(outcome.failures) == len(bad)
    for node in bad:
        assert any(reason.startswith(f"the reply for clients {node - 101}: ") for reason in outcome.failures)
    assert {row.client for row in outcome.assumed} == (
        set() if mode == "each" else {node - 101 for node in bad}
    )
    assert bits(got) == bits(run_of(scene, mode, dict.fromkeys(bad, lambda content: None)))


def among(requests: list[Message], contents: Callable[[Message], list[Any]]) -> list[Message]:
    """Replies that a test makes itself, to requests that were sent."""
    made = []
    for request in requests:
        for index, content in enumerate(contents(request)):
            reply = Message(content, reply_to=request)
            stamp_message(
                reply, run_id=1, message_id=f"extra-{index}", src_node_id=request.metadata.dst_node_id
            )
            made.append(reply)
    return made


@pytest.mark.parametrize("mode", ["sum", "each"])
@property_based
@given(data=st.data())
def test_replies_beside_those_of_a_round_leave_its_bits(scene, bits, mode, data):
    """Copies count once, bad ones beside good ones do no harm, others are nobody's; in any order."""
    alone = bits(run_of(scene, mode, {}))
    damage = data.draw(OF_CLIENTS)
    copied, harmed = data.draw(st.integers(101, 106)), data.draw(st.integers(101, 106))
    shuffle = data.draw(st.randoms(use_true_random=False))

    def arrange(found: list[Message]) -> list[Message]:
        copies = [reply for reply in found if reply.metadata.src_node_id == copied]
        beside = []
        for reply in found:
            bad = damage(reply.content) if reply.metadata.src_node_id == harmed else None
            if bad is not None:
                request = scene.request([0], mode=mode)
                stamp_message(request, run_id=1, message_id=reply.metadata.reply_to_message_id, src_node_id=1)
                extra = Message(bad, reply_to=request)
                stamp_message(extra, run_id=1, message_id="extra", src_node_id=harmed)
                beside.append(extra)
        other = scene.request([0, 1], mode=mode, node=107)
        stamp_message(other, run_id=1, message_id="another-round", src_node_id=1)
        strays = among([other], lambda request: [scene.honest(request)] * 3)
        every = [*found, *copies, *beside, *strays]
        shuffle.shuffle(every)
        return every

    assert bits(run_of(scene, mode, {}, arrange)) == alone
    failures = scene.outcomes[-1].failures
    assert f"the reply for clients {copied - 101}: it came 2 times, and counts once" in failures
    assert "3 replies of node 107 to no request of this round" in failures
    assert scene.outcomes[-1].assumed == ()


@pytest.mark.parametrize("mode", ["sum", "each"])
@pytest.mark.parametrize("backwards", [False, True])
def test_good_replies_that_contradict_each_other_are_all_dropped(scene, bits, mode, backwards):
    def arrange(found: list[Message]) -> list[Message]:
        request = scene.request([0], mode=mode)
        stamp_message(request, run_id=1, message_id=found[0].metadata.reply_to_message_id, src_node_id=1)
        values = {name: one.numpy().copy() for name, one in found[0].content[wire.ARRAYS].items()}
        values["bias"].reshape(-1)[0] += 1
        changed = ArrayRecord({name: Array(one) for name, one in values.items()})
        second = Message(RecordDict({**dict(found[0].content), wire.ARRAYS: changed}), reply_to=request)
        stamp_message(second, run_id=1, message_id="second", src_node_id=101)
        every = [*found, second]
        return every[::-1] if backwards else every

    got = run_of(scene, mode, {}, arrange)
    outcome = scene.outcomes[-1]
    assert outcome.failures == (
        "the reply for clients 0: 2 good ones came that contradict each other, and nobody can tell which is its own",
    )
    assert {row.client for row in outcome.assumed} == (set() if mode == "each" else {0})
    assert bits(got) == bits(run_of(scene, mode, {101: lambda content: None}))


def test_a_node_cannot_answer_for_another(scene, bits):
    def arrange(found: list[Message]) -> list[Message]:
        stamp_message(found[0], run_id=1, message_id="forged", src_node_id=105)
        return found

    got = run_of(scene, "sum", {}, arrange)
    assert scene.outcomes[-1].failures == (
        "the reply for clients 0: node 105 sent it, and node 101 was asked",
    )
    assert bits(got) == bits(run_of(scene, "sum", {101: lambda content: None}))


# messages of clients of one record


@pytest.fixture(scope="module")
def honest_replies() -> dict[str, dict[int, RecordDict]]:
    """What six nodes answer in one-shot learning, by kind of reply; filled when first asked for."""
    return {}


def one_shot(town: Any, plan: Any, mode: str, answer: Callable[[Message], Any]) -> np.ndarray:
    town.outcomes.clear()
    grid = town.grid(6, plan)
    grid.answer = answer
    return town.run(town.one_shot(6, plan, reply=mode), grid)


@pytest.mark.parametrize("mode", ["sum", "each"])
@property_based
@given(data=st.data())
def test_damaged_messages_leave_the_bits_of_the_good_ones(town, honest_replies, mode, data):
    plan = town.plan()
    if mode not in honest_replies:
        grid = town.grid(6, plan)
        town.run(town.one_shot(6, plan, reply=mode), grid)
        honest_replies[mode] = {m.metadata.dst_node_id: grid.answer(m) for m in grid.sent}
    replies = honest_replies[mode]
    bad = data.draw(st.dictionaries(st.integers(101, 106), OF_PEOPLE, min_size=1, max_size=5))

    def answers(damages: dict[int, Damage]) -> Callable[[Message], Any]:
        def answer(request: Message) -> Any:
            node = request.metadata.dst_node_id
            return damages.get(node, lambda content: content)(replies[node])

        return answer

    got = one_shot(town, plan, mode, answers(bad))
    outcome = town.outcomes[-1]
    assert len(outcome.failures) == len(bad)
    hosted = town.census(6).by_node(np.arange(town.num_clients))
    for node in bad:
        clients = hosted[node]
        named = f"the reply for {len(clients)} clients, {clients[0]} to {clients[-1]}: "
        assert any(reason.startswith(named) for reason in outcome.failures)
    lost = np.sort(np.concatenate([hosted[node] for node in bad]))
    assert [cohort.clients.tolist() for cohort in outcome.assumed] == [lost.tolist()]
    alone = one_shot(town, plan, mode, answers(dict.fromkeys(bad, lambda content: None)))
    assert got.tobytes() == alone.tobytes()
