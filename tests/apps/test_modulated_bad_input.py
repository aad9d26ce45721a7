"""What modulated learning cannot run stops before any node is asked, with one sentence that quotes no record."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedveil.config import ConfigError
from fedveil.config.modulated_planning import load_regression
from fedveil.run import InProcessGrid

SCHEMA = """\
[columns.weight]
low = 0.5
high = 4.0
baseline = 2.0

[columns.power]
low = 20
high = 500
baseline = 100

[columns.fuel]
categories = ["petrol", "diesel"]
baseline = "petrol"

[columns.co2]
{target}
"""
RANGED = SCHEMA.format(target="low = 0.0\nhigh = 400.0")
ROWS = [f"{1 + row / 40},{50 + row},{'petrol' if row % 3 else 'diesel'},{100 + row}" for row in range(80)]
SECRET = "3.14159"  # a cell that no error may quote


def write_cars(
    folder: Path, rows: list[str], schema: str = RANGED, columns: str = "weight,power,fuel,co2"
) -> dict:
    """A CSV of cars with its public description, and the settings that name it."""
    path = folder / "cars.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    Path(f"{path}.schema.toml").write_text(schema)
    return {
        "dataset": "csv",
        "data-path": str(path),
        "target": "co2",
        "options": "",
        "comparators": "none",
        "seed": 1,
    }


@pytest.fixture
def refused(
    modulated_run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """The one sentence with which ``fedveil run`` refuses these settings, having asked no node and left nothing."""
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path / "home"))
    asked: list[object] = []
    push = InProcessGrid.push_messages
    monkeypatch.setattr(
        InProcessGrid,
        "push_messages",
        lambda grid, messages: (asked.append(messages), push(grid, messages))[1],
    )

    def refuse(settings: dict[str, Any], *options: str | Path) -> str:
        result = modulated_run(settings, *options)
        assert result.exit_code in (1, 2), result.output
        assert not asked
        assert not (tmp_path / "home").exists()  # neither a run's folder nor a node's ledger
        (line,) = result.stderr.splitlines()
        assert re.match(r"fedveil: (app modulated: |the run failed: )?\S", line)
        assert "Traceback" not in result.output
        assert SECRET not in result.output
        return line

    return refuse


SETTINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an unknown key": ({"lambda": 0.5}, ["unknown key 'lambda'"]),
    "a text for a number": ({"epsilon": "one"}, ["epsilon = 'one'", "number"]),
    "lambda below zero": ({"amplitude": -0.1}, ["amplitude = -0.1", "greater than or equal to 0"]),
    "omega below zero": ({"frequency": -1.0}, ["frequency = -1.0", "greater than or equal to 0"]),
    "alpha 1": ({"alpha": 1.0}, ["alpha = 1", "choose another alpha"]),
    "no directions": ({"num-directions": 0}, ["num-directions = 0", "greater than or equal to 1"]),
    "as many directions as features": (
        {"num-directions": 3},
        ["num-directions = 3", "below the number of features, 3"],
    ),
    "epsilon zero": ({"epsilon": 0.0}, ["epsilon = 0.0", "greater than 0"]),
    "delta one": ({"delta": 1.0}, ["delta = 1.0", "less than 1"]),
    "an unknown data set": ({"dataset": "fairr"}, ["'fairr' is not installed", "did you mean 'fair'?"]),
    "a data set of classes": ({"dataset": "digits"}, ["digits"]),
    "an unknown target": ({"target": "co"}, ["'co'", "co2"]),
    "an unknown comparator": ({"comparators": "dpsgd"}, ["comparators = 'dpsgd'", "did you mean 'dp-sgd'?"]),
    "two rounds of one shot": ({"num-server-rounds": 2}, ["num-server-rounds = 2", "'modulated-iterative'"]),
    "more cohorts than clients": (
        {"strategy": "modulated-iterative", "num-server-rounds": 65},
        ["65 rounds of disjoint cohorts need as many clients, and there are 64"],
    ),
    "a wave that drowns its phase": (
        {"frequency": 1e6, "amplitude": 1e6, "alpha": 0.999},
        ["would lose the phase"],
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_cannot_be_is_told_in_one_sentence(
    refused: Callable[..., str], tmp_path: Path, name: str
):
    settings, words = SETTINGS[name]
    line = refused({**write_cars(tmp_path, ROWS), **settings})
    for word in words:
        assert word in line


BAD_ROWS: dict[str, tuple[list[str], list[str]]] = {
    "no target": ([f"{SECRET},99,petrol,"], ["co2"]),
    "a target that is NaN": ([f"{SECRET},99,petrol,nan"], ["co2"]),
    "a target that is infinite": ([f"{SECRET},99,petrol,inf"], ["co2"]),
    "a target that is no number": ([f"99,99,petrol,{SECRET}x"], ["co2"]),
    "a feature that is no number": ([f"{SECRET}x,99,petrol,50"], ["weight"]),
    "a category that nobody described": ([f"2.0,99,{SECRET},50"], ["fuel"]),
    "a short row": ([f"{SECRET},99"], ["82"]),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_record_is_named_by_its_place_and_never_quoted(
    refused: Callable[..., str], tmp_path: Path, name: str
):
    rows, words = BAD_ROWS[name]
    line = refused(write_cars(tmp_path, [*ROWS, *rows]))
    for word in (*words, "cars.csv"):
        assert word in line


def test_a_private_label_without_a_public_range_is_refused_and_in_the_clear_it_runs(
    refused: Callable[..., str], modulated: Callable[..., Any], tmp_path: Path
):
    cars = write_cars(tmp_path, ROWS, SCHEMA.format(target=""))
    line = refused({**cars, "label-privacy": True})
    assert "The target 'co2' has no public range" in line
    assert "leave the privacy of labels off" in line
    run = modulated(cars)
    assert run.guarantees["record"]["kind"] == "none"
    assert run.estimate["clients"] == 64


def test_more_nodes_than_blocks_of_clients_are_told_before_a_folder_is_made(
    modulated_run: Callable[..., Result], tmp_path: Path
):
    cars = write_cars(tmp_path, ROWS)
    result = modulated_run({**cars, "output-dir": str(tmp_path / "runs")}, "--num-supernodes", "65")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "too few for 65 nodes" in line
    assert not (tmp_path / "runs").exists()


# data that are poor and no mistake: what is done about them is documented, and the run is honest


def fitted(modulated: Callable[..., Any], tmp_path: Path, rows: list[str], **settings: Any) -> Any:
    return modulated({**write_cars(tmp_path, rows), **settings})


def test_a_constant_column_gets_no_slope_from_noise_alone(modulated: Callable[..., Any], tmp_path: Path):
    constant = [f"2.0,{50 + row},petrol,{100 + row}" for row in range(80)]
    run = fitted(modulated, tmp_path, constant, **{"epsilon": 1e5, "amplitude": 0.0})
    assert all(abs(value) < 20 for value in run.coefficients)
    assert run.estimate["identified"] is False
    assert run.estimate["held-out"]["r2"] > 0.9


def test_collinear_columns_share_a_slope_and_are_not_identified(
    modulated: Callable[..., Any], tmp_path: Path
):
    twins = [
        f"{1 + row / 40},{100 + 240 * (1 + row / 40 - 2) / 1.75},petrol,{100 + row}" for row in range(80)
    ]
    run = fitted(modulated, tmp_path, twins, **{"epsilon": 1e5, "amplitude": 0.0})
    assert run.estimate["identified"] is False
    assert all(abs(value) < 20 for value in run.coefficients)
    assert run.estimate["held-out"]["r2"] > 0.9


def test_more_features_than_clients_end_with_not_identified(modulated: Callable[..., Any]):
    run = modulated({"options": "dataset = {records = 20, features = 40}", "epsilon": 20.0})
    assert run.estimate["identified"] is False
    assert "Not identified" in run.output
    assert all(abs(value) < 20 for value in run.coefficients)


def test_features_outside_their_public_range_are_clipped_and_targets_outside_are_kept(
    modulated: Callable[..., Any], tmp_path: Path
):
    wild = [*ROWS[:70], *(f"{10**6},{10**6},petrol,{10**5}" for _ in range(10))]
    run = fitted(modulated, tmp_path, wild)
    assert run.guarantees["attribute"]["kind"] == "proven"
    assert "numbers clipped to their range" in run.output
    assert "1000000" not in run.output


def test_a_label_in_the_clear_that_passes_the_grid_is_refused_without_its_value(
    modulated: Callable[..., Any], tmp_path: Path
):
    huge = [*ROWS[:79], f"2.0,99,petrol,{31415926535}"]
    run = modulated({**write_cars(tmp_path, huge, SCHEMA.format(target="")), "test-fraction": 0.01}, nodes=4)
    assert "a label in the clear passes its public bound" in run.output
    assert "31415926535" not in run.output
    assert [row["source"] for row in run.rows].count("assumed") > 0  # its node sent nothing


def test_a_seed_outside_a_simulation_is_refused(modulated: Callable[..., Any]):
    with pytest.raises(
        ConfigError, match="seed = 7 in a deployment: whoever knows it could subtract the noise"
    ):
        modulated(simulated=False)


def test_comparators_outside_a_simulation_are_refused(modulated: Callable[..., Any]):
    with pytest.raises(ConfigError, match="would spend every client's whole budget again; use 'none'"):
        modulated({"seed": "", "comparators": "dp-sgd"}, simulated=False)


def test_the_same_table_is_read_once(tmp_path: Path):
    from fedveil.config.modulated import ModulatedConfig

    cars = write_cars(tmp_path, ROWS)
    first = load_regression(ModulatedConfig.from_run_config(cars))
    assert load_regression(ModulatedConfig.from_run_config({**cars, "epsilon": 2.0})) is first
