"""Bad replies: each is dropped, by name, and the model is that of the good ones."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil import wire
from fedveil.flower import ErrorCode
from fedveil.privacy import Release
from fedveil.strategies import BadReply, CentralMechanism, check_reply

MALFORMED = runpy.run_path(str(Path(__file__).with_name("malformed.py")))
CASES = [("sum", name, change) for name, change in (MALFORMED["ANY"] | MALFORMED["SUM"]).items()] + [
    ("each", name, change) for name, change in (MALFORMED["ANY"] | MALFORMED["EACH"]).items()
]
CENTRAL = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=1.0, num_clients=6)
property_based = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_there_are_enough_ways_to_be_wrong():
    assert len({name for _, name, _ in CASES}) >= 100


@pytest.mark.parametrize("mode", ["sum", "each"])
def test_an_honest_reply_is_read_as_it_is(scene, mode):
    request = scene.request([0, 1], mode=mode)
    reply = check_reply(Message(scene.honest(request), reply_to=request), scene.expected([0, 1], mode=mode))
    assert (reply.num_examples, reply.took_part, reply.out_of_budget) == (30, (0, 1), ())
    updates = [scene.update_of(client, 1) for client in (0, 1)]
    for name, shape in scene.shapes.items():
        if mode == "each":
            assert np.array_equal(reply.arrays[name], np.stack([update[name] for update in updates]))
        else:
            total = wire.to_fixed(10 * updates[0][name]) + wire.to_fixed(20 * updates[1][name])
            assert reply.arrays[name].dtype == np.int64
            assert reply.arrays[name].shape == shape
            assert np.array_equal(reply.arrays[name], total)
    rows = [row for client in (0, 1) for row in scene.planned(client).releases(client, 1, 0)]
    assert reply.releases == (tuple(rows) if mode == "sum" else ())


def test_a_reply_of_clients_out_of_budget_is_good(scene):
    request = scene.request([0, 1])
    content = scene.honest(request, out_of_budget=[0, 1])
    reply = check_reply(Message(content, reply_to=request), scene.expected([0, 1]))
    assert (reply.num_examples, reply.took_part, reply.out_of_budget, reply.releases) == (0, (), (0, 1), ())


@pytest.mark.parametrize(("mode", "name", "change"), CASES, ids=[f"{m}: {n}" for m, n, _ in CASES])
def test_a_malformed_reply_is_refused(scene, mode, name, change):
    request = scene.request([0, 1], mode=mode)
    content = change(scene.honest(request))
    with pytest.raises(BadReply) as refused:
        check_reply(Message(content, reply_to=request), scene.expected([0, 1], mode=mode))
    assert str(refused.value)


def test_an_error_reply_is_refused_with_its_reason(scene):
    request = scene.request([0, 1])
    for error, reason in (
        (Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "disk full"), "disk full"),
        (Error(ErrorCode.NODE_UNAVAILABLE), f"error {ErrorCode.NODE_UNAVAILABLE}"),
    ):
        with pytest.raises(BadReply, match=reason):
            check_reply(Message(error, reply_to=request), scene.expected([0, 1]))


def test_a_reply_with_neither_content_nor_error_is_refused(scene):
    request = scene.request([0, 1])
    reply = Message(RecordDict(), reply_to=request)
    reply.__dict__["_content"] = None
    with pytest.raises(BadReply):
        check_reply(reply, scene.expected([0, 1]))


@pytest.mark.parametrize("mode", ["sum", "each"])
def test_bad_replies_leave_the_model_of_the_good_ones_alone(scene, bits, mode):
    central = CENTRAL if mode == "each" else None

    def model(change):
        def answer(request):
            content = scene.honest(request)
            return change(content) if request.metadata.dst_node_id == 101 else content

        scene.outcomes.clear()
        scene.said.clear()
        result = scene.run(scene.strategy(central=central), scene.grid(answer))
        outcome = scene.outcomes[-1]
        assert len(outcome.failures) == 1
        assert outcome.failures[0].startswith("the reply for clients 0-1: ")
        assert f"round 1: dropped {outcome.failures[0]}" in scene.said
        # who lost his reply may have released all the same
        lost = (
            []
            if central
            else [row for client in (0, 1) for row in scene.planned(client).releases(client, 1, 0)]
        )
        assert list(outcome.assumed) == lost
        assert {row.client for row in outcome.releases} == ({-1} if central else {2, 3, 4, 5})
        return bits(result.arrays)

    alone = model(lambda content: None)
    assert set(alone) == set(scene.shapes)
    for case_mode, name, change in CASES:
        if case_mode == mode:
            assert model(change) == alone, name


def test_the_good_replies_alone_are_averaged_by_their_records(scene):
    def answer(request):
        return None if request.metadata.dst_node_id == 101 else scene.honest(request)

    result = scene.run(scene.strategy(), scene.grid(answer))
    for name in scene.shapes:
        weighted = sum(scene.examples[c] * scene.update_of(c, 1)[name] for c in (2, 3, 4, 5))
        expected = 0.5 + weighted / sum(scene.examples[c] for c in (2, 3, 4, 5))
        # off by a step of the grid and a rounding to float32
        np.testing.assert_allclose(result.arrays[name].numpy(), expected, rtol=1e-6, atol=1e-7)


# property-based: whatever is sent is refused as bad, or means what an honest reply means

scalars = st.one_of(st.integers(-(2**62), 2**62), st.floats(), st.text(max_size=5), st.binary(max_size=5))
values = st.one_of(
    scalars,
    st.booleans(),
    st.lists(st.integers(-2, 5), max_size=4),
    st.lists(st.booleans(), max_size=2),
    st.lists(st.floats(), max_size=2),
    st.lists(st.text(max_size=2), max_size=2),
)
dtypes = st.sampled_from(["int64", "float64", "float32", "int8", "<i8", ">i8", "O", "datetime64", "", "U3"])


def assert_refused_or_honest(scene, content: RecordDict, mode: str) -> None:
    request = scene.request([0, 1], mode=mode)
    try:
        reply = check_reply(Message(content, reply_to=request), scene.expected([0, 1], mode=mode))
    except BadReply:
        return
    assert sorted(reply.took_part + reply.out_of_budget) == [0, 1]
    assert all(type(client) is int for client in reply.took_part + reply.out_of_budget)
    assert type(reply.num_examples) is int
    assert reply.num_examples == sum(scene.examples[client] for client in reply.took_part)
    stacked = (len(reply.took_part),) if mode == "each" else ()
    assert list(reply.arrays) == list(scene.shapes)
    for name, shape in scene.shapes.items():
        assert reply.arrays[name].shape == stacked + shape
        assert reply.arrays[name].dtype == (np.float64 if mode == "each" else np.int64)
        assert np.all(np.isfinite(reply.arrays[name]))
    for row in reply.releases:
        assert isinstance(row, Release)
        assert row.client in reply.took_part
        assert row.round == 1


@property_based
@given(
    st.sampled_from(["sum", "each"]),
    st.dictionaries(
        st.sampled_from(["rows", "released", "clients", "out-of-budget", "library", "source", "surplus"]),
        values,
        min_size=1,
    ),
)
def test_any_ledger_record_is_refused_or_honest(scene, mode, changed):
    content = scene.honest(scene.request([0, 1], mode=mode))
    content[wire.LEDGER] = ConfigRecord({**dict(content.config_records[wire.LEDGER]), **changed})
    assert_refused_or_honest(scene, content, mode)


@property_based
@given(
    st.sampled_from(["sum", "each"]),
    st.one_of(st.integers(-(2**62), 2**62), st.floats(), st.lists(st.floats(), max_size=2)),
)
def test_any_count_is_refused_or_honest(scene, mode, count):
    content = scene.honest(scene.request([0, 1], mode=mode))
    content[wire.METRICS] = MetricRecord({wire.NUM_EXAMPLES: count})
    assert_refused_or_honest(scene, content, mode)


@property_based
@given(
    st.sampled_from(["sum", "each"]),
    dtypes,
    st.lists(st.integers(-1, 3), max_size=4).map(tuple),
    st.sampled_from(["numpy.ndarray", "torch.tensor", ""]),
    st.binary(max_size=200),
)
def test_any_label_of_an_array_is_refused_or_honest(scene, mode, dtype, shape, stype, data):
    content = scene.honest(scene.request([0, 1], mode=mode))
    arrays = dict(content.array_records[wire.ARRAYS])
    content[wire.ARRAYS] = ArrayRecord({**arrays, "weight": Array(dtype, shape, stype, data)})
    assert_refused_or_honest(scene, content, mode)


@property_based
@given(st.sampled_from(["sum", "each"]), st.data())
def test_any_damage_to_an_arrays_bytes_is_refused_or_honest(scene, mode, data):
    content = scene.honest(scene.request([0, 1], mode=mode))
    arrays = dict(content.array_records[wire.ARRAYS])
    old = arrays["weight"]
    at = data.draw(st.one_of(st.integers(0, 20), st.integers(0, len(old.data))))
    removed = data.draw(st.integers(0, 30))
    inserted = data.draw(st.one_of(st.binary(max_size=30), st.sampled_from([b"99999999", b"(", b"'", b"\0"])))
    damaged = old.data[:at] + inserted + old.data[at + removed :]
    content[wire.ARRAYS] = ArrayRecord({**arrays, "weight": Array(old.dtype, old.shape, old.stype, damaged)})
    assert_refused_or_honest(scene, content, mode)


@property_based
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "client": st.one_of(st.integers(-2, 7), st.booleans(), st.floats(-1, 3)),
                "round": st.one_of(st.integers(0, 2), st.booleans()),
                "step": st.integers(-2, 3),
                "name": st.text(max_size=3),
                "relation": st.sampled_from(["record", "attribute", "client", "all"]),
                "sensitivity": st.floats(),
                "sigma": st.floats(),
                "chosen": st.sampled_from(["fixed", "released", "data-dependent", ""]),
                "sampling_rate": st.floats(),
            }
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_ledger_rows_are_refused_or_honest(scene, rows):
    content = scene.honest(scene.request([0, 1]))
    record = dict(content.config_records[wire.LEDGER])
    content[wire.LEDGER] = ConfigRecord({**record, wire.ROWS: json.dumps(rows).encode()})
    assert_refused_or_honest(scene, content, "sum")


def test_a_private_reply_that_owes_ledger_rows_and_brings_none_is_refused(scene):
    content = scene.honest(scene.request([0, 1]))
    content[wire.LEDGER][wire.ROWS] = wire.encode_releases(())
    reply = Message(content, reply_to=scene.request([0, 1]))
    with pytest.raises(BadReply, match="owes 4"):
        check_reply(reply, scene.expected([0, 1]))


def test_where_the_sample_is_secret_a_dropped_reply_does_not_tell_who_was_sampled(scene):
    central = CentralMechanism(clip_norm=1.0, noise_multiplier=0.5, sampling_rate=0.9, num_clients=6)
    grid = scene.grid(lambda m: None if m.metadata.dst_node_id == 101 else scene.honest(m), looks=[(101,)])
    scene.run(scene.strategy(central=central, fraction_train=0.9), grid)
    assert scene.outcomes[1].num_clients is None
    assert scene.outcomes[1].failures == ()
    assert not any("clients 0" in line for line in scene.said)
