"""Where the messages say too little, the run says so; where they say enough, intervals hold what they promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedveil.artifacts import RunFolder
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import load_regression

INTERVAL = {"least-squares", "standard-error", "lower", "upper"}


def least_squares(settings: dict[str, Any]) -> np.ndarray:
    """Least squares of the clients' clipped records, in the target's own unit."""
    problem = load_regression(ModulatedConfig.from_run_config(settings))
    features, targets = problem.rows(0, problem.num_clients)
    x = features.astype(np.float64)
    x *= np.minimum(1.0, problem.bound / np.linalg.norm(x, axis=1))[:, None]
    found = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), targets, rcond=None)[0]
    return found * problem.target_half_range + np.append(np.zeros(x.shape[1]), problem.target_center)


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.5])
def test_a_small_epsilon_ends_with_the_line_that_nothing_is_identified(
    modulated: Callable[..., Any], epsilon: float
):
    run = modulated({"epsilon": epsilon})
    found = run.estimate
    assert found["identified"] is False
    assert found["identification"].startswith("Not identified: the smallest eigenvalue")
    assert found["region"]["bounded"] is False
    for entry in found["coefficients"]:
        assert set(entry) == {"name", "coefficient"}  # no interval that would mean nothing
        assert np.isfinite(entry["coefficient"])
    assert "Not identified: the smallest eigenvalue" in run.output
    assert "region of all coefficients together is unbounded" in run.output
    assert found["held-out"]["r2"] > -0.5  # and slopes have not gone wild


def test_messages_without_a_positive_eigenvalue_give_slopes_of_0_and_a_warning(modulated: Callable[..., Any]):
    """One message does not vary about its mean: less the known noise, nothing positive can be left."""
    alone = {"epsilon": 0.05, "options": "dataset = {records = 1, features = 3}"}
    run = modulated(alone, nodes=1)
    problem = run.estimate["problem"]
    assert "no positive eigenvalue" in problem
    assert f"round 1: {problem}" in run.output
    assert f"warning: {problem}" in run.output
    assert np.array_equal(run.coefficients[:-1], np.zeros(3))
    assert np.isfinite(run.coefficients).all()
    assert run.estimate["identified"] is False


def test_a_model_that_is_worse_than_the_mean_is_told_with_a_warning(modulated: Callable[..., Any]):
    """Without a ridge the noise of b_hat is in the slopes as it is: at epsilon 0.05 hundreds of times the truth."""
    run = modulated({"epsilon": 0.05, "ridge": 0.0})
    assert run.estimate["held-out"]["r2"] < -1
    assert run.estimate["problem"].startswith(
        "the model predicts the public test records worse than their own mean"
    )
    assert f"warning: {run.estimate['problem']}" in run.output
    assert modulated({"epsilon": 8.0}).estimate["problem"] is None


MANY = {"options": "dataset = {records = 6000, features = 3}", "epsilon": 40.0}


def test_a_large_epsilon_gives_intervals_that_hold_least_squares_of_the_clipped_records(
    modulated: Callable[..., Any], town: dict[str, Any]
):
    """Nominal 95 %: fewer than 6 of 12 intercepts covered has probability C(12, 7) 0.05^7 = 6e-7."""
    truth = least_squares({**town, **MANY})
    covered = 0
    for seed in range(12):
        run = modulated({**MANY, "seed": seed})
        entries = run.estimate["coefficients"]
        assert run.estimate["identified"]
        assert run.estimate["problem"] is None
        for entry, true in zip(entries, truth, strict=True):
            assert set(entry) == {"name", "coefficient"} | INTERVAL
            # six standard errors: 1e-7 for all of them together
            assert abs(entry["least-squares"] - true) < 6 * entry["standard-error"]
            assert entry["upper"] - entry["lower"] == pytest.approx(
                2 * 1.959964 * entry["standard-error"], rel=1e-5
            )
        covered += entries[-1]["lower"] <= truth[-1] <= entries[-1]["upper"]
    assert covered >= 6
    assert "95 % [" in run.output


def test_another_confidence_and_the_populations_coefficients_have_wider_intervals(
    modulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Another setting has other noise of the same seed; here what concerns intervals only is left out of the hash."""
    keys = (*ModulatedConfig.engine_keys, "confidence", "interval-target")
    monkeypatch.setattr(ModulatedConfig, "engine_keys", keys)

    def width(settings: dict[str, Any]) -> float:
        entry = modulated({**MANY, **settings}).estimate["coefficients"][0]
        return float(entry["upper"] - entry["lower"])

    usual = width({})
    assert width({"confidence": 0.99}) == pytest.approx(usual * 2.575829 / 1.959964, rel=1e-6)
    assert width({"interval-target": "population"}) > usual


def test_coefficients_and_intervals_in_own_units_are_the_models_times_public_constants(
    modulated: Callable[..., Any], town: dict[str, Any]
):
    """One unit of the fit is the largest deviation of a public test target from their mean."""
    run = modulated(MANY)
    arrays = RunFolder(run.folder).load_model()[0]
    center, half = arrays["target"]
    shown = load_regression(ModulatedConfig.from_run_config({**town, **MANY})).data.test.targets
    assert center == pytest.approx(shown.mean())
    assert half == pytest.approx(max(shown.max() - center, center - shown.min()))
    told = np.array([entry["coefficient"] for entry in run.estimate["coefficients"]])
    assert told[:-1] == pytest.approx(run.coefficients[:-1] * half / arrays["half-range"])
    assert told[-1] == pytest.approx(run.coefficients[-1] * half + center)


def test_one_unit_of_a_private_target_is_half_its_public_range_whatever_the_test_records_are(
    modulated: Callable[..., Any],
):
    """The range of made-up targets is 1 +- 4 sqrt(1.25)."""
    target = RunFolder(modulated({"label-privacy": True}).folder).load_model()[0]["target"]
    assert target == pytest.approx([1.0, 4 * 1.25**0.5])


@pytest.mark.parametrize("bound", [0.5, 1.0])
def test_coefficients_are_told_with_the_clip_of_the_records_that_they_are_of(
    modulated: Callable[..., Any], bound: float
):
    run = modulated({**MANY, "bound": bound})
    words = f"coefficients of 'y' for one unit more, of records clipped to norm {bound:g} (steeper than of whole ones"
    assert words in run.output
    assert run.estimate["clipped-to-norm"] == bound
    assert (
        run.estimate["coefficients-are"]
        == "of 'y' for one unit of a feature more, of records clipped to that norm"
    )
    noisy = modulated({"epsilon": 0.5, "bound": bound})
    assert (
        f"regularised {words.replace('coefficients', 'coefficients, not identified one by one,')}"
        in noisy.output
    )


def test_with_estimated_ranges_coefficients_are_still_in_the_features_own_units(
    modulated: Callable[..., Any], town: dict[str, Any]
):
    """So much budget that noise is no matter, no wave and no clip: both ways of scaling then fit the same line."""
    open_handed = {**MANY, "epsilon": 1e6, "amplitude": 0.0, "bound": 20.0, "standardization": "estimated"}
    run = modulated(open_handed)
    truth = least_squares({**town, **MANY, "bound": 20.0})
    entries = run.estimate["coefficients"]
    for entry, true in zip(entries[:-1], truth[:-1], strict=True):
        assert entry["coefficient"] == pytest.approx(true, abs=0.02)
    assert "the intercept at the features' estimated centres" in run.output
    arrays = RunFolder(run.folder).load_model()[0]
    assert arrays["half-range"] == pytest.approx(
        np.full(3, 3**-0.5), rel=0.05
    )  # of a uniform feature on [-1, 1]
