"""What a run keeps in its checkpoints: the messages of every cohort, each under its own row, and each packed once."""

from __future__ import annotations

import gc
import importlib
import weakref
from typing import Any

import numpy as np
import pytest

from fedveil import wire
from fedveil.privacy import CohortRelease, MessagePlan, Modulation, plan_messages, worst_mu
from fedveil.run.app import find_app

NUM_CLIENTS = 100
ZERO = np.zeros(3)


@pytest.fixture
def history() -> Any:
    """The class of the app, which is no part of the installed library."""
    with find_app("modulated").importable():
        return importlib.import_module("modulated_app.history").History


def plan(epsilon: float = 8.0) -> MessagePlan:
    return plan_messages(epsilon=epsilon, delta=1e-5, bound=1.0, modulation=Modulation(), num_releases=3)


def told(*cohorts: CohortRelease) -> list[tuple[Any, list[int]]]:
    return [(sent.release, sent.clients.tolist()) for sent in cohorts]


def checkpoint(kept: Any, server_round: int) -> Any:
    return kept.checkpoint(server_round, ZERO, {}, "hash", {"run": "x"})


def test_a_checkpoint_packs_the_clients_of_a_round_once_and_gives_back_the_same(
    history: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []
    pack = wire.encode_clients
    monkeypatch.setattr(
        wire, "encode_clients", lambda clients: (packed.append(len(clients)), pack(clients))[1]
    )
    kept = history(NUM_CLIENTS, None)
    for number in (1, 2, 3):
        kept.pay((plan().cohort_release(np.arange(10 * number), number),), ())
        kept.pay((), (plan().cohort_release(np.arange(90, 90 + number), number),))
        again = history(NUM_CLIENTS, checkpoint(kept, number))
        assert told(*again.releases) == told(*kept.releases)
        assert told(*again.assumed) == told(*kept.assumed)
    assert packed == [10, 1, 20, 2, 30, 3]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_restored_is_what_was_sent_however_often_nodes_were_asked_again(
    history: Any, seed: int
) -> None:
    """Cohorts of attempts that came to an end are gone when the next ones are made, perhaps at the same address."""
    rng = np.random.default_rng(seed)
    plans = [plan(epsilon) for epsilon in (2.0, 4.0, 8.0)]

    def sent(server_round: int) -> CohortRelease:
        clients = np.flatnonzero(rng.random(NUM_CLIENTS) < 0.3)
        return plans[rng.integers(3)].cohort_release(clients, server_round)

    kept = history(NUM_CLIENTS, None)
    for number in range(1, 51):
        for _ in range(rng.integers(4)):
            kept.pending = tuple(sent(number) for _ in range(rng.integers(1, 4)))
            again = history(NUM_CLIENTS, checkpoint(kept, number - 1))
            assert told(*again.assumed) == told(*kept.assumed, *kept.pending)
        kept.pay((sent(number),), [sent(number) for _ in range(rng.integers(3))])
        again = history(NUM_CLIENTS, checkpoint(kept, number))
        assert told(*again.all_releases) == told(*kept.all_releases)
    assert worst_mu(again.all_releases, "attribute") == worst_mu(kept.all_releases, "attribute")


def test_attempts_that_came_to_an_end_take_no_memory(history: Any) -> None:
    kept = history(NUM_CLIENTS, None)
    kept.pending = (plan().cohort_release(np.arange(50), 1),)
    checkpoint(kept, 0)
    left = weakref.ref(kept.pending[0])
    kept.pay((), (plan().cohort_release(np.arange(50), 1),))
    checkpoint(kept, 1)
    gc.collect()
    assert left() is None
