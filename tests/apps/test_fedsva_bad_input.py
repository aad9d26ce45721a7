"""What cannot be run stops before any node is asked, with one sentence, and leaves nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedveil.config import ConfigError
from fedveil.run import InProcessGrid

SCHEMA = """\
[columns.age]
low = 18
high = 90
baseline = 40

[columns.weight]
low = 40.0
high = 150.0
baseline = 70.0

[columns.ill]
classes = ["no", "yes"]
"""
GOOD_ROWS = [f"{20 + row},{50.5 + row},{'yes' if row % 3 else 'no'},site {row % 4}" for row in range(40)]
TABLE = {
    "dataset": "csv",
    "target": "ill",
    "client-column": "site",
    "private-attributes": "age",
    "attribute-clip-rule": "fixed",
    "num-clients": 4,
    "num-server-rounds": 2,
}


def write_table(folder: Path, rows: list[str], schema: str = SCHEMA) -> Path:
    """A CSV of patients and its public description."""
    path = folder / "patients.csv"
    path.write_text("\n".join(["age,weight,ill,site", *rows]) + "\n")
    Path(f"{path}.schema.toml").write_text(schema)
    return path


@pytest.fixture
def refused(
    fedveil_run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], str]:
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
        result = fedveil_run({**TABLE, **settings}, *options)
        assert result.exit_code in (1, 2), result.output
        assert not asked
        assert not (tmp_path / "home").exists()  # neither a run's folder nor a node's ledger
        (line,) = result.stderr.splitlines()
        assert re.match(r"fedveil: (app fedsva: |the run failed: )?\S", line)
        assert "Traceback" not in result.output
        return line

    return refuse


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """A good table."""
    return write_table(tmp_path, GOOD_ROWS)


SETTINGS = {
    "an unknown key": ({"epsilom": 2.0}, ["unknown key 'epsilom'", "did you mean 'epsilon'?"]),
    "a text for a number": ({"epsilon": "one"}, ["epsilon = 'one'", "number"]),
    "a number for a whole number": ({"num-server-rounds": 2.5}, ["num-server-rounds = 2.5", "integer"]),
    "a number for a text": ({"model": 3}, ["model = 3", "string"]),
    "a truth value for a number": ({"seed": True}, ["seed = True", "integer"]),
    "an unknown choice": ({"privacy": "locale"}, ["privacy = 'locale'", "'local', 'central' or 'none'"]),
    "epsilon zero": ({"epsilon": 0.0}, ["epsilon = 0.0", "greater than 0"]),
    "epsilon below zero": ({"epsilon": -1.0}, ["epsilon = -1.0", "greater than 0"]),
    "epsilon-record zero": ({"epsilon-record": 0.0}, ["epsilon-record = 0.0", "greater than 0"]),
    "delta zero": ({"delta": 0.0}, ["delta = 0.0", "greater than 0"]),
    "delta one": ({"delta": 1.0}, ["delta = 1.0", "less than 1"]),
    "delta below zero": ({"delta": -1e-5}, ["delta = -1e-05", "greater than 0"]),
    "attribute with Poisson steps": ({"sampling-rate": 0.5}, ["sampling-rate = 0.5", "attribute"]),
    "no private attributes": (
        {"private-attributes": ""},
        ["private-attributes", "calibration = 'attribute'"],
    ),
    "attribute clip above clip": (
        {"attribute-clip-norm": 1.5},
        ["attribute-clip-norm = 1.5", "clip-norm = 1.0"],
    ),
    "an unknown model": (
        {"model": "sofmax"},
        ["model = 'sofmax' is not installed", "did you mean 'softmax'?"],
    ),
    "an unknown data set": (
        {"dataset": "mnist5k"},
        ["'mnist5k' is not installed", "did you mean 'mnist-5k'?"],
    ),
    "an unknown calibration": ({"calibration": "papr"}, ["'papr' is not installed", "did you mean 'paper'?"]),
    "an unknown strategy": (
        {"strategy": "privat-averaging"},
        ["'privat-averaging' is not installed", "did you mean 'private-averaging'?"],
    ),
    "a contribution that would be mostly noise": (
        {"attribute-clip-rule": "contribution"},
        ["client 0 with 8 records", "bring", "contribution-share = 0.1", "attribute-clip-rule = 'fixed'"],
    ),
    "a retrained contribution that is to be released": (
        {"calibration": "paper", "contribution": "retrain"},
        ["contribution = 'retrain' cannot be released", "contribution-release = 'none'"],
    ),
    "a group of an unknown column": (
        {"attribute-clip-rule": "contribution", "groups": "mine = agee"},
        ["'mine'", "unknown column 'agee'", "nearest: 'age'"],
    ),
    "a model that is nowhere": (
        {"model": "no_such_module:net"},
        ["model = 'no_such_module:net'", "imported"],
    ),
    "options that are no TOML": ({"options": "optimizer ="}, ["options = 'optimizer ='", "TOML"]),
    "an unknown option": (
        {"options": "optimizer = {beta-3 = 0.5}"},
        ["options", "'beta-3'", "did you mean 'beta-"],
    ),
    "a first round that passes the budget": (
        {"mu-release": 1.0},
        ["client 0 with 8 records: its first round would pass the budget", "mu-release = 1.0", "epsilon = 1"],
    ),
    "a csv without a path": ({"data-path": ""}, ["dataset = 'csv'", "data-path"]),
    "a csv with the digits": (
        {"dataset": "mnist-5k"},
        ["data-path", "dataset 'mnist-5k' takes none of data-path"],
    ),
    "a private column that does not exist": ({"private-attributes": "agee"}, ["'agee'", "nearest: 'age'"]),
    "the target as private column": ({"private-attributes": "ill"}, ["'ill'"]),
    "all attributes private": ({"private-attributes": "age,weight"}, ["all attributes are private"]),
    "a region of a table": ({"private-attributes": "0:1,0:1"}, ["'0:1,0:1'", "table"]),
    "a target that does not exist": (
        {"target": "il"},
        ["no target column 'il'", "nearest in the schema file: 'ill'"],
    ),
    "a client column that does not exist": ({"client-column": "sit"}, ["no client column 'sit'"]),
    "more clients than records": ({"num-clients": 99}, ["num-clients 99", "there are 32"]),
}


@pytest.mark.parametrize(("settings", "named"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be_run_are_refused_by_name(
    refused: Callable[..., str], patients: Path, settings: dict[str, Any], named: list[str]
):
    line = refused({"data-path": str(patients), **settings})
    for fragment in named:
        assert fragment in line


@pytest.mark.parametrize("key", ["data-path", "data-schema", "test-path"])
def test_a_missing_file_is_named(refused: Callable[..., str], patients: Path, key: str):
    settings = {"data-path": str(patients), key: str(patients.with_name("gone.csv"))}
    assert str(patients.with_name("gone.csv")) in refused(settings)


CELLS = {
    "NaN": ("33,nan,yes,site 1", "'weight'"),
    "infinite": ("inf,60,yes,site 1", "'age'"),
    "minus infinite": ("33,-inf,yes,site 1", "'weight'"),
    "no number": ("33,heavy,yes,site 1", "'weight'"),
    "a label out of range": ("33,60,maybe,site 1", "'ill'"),
    "a missing label": ("33,60,,site 1", "'ill'"),
}


@pytest.mark.parametrize(("row", "column"), CELLS.values(), ids=CELLS)
def test_a_cell_that_cannot_be_used_is_named_by_file_line_and_column_and_not_repeated(
    refused: Callable[..., str], tmp_path: Path, row: str, column: str
):
    path = write_table(tmp_path, [*GOOD_ROWS[:5], row, *GOOD_ROWS[5:]])
    line = refused({"data-path": str(path)})
    assert f"{path}, line 7, column {column}" in line
    assert "heavy" not in line
    assert "maybe" not in line


def test_an_empty_client_is_named(refused: Callable[..., str], patients: Path):
    settings = {
        "data-path": str(patients),
        "partition": "dirichlet",
        "dirichlet-alpha": 0.05,
        "num-clients": 12,
    }
    line = refused(settings)
    assert re.search(r"Client \d+ has 0 records in the dirichlet partition", line)


def test_a_client_with_fewer_records_than_allowed_is_named(refused: Callable[..., str], tmp_path: Path):
    path = write_table(tmp_path, [*GOOD_ROWS, "44,70,yes,the smallest"])
    test = tmp_path / "test.csv"
    test.write_text("\n".join(["age,weight,ill", "30,60,no", "31,61,yes"]))
    settings = {"data-path": str(path), "test-path": str(test), "partition": "natural", "num-clients": 5}
    assert "Client 4 has 1 records in the natural partition" in refused({**settings, "min-records": 2})


@pytest.mark.parametrize("privacy", ["local", "central", "none"])
def test_a_model_that_mixes_records_is_refused_by_the_name_of_its_layer(
    refused: Callable[..., str],
    patients: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    privacy: str,
):
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n\n"
        "def normalised(input_shape, num_outputs, hidden=64):\n"
        "    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, num_outputs))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    line = refused({"data-path": str(patients), "model": "my_networks:normalised", "privacy": privacy})
    assert "BatchNorm1d" in line


def test_a_seed_in_a_deployment_is_refused(fedsva: Callable[..., Any], tmp_path: Path):
    """The real thing, with a SuperLink and SuperNodes, is in tests/e2e."""
    with pytest.raises(ConfigError, match=r"seed = 7 in a deployment: .* leave seed empty\."):
        fedsva(simulated=False)
    assert not (tmp_path / "runs").exists()


def test_more_nodes_than_clients_are_refused_and_leave_nothing(
    fedveil_run: Callable[..., Result], patients: Path, tmp_path: Path
):
    settings = {**TABLE, "data-path": str(patients), "num-clients": 1, "output-dir": str(tmp_path / "runs")}
    result = fedveil_run(settings)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "2 nodes for 1 clients: start at most one node a client" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("error::fedveil.privacy.WeakDelta")
def test_a_delta_above_one_over_n_is_a_warning_that_names_the_clients_and_the_run_goes_on(
    fedveil_run: Callable[..., Result], tmp_path: Path
):
    rows = [f"{20 + row},60,{'yes' if row % 2 else 'no'},big" for row in range(60)]
    path = write_table(tmp_path, [*rows, "50,70,yes,small 1", "51,71,no,small 2", "52,72,no,small 2"])
    test = tmp_path / "test.csv"
    test.write_text("\n".join(["age,weight,ill", "30,60,no", "31,61,yes"]))
    settings = {
        **TABLE,
        "data-path": str(path),
        "test-path": str(test),
        "partition": "natural",
        "num-clients": 3,
        "delta": 0.1,
        "hooks": "none",
        "output-dir": str(tmp_path / "runs"),
    }
    result = fedveil_run(settings)
    assert result.exit_code == 0, result.stderr
    warnings = [line for line in result.output.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "delta = 0.1 is above 1/n_i for client(s) 0:" in warnings[0]
