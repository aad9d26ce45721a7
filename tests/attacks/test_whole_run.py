"""Likelihood-ratio audit of a whole private run: requests, cohort, filter, steps, noise, fixed point, replies.

The neighbours attain the sensitivity at every step: with two classes and no bias the gradient of a record with one
large feature points along that feature whatever the model, and the neighbour's points the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedveil.attacks import LikelihoodRatioAudit, audit_likelihood_ratio, log_likelihood_ratio
from fedveil.clients import ClientData, Cohort, handle_train, local_update
from fedveil.models import build_learner
from fedveil.privacy import Ledger, Relation, StepMechanism, budgets, plan_step
from fedveil.streams import Stream, Streams
from fedveil.wire import decode_releases, from_fixed

Case = Literal[
    "uniform, record neighbours", "attribute, attribute neighbours", "attribute, record neighbours"
]

ROUNDS, STEPS, RECORDS, DELTA, EPSILON, LEARNING_RATE = 2, 2, 3, 1e-5, 10.0, 1e-3
LEARNER = build_learner(lambda shape, outputs: torch.nn.Linear(*shape, outputs, bias=False), (3,), 2)
ARRAYS = {"weight": np.zeros((2, 3), dtype=np.float32)}
FINGERPRINT = {"library": "", "source": ""}


@dataclass(frozen=True)
class HalfNoise(Stream):
    """The bug to find: half the noise that the rows claim."""

    def normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        return super().normal(shape) / 2


class HalfNoiseStreams(Streams):
    def stream(self, purpose: str, *, round: int = 0, client: int = -1) -> Stream:
        return HalfNoise(super().stream(purpose, round=round, client=client).words)


class NoNoise(Stream):
    def normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        return np.zeros(shape)


def client_data(column: int, value: float) -> ClientData:
    """Record 0 has one large feature; the first feature is the private attribute, 0 its baseline."""
    features = np.zeros((RECORDS, 3), dtype=np.float32)
    features[1:, 1] = 1.0
    features[0, column] = value
    baseline = features.copy()
    baseline[:, 0] = 0.0
    return ClientData(features, np.zeros(RECORDS, dtype=np.int64), baseline)


def calibration_of(case: Case) -> str:
    return "uniform" if case.startswith("uniform") else "attribute"


def mechanism(case: Case) -> StepMechanism:
    return plan_step(
        num_records=RECORDS,
        clip_norm=1.0,
        calibration=calibration_of(case),
        epsilon=EPSILON,
        delta=DELTA,
        num_releases=ROUNDS * STEPS,
        attribute_clip_norm=None if case.startswith("uniform") else 0.9,
    )


def run(case: Case, data: ClientData, streams: Streams) -> tuple[NDArray[np.float64], Ledger]:
    """One whole run as the server sees it: the client's sum in each round, and the ledger rows."""
    cohort = Cohort(
        LEARNER,
        {0: data},
        {0: mechanism(case)},
        budgets=budgets(calibration=calibration_of(case), epsilon=EPSILON, delta=DELTA),
        streams=streams,
        node_ledger=None,
        run="audit",
        steps=STEPS,
        learning_rate=LEARNING_RATE,
    )
    weight, transcript, ledger = ARRAYS["weight"], [], Ledger()
    for round in range(1, ROUNDS + 2):
        config = ConfigRecord({"server-round": round, "clients": [0], "reply": "sum", "run": "audit"})
        request = RecordDict({"arrays": ArrayRecord({"weight": Array(weight)}), "config": config})
        reply = handle_train(request, cohort, FINGERPRINT)
        if round > ROUNDS:
            assert reply["ledger"]["out-of-budget"] == [0]
            break
        array = reply["arrays"]["weight"]
        rows = reply["ledger"]["rows"]
        assert isinstance(array, Array)
        assert isinstance(rows, bytes)
        update = from_fixed(array.numpy()) / RECORDS
        weight = (weight + update).astype(np.float32)
        transcript.append(update.ravel())
        ledger = ledger.add(decode_releases(rows))
    return np.array(transcript), ledger


def expected_update(case: Case, data: ClientData) -> NDArray[np.float64]:
    """What one round adds to the model but for the noise; the same in every round, whatever the model."""
    update = local_update(
        LEARNER,
        ARRAYS,
        data,
        mechanism=mechanism(case),
        steps=STEPS,
        learning_rate=LEARNING_RATE,
        noise=NoNoise(lambda count: np.zeros(count, dtype=np.uint64)),
        round=0,
        client=0,
    )
    return update.delta["weight"].ravel()


@cache
def audit(case: Case, repetitions: int, streams: type[Streams]) -> tuple[LikelihoodRatioAudit, Ledger]:
    column = 2 if case == "attribute, record neighbours" else 0
    pair = client_data(column, 1e3), client_data(column, -1e3)
    means = [expected_update(case, data) for data in pair]
    sigma = LEARNING_RATE * mechanism(case).sigma * STEPS**0.5
    scores: list[list[float]] = []
    for world, data in enumerate(pair):
        scores.append([])
        for repetition in range(repetitions):
            transcript, ledger = run(case, data, streams.seeded(f"{case} {world} {repetition}", 1))
            scores[-1].append(log_likelihood_ratio(transcript, *means, sigma).sum())
    return audit_likelihood_ratio(*scores, delta=DELTA, confidence=0.999, threshold=0.0), ledger


CASES: list[tuple[Case, Relation]] = [
    ("uniform, record neighbours", "record"),
    ("attribute, attribute neighbours", "attribute"),
    ("attribute, record neighbours", "record"),
]


@pytest.mark.parametrize(("case", "relation"), CASES)
def test_a_whole_run_stays_under_its_stated_epsilon(case: Case, relation: Relation) -> None:
    """False-alarm probability 1e-3; of too little power below 0.01 for a run that spends what it claims."""
    found, ledger = audit(case, 150, Streams)
    stated = ledger.guarantee(0, relation, DELTA)
    assert stated.kind == "proven"
    if relation == "attribute" or case.startswith("uniform"):
        assert stated.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert found.epsilon <= stated.epsilon
    assert found.mu > 0.4 * ledger.odometer(
        0, relation
    )  # and the test has the power to see the privacy spent


@pytest.mark.parametrize(("case", "relation"), CASES)
def test_a_run_with_half_the_noise_is_caught(case: Case, relation: Relation) -> None:
    """Probability of not catching it below 1e-3 (binomial errors at twice the claimed mu, at this many runs)."""
    found, ledger = audit(case, 150, HalfNoiseStreams)
    assert found.epsilon > ledger.guarantee(0, relation, DELTA).epsilon
