"""A policy's private attributes and a run's are compared by what they mean, not by how they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.clients.policy import PolicyRefusal
from fedveil.config import FedSVAConfig
from fedveil.config.assembly import load_problem
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.node_policy import admit_run, check_loaded, node_policy
from fedveil.config.protected import covered_entries, protected_columns
from fedveil.config.sites import SiteData
from fedveil.datasets.regression_schema import RegressionSchema

TABLE = """\
[columns.age]
low = 18
high = 90
baseline = 40
[columns."hours, a week"]
low = 0
high = 80
baseline = 40
[columns.job]
categories = ["farm", "office", 3]
baseline = "farm"
"""
LABEL = '[columns.label]\nclasses = ["a", "b"]\n'
ALL_PARTS = "job=farm,job=office,job=3"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    monkeypatch.delenv("FEDVEIL_POLICY", raising=False)
    return tmp_path


def demand(home: Path, *entries: str) -> None:
    (home / "policy.toml").write_text(f"private-attributes = {json.dumps(entries)}")


CASES = [
    ('"hours, a week",age', "hours, a week", True),
    ('age, "hours, a week"', "age", True),
    ("age", "hours, a week", False),
    ("job", "job", True),
    ("job", "job=farm", True),
    ("job", "job=3", True),
    (ALL_PARTS, "job", True),
    ("job=farm,job=office", "job", False),
    ("job=farm", "job=farm", True),
    ("job=farm", "job=office", False),
    ("job", "job=gone", True),
    ("age", "job", False),
]


@pytest.mark.parametrize(("asked", "demanded", "is_allowed"), CASES)
def test_names_in_quotes_and_parts_of_columns_count_before_and_after_records_are_read(
    home: Path, asked: str, demanded: str, is_allowed: bool
) -> None:
    demand(home, demanded)
    (home / "own.csv").write_text('age,"hours, a week",job,label\n' + "30,40,farm,a\n44,20,office,b\n" * 9)
    (home / "own.csv.schema.toml").write_text(TABLE + LABEL)
    config = FedSVAConfig.from_run_config(
        {
            "dataset": "csv",
            "data-path": str(home / "own.csv"),
            "target": "label",
            "partition": "iid",
            "num-clients": 1,
            "calibration": "attribute",
            "private-attributes": asked,
        }
    )
    problem = load_problem(config)
    assert problem.private is not None
    schema = problem.dataset.schema
    protected = protected_columns(schema.names, schema.sources, problem.private)
    if demanded != "job=gone":  # known once records are read: beforehand the description alone counts
        if is_allowed:
            admit_run(config, run=None, node=0, simulated=False)
        else:
            with pytest.raises(PolicyRefusal, match="rule 'private-attributes'"):
                admit_run(config, run=None, node=0, simulated=False)
    if is_allowed:
        check_loaded(node_policy(), {}, schema, protected)
    else:
        with pytest.raises(PolicyRefusal, match="rule 'private-attributes'"):
            check_loaded(node_policy(), {}, schema, protected)


@pytest.mark.parametrize(
    ("asked", "demanded", "is_allowed"),
    [
        ("2:6,2:6", "2:6,2:6", True),
        ("2:6,2:6", " 3:5 , 2:6", True),
        ("0:2,0:8+2:6,2:6", "2:6,2:6", True),
        ("0:2,0:8+2:6,2:6", "2:6,2:6+0:1,0:8", True),
        ("2:6,2:6", "2:6,2:7", False),
        ("2:6,2:6", "2:6,2:60", False),
        ("2:6,2:6", "2:6,2:6+0:1,0:1", False),
        ("2:6,2:6", "r2c2", True),
        ("2:6,2:6", "r1c2", False),
    ],
)
def test_a_region_is_protected_by_a_run_that_protects_all_its_pixels(
    home: Path, asked: str, demanded: str, is_allowed: bool
) -> None:
    demand(home, demanded)
    config = FedSVAConfig.from_run_config(
        {"dataset": "digits", "calibration": "attribute", "private-attributes": asked}
    )
    problem = load_problem(config)
    assert problem.private is not None
    schema = problem.dataset.schema
    protected = protected_columns(schema.names, schema.sources, problem.private)
    if is_allowed:
        check_loaded(node_policy(), {}, schema, protected)
    else:
        with pytest.raises(PolicyRefusal, match="rule 'private-attributes'"):
            check_loaded(node_policy(), {}, schema, protected)


def test_modulated_learning_protects_every_part_but_no_target(home: Path) -> None:
    (home / "schema.toml").write_text(TABLE + "[columns.pay]\nlow = 0\nhigh = 9\nbaseline = 4\n")
    settings: dict[str, Any] = {"dataset": "csv", "partition": "sites", "target": "pay", "options": ""}
    settings |= {"data-schema": "/x/schema.toml", "test-path": "/x/test.csv"}
    config = ModulatedConfig.from_run_config(settings)
    names = ("age", "job=office", "job=3")
    schema = RegressionSchema(
        names, *(np.array([v] * 3) for v in (0.0, 1.0, 0.5)), "pay", sources=("age", "job", "job")
    )
    site = SiteData(str(home / "own.csv"), str(home / "schema.toml"))
    for entry in ("age", "job", "job=farm", "job=3"):  # a regression has no feature job=farm, its baseline
        demand(home, entry)
        admit_run(config, run=None, node=0, simulated=False, site=site)
        check_loaded(node_policy(), {}, schema, schema.sources)
    demand(home, "pay")
    with pytest.raises(PolicyRefusal, match="does not protect 'pay'"):
        admit_run(config, run=None, node=0, simulated=False, site=site)
    with pytest.raises(PolicyRefusal, match="does not protect 'pay'"):
        check_loaded(node_policy(), {}, schema, schema.sources)


def test_another_column_whose_name_looks_like_a_part_is_not_taken_for_one() -> None:
    bounds = (np.array([v] * 3) for v in (0.0, 1.0, 0.5))
    schema = RegressionSchema(
        ("job=x", "job=farm", "age"), *bounds, "job=pay", sources=("job", "job=farm", "age")
    )
    assert covered_entries(["job=farm", "job=pay", "age"], schema, {"job"}) == {"job", "job=x"}
