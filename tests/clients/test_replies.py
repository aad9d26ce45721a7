"""What leaves a node: every key, every byte."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from numpy.typing import NDArray

from fedveil.artifacts import NodeLedger
from fedveil.clients import ClientData, Cohort, handle_identify, handle_train, local_update, make_train_reply
from fedveil.models import build_learner, initial_arrays
from fedveil.privacy import StepMechanism, budgets, plan_step
from fedveil.streams import Streams
from fedveil.wire import from_fixed, to_fixed

LEARNER = build_learner("softmax", (6,), 3)
STREAMS = Streams.seeded("test", 0)
ARRAYS = initial_arrays(LEARNER.module, STREAMS.stream("model"))
FINGERPRINT = {"library": "0.1.0", "source": "abc"}
STEPS = 2
CLIENTS = (3, 4, 8)


def client_data(client: int, version: int = 0) -> ClientData:
    """Records of a client; another version has other records and labels, as many of them."""
    rng = np.random.default_rng([client, version])
    n = 5 + client
    features = rng.random((n, 6), dtype=np.float32)
    baseline = features.copy()
    baseline[:, :2] = 0.0
    return ClientData(features, rng.integers(0, 3, n), baseline)


def mechanism(client: int) -> StepMechanism:
    return plan_step(
        num_records=5 + client,
        clip_norm=1.0,
        calibration="attribute",
        epsilon=2.0,
        delta=1e-5,
        num_releases=STEPS * (1 if client == 8 else 3),  # client 8 is out of budget after one round
        attribute_clip_norm=0.3,
    )


def cohort(folder: Path, *, version: int = 0, private: bool = True) -> Cohort:
    return Cohort(
        LEARNER,
        lambda client: client_data(client, version),
        {client: mechanism(client) if private else None for client in CLIENTS},
        budgets=budgets(calibration="attribute", epsilon=2.0, delta=1e-5),
        streams=STREAMS,
        node_ledger=NodeLedger(folder / f"node-{version}-{private}.db"),
        run="run",
        steps=STEPS,
        learning_rate=0.5,
    )


def request(round: int, reply: str, clients: tuple[int, ...] = CLIENTS, **changes: Any) -> RecordDict:
    config = {"server-round": round, "clients": [*clients], "reply": reply, "run": "run", **changes}
    arrays = ArrayRecord({name: Array(value) for name, value in ARRAYS.items()})
    return RecordDict(
        {"arrays": arrays, "config": ConfigRecord({k: v for k, v in config.items() if v is not None})}
    )


def bytes_of(reply: RecordDict) -> bytes:
    """The reply as Flower sends it."""
    return recorddict_to_proto(reply).SerializeToString(deterministic=True)


def numpy_arrays(reply: RecordDict) -> dict[str, NDArray[Any]]:
    record = reply["arrays"]
    assert isinstance(record, ArrayRecord)
    return {name: array.numpy() for name, array in record.items()}


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_every_byte_of_a_private_reply_is_accounted_for(mode: str, tmp_path: Path) -> None:
    node = cohort(tmp_path)
    handle_train(request(1, mode), node, FINGERPRINT)
    reply = handle_train(request(2, mode), node, FINGERPRINT)

    # arrays: the fixed-point sums of the noised updates of clients 3 and 4, and nothing about client 8
    totals = {name: np.zeros(value.shape, dtype=np.int64) for name, value in ARRAYS.items()}
    for client in (3, 4):
        update = local_update(
            LEARNER,
            ARRAYS,
            client_data(client),
            mechanism=mechanism(client),
            steps=STEPS,
            learning_rate=0.5,
            noise=STREAMS.stream("noise", round=2, client=client),
            round=2,
            client=client,
        )
        for name in totals:
            totals[name] += to_fixed((5 + client) * update.delta[name])
    arrays: dict[str, NDArray[Any]] = dict(totals)
    if mode == "mean":
        arrays = {k: (ARRAYS[k] + from_fixed(v) / 17).astype(np.float32) for k, v in totals.items()}
    # rows: public numbers of the mechanisms, as compact JSON
    rows = [
        row
        for client in (3, 4)
        for step in range(STEPS)
        for row in mechanism(client).releases(client, 2, step)
    ]
    accounted = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
            # the public number of records of the clients that took part
            "metrics": MetricRecord({"num-examples": (5 + 3) + (5 + 4)}),
            "ledger": ConfigRecord(
                {
                    "rows": json.dumps([asdict(row) for row in rows], separators=(",", ":")).encode(),
                    # nothing beside the updates: these plans release no contribution and no quantile
                    "released": b"{}",
                    # from public mechanisms and rows, not from records
                    "clients": [3, 4],
                    "out-of-budget": [8],
                    # what runs here
                    "library": "0.1.0",
                    "source": "abc",
                }
            ),
        }
    )
    assert bytes_of(reply) == bytes_of(accounted)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_other_private_records_change_the_noised_arrays_and_nothing_else(mode: str, tmp_path: Path) -> None:
    nodes = [cohort(tmp_path, version=version) for version in (0, 1)]
    for round in (1, 2, 3, 4):
        one, other = (handle_train(request(round, mode), node, FINGERPRINT) for node in nodes)
        changed = [np.any(numpy_arrays(one)[name] != numpy_arrays(other)[name]) for name in ARRAYS]
        assert all(changed) if round < 4 else not any(changed)  # every budget is spent after round 3
        other["arrays"] = one["arrays"]
        assert bytes_of(one) == bytes_of(other)


@pytest.mark.parametrize("mode", ["sum", "mean", "each"])
def test_a_reply_without_any_client_is_still_a_reply(mode: str, tmp_path: Path) -> None:
    reply = handle_train(request(1, mode, clients=()), cohort(tmp_path), FINGERPRINT)
    arrays = numpy_arrays(reply)
    assert reply["metrics"] == MetricRecord({"num-examples": 0})
    assert reply["ledger"]["clients"] == []
    for name, sent in ARRAYS.items():
        if mode == "mean":
            np.testing.assert_array_equal(arrays[name], sent)
        else:
            assert not arrays[name].any()
            assert arrays[name].shape == (sent.shape if mode == "sum" else (0, *sent.shape))


def test_updates_of_each_client_come_in_the_order_of_the_clients(tmp_path: Path) -> None:
    node = cohort(tmp_path, private=False)
    arrays = numpy_arrays(handle_train(request(1, "each", clients=(8, 3)), node, FINGERPRINT))
    for position, client in enumerate((8, 3)):
        alone = numpy_arrays(handle_train(request(1, "each", clients=(client,)), node, FINGERPRINT))
        for name in ARRAYS:
            assert arrays[name].dtype == np.float64
            np.testing.assert_array_equal(arrays[name][position], alone[name][0])


def test_identify_says_who_is_here_with_public_numbers_only(tmp_path: Path) -> None:
    reply = handle_identify(cohort(tmp_path), 1, 4, FINGERPRINT)
    accounted = {
        "partition-id": 1,
        "num-partitions": 4,
        "clients": [3, 4, 8],
        "examples": [8, 9, 13],
        "library": "0.1.0",
        "source": "abc",
    }
    assert bytes_of(reply) == bytes_of(RecordDict({"config": ConfigRecord(accounted)}))


def test_no_reply_is_made_of_rows_whose_noise_was_chosen_from_private_data(tmp_path: Path) -> None:
    result = cohort(tmp_path).train(1, ARRAYS, [3])
    rows = tuple(replace(row, chosen="data-dependent") for row in result.releases)
    with pytest.raises(ValueError, match="chosen from private data"):
        make_train_reply(replace(result, releases=rows), ARRAYS, "sum", FINGERPRINT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reply": "median"}, "median"),
        ({"reply": None}, "'reply'"),
        ({"server-round": None}, "'server-round'"),
        ({"run": "another"}, "of run 'another'"),
    ],
)
def test_a_malformed_request_is_refused_in_one_sentence(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        handle_train(request(1, **{"reply": "sum", **changes}), cohort(tmp_path), FINGERPRINT)


def test_a_request_without_arrays_is_refused(tmp_path: Path) -> None:
    message = request(1, "sum")
    del message["arrays"]
    with pytest.raises(ValueError, match="needs an ArrayRecord"):
        handle_train(message, cohort(tmp_path), FINGERPRINT)


def damaged(change: Any) -> RecordDict:
    """A request whose first array is another one."""
    message = request(1, "sum")
    record = message.array_records["arrays"]
    first = next(iter(record))
    record[first] = change(record[first])
    return message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda a: Array(a.numpy() * np.nan), "is not finite"),
        (lambda a: Array(np.full(a.shape, np.inf, np.float32)), "is not finite"),
        (lambda a: Array(a.numpy()[:1]), "the model that was sent has arrays"),
        (lambda a: Array(a.numpy().astype(np.int64)), "must be sent as float32 or float64"),
        (lambda a: Array("object", a.shape, a.stype, a.data), "must be sent as float32 or float64"),
        (lambda a: Array(a.dtype, (2**40, 2**20), a.stype, a.data), "the model that was sent has arrays"),
        (lambda a: Array(a.dtype, a.shape, "torch.tensor", a.data), "expected numpy.ndarray"),
        (lambda a: Array(a.dtype, a.shape, a.stype, a.data[:-1]), "does not hold"),
        (lambda a: Array(a.dtype, a.shape, a.stype, a.data + bytes(2**20)), "does not hold"),
        (lambda a: Array(a.dtype, a.shape, a.stype, b"\x80\x04N." + a.data), "does not hold"),
    ],
)
def test_a_model_that_is_not_this_nodes_is_refused_and_nothing_is_spent(
    change: Any, problem: str, tmp_path: Path
) -> None:
    node = cohort(tmp_path)
    with pytest.raises(ValueError, match=problem):
        handle_train(damaged(change), node, FINGERPRINT)
    assert NodeLedger(tmp_path / "node-0-True.db").releases() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"server-round": 1.5}, "server-round must be a whole number"),
        ({"server-round": True}, "server-round must be a whole number"),
        ({"server-round": -1}, "server-round must be a whole number"),
        ({"server-round": 2**40}, "server-round must be a whole number"),
        ({"clients": "3"}, "clients must be a list of client numbers"),
        ({"clients": [3.0]}, "clients must be a list of client numbers"),
        ({"clients": [True]}, "clients must be a list of client numbers"),
        ({"measure": b"3"}, "measure must be a list of client numbers"),
        ({"known": "{}"}, "known must be what is known of 3 clients"),
        ({"known": b" " * 5000}, "known must be what is known of 3 clients"),
        ({"known": b"[1]"}, "what is known of clients cannot be read"),
    ],
)
def test_settings_of_a_request_that_are_not_what_they_must_be_are_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=problem):
        handle_train(request(1, "sum", **changes), cohort(tmp_path), FINGERPRINT)
    assert NodeLedger(tmp_path / "node-0-True.db").releases() == []


def test_a_model_in_double_precision_is_taken(tmp_path: Path) -> None:
    message = request(1, "sum")
    for name, array in message.array_records["arrays"].items():
        message.array_records["arrays"][name] = Array(array.numpy().astype(np.float64))
    node = cohort(tmp_path)
    assert handle_train(message, node, FINGERPRINT)["metrics"]["num-examples"] == sum(5 + c for c in CLIENTS)
