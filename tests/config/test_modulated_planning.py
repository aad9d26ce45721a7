"""From a configuration to the data of a regression and every message: noise that fits each client's budget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config import ConfigError
from fedveil.config.modulated import COMPARATORS, ModulatedConfig
from fedveil.config.modulated_data import LARGEST_HALF_RANGES, Regression, load_regression
from fedveil.config.modulated_planning import comparison_rounds, main_releases, variant_plans
from fedveil.privacy import MessagePlan, gaussian_delta, gaussian_epsilon, gaussian_mu, zcdp_rho
from fedveil.wire import MAIN, RANGE

SYNTHETIC = {"dataset": "synthetic-regression", "options": "dataset = {records = 200, features = 4}"}
ITERATIVE = {"strategy": "modulated-iterative"}
SCHEMA = """\
[columns.weight]
low = 0.0
high = 4.0
baseline = 2.0

[columns.fuel]
categories = ["petrol", "diesel", "gas"]
baseline = "petrol"

[columns.{target}]
{range}
"""


def config(values: dict[str, Any] | None = None) -> ModulatedConfig:
    return ModulatedConfig.from_run_config({**SYNTHETIC, **(values or {})})


def plans_of(values: dict[str, Any] | None = None, *, simulated: bool = True) -> dict[str, VariantPlan]:
    asked = config(values)
    return variant_plans(asked, load_regression(asked), simulated=simulated)


def main_plan(values: dict[str, Any] | None = None) -> MessagePlan:
    plan = plans_of({"comparators": "none", **(values or {})})[MAIN].plan
    assert plan is not None
    return plan


def refusal(values: dict[str, Any], *, simulated: bool = True) -> str:
    """The sentence with which data or plans of these settings are refused."""
    asked = config(values)
    with pytest.raises(ConfigError) as refused:
        variant_plans(asked, load_regression(asked), simulated=simulated)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def cars(
    folder: Path, rows: list[str], *, target: str = "co2", limits: str = "low = 0.0\nhigh = 400.0"
) -> dict:
    """Settings for a table of cars."""
    path = folder / "cars.csv"
    path.write_text("\n".join([f"weight,fuel,{target}", *rows]) + "\n")
    Path(f"{path}.schema.toml").write_text(SCHEMA.format(target=target, range=limits))
    return {"dataset": "csv", "data-path": str(path), "target": target, "options": ""}


CARS = [f"{1 + row / 20},{'petrol' if row % 2 else 'gas'},{100 + row}" for row in range(40)]


# how often a client sends


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 1),
        ({"fraction-train": 0.5}, 1),
        ({**ITERATIVE, "num-server-rounds": 40}, 1),  # disjoint cohorts
        ({**ITERATIVE, "participation": "all"}, 20),
        ({**ITERATIVE, "participation": "all", "num-server-rounds": 7}, 7),
        ({**ITERATIVE, "participation": "sampled", "fraction-train": 0.5, "num-server-rounds": 7}, 4),
        ({**ITERATIVE, "participation": "sampled", "fraction-train": 0.01}, 1),
        # 7.000000000000001 in floating point
        ({**ITERATIVE, "participation": "sampled", "fraction-train": 0.07, "num-server-rounds": 100}, 7),
    ],
)
def test_a_client_sends_as_often_as_it_takes_part(values: dict[str, Any], expected: int):
    assert main_releases(config(values)) == expected
    assert main_plan(values).num_releases == expected


# noise


@given(
    epsilon=st.floats(0.05, 50),
    delta=st.floats(1e-12, 1e-2),
    rounds=st.integers(1, 50),
    alpha=st.floats(-3, 3).filter(lambda value: abs(1 - value) > 0.01),
    bound=st.floats(0.1, 10),
    label_privacy=st.booleans(),
    estimated=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_all_messages_of_a_client_fit_its_budget(
    epsilon: float,
    delta: float,
    rounds: int,
    alpha: float,
    bound: float,
    label_privacy: bool,
    estimated: bool,
):
    plans = plans_of(
        {
            **ITERATIVE,
            "participation": "all",
            "num-server-rounds": rounds,
            "epsilon": epsilon,
            "delta": delta,
            "alpha": alpha,
            "bound": bound,
            "label-privacy": label_privacy,
            "standardization": "estimated" if estimated else "public",
            "comparators": "none",
        }
    )
    squares = 0.0
    for variant in plans.values():
        assert variant.plan is not None
        assert variant.plan.relation == ("record" if label_privacy else "attribute")
        assert variant.plan.sensitivity == pytest.approx(2 * variant.bound * abs(1 - alpha), rel=1e-12)
        squares += variant.plan.num_releases * variant.plan.mu**2
    assert set(plans) == ({MAIN, RANGE} if estimated else {MAIN})
    assert gaussian_delta(epsilon, math.sqrt(squares)) <= delta * (1 + 1e-9)
    assert squares == pytest.approx(gaussian_mu(epsilon, delta) ** 2, rel=1e-6)  # and nothing is wasted


@pytest.mark.parametrize("rounds", [1, 9])
def test_the_exact_rule_ignores_the_wave_and_the_papers_does_not(rounds: int):
    iterative = {**ITERATIVE, "participation": "all", "num-server-rounds": rounds, "bound": 1.5}
    exact = main_plan(iterative)
    assert main_plan({**iterative, "amplitude": 3.0, "frequency": 5.0}).sigma == pytest.approx(exact.sigma)
    # D = 2 B (|1 - alpha| + lambda omega/sqrt m), THEORY 2.1
    for directions in (1, 3):
        paper = main_plan({**iterative, "sensitivity": "paper", "num-directions": directions})
        assert paper.sensitivity == pytest.approx(2 * 1.5 * (0.7 + 0.5 / math.sqrt(directions)))
        assert paper.sigma > exact.sigma


def test_zcdp_states_less_epsilon_than_was_asked_for():
    plan, exact = main_plan({"accounting": "zcdp", "epsilon": 2.0}), main_plan({"epsilon": 2.0})
    assert plan.budget == pytest.approx(math.sqrt(2 * zcdp_rho(2.0, 1e-5)))
    assert gaussian_epsilon(plan.budget, 1e-5) < 1.9
    assert plan.sigma > exact.sigma


def test_half_the_budget_for_ranges_leaves_half_the_squares_for_the_messages():
    plans = plans_of({"standardization": "estimated", "range-share": 0.5, "comparators": "none"})
    ranges, messages = plans[RANGE].plan, plans[MAIN].plan
    assert ranges is not None
    assert messages is not None
    assert ranges.mu == pytest.approx(messages.mu)
    assert (ranges.name, messages.name) == ("range-message", "modulated-message")
    assert plans[RANGE].modulation.amplitude == 0


# comparators


def test_every_comparator_has_the_same_total_budget_and_the_one_without_noise_none():
    own = {**ITERATIVE, "participation": "all", "epsilon": 3.0, "dp-sgd-clip-norm": 1.5}
    plans = plans_of({**own, "comparators": "auto"})
    assert set(plans) == {MAIN, *COMPARATORS} - {"iterative"}
    for name, variant in plans.items():
        if name == "no-privacy":
            assert variant.plan is None
            continue
        assert variant.plan is not None
        assert variant.plan.budget == pytest.approx(gaussian_mu(3.0, 1e-5))
        squares = variant.plan.num_releases * variant.plan.mu**2
        assert squares == pytest.approx(variant.plan.budget**2, rel=1e-6)
        assert squares <= variant.plan.budget**2
    assert plans["lambda-0"].modulation.amplitude == 0
    assert plans["lambda-0"].sigma == pytest.approx(plans[MAIN].sigma, rel=1e-12)
    gradients = plans["dp-sgd"].plan
    assert gradients is not None
    assert (gradients.relation, gradients.sensitivity) == ("record", 3.0)  # 2 C


def test_comparators_take_the_rounds_of_their_own_method():
    asked = config({"dp-sgd-rounds": 7})
    assert {name: comparison_rounds(name, asked, 200) for name in COMPARATORS} == {
        "lambda-0": 1,
        "one-shot": 1,
        "iterative": 20,
        "dp-sgd": 7,
        "no-privacy": 1,
    }
    assert comparison_rounds("lambda-0", config({**ITERATIVE, "num-server-rounds": 5}), 200) == 5


def test_comparators_have_no_more_disjoint_cohorts_than_there_are_clients():
    asked = config({"dp-sgd-rounds": 201})
    for clients, expected in (
        (1, (1, 1)),
        (19, (19, 19)),
        (200, (20, 200)),
        (201, (20, 201)),
        (500, (20, 201)),
    ):
        assert tuple(comparison_rounds(name, asked, clients) for name in ("iterative", "dp-sgd")) == expected
    # everybody sends in every round of it, so its rounds are the run's own
    all_rounds = config({**ITERATIVE, "participation": "all", "num-server-rounds": 9})
    assert comparison_rounds("lambda-0", all_rounds, 3) == 9
    assert plans_of({"comparators": "dp-sgd", "dp-sgd-rounds": 201})
    few = {"options": "dataset = {records = 3, features = 4}"}
    assert set(plans_of({**few, "comparators": "auto"})) == {MAIN, *COMPARATORS} - {"one-shot"}


def test_outside_a_simulation_there_are_the_runs_own_messages_only():
    assert set(plans_of({"standardization": "estimated"}, simulated=False)) == {MAIN, RANGE}
    assert "in a deployment: each would spend every client's whole budget again" in refusal(
        {"comparators": "dp-sgd"}, simulated=False
    )


# what the data refuse


@pytest.mark.parametrize("directions", [4, 5, 1000])
def test_as_many_directions_as_features_are_refused(directions: int):
    assert f"num-directions = {directions} must be below the number of features, 4 in" in refusal(
        {"num-directions": directions}
    )
    assert plans_of({"num-directions": 3})


def test_an_alpha_so_near_1_that_the_wave_would_show_is_refused():
    """The phase hides the wave but for its rounding in double precision, which must be small beside c x."""
    near = {"alpha": 1 - 2**-53, "comparators": "none"}
    assert "double precision would lose the phase" in refusal(near)
    assert plans_of({**near, "amplitude": 0.0})  # c is a unit, and without a wave any will do


@pytest.mark.parametrize("comparators", ["none", "auto"])
def test_more_disjoint_cohorts_than_clients_are_refused_before_anybody_is_asked(comparators: str):
    values = {**ITERATIVE, "comparators": comparators}
    assert (
        "num-server-rounds = 201: 201 rounds of disjoint cohorts need as many clients, and there are 200"
        in refusal({**values, "num-server-rounds": 201})
    )
    assert plans_of({**values, "num-server-rounds": 200})
    assert plans_of({**values, "num-server-rounds": 201, "participation": "all"})


def test_a_private_label_needs_a_public_range(tmp_path: Path):
    open_ended = cars(tmp_path, CARS, limits="")
    assert plans_of(open_ended)[MAIN].label_scale is None
    sentence = refusal({**open_ended, "label-privacy": True})
    assert "The target 'co2' has no public range" in sentence
    assert "leave the privacy of labels off" in sentence


def test_a_target_that_is_missing_is_refused_without_its_row_in_the_open(tmp_path: Path):
    for bad in ("nan", "inf", "", "many"):
        sentence = refusal(cars(tmp_path, [*CARS[:20], f"3.25,gas,{bad}", *CARS[20:]]))
        load = sentence.lower()
        assert "co2" in load
        assert "3.25" not in sentence
        Path(tmp_path / "cars.csv").unlink()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dataset": "mnist-5k", "options": ""}, "mnist-5k"),
        ({"dataset": "fair", "options": "", "target": "agee"}, "'agee'"),
        ({"options": "dataset = {record = 5}"}, "record"),
        ({"options": "dataset = {records = -1}"}, "records"),
        (
            {"dataset": "csv", "options": "", "data-path": "/nowhere/cars.csv", "target": "co2"},
            "/nowhere/cars.csv",
        ),
    ],
)
def test_data_that_are_no_regression_are_refused_by_name(values: dict[str, Any], words: str):
    assert words in refusal(values)


# the data


@pytest.mark.parametrize("private", [False, True])
def test_the_target_is_on_its_public_scale_and_coefficients_come_back_in_their_own_units(
    tmp_path: Path, private: bool
):
    problem = load_regression(config({**cars(tmp_path, CARS), "label-privacy": private}))
    features, targets = problem.rows(0, problem.num_clients)
    assert features.shape == (problem.num_clients, 3)
    if private:
        assert (problem.target_center, problem.target_half_range) == (200.0, 200.0)
        assert targets.min() >= -0.5
        assert targets.max() <= 0.0
    else:
        shown = problem.data.test.targets
        assert problem.target_center == pytest.approx(shown.mean())
        assert problem.target_half_range == pytest.approx(np.abs(shown - shown.mean()).max())
        assert np.abs(problem.test[1]).max() == pytest.approx(1.0)
        assert problem.test[1].mean() == pytest.approx(0.0, abs=1e-12)
    # y = 100 + 20 (weight - 1) in kilograms and grams, whatever the unit of the fit
    design = np.column_stack([features.astype(float), np.ones(len(features))])
    solved = problem.data.schema.in_own_units(np.linalg.lstsq(design, targets, rcond=None)[0])
    solved *= problem.target_half_range
    assert solved[0] == pytest.approx(20.0, rel=1e-4)
    assert solved[-1] + problem.target_center == pytest.approx(80.0, rel=1e-4)


def test_a_target_without_a_range_is_scaled_by_the_public_test_records(tmp_path: Path):
    problem = load_regression(config(cars(tmp_path, CARS, limits="")))
    shown = problem.data.test.targets
    assert problem.target_center == pytest.approx(shown.mean())
    assert problem.target_half_range == pytest.approx(np.abs(shown - shown.mean()).max())
    assert np.abs(problem.test[1]).max() == pytest.approx(1.0)


def test_a_label_in_the_clear_may_lie_64_deviations_of_the_test_records_out_and_no_further(tmp_path: Path):
    test = tmp_path / "test.csv"
    test.write_text(
        "weight,fuel,co2\n1.0,gas,100\n2.0,gas,200\n3.0,gas,300\n"
    )  # 200, and 100 at most from it
    rows = [*CARS[:4], "1.0,gas,6600", "1.0,gas,-6200", *CARS[4:]]
    problem = load_regression(config({**cars(tmp_path, rows), "test-path": str(test)}))
    assert (problem.target_center, problem.target_half_range) == (200.0, 100.0)
    targets = problem.rows(0, problem.num_clients)[1]
    assert targets[4:6].tolist() == [64.0, -64.0]
    problem.check_labels(0, targets)
    problem.check_labels(7, targets[:0])
    for far in (64.001, -64.001, 1e300):
        changed = targets[3:10].copy()
        changed[[2, 5]] = far
        with pytest.raises(ConfigError) as refused:
            problem.check_labels(3, changed)
        sentence = str(refused.value)
        assert sentence.startswith(
            "the label of client 5 is more than 64 times as far from the mean of the public"
        )
        assert "64.001" not in sentence
        assert "e+" not in sentence


def test_labels_too_far_out_are_refused_by_the_same_bound_that_sums_are_planned_for():
    for name, variant in plans_of({"comparators": "no-privacy"}).items():
        assert variant.largest_label == LARGEST_HALF_RANGES == 64.0, name


def test_the_default_bound_counts_columns_and_a_given_one_is_kept(tmp_path: Path):
    settings_of_cars = cars(tmp_path, CARS)
    assert load_regression(config(settings_of_cars)).bound == pytest.approx(0.5 * math.sqrt(2))
    assert load_regression(config({**settings_of_cars, "bound": 2.5})).bound == 2.5


def test_test_records_are_the_public_share_and_no_clients(tmp_path: Path):
    problem: Regression = load_regression(config({**cars(tmp_path, CARS), "test-fraction": 0.25}))
    assert problem.num_clients + len(problem.data.test) == 40
    assert len(problem.data.test) == 10
    clients, tested = problem.rows(0, problem.num_clients)[1], problem.test[1]
    assert not set(clients.tolist()) & set(tested.tolist())
