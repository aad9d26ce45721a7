"""Held-out R^2 of whole one-shot runs on the ready tables, against the published rule's improvement in THEORY 2.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# mean and standard deviation of R^2 over 40 seeds: fair 0.78 and 0.036, co2 0.85 and 0.11, modechoice 0.75 and 0.055;
# so a mean over the seeds here is below the figure of THEORY 2.1 with probability under 1e-6
TABLES = {"fair": (8.0, 0.64, 4), "co2": (4.0, 0.53, 6), "modechoice": (16.0, 0.45, 3)}


@pytest.mark.parametrize("dataset", TABLES)
def test_one_shot_with_public_ranges_reaches_the_trials_figure(modulated: Callable[..., Any], dataset: str):
    epsilon, least, seeds = TABLES[dataset]
    found = []
    for seed in range(seeds):
        run = modulated({"dataset": dataset, "options": "", "epsilon": epsilon, "seed": seed})
        found.append(run.estimate["held-out"]["r2"])
        assert run.guarantees["attribute"]["epsilon"] <= epsilon
        assert f"held-out R^2 {found[-1]:.4f}" in run.output
    assert np.mean(found) >= least


def test_without_noise_the_ready_tables_are_nearly_explained(modulated: Callable[..., Any]):
    """Figures of plain least squares in THEORY 2.1, of records that are not clipped: .86, .98, .96."""
    for dataset, plain in (("fair", 0.86), ("co2", 0.98), ("modechoice", 0.96)):
        run = modulated({"dataset": dataset, "options": "", "comparators": "no-privacy"})
        (told,) = run.estimate["comparators"]
        assert told["r2"] == pytest.approx(plain, abs=0.02), dataset


def test_figures_are_in_the_targets_own_unit(modulated: Callable[..., Any]):
    run = modulated({"dataset": "fair", "options": "", "comparators": "no-privacy"})
    held = run.estimate["held-out"]
    # of years married, 0.5 to 23, with a standard deviation of 7.3 in the whole table
    assert held["rmse"] == pytest.approx(7.3 * np.sqrt(1 - held["r2"]), rel=0.05)
    assert held["records"] == 1273
