"""What a node answers when its clients' losses are asked for: noised on the client, paid for before it leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from numpy.typing import NDArray
from scipy.stats import chi2
from torch.nn.functional import cross_entropy

from fedveil.artifacts import NodeLedger, ReplayMismatch
from fedveil.clients import ClientData, LossNode, handle_losses
from fedveil.loss_query import LossQuery, split_moments
from fedveil.models import build_learner, candidate_losses, initial_arrays
from fedveil.privacy import LossMoments, LossReleases, PrivacyFilter, Release, membership_indicator
from fedveil.streams import Streams
from fedveil.wire import decode_released, decode_releases

LEARNER = build_learner("softmax", (6,), 3)
STREAMS = Streams.seeded("test", 0)
FINGERPRINT = {"library": "0.1.0", "source": "abc"}
EXAMPLES = {3: 8, 4: 9, 8: 13}
CLIENTS = tuple(EXAMPLES)
PAIRS, NORMS = (2, 1), (0.3, 0.5)
BUDGET = 1.5
MUS = {"record": BUDGET * math.sqrt(0.4)}  # so that a second release does not fit


def client_data(client: int, version: int = 0) -> ClientData:
    """Records of a client; another version has other records and labels, as many of them."""
    rng = np.random.default_rng([client, version])
    n = EXAMPLES[client]
    return ClientData(rng.random((n, 6), dtype=np.float32), rng.integers(0, 3, n))


def candidates(seed: int = 0, count: int = sum(PAIRS) + len(PAIRS)) -> dict[str, NDArray[np.float32]]:
    """Models near one another, one above the other."""
    rng = np.random.default_rng(seed)
    start = initial_arrays(LEARNER.module, STREAMS.stream("model"))
    return {
        name: (value + 0.3 * rng.normal(size=(count, *value.shape))).astype(np.float32)
        for name, value in start.items()
    }


def node(folder: Path, **changes: Any) -> LossNode:
    """A node of three clients; each release costs 0.4 of the budget's mu^2 and 0.3 is spent."""
    settings: dict[str, Any] = {
        "learner": LEARNER,
        "data": client_data,
        "examples": EXAMPLES,
        "run": "run",
        "streams": STREAMS,
        "mus": MUS,
        "budgets": {"record": BUDGET},
        "ledger": NodeLedger(folder / "node.db"),
    }
    made = LossNode(**{**settings, **changes})
    if made.ledger is not None and not made.ledger.releases("run"):
        rows = [trained(client) for client in CLIENTS]
        made.ledger.record("run", dict.fromkeys(CLIENTS, "training"), rows, replay=True)
    return made


def trained(client: int, part: float = 0.3) -> Release:
    """What a client has released before: a share of its budget."""
    return Release(client, 1, 0, "gradient", "record", BUDGET * math.sqrt(part), 1.0)


def question(seed: int = 0, **changes: Any) -> LossQuery:
    settings = {
        "round": 6,
        "run": "run",
        "kind": "released",
        "pairs": PAIRS,
        "clip_norms": NORMS,
        "candidates": candidates(seed),
    }
    return LossQuery(**{**settings, **changes})


def ask(target: LossNode, query: LossQuery | None = None, clients: tuple[int, ...] = CLIENTS) -> RecordDict:
    return handle_losses((query or question()).request(clients), target, FINGERPRINT)


def vectors(reply: RecordDict, name: str = "loss-differences") -> dict[int, NDArray[np.float64]]:
    released = decode_released(reply["ledger"]["released"])
    assert all(set(values) == {name} for values in released.values())
    return {client: np.array(values[name]) for client, values in released.items()}


def plan(client: int) -> LossReleases:
    return LossReleases.planned(EXAMPLES[client], PAIRS, NORMS, MUS)


def losses_one_by_one(client: int, models: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    """Loss of each record under each model, each alone."""
    data = client_data(client)
    table = np.empty((len(data.labels), len(next(iter(models.values())))))
    for k in range(table.shape[1]):
        own = {name: torch.tensor(value[k], dtype=torch.float64) for name, value in models.items()}
        for i, (features, label) in enumerate(zip(data.features, data.labels, strict=True)):
            record = torch.tensor(features[None], dtype=torch.float64)
            scores = torch.func.functional_call(LEARNER.module.double(), own, (record,))
            table[i, k] = float(cross_entropy(scores, torch.tensor([label])))
    LEARNER.module.float()
    return table


def sums_by_loops(losses: NDArray[np.float64], norm: float) -> list[float]:
    """Clipped differences with the first column: their sums, then those of products over the norm."""
    q = losses.shape[1] - 1
    clipped = []
    for row in losses:
        difference = [value - row[0] for value in row[1:]]
        length = math.sqrt(sum(value**2 for value in difference))
        clipped.append([value * min(1.0, norm / length) for value in difference])
    first = [sum(row[j] for row in clipped) for j in range(q)]
    second = [
        sum(row[j] * row[k] for row in clipped) / norm * (1.0 if j == k else math.sqrt(2))
        for j in range(q)
        for k in range(j, q)
    ]
    return first + second


def test_what_leaves_is_the_sum_of_clipped_differences_and_noise_of_the_clients_own_stream(
    tmp_path: Path,
) -> None:
    query = question()
    sent = vectors(ask(node(tmp_path), query))
    for client in CLIENTS:
        losses = losses_one_by_one(client, query.candidates)
        exact = sums_by_loops(losses[:, :3], NORMS[0]) + sums_by_loops(losses[:, 3:], NORMS[1])
        sigmas = np.repeat([part.sigma for part in plan(client).parts], [5, 2])
        noise = STREAMS.stream(f"loss-noise/{query.digest}", round=6, client=client).normal(7)
        np.testing.assert_allclose(
            sent[client], exact + sigmas * noise, atol=1e-5
        )  # losses of float32 networks


def test_the_noise_is_the_clients_and_has_the_planned_size(tmp_path: Path) -> None:
    """The noise of 300 fresh releases; a sum of so many squares leaves its range with probability 1e-6."""
    query, squares, count = question(), 0.0, 0
    losses = losses_one_by_one(3, query.candidates)
    exact = np.array(sums_by_loops(losses[:, :3], NORMS[0]) + sums_by_loops(losses[:, 3:], NORMS[1]))
    sigmas = np.repeat([part.sigma for part in plan(3).parts], [5, 2])
    seen = set()
    for index in range(300):
        fresh = node(tmp_path, streams=Streams.system(), run=f"run-{index}")
        sent = vectors(ask(fresh, replace(query, run=f"run-{index}"), (3,)))[3]
        squares += float(np.square((sent - exact) / sigmas).sum())
        count += len(sent)
        seen.add(sent.tobytes())
    assert len(seen) == 300
    assert chi2.ppf(5e-7, count) < squares < chi2.ppf(1 - 5e-7, count)


def test_every_byte_of_the_answer_is_accounted_for_and_its_rows_are_on_disk(tmp_path: Path) -> None:
    target = node(tmp_path)
    reply = ask(target)
    rows = tuple(row for client in CLIENTS for row in plan(client).releases(client, 6))
    ledger = reply["ledger"]
    assert set(reply) == {"ledger"}
    assert set(ledger) == {"rows", "released", "clients", "out-of-budget", "library", "source"}
    assert decode_releases(ledger["rows"]) == rows
    assert (ledger["clients"], ledger["out-of-budget"]) == ([3, 4, 8], [])
    assert {client: len(vector) for client, vector in vectors(reply).items()} == dict.fromkeys(CLIENTS, 7)
    assert [row for row in NodeLedger(tmp_path / "node.db").releases("run") if row.round == 6] == sorted(
        rows, key=lambda row: (row.client, row.step)
    )


def test_rows_are_written_before_anything_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Exception):
        pass

    def refuse(*_: Any, **__: Any) -> None:
        raise Full

    target = node(tmp_path)
    monkeypatch.setattr(NodeLedger, "record", refuse)
    with pytest.raises(Full):
        ask(target)


@pytest.mark.parametrize("streams", [STREAMS, Streams.system()], ids=["seeded", "fresh"])
def test_a_second_question_is_refused_and_no_budget_is_passed(tmp_path: Path, streams: Streams) -> None:
    target = node(tmp_path, streams=streams)
    ask(target, question(0))
    again = ask(target, replace(question(1), round=7))
    assert again["ledger"]["clients"] == []
    assert again["ledger"]["out-of-budget"] == [3, 4, 8]
    assert (again["ledger"]["rows"], again["ledger"]["released"]) == (b"[]", b"{}")
    for client in CLIENTS:
        own = NodeLedger(tmp_path / "node.db").releases("run", client)
        assert PrivacyFilter({"record": BUDGET}).admits(own)
        assert math.fsum(row.mu**2 for row in own) == pytest.approx((0.3 + 0.4) * BUDGET**2)


@pytest.mark.parametrize("streams", [STREAMS, Streams.system()], ids=["seeded", "fresh"])
def test_a_client_that_could_pay_for_more_answers_one_question_only(tmp_path: Path, streams: Streams) -> None:
    target = node(tmp_path, streams=streams, budgets={"record": 10 * BUDGET})
    ask(target)
    for server_round in (7, 8, 1000):
        again = ask(target, replace(question(server_round), round=server_round))
        assert (again["ledger"]["clients"], again["ledger"]["out-of-budget"]) == ([], [3, 4, 8])


def test_two_questions_share_no_noise_whatever_the_seed(tmp_path: Path) -> None:
    """With one noise the difference of two runs that ask differently would be that of exact sums."""
    one, other = question(0), question(1)
    assert one.digest != other.digest != question(0, clip_norms=(0.4, 1.0)).digest
    draws = [
        STREAMS.stream(f"loss-noise/{asked.digest}", round=6, client=3).normal(7) for asked in (one, other)
    ]
    assert np.all(draws[0] != draws[1])


def test_a_client_that_has_spent_too_much_is_out_of_budget_and_its_records_are_not_looked_at(
    tmp_path: Path,
) -> None:
    def data(client: int) -> ClientData:
        assert client != 4
        return client_data(client)

    target = node(tmp_path, data=data)
    assert target.ledger is not None
    target.ledger.record("run", {4: "more"}, [replace(trained(4, 0.4), round=2)], replay=True)
    reply = ask(target)
    assert (reply["ledger"]["clients"], reply["ledger"]["out-of-budget"]) == ([3, 8], [4])
    assert set(vectors(reply)) == {3, 8}


def test_a_release_without_a_bound_under_a_limited_relation_leaves_no_budget(tmp_path: Path) -> None:
    target = node(tmp_path)
    assert target.ledger is not None
    unbounded = Release(3, 2, 0, "gradient", "attribute", 0.1, 1.0)  # says nothing of whole records
    target.ledger.record("run", {3: "more"}, [unbounded], replay=True)
    assert ask(target)["ledger"]["out-of-budget"] == [3]


def test_a_seeded_node_repeats_itself_to_the_byte_and_pays_once(tmp_path: Path) -> None:
    target = node(tmp_path)
    first, second = (recorddict_to_proto(ask(target)).SerializeToString(deterministic=True) for _ in "12")
    assert first == second
    assert len([row for row in NodeLedger(tmp_path / "node.db").releases("run") if row.round == 6]) == 3 * 2


def test_a_seeded_node_gives_no_second_answer_with_the_noise_of_the_first(tmp_path: Path) -> None:
    target = node(tmp_path)
    ask(target, question(0))
    with pytest.raises(ReplayMismatch):
        ask(target, question(1))


def test_other_records_change_what_is_released_and_nothing_else(tmp_path: Path) -> None:
    replies = []
    for version in (0, 1):
        (tmp_path / str(version)).mkdir()
        replies.append(ask(node(tmp_path / str(version), data=lambda c, v=version: client_data(c, v))))
    first, second = (dict(reply["ledger"]) for reply in replies)
    one, other = (vectors(reply) for reply in replies)
    assert all(np.all(one[client] != other[client]) for client in CLIENTS)
    first.pop("released")
    second.pop("released")
    assert first == second


def test_clients_answer_alike_alone_and_together(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    together, alone = vectors(ask(node(tmp_path))), node(tmp_path / "alone")
    for client in reversed(CLIENTS):
        assert np.array_equal(vectors(ask(alone, clients=(client,)))[client], together[client])


def test_a_model_that_is_not_finite_gets_finite_answers(tmp_path: Path) -> None:
    """It would be an error that tells of records otherwise; such a loss is no difference."""
    models = candidates()
    for array, bad in zip(models.values(), (np.nan, np.inf), strict=True):
        array[1] = bad
    sent = vectors(ask(node(tmp_path), question(candidates=models)))
    assert all(np.all(np.isfinite(vector)) for vector in sent.values())


# for study


def test_exact_moments_added_over_clients_are_those_of_their_pooled_records(tmp_path: Path) -> None:
    query = question(kind="study")
    reply = ask(node(tmp_path, mus={}, ledger=None, study=True), query)
    assert (reply["ledger"]["rows"], reply["ledger"]["out-of-budget"]) == (b"[]", [])
    parts = [
        split_moments(vector, PAIRS, EXAMPLES[client])
        for client, vector in vectors(reply, "loss-moments").items()
    ]
    records = [client_data(client) for client in CLIENTS]
    pooled = candidate_losses(
        LEARNER,
        query.candidates,
        np.concatenate([data.features for data in records]),
        np.concatenate([data.labels for data in records]),
    )
    for index, columns in enumerate((slice(0, 3), slice(3, 5))):
        total = parts[0][index] + parts[1][index] + parts[2][index]
        exact = LossMoments.from_losses(pooled[:, columns])
        found, expected = membership_indicator(total), membership_indicator(exact)
        assert total.count == 30
        assert (found.best, found.runner_up) == (expected.best, expected.runner_up)
        assert found.r_q == pytest.approx(expected.r_q, rel=1e-9)


def test_exact_moments_are_not_given_where_they_were_not_agreed_to(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exact moments of losses are not private"):
        ask(node(tmp_path), question(kind="study"))


@pytest.mark.parametrize("changes", [{"mus": {}}, {"ledger": None}], ids=["no share", "no ledger"])
def test_nothing_is_released_where_it_cannot_be_paid_for(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no budget to release losses"):
        ask(node(tmp_path, **changes))


# what is wrong with a request


def _config(**values: Any) -> Callable[[RecordDict], None]:
    def change(request: RecordDict) -> None:
        config = {**request["config"], **{key.replace("_", "-"): value for key, value in values.items()}}
        request["config"] = ConfigRecord({key: value for key, value in config.items() if value is not None})

    return change


def _arrays(make: Callable[[NDArray[np.float32]], NDArray[Any]]) -> Callable[[RecordDict], None]:
    def change(request: RecordDict) -> None:
        arrays = {name: Array(make(array.numpy())) for name, array in request["arrays"].items()}
        request["arrays"] = ArrayRecord(arrays)

    return change


def _without(name: str) -> Callable[[RecordDict], None]:
    return lambda request: request.__delitem__(name)


MALFORMED: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "no arrays": (_without("arrays"), "needs an ArrayRecord"),
    "no config": (_without("config"), "needs an ArrayRecord"),
    "no clip norms": (_config(clip_norms=None), "'clip-norms'"),
    "no pairs": (_config(pairs=None), "'pairs'"),
    "no kind": (_config(kind=None), "'kind'"),
    "pairs that are no list": (_config(pairs=2), "must be lists"),
    "clients that are no list": (_config(clients="3"), "must be lists"),
    "another kind": (_config(kind="exact"), "one of released, study"),
    "a negative clip norm": (_config(clip_norms=[0.3, -1.0]), "numbers from 1e-100 to 1e.100"),
    "an infinite clip norm": (_config(clip_norms=[0.3, math.inf]), "numbers from 1e-100 to 1e.100"),
    "a clip norm that is no number": (_config(clip_norms=[0.3, math.nan]), "numbers from 1e-100 to 1e.100"),
    "a clip norm too few": (_config(clip_norms=[0.3]), "one of each a quantizer"),
    "no pair": (_config(pairs=[3, 0]), "whole numbers from 1"),
    "other pairs than candidates": (_config(pairs=[2, 2]), "do not hold 6 candidates"),
    "round 0": (_config(server_round=0), "a round from 1"),
    "another run": (_config(run="another"), "of run 'another'"),
    "a client of another node": (_config(clients=[3, 5]), "client 5 is not on this node"),
    "a client twice": (_config(clients=[3, 3]), "named twice"),
    "candidates of float64": (
        _arrays(lambda array: array.astype(np.float64)),
        "expected numpy.ndarray float32",
    ),
    "candidates of another model": (_arrays(lambda array: array[..., None]), "must build the same model"),
    "one model alone": (_arrays(lambda array: array[0]), "do not hold 5 candidates"),
}


@pytest.mark.parametrize(("change", "sentence"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused_in_one_sentence_before_any_record_is_looked_at(
    tmp_path: Path, change: Callable[[RecordDict], None], sentence: str
) -> None:
    def data(client: int) -> ClientData:
        raise AssertionError("a record was looked at")

    request, target = question().request(CLIENTS), node(tmp_path, data=data)
    change(request)
    with pytest.raises(ValueError, match=sentence) as refused:
        handle_losses(request, target, FINGERPRINT)
    assert "\n" not in str(refused.value)
    assert [row.round for row in NodeLedger(tmp_path / "node.db").releases("run")] == [1, 1, 1]


def test_an_answer_survives_the_wire(tmp_path: Path) -> None:
    """Floats keep every bit as JSON."""
    reply = ask(node(tmp_path))
    again = json.loads(reply["ledger"]["released"])
    for client, vector in vectors(reply).items():
        assert np.array(again[str(client)]["loss-differences"]).tobytes() == vector.tobytes()
