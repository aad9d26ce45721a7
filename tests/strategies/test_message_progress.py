"""The line of a round of messages: what the worst-off of all clients has spent, and everything that went wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.privacy import gaussian_epsilon, worst_mu
from fedveil.strategies import MessageProgress, ModulatedOutcome


@pytest.fixture
def progress(town):
    """Of a run of four rounds."""
    return MessageProgress(4, town.num_clients, 1e-5, "attribute", town.epsilon, say=town.said.append)


def outcome(number: int, **settings) -> ModulatedOutcome:
    return ModulatedOutcome(number, np.zeros(4), {"r2": 0.5, "rmse": 1.25}, 2.0, **settings)


def test_a_line_says_all_there_is(town, progress):
    plan = town.plan(4)
    everyone = plan.cohort_release(np.arange(300), 1)
    row = progress.round(outcome(1, releases=(everyone,), num_clients=300))
    spent = gaussian_epsilon(plan.mu, 1e-5)
    assert row["epsilon-attribute"] == pytest.approx(spent)
    shown = f"{math.ceil(spent * 100) / 100:g}"
    assert town.said == [
        f"round 1/4 · r2 0.5000 · rmse 1.2500 · 2.00 s, 6 s left · sigma {plan.sigma:.4g} · "
        f"eps(attribute) {shown} of 50 · clients 300 · out of budget 0"
    ]
    assert {key: row[key] for key in ("round", "r2", "sigma", "clients", "failures", "projected")} == {
        "round": 1,
        "r2": 0.5,
        "sigma": plan.sigma,
        "clients": 300,
        "failures": 0,
        "projected": 0.0,
    }


def test_what_went_wrong_is_in_the_line(town, progress):
    progress.round(outcome(2, failures=("a", "b"), out_of_budget=7, projected=True))
    assert "out of budget 7 · step cut at the radius · failed replies 2" in town.said[-1]


def test_it_is_the_worst_off_client_that_counts_with_what_lost_replies_may_have_sent(town, progress):
    plan = town.plan(4)
    sent = [plan.cohort_release(np.arange(10 * number, 200), number) for number in (1, 2)]
    lost = plan.cohort_release(np.arange(190, 300), 2)
    progress.round(outcome(1, releases=(sent[0],)))
    row = progress.round(outcome(2, releases=(sent[1],), assumed=(lost,)))
    worst = worst_mu([*sent, lost], "attribute")
    assert row["epsilon-attribute"] == pytest.approx(gaussian_epsilon(worst, 1e-5), rel=1e-12)
    assert worst == pytest.approx(math.sqrt(3) * plan.mu)


def test_it_never_passes_the_budget_and_a_whole_run_reaches_it(town, progress):
    plan = town.plan(4)
    everyone = [plan.cohort_release(np.arange(300), number) for number in range(1, 6)]
    progress.restore(everyone[:4])
    assert progress.spent() == pytest.approx(town.epsilon, rel=1e-9)
    progress.restore(everyone[4:])  # assumed for a lost reply
    assert progress.spent() == town.epsilon


def test_ranges_count_too(town, progress):
    share = town.plan(1, share=0.1, name="range")
    progress.restore([share.cohort_release(np.arange(300), 0)])
    row = progress.round(outcome(0))
    assert row["epsilon-attribute"] == pytest.approx(gaussian_epsilon(share.mu, 1e-5))


def test_nothing_is_spent_before_the_first_message(progress, town):
    assert progress.round(outcome(0))["epsilon-attribute"] == 0
    assert "eps(attribute) 0 of 50" in town.said[-1]


def test_messages_without_noise_are_called_so(town):
    progress = MessageProgress(1, 300, 1e-5, "attribute", None, say=town.said.append)
    row = progress.round(outcome(1, num_clients=300))
    assert row["epsilon-attribute"] == math.inf
    assert "no noise, no privacy" in town.said[-1]
