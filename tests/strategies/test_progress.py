"""The line of a round: what is in it, and that its epsilons are those of the ledger."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from fedveil.privacy import (
    Ledger,
    Release,
    StepMechanism,
    compose_mu,
    gaussian_epsilon,
    gaussian_mu,
    plan_contribution,
    plan_step,
)
from fedveil.strategies import CentralMechanism, Progress, RoundOutcome, weakest_guarantee

DELTA = 1e-5


def up(value: float) -> str:
    """Four digits, rounded up: a printed epsilon is never below the truth."""
    digits = 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10**digits) / 10**digits:g}"


def outcome(server_round: int, releases=(), **values) -> RoundOutcome:
    figures = {"accuracy": 0.7654321, "loss": 1.25, **values.pop("evaluation", {})}
    return RoundOutcome(
        server_round,
        {"w": np.zeros(2, np.float32)},
        figures,
        values.pop("seconds", 1.5),
        tuple(releases),
        **values,
    )


def attribute_rows(server_round: int, clients=range(4)) -> list[Release]:
    """One step of each client, each with its own noise."""
    return [
        row
        for client in clients
        for row in StepMechanism(10 * (client + 1), 1.0, 0.4 / (client + 2), 0.2).releases(
            client, server_round, 0
        )
    ]


def subsampled_rows(server_round: int, clients=range(3)) -> list[Release]:
    return [
        row
        for client in clients
        for row in StepMechanism(50, 1.0, 0.04, sampling_rate=0.1).releases(client, server_round, 0)
    ]


def assert_figures_are_the_ledgers(progress: Progress, releases: list[Release], relations) -> None:
    for relation in ("attribute", "record", "client"):
        figure = progress.epsilon(relation)
        if relation not in relations:
            assert figure is None
            continue
        guarantee = weakest_guarantee(Ledger(tuple(releases)), DELTA, relation, None)
        assert guarantee.kind == "proven"
        assert figure == pytest.approx(guarantee.epsilon, rel=1e-12)


@pytest.mark.parametrize(
    ("budgets", "attribute", "record"),
    [
        ({"record": 1.0}, 1.0, 1.0),
        ({"attribute": 1.0}, 1.0, None),
        ({"attribute": 0.5, "record": 1.0}, 0.5, 1.0),
        ({"attribute": 3.0, "record": 1.0}, 1.0, 1.0),
    ],
)
def test_rows_assumed_for_lost_replies_pass_no_budget_and_records_budgets_hold_for_attributes(
    budgets, attribute, record
):
    mechanism = StepMechanism(
        20, 1.0, 0.05
    )  # far beyond each budget, as rows beside a repeated round's may be
    progress = Progress(4, DELTA, budgets, say=lambda line: None)
    rows = mechanism.releases(0, 1, 0)
    progress.round(outcome(1, rows, assumed=rows))
    assert progress.epsilon("attribute") == attribute
    spent = gaussian_epsilon(compose_mu([row.mu for row in rows] * 2), DELTA)
    assert progress.epsilon("record") == (pytest.approx(spent, rel=1e-12) if record is None else record)


def test_the_line_says_everything_a_person_asks():
    said = []
    progress = Progress(12, DELTA, {"attribute": 2.0}, say=said.append)
    progress.round(outcome(0, seconds=9.0))
    rows = attribute_rows(1)
    row = progress.round(outcome(1, rows, out_of_budget=(2,), failures=("the reply for clients 4: late",)))
    epsilon = {
        name: weakest_guarantee(Ledger(tuple(rows)), DELTA, name, None).epsilon
        for name in ("attribute", "record")
    }
    assert said[0] == "round  0/12 · accuracy 0.7654 · loss 1.2500 · 9.00 s, 108 s left · out of budget 0"
    assert said[1] == (
        "round  1/12 · accuracy 0.7654 · loss 1.2500 · 1.50 s, 58 s left · sigma 0.08 to 0.2 · "
        f"eps(attribute) {up(epsilon['attribute'])} of 2 · eps(record) {up(epsilon['record'])} · "
        "out of budget 1 · failed replies 1"
    )
    assert row == {
        "round": 1,
        "accuracy": 0.7654321,
        "loss": 1.25,
        "seconds": 1.5,
        "sigma-min": 0.08,
        "sigma-max": 0.2,
        "epsilon-attribute": pytest.approx(epsilon["attribute"], rel=1e-12),
        "epsilon-record": pytest.approx(epsilon["record"], rel=1e-12),
        "epsilon-client": pytest.approx(math.nan, nan_ok=True),
        "out-of-budget": 1,
        "failures": 1,
    }


def test_where_the_sample_is_secret_the_line_and_the_row_hold_neither_seconds_nor_failures():
    said = []
    rows = [
        Progress(12, DELTA, {}, hides_sample=True, say=said.append).round(outcome(1, **values))
        for values in ({}, {"seconds": 600.0, "failures": ("the reply for clients 4: late",)})
    ]
    assert said[0] == said[1] == "round  1/12 · accuracy 0.7654 · loss 1.2500 · out of budget 0"
    assert str(rows[0]) == str(rows[1])
    assert math.isnan(rows[1]["seconds"])
    assert math.isnan(rows[1]["failures"])


def test_one_noise_is_printed_once():
    said = []
    Progress(3, DELTA, {}, say=said.append).round(outcome(1, attribute_rows(1, [1])))
    assert " · sigma 0.1333 · " in said[0]


def test_a_run_without_noise_prints_no_noise_and_no_epsilon():
    said = []
    row = Progress(3, DELTA, {}, say=said.append).round(outcome(2))
    assert "sigma" not in said[0]
    assert "eps" not in said[0]
    assert math.isnan(row["sigma-min"])
    assert all(math.isnan(row[f"epsilon-{relation}"]) for relation in ("attribute", "record", "client"))


def test_attribute_level_epsilons_are_the_ledgers():
    progress, releases = Progress(5, DELTA, {}, say=lambda line: None), []
    for server_round in range(1, 6):
        rows = attribute_rows(server_round, range(server_round % 3, 4))
        releases += rows
        progress.round(outcome(server_round, rows))
        assert_figures_are_the_ledgers(progress, releases, ("attribute", "record"))


def test_record_level_epsilons_hold_for_attributes_too():
    progress, releases = Progress(5, DELTA, {}, say=lambda line: None), []
    for server_round in range(1, 4):
        rows = [row for row in attribute_rows(server_round) if row.relation == "record"]
        releases += rows
        progress.round(outcome(server_round, rows))
        assert_figures_are_the_ledgers(progress, releases, ("attribute", "record"))
        assert progress.epsilon("attribute") == progress.epsilon("record")


def test_subsampled_epsilons_are_the_ledgers():
    progress, releases = Progress(5, DELTA, {}, say=lambda line: None), []
    for server_round in (1, 2):
        rows = subsampled_rows(server_round, range(server_round))
        releases += rows
        progress.round(outcome(server_round, rows))
    assert_figures_are_the_ledgers(progress, releases, ("attribute", "record"))


def test_a_client_whose_noise_changes_is_not_taken_for_one_whose_noise_does_not():
    """Equal first steps and equal numbers of steps, and the second step of one has a third of the noise."""
    progress = Progress(5, DELTA, {}, say=lambda line: None)
    releases = [
        row
        for client, second in ((0, 0.01), (1, 0.03))
        for step, sigma in enumerate((0.03, second))
        for row in StepMechanism(50, 1.0, sigma, sampling_rate=0.1).releases(client, 1, step)
    ]
    progress.round(outcome(1, releases))
    assert_figures_are_the_ledgers(progress, releases, ("attribute", "record"))


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_sampled_and_full_batch_rows_in_any_mix_come_to_the_ledgers_epsilon(seed):
    rng = np.random.default_rng(seed)
    progress, releases = Progress(4, DELTA, {}, say=lambda line: None), []
    for server_round in range(1, 5):
        rows = [
            row
            for client in range(3)
            if rng.random() < 0.8
            for row in StepMechanism(
                50,
                1.0,
                float(rng.choice([0.03, 0.05, 0.2])),
                sampling_rate=float(rng.choice([0.1, 0.3, 1.0])),
            ).releases(client, server_round, 0)
        ]
        releases += rows
        progress.round(outcome(server_round, rows))
    assert {row.sampling_rate == 1 for row in releases} == {True, False}
    assert_figures_are_the_ledgers(progress, releases, ("attribute", "record"))


def test_a_full_batch_row_is_counted_beside_sampled_ones():
    rows = [*subsampled_rows(1, [0]), Release(0, 1, -1, "statistics", "record", 2.0, 1.0)]
    progress = Progress(3, DELTA, {}, say=lambda line: None)
    progress.restore(rows)
    assert progress.epsilon("record") >= gaussian_epsilon(2.0, DELTA)
    assert_figures_are_the_ledgers(progress, rows, ("attribute", "record"))


@pytest.mark.parametrize("budgets", [{}, {"record": 1.0}], ids=["no budget", "a budget"])
@pytest.mark.parametrize(
    "others", [[], subsampled_rows(1), attribute_rows(1)], ids=["alone", "sampled", "full"]
)
def test_a_release_without_a_bound_leaves_no_epsilon(others, budgets):
    said = []
    progress = Progress(3, DELTA, budgets, say=said.append)
    rows = [
        *others,
        Release(0, 1, 5, "statistics", "attribute", 1.0, 9.0),
        Release(0, 1, 5, "more", "record", 1.0, 9.0),
    ]
    row = progress.round(outcome(1, rows))
    assert weakest_guarantee(Ledger(tuple(rows)), DELTA, "record", None).epsilon == math.inf
    assert row["epsilon-record"] == math.inf
    assert "eps(record) inf" in said[0]
    assert math.isfinite(row["epsilon-attribute"])


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_trusted_servers_epsilon_is_the_ledgers(rate):
    mechanism = CentralMechanism(1.0, 3.0, rate, 10)
    progress, releases = Progress(5, DELTA, {}, say=lambda line: None), []
    for server_round in (1, 2, 3):
        releases.append(mechanism.release(server_round))
        progress.round(outcome(server_round, releases[-1:]))
    assert_figures_are_the_ledgers(progress, releases, ("client",))


def test_releases_that_are_only_assumed_count():
    rows = attribute_rows(1)
    for lost in (rows[:2], rows[-2:], rows):
        progress = Progress(5, DELTA, {}, say=lambda line: None)
        came = [row for row in rows if row not in lost]
        progress.round(outcome(1, came, assumed=tuple(lost)))
        assert_figures_are_the_ledgers(progress, rows, ("attribute", "record"))


def test_a_resumed_run_counts_the_rounds_before():
    progress = Progress(5, DELTA, {}, say=lambda line: None)
    progress.restore(attribute_rows(1) + attribute_rows(2))
    progress.round(outcome(3, attribute_rows(3)))
    releases = [row for server_round in (1, 2, 3) for row in attribute_rows(server_round)]
    assert_figures_are_the_ledgers(progress, releases, ("attribute", "record"))


def test_a_planned_run_ends_at_its_budget():
    mechanism = plan_step(
        num_records=400,
        clip_norm=1.0,
        calibration="attribute",
        epsilon=2.0,
        delta=DELTA,
        num_releases=3,
        attribute_clip_norm=0.1,
    )
    said = []
    progress = Progress(3, DELTA, {"attribute": 2.0}, say=said.append)
    for server_round in (1, 2, 3):
        progress.round(outcome(server_round, mechanism.releases(0, server_round, 0)))
    assert "eps(attribute) 2 of 2" in said[-1]
    assert 2.0 * (1 - 1e-9) < progress.epsilon("attribute") <= 2.0


def test_time_left_is_the_number_of_rounds_left_times_a_rounds_time():
    said = []
    progress = Progress(60, DELTA, {}, say=said.append)
    left = []
    for server_round in range(60):
        progress.round(outcome(server_round, seconds=3.0))
        left.append(re.search(r" s, (.+) left", said[-1]).group(1))
    assert left[0] == "3 min"
    assert left[20:23] == ["2 min", "117 s", "114 s"]
    assert left[-1] == "3 s"


def test_time_left_follows_the_last_five_rounds_and_forgets_the_first():
    """The first round loads data and compiles."""
    said = []
    progress = Progress(20, DELTA, {}, say=said.append)
    for server_round, seconds in enumerate([50.0, 1.0, 3.0]):
        progress.round(outcome(server_round, seconds=seconds))
    assert "3.00 s, 36 s left" in said[-1]
    for server_round in range(3, 8):
        progress.round(outcome(server_round, seconds=4.0))
    assert "4.00 s, 52 s left" in said[-1]


def test_the_end_of_a_run_has_nothing_left():
    said = []
    Progress(7, DELTA, {}, say=said.append).round(outcome(7))
    assert "1.50 s, 0 s left" in said[0]


def test_the_weakest_guarantee_is_that_of_the_worst_client():
    ledger = Ledger(tuple(attribute_rows(1)))
    worst = weakest_guarantee(ledger, DELTA, "record", None)
    assert worst.epsilon == max(ledger.guarantee(client, "record", DELTA).epsilon for client in range(4))
    mu = max(2.0 / (10 * (client + 1)) / (0.4 / (client + 2)) for client in range(4))
    assert worst.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-12)


def test_one_unprotected_client_is_the_weakest():
    rows = [*attribute_rows(1), Release(9, 1, 0, "statistics", "client", 1.0, 1.0)]
    assert weakest_guarantee(Ledger(tuple(rows)), DELTA, "record", None).kind == "none"


def test_a_ledger_without_rows_has_lost_nothing():
    guarantee = weakest_guarantee(Ledger(), DELTA, "record", None)
    assert (guarantee.epsilon, guarantee.kind) == (0.0, "proven")


def test_where_the_sample_is_secret_no_round_tells_its_seconds():
    said = []
    progress = Progress(3, DELTA, {"client": 1.0}, hides_sample=True, say=said.append)
    row = progress.round(outcome(1, seconds=1.25))
    assert math.isnan(row["seconds"])
    assert " s," not in said[0]
    assert "left" not in said[0]


def test_rows_assumed_for_lost_replies_do_not_carry_the_epsilon_past_the_budget():
    """The clients' own filters stop them; the printed figure stays the budget's."""
    budget = gaussian_epsilon(
        compose_mu([row.mu for row in attribute_rows(1, [1]) if row.relation == "attribute"]), DELTA
    )
    progress = Progress(3, DELTA, {"attribute": budget}, say=lambda line: None)
    progress.restore([*attribute_rows(1, [1]), *attribute_rows(2, [1])])
    assert progress.epsilon("attribute") == budget
    ledger = Ledger((*attribute_rows(1, [1]), *attribute_rows(2, [1])))
    mu = gaussian_mu(budget, DELTA)
    stated = weakest_guarantee(ledger, DELTA, "attribute", mu)
    assert stated.kind == "proven"
    assert stated.epsilon <= budget
    assert "filter" in stated.composition


def test_a_release_of_its_own_relation_never_makes_the_others_disappear():
    """A contribution has an attribute row and record-level steps have none: they bound the attributes all the same."""
    release = plan_contribution(
        kind="shapley", num_groups=2, num_private=1, num_records=1000, mus={"record": 0.1}
    )
    step = StepMechanism(1000, 1.0, 0.02, chosen="released")
    progress, ledger, last = Progress(6, DELTA, {}, say=lambda line: None), Ledger(), 0.0
    for server_round in range(1, 7):
        rows = step.releases(0, server_round, 0) + (
            release.releases(0, server_round) if server_round == 4 else ()
        )
        ledger = ledger.add(rows)
        shown = progress.round(outcome(server_round, rows))["epsilon-attribute"]
        assert shown > last
        assert shown == pytest.approx(gaussian_epsilon(ledger.odometer(0, "attribute"), DELTA), rel=1e-9)
        last = shown


def test_released_rows_that_were_assumed_beside_real_ones_leave_the_budget_proven():
    """A reply that was lost before its node worked is counted, and then the work is done again."""
    mu = gaussian_mu(1.0, DELTA)
    step = plan_step(
        num_records=100,
        clip_norm=1.0,
        calibration="uniform",
        epsilon=1.0,
        delta=DELTA,
        num_releases=3,
        chosen="released",
    )
    rows = [row for server_round in range(1, 5) for row in step.releases(0, server_round, 0)]
    assert Ledger(rows).guarantee(0, "record", DELTA, mu).kind == "none"
    stated = weakest_guarantee(Ledger(rows), DELTA, "record", mu)
    assert (stated.kind, stated.epsilon) == ("proven", gaussian_epsilon(mu, DELTA))
    hidden = [replace(row, chosen="data-dependent") for row in rows]
    assert weakest_guarantee(Ledger(hidden), DELTA, "record", mu).kind == "none"
