"""What a node of one-record clients says: what was asked, checked, and nothing private beside the messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedveil import wire
from fedveil.clients.modulated_cohort import ModulatedCohort, VariantPlan
from fedveil.clients.modulated_replies import handle_identify_modulated, handle_message
from fedveil.clients.modulated_request import read_request
from fedveil.privacy import Modulation, plan_messages
from fedveil.streams import Streams

N, D = 64, 3
CODE = {"library": "0.1.0", "source": "f00d"}
PLAN = plan_messages(epsilon=2.0, delta=1e-5, bound=1.0, modulation=Modulation())
X = np.random.default_rng(3).uniform(-1, 1, (N, D)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=N)


def cohort(first: int = 0, count: int = N) -> ModulatedCohort:
    return ModulatedCohort(
        lambda a, b: (X[a:b], Y[a:b]),
        first,
        count,
        N,
        {"main": VariantPlan("modulated", PLAN, Modulation(), 1.0)},
        Streams.seeded("c0ffee", 5),
        None,
        "run",
        True,
    )


def request(arrays: dict[str, Any] | None = None, **config: Any) -> RecordDict:
    told = {"coefficients": np.zeros(D + 1), "directions": np.eye(D)[:1], **(arrays or {})}
    settings = {
        "server-round": 1,
        "run": "run",
        "reply": "sum",
        "client-mask": wire.encode_clients([1, 5, 60]),
        "mechanism": "modulated",
        "variant": "main",
        **config,
    }
    return RecordDict(
        {
            "arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in told.items() if v is not None}),
            "config": ConfigRecord({k: v for k, v in settings.items() if v is not None}),
        }
    )


def test_a_reply_holds_sums_who_took_part_and_one_row_and_nothing_else() -> None:
    reply = handle_message(request(), cohort(), CODE)
    assert set(reply) == {"arrays", "metrics", "ledger"}
    sums = {name: array.numpy() for name, array in reply.array_records["arrays"].items()}
    assert {name: (value.dtype, value.shape) for name, value in sums.items()} == {
        "gram": (np.int64, (D, D)),
        "cross": (np.int64, (D,)),
        "total": (np.int64, (D,)),
        "labels": (np.int64, (2,)),
    }
    assert dict(reply.metric_records["metrics"]) == {"num-examples": 3}
    ledger = reply.config_records["ledger"]
    assert set(ledger) == {"rows", "client-mask", "out-of-budget", "library", "source"}
    assert wire.decode_clients(ledger["client-mask"], N - 1).tolist() == [1, 5, 60]  # type: ignore[arg-type]
    assert wire.decode_clients(ledger["out-of-budget"], N - 1).tolist() == []  # type: ignore[arg-type]
    assert wire.decode_releases(ledger["rows"]) == (PLAN.release(-1, 1),)  # type: ignore[arg-type]
    assert {key: ledger[key] for key in CODE} == CODE


def test_single_messages_come_in_the_order_of_clients() -> None:
    arrays = handle_message(request(reply="each"), cohort(), CODE).array_records["arrays"]
    assert arrays["messages"].numpy().dtype == np.float64
    assert arrays["messages"].numpy().shape == (3, D)
    assert arrays["labels"].numpy().tolist() == Y[[1, 5, 60]].tolist()


def test_a_client_out_of_budget_is_named_in_a_mask_of_its_own() -> None:
    node = cohort()
    handle_message(request(**{"client-mask": wire.encode_clients([5])}), node, CODE)
    ledger = handle_message(request(**{"server-round": 2}), node, CODE).config_records["ledger"]
    assert wire.decode_clients(ledger["client-mask"], N - 1).tolist() == [1, 60]  # type: ignore[arg-type]
    assert wire.decode_clients(ledger["out-of-budget"], N - 1).tolist() == [5]  # type: ignore[arg-type]


def test_a_node_says_which_clients_it_hosts() -> None:
    answer = handle_identify_modulated(cohort(16, 8), 2, 8, CODE).config_records["config"]
    assert dict(answer) == {"partition-id": 2, "num-partitions": 8, "first": 16, "count": 8, **CODE}


@pytest.mark.parametrize("key", ["server-round", "run", "reply", "client-mask", "mechanism", "variant"])
def test_a_request_without_a_setting_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"a request for messages needs '{key}'"):
        read_request(request(**{key: None}), N - 1)


@pytest.mark.parametrize("key", ["coefficients", "directions"])
def test_a_request_without_an_array_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"a request for messages needs '{key}'"):
        read_request(request({key: None}), N - 1)


NAN = np.array([0.0, np.nan, 0.0])


@pytest.mark.parametrize(
    ("arrays", "config", "words"),
    [
        ({}, {"reply": "mean"}, "reply must be 'sum' or 'each'"),
        ({}, {"reply": "each", "mechanism": "gradient"}, "reply 'each' is not for gradients"),
        ({}, {"server-round": -1}, "server-round must be a whole number"),
        ({}, {"server-round": 1.5}, "server-round must be a whole number"),
        ({}, {"mechanism": "magic"}, "mechanism must be one of modulated, range, gradient, unnoised"),
        ({}, {"client-mask": wire.encode_clients([N])}, "a set of clients must"),
        ({}, {"client-mask": "all"}, "a set of clients must be bytes"),
        ({"coefficients": np.zeros((2, 2))}, {}, "coefficients must be one per feature"),
        ({"coefficients": np.array([np.inf, 0, 0, 0])}, {}, "coefficients must be 4 finite numbers"),
        ({"coefficients": np.full(4, 1e13)}, {}, "coefficients must be 4 finite numbers"),
        ({"coefficients": np.zeros(D + 1, dtype=np.float32)}, {}, "expected numpy.ndarray float64"),
        ({"directions": np.eye(D)}, {}, "give at most 2"),
        ({"directions": 2 * np.eye(D)[:1]}, {}, "away from orthonormal"),
        ({"directions": np.full((1, D), np.nan)}, {}, "NaN or infinity"),
        ({"directions": np.eye(D + 1)[:1]}, {}, "do not fit 3 features"),
        ({"center": np.zeros(D)}, {}, "must be sent together"),
        ({"spread": np.ones(D)}, {}, "must be sent together"),
        ({"center": NAN, "spread": np.ones(D)}, {}, "center must be 3 finite numbers"),
        ({"center": np.zeros(D), "spread": NAN}, {}, "spread must be 3 finite numbers"),
        ({"center": np.zeros(D), "spread": np.zeros(D)}, {}, "spread must be above 0"),
        ({"center": np.zeros(D), "spread": np.full(D, 1e-13)}, {}, "spread must be above 0"),
        ({"center": np.zeros(D), "spread": -np.ones(D)}, {}, "spread must be above 0"),
        ({"center": np.zeros(2), "spread": np.ones(2)}, {}, "center must be 3 finite numbers"),
        ({"center": np.zeros(D), "spread": np.ones(D)}, {"mechanism": "range"}, "make no sense"),
    ],
)
def test_a_request_that_is_not_one_is_refused(
    arrays: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read_request(request(arrays, **config), N - 1)


def test_a_request_without_records_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a request needs an ArrayRecord 'arrays' and a ConfigRecord 'config'"
    ):
        read_request(RecordDict({"config": ConfigRecord()}), N - 1)
