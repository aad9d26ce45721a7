"""`fedveil plan modulated`: what a run would send and guarantee, seen before it does anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedveil.artifacts import NodeLedger
from fedveil.cli import cli
from fedveil.privacy import gaussian_epsilon, gaussian_mu


def plan(settings: Mapping[str, Any]) -> Result:
    """Run the command inside this process."""
    typed = [
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in settings.items()
    ]
    typed = [text.replace("True", "true").replace("False", "false") for text in typed]
    return CliRunner().invoke(cli, ["plan", "modulated", *(part for text in typed for part in ("-c", text))])


def cells(output: str) -> dict[str, list[str]]:
    """The rows of the printed table by their first cell."""
    names = ("main", "range", "lambda-0", "one-shot", "iterative", "dp-sgd", "no-privacy")
    return {
        line.split()[0]: line.split()[1:]
        for line in output.splitlines()
        if line.split()[:1] and line.split()[0] in names
    }


ITERATIVE = {"strategy": "modulated-iterative", "num-server-rounds": 6}
WAYS: dict[str, dict[str, Any]] = {
    "one-shot": {"epsilon": 4.0, "comparators": "auto"},
    "private labels": {"label-privacy": True, "epsilon": 2.0},
    "the paper's rule by zCDP": {"sensitivity": "paper", "accounting": "zcdp"},
    "estimated ranges": {"standardization": "estimated", "comparators": "lambda-0"},
    "cohorts": ITERATIVE,
    "all": {**ITERATIVE, "participation": "all", "comparators": "one-shot,dp-sgd"},
    "sampled": {**ITERATIVE, "participation": "sampled", "fraction-train": 0.5},
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_its_figures_are_those_of_the_run(
    modulated: Callable[..., Any], town: dict[str, Any], settings: dict[str, Any]
):
    result = plan({**town, **settings})
    assert result.exit_code == 0, result.output
    run, table = modulated(settings), cells(result.stdout)
    ledger = NodeLedger(run.folder / "node-ledger.sqlite")
    names = {"modulated-message": "main", "range-message": "range"}
    of_run = {names[row["release"]]: row for row in run.rows}
    assert set(of_run) == {"main", "range"} & set(table)
    for name, row in of_run.items():
        assert [float(cell) for cell in table[name][2:5]] == pytest.approx(
            [row["sensitivity"], row["sigma"], row["mu"]], rel=1e-3
        )
        assert table[name][-1] == row["relation"]
    for name in set(table) - {"main", "range", "no-privacy"}:
        rows = [sent.release for sent in ledger.cohort_releases(f"{run.folder.name}-{name}")]
        assert {(f"{row.sensitivity:.4g}", f"{row.sigma:.4g}") for row in rows} == {tuple(table[name][2:4])}
        assert len({row.round for row in rows}) == int(table[name][0])
    most = max(sum(1 for row in run.rows if row["client"] == client and row["round"]) for client in range(50))
    assert int(table["main"][1]) == most
    (relation,) = {row["relation"] for row in run.rows}
    assert float(table["main"][-2]) == pytest.approx(run.guarantees[relation]["epsilon"], rel=1e-3)
    # what is announced is word for word what the run announces
    told = [line.partition("| ")[2] for line in run.output.splitlines()[:4]]
    assert result.stdout.splitlines()[:4] == told


def test_the_noise_level_is_that_of_the_closed_form(town: dict[str, Any]):
    """(sigma^2 + lambda^2/2m)/c^2 sqrt(d/K), sigma = 2 B c/mu, B = sqrt(3)/2, c = 0.7 and lambda = 0.5."""
    for directions in (1, 2):
        told = plan({**town, "num-directions": directions}).stdout
        (level,) = re.findall(r"noise in the estimated covariance: ([\d.]+)", told)
        noise = 3 / gaussian_mu(8.0, 1e-5) ** 2 + 0.5**2 / (2 * directions) / 0.7**2
        assert float(level) == pytest.approx(noise * (3 / 400) ** 0.5, rel=5e-3)
        assert "K = 400 messages)" in told


AVERAGED = {"estimate": "averaged", "reply": "each"}
LEVELS = {
    **{
        name: {**WAYS[name], "comparators": "none"}
        for name in ("one-shot", "cohorts", "all", "sampled", "estimated ranges")
    },
    "a sample": {"fraction-train": 0.25},
    "all, averaged": {**WAYS["all"], **AVERAGED, "comparators": "none"},
    "sampled, averaged": {**WAYS["sampled"], **AVERAGED},
    "sampled seldom, averaged": {**WAYS["sampled"], "fraction-train": 0.1, **AVERAGED},
}


@pytest.mark.parametrize("settings", LEVELS.values(), ids=LEVELS)
def test_the_noise_level_that_it_tells_is_the_one_that_identification_needs(
    modulated: Callable[..., Any], town: dict[str, Any], settings: dict[str, Any]
):
    """Intervals need ten times as much; both are printed with three digits, so each is off by 0.5 % at most.

    Waves of several rounds have directions of their own, so in an average of a client's messages they need not add up
    along one of them: it needs what the noise leaves at least, and what the plan tells at most.
    """
    (level,) = re.findall(r"noise in the estimated covariance: ([\d.]+)", plan({**town, **settings}).stdout)
    run = modulated(settings)
    (needed,) = re.findall(r"intervals need more than ([\d.]+)", run.estimate["identification"])
    noise = run.rows[-1]["sigma"] ** 2
    least = noise / (noise + 0.5**2 / 2) if settings.get("estimate") == "averaged" else 1.0
    # where clients are drawn at random, 2 % also hold how many of the 400 send once, twice and so on
    assert 0.98 * least < float(needed) / (10 * float(level)) < 1.02


def test_zcdp_shows_what_is_really_spent(town: dict[str, Any]):
    table = cells(plan({**town, "accounting": "zcdp", "epsilon": 4.0, "comparators": "auto"}).stdout)
    mu, epsilon = float(table["main"][4]), float(table["main"][5])
    assert epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)
    assert epsilon < 3.8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num-directions": 3}, "num-directions = 3 must be below the number of features, 3"),
        ({"alpha": 1.0}, "alpha = 1 leaves nothing of a record"),
        ({"amplitude": -0.5}, "amplitude = -0.5: input should be greater than or equal to 0"),
        ({"dataset": "synthetik"}, "dataset = 'synthetik' is not installed"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused_in_one_sentence(
    town: dict[str, Any], settings: dict[str, Any], words: str
):
    result = plan({**town, **settings})
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line


def test_nothing_is_written_or_started(town: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    assert plan({**town, "standardization": "estimated"}).exit_code == 0
    assert list(tmp_path.iterdir()) == []
