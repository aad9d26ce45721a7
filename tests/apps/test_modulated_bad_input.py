"""What modulated learning cannot run stops before any node is asked, with one sentence that quotes no record."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedveil.config import ConfigError
from fedveil.config.modulated_data import load_regression
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


@pytest.fixture
def refused_by_a_node(
    modulated_run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """The one sentence that a run ends with when a node says who it is; nobody was asked to send anything."""
    asked: set[str] = set()
    push = InProcessGrid.push_messages

    def watch(grid: InProcessGrid, messages: Any) -> Any:
        messages = list(messages)
        asked.update(message.metadata.message_type for message in messages)
        return push(grid, messages)

    monkeypatch.setattr(InProcessGrid, "push_messages", watch)

    def refuse(settings: dict[str, Any]) -> str:
        result = modulated_run({**settings, "output-dir": str(tmp_path / "runs")}, "--num-supernodes", "4")
        assert result.exit_code == 1
        assert asked == {"query.identify"}
        assert not (tmp_path / "runs").exists()
        assert "3.14" not in result.output
        assert "Traceback" not in result.output
        (line,) = result.stderr.splitlines()
        return line

    return refuse


@pytest.mark.parametrize("target", ["", "low = 0.0\nhigh = 400.0"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_label_in_the_clear_that_is_far_too_large_is_refused_by_its_client_without_its_value(
    refused_by_a_node: Callable[..., str],
    modulated: Callable[..., Any],
    tmp_path: Path,
    sign: str,
    target: str,
):
    """Test records between 100 and 200 lie at most 50 from their mean, so 3.14e4 is hundreds of times as far."""
    test = tmp_path / "test.csv"
    test.write_text("\n".join(["weight,power,fuel,co2", "1.0,60,petrol,100", "2.0,80,petrol,200"]) + "\n")
    huge = [*ROWS[:70], f"2.0,99,petrol,{sign}3.14e4", *ROWS[70:]]
    cars = {**write_cars(tmp_path, huge, SCHEMA.format(target=target)), "test-path": str(test)}
    line = refused_by_a_node(cars)
    assert (
        "the label of client 70 is more than 64 times as far from the mean of the public test records" in line
    )
    if target:
        # where labels are private they are clipped to their public range
        assert modulated({**cars, "label-privacy": True}, nodes=4).guarantees["record"]["kind"] == "proven"


ROWS_OF_A_PLUGIN = {
    "a cell in an error": ("raise KeyError('cell 3.14159')", "gave no rows (KeyError): correct it"),
    "a cell that is no number": ("return float('3.14159x')", "gave no rows (ValueError): correct it"),
    "a file that is gone": ("raise OSError('/home/ada/3.14159.csv')", "gave no rows (OSError): correct it"),
    "a tuple": ("return (made.features, made.targets)", "gave something else: correct it"),
    "a row too few": ("return made.take(slice(1, None))", "gave something else: correct it"),
    "another width": (
        "return type(made)(made.features[:, :2], made.targets)",
        "must give RegressionRecords of shape (100, 3) for clients 0 to 99, and gave something else",
    ),
    "a number that is NaN": (
        "return type(made)(made.features * math.nan, made.targets)",
        "gave no rows (ValueError): correct it",
    ),
}


@pytest.mark.parametrize("name", ROWS_OF_A_PLUGIN)
def test_a_plugins_data_set_that_gives_no_rows_is_named_and_its_words_are_not_told(
    refused_by_a_node: Callable[..., str], package: Callable[..., Path], town: dict[str, Any], name: str
):
    body, words = ROWS_OF_A_PLUGIN[name]
    module = "odd_rows_" + name.replace(" ", "_")
    source = f"""\
import math
from dataclasses import replace
from fedveil.datasets import synthetic_regression

def load(request):
    data = synthetic_regression.load(request)

    def rows(first, last):
        made = data.rows(first, last)
        {body}

    return replace(data, name={name!r}, rows=rows)
"""
    package("odd-rows", {"dataset": {module: f"{module}:load"}}, **{module: source})
    line = refused_by_a_node({**town, "dataset": module})
    assert "cannot start: " in line
    assert f"data set {name!r}" in line
    assert words in line


def test_public_test_records_of_one_target_leave_r2_undefined_and_the_run_says_so(
    modulated: Callable[..., Any], tmp_path: Path
):
    test = tmp_path / "test.csv"
    for values in ([120, 120, 120], [120]):
        rows = [f"{1 + row},60,petrol,{value}" for row, value in enumerate(values)]
        test.write_text("\n".join(["weight,power,fuel,co2", *rows]) + "\n")
        load_regression.__globals__["_load"].cache_clear()  # another file of the same name
        run = modulated(
            {**write_cars(tmp_path, ROWS), "test-path": str(test), "comparators": "lambda-0"},
            output_dir=tmp_path / f"runs of {len(values)}",
        )
        found = run.estimate
        assert found["held-out"]["r2"] is None
        assert found["held-out"]["rmse"] > 0
        assert found["comparators"][0]["r2"] is None
        assert "the public test records have one target only" in found["problem"]
        assert f"warning: {found['problem']}" in run.output
        assert f"held-out R^2 undefined, RMSE {found['held-out']['rmse']:.4g} on {len(values)}" in run.output
        (line,) = [line for line in run.output.splitlines() if "same, without modulation" in line]
        assert " undefined " in line


def test_figures_beyond_all_numbers_are_words_in_json_and_lines(modulated: Callable[..., Any]):
    """One step of local DP-SGD at a rate at which the squared errors are no doubles."""
    run = modulated({"comparators": "dp-sgd", "dp-sgd-rounds": 1, "dp-sgd-learning-rate": 1e300})
    (found,) = run.estimate["comparators"]
    assert (found["r2"], found["rmse"]) == ("-inf", "inf")
    assert all(abs(value) > 1e290 for value in found["coefficients"])
    (line,) = [
        line for line in run.output.splitlines() if line.removeprefix("fedveil | ").startswith("local DP-SGD")
    ]
    assert line.split()[4:6] == ["-inf", "inf"]


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
