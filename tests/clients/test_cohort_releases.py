"""What clients release beside their updates: noised, paid for, and nothing of what decides it in private."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedveil.artifacts import NodeLedger
from fedveil.clients import (
    ClientData,
    Cohort,
    ContributionMeter,
    attribute_mean_and_share,
    handle_train,
    mask_utilities,
)
from fedveil.clients.memory_ledger import MemoryLedger
from fedveil.datasets.groups import Groups
from fedveil.datasets.schema import Schema
from fedveil.models import Learner, build_learner, initial_arrays
from fedveil.privacy import (
    ContributionRelease,
    Known,
    NoisePlan,
    PrivacyFilter,
    QuantileRelease,
    budgets,
    noise_aware_weight,
    shapley_values,
)
from fedveil.streams import Stream, Streams
from fedveil.wire import decode_released, decode_releases, encode_known, to_fixed

LEARNER = build_learner("softmax", (6,), 3)
STREAMS = Streams.seeded("test", 0)
ARRAYS = initial_arrays(LEARNER.module, STREAMS.stream("model"))
MASKS = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=np.bool_)
SCHEMA = Schema(
    names=tuple("abcdef"),
    shape=(6,),
    low=np.zeros(6, np.float32),
    high=np.ones(6, np.float32),
    baseline=np.full(6, 0.25, np.float32),
    target="y",
    classes=("0", "1", "2"),
)
GROUPS = Groups(("p", "q", "r"), "attributes", (0,), MASKS)
SIGMA = 0.07
SETTINGS: dict[str, Any] = {"calibration": "attribute", "epsilon": 8.0, "delta": 1e-5}


def client_data(client: int) -> ClientData:
    rng = np.random.default_rng(client)
    n = 30 + client
    features = rng.random((n, 6), dtype=np.float32)
    baseline = features.copy()
    baseline[:, :2] = 0.25
    return ClientData(features, rng.integers(0, 3, n), baseline)


def plan(client: int, **changes: Any) -> NoisePlan:
    plain: dict[str, Any] = {
        **SETTINGS,
        "num_records": 30 + client,
        "clip_norm": 1.0,
        "num_steps": 6,
        "clip_rule": "contribution",
        "start_attribute_clip_norm": 0.2,
        "contribution_scale": 0.5,
        "contribution": ContributionRelease("shapley", 3, 1, 30 + client, SIGMA),
        "share": 0.7,
    }
    return NoisePlan(**{**plain, **changes})


def secret_plan(client: int, num_steps: int = 4) -> NoisePlan:
    """R decides the noise and is not released."""
    return plan(
        client,
        calibration="paper",
        num_steps=num_steps,
        clip_rule=None,
        contribution=None,
        share=1.0,
        is_data_dependent=True,
    )


def meter(**changes: Any) -> ContributionMeter:
    plain: dict[str, Any] = {
        "learner": LEARNER,
        "groups": GROUPS,
        "schema": SCHEMA,
        "method": "mask",
        "kind": "shapley",
        "fraction": 1.0,
        "pairs": 0,
        "streams": Streams.seeded("public", 0),
    }
    return ContributionMeter(**{**plain, **changes})


def cohort(
    clients: Sequence[int] = (1, 2),
    *,
    plans: dict[int, NoisePlan] | None = None,
    streams: Streams = STREAMS,
    ledger: NodeLedger | MemoryLedger | None = None,
    measured: ContributionMeter | None = None,
    **changes: Any,
) -> Cohort:
    plain: dict[str, Any] = {
        "budgets": budgets(**SETTINGS),
        "streams": streams,
        "node_ledger": ledger,
        "run": "run",
        "steps": 2,
        "learning_rate": 0.5,
        "meter": measured or meter(),
    }
    return Cohort(
        LEARNER, client_data, plans or {client: plan(client) for client in clients}, **{**plain, **changes}
    )


def utilities(client: int, arrays: Any = ARRAYS) -> NDArray[np.float64]:
    data = client_data(client)
    return mask_utilities(LEARNER.module, arrays, data.features, data.labels, MASKS, SCHEMA.baseline)


def noise_of(purpose: str, client: int, size: int, round: int = 3) -> NDArray[np.float64]:
    return STREAMS.stream(purpose, round=round, client=client).normal(size)


# the contribution


def test_a_released_contribution_is_the_exact_vector_plus_the_stated_noise_of_its_own_stream() -> None:
    result = cohort().train(3, ARRAYS, [1, 2], measure={1, 2})
    assert set(result.released) == {1, 2}
    for client in (1, 2):
        exact = shapley_values(utilities(client))
        assert np.ptp(exact) > 0
        expected = exact + SIGMA * noise_of("contribution-noise", client, 3)
        assert result.released[client] == {"contribution": tuple(expected.tolist())}
    rows = [row for row in result.releases if row.name == "contribution"]
    assert [(row.client, row.round, row.step, row.relation, row.sigma) for row in rows] == [
        (client, 3, -1, relation, SIGMA) for client in (1, 2) for relation in ("attribute", "record")
    ]


def test_utilities_are_released_the_same_way() -> None:
    release = ContributionRelease("utilities", 3, 1, 31, SIGMA)
    node = cohort([1], plans={1: plan(1, contribution=release)}, measured=meter(kind="utilities"))
    released = node.train(3, ARRAYS, [1], measure={1}).released[1]["contribution"]
    expected = utilities(1) + SIGMA * noise_of("contribution-noise", 1, 8)
    assert released == tuple(expected.tolist())


def test_the_update_is_the_same_whether_a_contribution_is_released_beside_it_or_not() -> None:
    with_it, without = (cohort().train(3, ARRAYS, [1, 2], measure=measure) for measure in ({1}, ()))
    for name in ARRAYS:
        np.testing.assert_array_equal(with_it.totals[name], without.totals[name])
    assert without.released == {}


def test_a_client_that_is_not_to_measure_releases_nothing_beside_its_update() -> None:
    result = cohort().train(3, ARRAYS, [1, 2], measure={2})
    assert set(result.released) == {2}
    assert {row.client for row in result.releases if row.name == "contribution"} == {2}


def test_what_is_known_of_a_client_decides_its_clip_and_its_noise() -> None:
    result = cohort().train(3, ARRAYS, [1, 2], known={2: Known(contribution=0.9)})
    first, second = ([row for row in result.releases if row.client == client] for client in (1, 2))
    assert {row.chosen for row in first} == {"fixed"}
    assert {row.chosen for row in second} == {"released"}
    assert first[0].sensitivity == pytest.approx(2 * 0.2 / 31)
    assert second[0].sensitivity == pytest.approx(2 * 0.5 * 0.9 / 32)
    assert tuple(second) == plan(2).rows(2, 3, 2, Known(contribution=0.9))


def test_rows_of_a_contribution_are_on_disk_before_it_is_returned(tmp_path: Path) -> None:
    class Full(NodeLedger):
        def record(self, *arguments: Any, **options: Any) -> None:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        cohort([1], ledger=Full(tmp_path / "full.db")).train(1, ARRAYS, [1], measure={1})
    path = tmp_path / "node.db"
    result = cohort([1], ledger=NodeLedger(path)).train(1, ARRAYS, [1], measure={1})
    assert set(NodeLedger(path).releases("run")) == set(result.releases)
    assert len(result.releases) == 2 * 2 + 2


def test_a_client_without_the_budget_for_its_contribution_is_out_of_budget_and_releases_nothing() -> None:
    """The budget is that of three rounds of steps: the third fits without its contribution alone."""
    limits = {"attribute": math.sqrt(sum(row.mu**2 for row in rows_without(3))) * (1 + 1e-9)}
    node = cohort([1], budgets=limits)
    for round in (1, 2):
        assert node.train(round, ARRAYS, [1]).took_part == (1,)
    refused = node.train(3, ARRAYS, [1], measure={1})
    assert (refused.took_part, refused.out_of_budget, refused.released, refused.releases) == (
        (),
        (1,),
        {},
        (),
    )
    assert node.train(3, ARRAYS, [1]).took_part == (1,)
    assert node.train(4, ARRAYS, [1]).out_of_budget == (1,)


def rows_without(rounds: int) -> list[Any]:
    rows = [row for round in range(rounds) for row in plan(1).rows(1, round, 2)]
    return [row for row in rows if row.relation == "attribute"]


@pytest.mark.parametrize("streams", [STREAMS, Streams.system()])
def test_a_server_that_asks_for_a_contribution_in_every_round_gets_what_the_budget_pays_for(
    streams: Streams,
) -> None:
    node = cohort([1], streams=streams)
    results = [node.train(round, ARRAYS, [1], measure={1}) for round in range(1, 9)]
    taken = [result for result in results if result.took_part]
    assert 1 <= len(taken) < 8
    assert all(result.released for result in taken)
    rows = [row for result in taken for row in result.releases]
    assert PrivacyFilter(budgets(**SETTINGS)).admits(rows)
    assert not PrivacyFilter(budgets(**SETTINGS)).admits([*rows, *plan(1).rows(1, 99, 2, measure=True)])


def test_a_plan_that_measures_needs_a_meter() -> None:
    node = cohort([1])
    node._meter = None
    with pytest.raises(ValueError, match="client 1 must measure its contribution and has no meter"):
        node.train(1, ARRAYS, [1], measure={1})


def test_a_released_contribution_can_be_repeated_in_a_seeded_run_and_counts_once(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.db")
    first, again = (cohort([1], ledger=ledger).train(2, ARRAYS, [1], measure={1}) for _ in range(2))
    assert again.released == first.released
    assert ledger.count("run", 1) == 3  # two steps and the contribution


# a step that fails


def test_a_local_step_that_fails_has_its_rows_in_the_ledger_all_the_same(tmp_path: Path) -> None:
    def breaks(change: Any, gradients: Any, learning_rate: float) -> Any:
        if len(gradients) == 2:
            raise RuntimeError("no more")
        return change - learning_rate * gradients[-1]

    ledger = NodeLedger(tmp_path / "node.db")
    node = cohort([1, 2], ledger=ledger)
    node.learner = Learner(LEARNER.module, local_step=breaks)
    with pytest.raises(ValueError, match=r"client 2: local step .*no more"):
        node.train(1, ARRAYS, [2, 1])
    rows = ledger.releases("run")
    assert {row.client for row in rows} == {2}
    assert set(rows) == set(plan(2).rows(2, 1, 2))  # both steps; nothing was computed for client 1


# noise that private data decide


def secret_cohort(ledger: NodeLedger | MemoryLedger, **changes: Any) -> Cohort:
    plans = {client: secret_plan(client) for client in (1, 2)}
    return cohort(plans=plans, ledger=ledger, budgets={}, **changes)


def test_rows_that_private_data_decide_and_what_decides_them_stay_in_the_nodes_ledger(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path / "node.db")
    result = secret_cohort(ledger).train(3, ARRAYS, [1, 2])
    assert result.took_part == (1, 2)
    assert (result.releases, result.released) == ((), {})
    rows = ledger.releases("run")
    assert {row.chosen for row in rows} == {"data-dependent"}
    notes = ledger.notes("run")
    assert set(notes) == {(1, 3), (2, 3)}
    for client in (1, 2):
        exact = shapley_values(utilities(client))
        rate = max(exact[0], 0) / np.maximum(exact, 0).sum()
        note = json.loads(notes[client, 3])
        assert note["groups"] == ["p", "q", "r"]
        assert note["shapley"] == exact.tolist()
        assert note["utilities"] == utilities(client).tolist()
        assert note["contribution"] == pytest.approx(rate, rel=1e-12)
        sigma = secret_plan(client).mechanism(Known(note["contribution"])).sigma
        assert {row.sigma for row in rows if row.client == client} == {sigma}


def test_a_reply_of_clients_whose_noise_private_data_decide_says_nothing_of_it(tmp_path: Path) -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = ArrayRecord({name: Array(value) for name, value in ARRAYS.items()})
    config = {
        "server-round": 3,
        "clients": [1, 2],
        "reply": "sum",
        "run": "run",
        "known": encode_known({1: Known(0.2)}),  # what a server says it knows has no say here
        "measure": [1, 2],
    }
    request = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    ledger = NodeLedger(tmp_path / "node.db")
    reply = handle_train(request, secret_cohort(ledger), {"library": "", "source": ""})
    assert decode_releases(reply["ledger"]["rows"]) == ()
    assert decode_released(reply["ledger"]["released"]) == {}
    assert set(reply["ledger"]) == {"rows", "released", "clients", "out-of-budget", "library", "source"}
    assert set(reply["metrics"]) == {"num-examples"}
    assert len({row.sigma for row in ledger.releases()}) == 2


@pytest.mark.parametrize("on_disk", [True, False])
def test_noise_that_private_data_decide_follows_a_fixed_schedule(on_disk: bool, tmp_path: Path) -> None:
    """Who stops, and when, is the same whatever the contributions are."""
    ledger = NodeLedger(tmp_path / "node.db") if on_disk else MemoryLedger()
    node = secret_cohort(ledger, streams=Streams.system())
    outcomes = [node.train(round, ARRAYS, [1, 2]) for round in (1, 2, 2, 3)]
    assert [result.took_part for result in outcomes] == [(1, 2), (1, 2), (), ()]
    assert outcomes[-1].out_of_budget == (1, 2)


def test_a_contribution_that_does_not_see_the_model_is_measured_once() -> None:
    """Retraining starts from the public model in every round: the same figures at the price of one training."""
    node = secret_cohort(
        MemoryLedger(), measured=meter(method="retrain", fraction=0.5, start=ARRAYS, steps=3)
    )
    other = {name: value + 1 for name, value in ARRAYS.items()}
    for round, arrays in ((1, ARRAYS), (2, other)):
        node.train(round, arrays, [1])
    notes = node._ledger.notes("run")
    assert notes[1, 1] == notes[1, 2]
    masked = secret_cohort(MemoryLedger())
    for round, arrays in ((1, ARRAYS), (2, {name: -value for name, value in ARRAYS.items()})):
        masked.train(round, arrays, [1])
    notes = masked._ledger.notes("run")
    assert notes[1, 1] != notes[1, 2]


# weights


def test_a_clients_weight_from_its_noise_is_the_same_on_client_and_server() -> None:
    def weigh(sigmas: Sequence[float]) -> float:
        return noise_aware_weight(sigmas, 0.5, 0.1)

    plans = {client: plan(client, num_steps=6 * client) for client in (1, 2)}
    result = cohort(plans=plans, weigh=weigh).train(3, ARRAYS, [1, 2], measure={1})
    alone = {
        client: cohort(plans=plans).train(3, ARRAYS, [client], measure={1}, keep_updates=True)
        for client in (1, 2)
    }
    weights = {}
    for client in (1, 2):
        # by hand: tau^2/(s^2 + tau^2), s^2 = sum of (lr sigma)^2 over the steps alone
        variance = 2 * (0.5 * plans[client].mechanism(Known()).sigma) ** 2
        weights[client] = 0.01 / (variance + 0.01)
        rows = [row for row in result.releases if row.client == client]
        sigmas = [row.sigma for row in rows if row.name == "gradient" and row.relation == "record"]
        assert weigh(sigmas) == pytest.approx(weights[client], rel=1e-12)
    assert weights[1] != weights[2]
    for name in ARRAYS:
        expected = sum(
            to_fixed(weights[client] * alone[client].updates[name][0])  # type: ignore[index]
            for client in (1, 2)
        )
        assert np.abs(result.totals[name] - expected).max() <= 2


# the quantile


def test_a_quantile_release_is_the_share_within_the_clip_plus_the_stated_noise_of_its_own_stream() -> None:
    sized = plan(1, clip_rule="quantile", contribution=None, quantile=QuantileRelease(31, 0.03))
    node = cohort([1], plans={1: sized})
    result = node.train(3, ARRAYS, [1], known={1: Known(attribute_clip_norm=0.1)})
    data = client_data(1)
    _, share = attribute_mean_and_share(
        LEARNER, ARRAYS, data.features, data.labels, data.baseline_features, 1.0, 0.1, denominator=31
    )
    assert 0 < share < 1
    expected = share + 0.03 * noise_of("quantile-noise", 1, 1)[0]
    assert result.released == {1: {"quantile": (expected,)}}
    rows = [row for row in result.releases if row.name == "quantile"]
    assert rows == list(QuantileRelease(31, 0.03).releases(1, 3))
    assert {row.chosen for row in result.releases if row.name == "gradient"} == {"released"}


def test_two_purposes_never_share_a_stream() -> None:
    asked: list[str] = []

    class Watched(Streams):
        def stream(self, purpose: str, *, round: int = 0, client: int = -1) -> Stream:
            asked.append(f"{purpose} {round} {client}")
            return super().stream(purpose, round=round, client=client)

    sized = plan(1, quantile=QuantileRelease(31, 0.03))
    cohort([1], plans={1: sized}, streams=Watched.seeded("w", 1)).train(3, ARRAYS, [1], measure={1})
    assert {"noise 3 1", "contribution-noise 3 1", "quantile-noise 3 1"} <= set(asked)
    assert len(set(asked)) == len(asked)
