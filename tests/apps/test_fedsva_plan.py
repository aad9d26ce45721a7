"""`fedveil plan fedsva`: what a run would do, seen before it does anything."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedveil.cli import cli
from fedveil.config import FedSVAConfig, assembly, randomness
from fedveil.models import initial_arrays
from fedveil.privacy import compose_mu, gaussian_epsilon, gaussian_mu


def plan(*settings: str):
    """Run the command inside this process."""
    arguments = [argument for setting in settings for argument in ("-c", setting)]
    return CliRunner().invoke(cli, ["plan", "fedsva", *arguments])


def cells(output: str, clients: str) -> list[list[str]]:
    """The rows of the printed table."""
    return [line.split() for line in output.splitlines() if line.split()[1:2] == [clients]]


def test_the_table_shows_what_each_r_does_to_the_noise():
    result = plan("num-server-rounds=40 epsilon=1.0")
    assert result.exit_code == 0
    rows = cells(result.stdout, "4")
    assert [row[2] for row in rows] == ["unknown", "0.05", "0.25", "0.5", "1"]
    mu = gaussian_mu(1.0, 1e-5) * math.sqrt(0.9 / 40)
    for row, norm in zip(rows, (0.2, 0.05, 0.25, 0.5, 1.0), strict=True):
        assert float(row[3]) == norm
        assert float(row[4]) == pytest.approx(2 * norm / 1000 / mu, rel=1e-3)
        assert float(row[6]) == 1
    # the contribution costs 2/1000 over its noise under the record relation, a tenth of mu^2 under the attribute one
    mu_release = gaussian_mu(1.0, 1e-5) * math.sqrt(0.1)
    total = compose_mu([mu / 0.25] * 40 + [2 * mu_release])
    assert float(rows[2][7]) == pytest.approx(gaussian_epsilon(total, 1e-5), rel=1e-3)
    assert float(rows[0][8]) == pytest.approx(1 / 1000 / mu_release, rel=1e-2)


def test_the_bound_is_stated_where_its_conditions_hold_and_else_says_why_not():
    few = "num-server-rounds=10 attribute-clip-rule='fixed'"
    assert "the bound holds for steps up to 1/L = 0.00255" in plan(few).stdout
    stated = plan(f"{few} learning-rate=0.001").stdout
    # the way to go is 2 (f_0 - f*)/(eta T), f_0 the largest loss that a record can have where training starts
    (way,) = re.findall(r"= ([\d.]+) \(way to go\)", stated)
    gap = float(way) * 0.001 * 10 / 2
    assert math.log(10) < gap
    config = FedSVAConfig.from_run_config({})
    module = assembly.learner(config, assembly.load_problem(config).dataset).module
    weights, biases = initial_arrays(
        module, randomness.public_streams(config).stream("initial-model")
    ).values()
    reached = 0.0
    for k in range(10):
        for y in range(10):
            record = (weights[k] > weights[y]).astype(float)  # the record that is most k and least y
            scores = weights.astype(float) @ record + biases
            reached = max(reached, float(np.logaddexp.reduce(scores) - scores[y]))
    assert reached <= gap * (1 + 1e-3)
    assert "no bound is stated" in plan(f"{few} model='mlp'").stdout


def test_the_noise_of_the_bound_is_the_most_that_a_release_can_lead_to():
    few = "num-server-rounds=10 learning-rate=0.001 epsilon=4.0"
    noise = {}
    for rule in ("'contribution'", "'quantile'", "'fixed' attribute-clip-norm=1.0"):
        (found,) = re.findall(r"\+ ([\d.e-]+) \(noise", plan(f"{few} attribute-clip-rule={rule}").stdout)
        noise[rule] = float(found)
    whole = noise["'fixed' attribute-clip-norm=1.0"]
    # C_p = C in all three, and the steps have 90 and 95 % of the budget where something else is released
    assert noise["'contribution'"] == pytest.approx(whole / 0.9, rel=1e-2)
    assert noise["'quantile'"] == pytest.approx(whole / 0.95, rel=1e-2)
    assert "no bound is stated" in plan(f"{few} aggregation-weights='noise-aware'").stdout


@pytest.mark.parametrize(
    ("delta", "beta", "percent"),
    [("1e-5", "0.0", "2.149"), ("0.02", "0.0", "6.199"), ("1e-5", "23.5", "1.113"), ("1e-5", "50.0", "0")],
)
def test_the_line_on_r_in_paper_mode_is_the_published_formulas(delta: str, beta: str, percent: str):
    line = f"R moves the noise of calibration 'paper' by at most {percent} %"
    assert line in plan(f"calibration='paper' contribution='0.3' delta={delta} beta={beta}").stdout


def test_a_plan_that_cannot_be_kept_is_refused_in_one_sentence():
    result = plan("epsilon=0.05 num-clients=20")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "client 0 with 200 records: the released Shapley values would have noise" in line
    assert "bring" in line
    assert "attribute-clip-rule = 'fixed'" in line


def test_nothing_is_written_or_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    assert plan("num-server-rounds=3 contribution-round=1").exit_code == 0
    assert list(tmp_path.iterdir()) == []
