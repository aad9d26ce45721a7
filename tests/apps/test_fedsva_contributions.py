"""Runs whose noise depends on the contribution of the private attributes: what they say and what they keep."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedveil.artifacts import RunFolder
from fedveil.config import FedSVAConfig, assembly
from fedveil.privacy import calibrate_noise, gaussian_delta, gaussian_mu
from fedveil.run import plan_run

DELTA = 1e-5
RELEASED = {
    "attribute-clip-rule": "contribution",
    "num-clients": 4,
    "num-server-rounds": 5,
    "epsilon": 20.0,
    "contribution-share": 0.5,
    "contribution-round": 3,
    "contribution-scale": 0.5,
}
SECRET = {
    "calibration": "paper",
    "contribution": "retrain",
    "contribution-release": "none",
    "num-clients": 4,
    "validation-fraction": 0.6,
}


@pytest.fixture(scope="module")
def released(fedsva_of_module: Callable[..., Any]) -> Any:
    """A run whose clients release their contribution in round 3."""
    return fedsva_of_module(RELEASED)


@pytest.fixture(scope="module")
def secret(fedsva_of_module: Callable[..., Any]) -> Any:
    """A run as published: contributions by retraining, nothing released."""
    return fedsva_of_module(SECRET)


def clipped(values: dict[str, float], deviation: float) -> float:
    """R by its definition, 1 where the noise could have made it."""
    total = sum(max(value, 0.0) for value in values.values())
    if total <= 2 * deviation * math.sqrt(len(values)):
        return 1.0
    return max(values["private"], 0.0) / total


# released


def test_every_client_releases_its_contribution_once_and_the_noise_follows_from_it(released: Any):
    facts = released.contributions
    assert facts["groups"] == ["private", "others"]
    assert facts["private"] == ["private"]
    assert set(facts["clients"]) == set("0123")
    rows = [row for row in released.rows if row["release"] == "contribution"]
    assert {(row["client"], row["round"]) for row in rows} == {(client, 3) for client in range(4)}
    assert len(rows) == 4 * 2
    mu = gaussian_mu(20.0, DELTA)
    for client, told in facts["clients"].items():
        assert told["round"] == 3
        assert told["records"] == 40
        # half of D_2 = 2 over the records, at half of the budget mu^2
        assert told["deviation"] == pytest.approx(1 / 40 / (mu * math.sqrt(0.5)), rel=1e-9)
        rate = clipped(told["shapley"], told["deviation"])
        assert told["contribution"] == pytest.approx(rate, rel=1e-12)
        assert told["attribute-clip-norm"] == pytest.approx(0.5 * max(rate, 0.05), rel=1e-12)
        sigma = 2 * told["attribute-clip-norm"] / 40 * math.sqrt(5 / 0.5) / mu
        assert told["sigma"] == pytest.approx(sigma, rel=1e-9)
        steps = [
            row for row in released.rows if row["client"] == int(client) and row["release"] == "gradient"
        ]
        for row in steps:
            is_known = row["round"] > 3
            assert row["chosen"] == ("released" if is_known else "fixed")
            assert row["sigma"] == pytest.approx(
                sigma if is_known else sigma * 0.2 / told["attribute-clip-norm"]
            )
    assert len({told["contribution"] for told in facts["clients"].values()}) > 1


def test_the_guarantees_are_the_budgets_and_the_readings_are_what_the_ledger_comes_to(released: Any):
    stated, note = released.guarantees, RunFolder(released.folder).load_model()[1]
    assert {guarantee["kind"] for guarantee in stated.values()} == {"proven"}
    assert stated["attribute"]["epsilon"] == pytest.approx(20.0, rel=1e-6)
    mu = gaussian_mu(20.0, DELTA)
    # whole records: the worst C_p that could have come out, 0.5 * 0.05 C
    assert gaussian_delta(stated["record"]["epsilon"], mu / 0.025) == pytest.approx(DELTA, rel=1e-2)
    for relation, epsilon in note["readings"].items():
        worst = max(
            math.sqrt(
                math.fsum(
                    row["mu"] ** 2
                    for row in released.rows
                    if (row["client"], row["relation"]) == (client, relation)
                )
            )
            for client in range(4)
        )
        assert gaussian_delta(epsilon, worst) == pytest.approx(DELTA, rel=1e-6)
        assert epsilon <= stated[relation]["epsilon"] * (1 + 1e-12)
    assert "no guarantee: eps(attribute)" in released.output
    proven = f"whole records are proven epsilon {_up(stated['record']['epsilon'])} at delta 1e-05 (record relation)"
    assert f"{proven}: the worst case" in released.output


def _up(value: float) -> str:
    digits = 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10**digits) / 10**digits:g}"


def test_what_was_released_is_explained_line_by_line(released: Any):
    assert "contribution R of 2 groups of attributes (private, others)" in released.output
    assert "released once from round 3 on (shapley), for 50 % of the mu^2 budget" in released.output
    for client, told in released.contributions["clients"].items():
        (line,) = re.findall(rf"client {client} released its contribution: (.*)", released.output)
        assert (
            f"phi private {told['shapley']['private']:z.3f}, others {told['shapley']['others']:z.3f}" in line
        )
        assert f"(each +- {told['deviation']:.3f}, the noise of its release, on 40 records)" in line
        assert (
            f"R {told['contribution']:.3f}; rule contribution: C_p {told['attribute-clip-norm']:.4g}, "
            in line
        )
        assert f"sigma {told['sigma']:.4g}; with it the planned run comes to eps(attribute) " in line


def test_the_nodes_ledgers_and_the_servers_are_the_same(released: Any):
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            row[name] for name in ("client", "round", "step", "release", "relation", "sensitivity", "sigma")
        )

    node = [
        (r.client, r.round, r.step, r.name, r.relation, r.sensitivity, r.sigma) for r in released.node_rows
    ]
    assert sorted(node) == sorted(map(key, released.rows))
    assert released.notes == {}
    for client in range(4):
        own = [row for row in released.node_rows if (row.client, row.relation) == (client, "attribute")]
        assert math.fsum(row.mu**2 for row in own) <= gaussian_mu(20.0, DELTA) ** 2


def test_utilities_that_are_released_are_shown_and_add_up(fedsva: Callable[..., Any]):
    run = fedsva(
        RELEASED
        | {
            "contribution-release": "utilities",
            "contribution-round": "",
            "num-server-rounds": 2,
            "epsilon": 40.0,
        }
    )
    for client, told in run.contributions["clients"].items():
        utilities = told["utilities"]
        assert list(utilities) == ["none", "private", "others", "all"]
        # efficiency, and the value of two players by hand
        assert sum(told["shapley"].values()) == pytest.approx(utilities["all"] - utilities["none"], abs=1e-12)
        own = (utilities["private"] - utilities["none"] + utilities["all"] - utilities["others"]) / 2
        assert told["shapley"]["private"] == pytest.approx(own, abs=1e-12)
        shown = ", ".join(f"{name} {value:z.3f}" for name, value in utilities.items())
        assert f"client {client} released its contribution: utilities {shown}; phi private" in run.output


def test_many_clients_are_summed_up_in_one_line(fedsva: Callable[..., Any]):
    run = fedsva(RELEASED | {"num-clients": 16, "num-server-rounds": 3, "epsilon": 60.0})
    rates = sorted(told["contribution"] for told in run.contributions["clients"].values())
    assert len(rates) == 16
    words = f"16 clients released their contribution: R {rates[0]:.3f} to {rates[-1]:.3f}, median"
    assert words in run.output
    assert "client 0 released" not in run.output


def test_groups_of_columns_are_the_players(fedsva: Callable[..., Any]):
    groups = 'age = age; work = job; time = "hours, a week"'
    run = fedsva(
        RELEASED | {"groups": groups, "private-attributes": "age", "num-server-rounds": 3, "epsilon": 40.0}
    )
    facts = run.contributions
    assert (facts["groups"], facts["private"]) == (["age", "work", "time"], ["age"])
    for told in facts["clients"].values():
        assert list(told["shapley"]) == ["age", "work", "time"]


def test_the_published_noise_with_a_released_contribution_is_proven(fedsva: Callable[..., Any]):
    settings = {"calibration": "paper", "contribution-share": 0.9, "epsilon": 40.0}
    run = fedsva(RELEASED | settings)
    stated = run.guarantees["record"]
    assert stated["kind"] == "proven"
    # its least noise, at R = 0, by exact accounting
    least = calibrate_noise(
        clip_norm=1.0, epsilon=40.0, num_records=40, delta=DELTA, contribution=0.0, calibration="paper"
    )
    assert gaussian_delta(stated["epsilon"], least.mu) == pytest.approx(DELTA, rel=1e-6)
    for told in run.contributions["clients"].values():
        assert told["moved"] == pytest.approx(
            math.sqrt(1 + told["contribution"] / (2 * math.log(1 / DELTA))) - 1, rel=1e-9
        )
        assert 0 <= told["moved"] <= 0.0215


# not released


def test_the_published_scheme_proves_nothing_and_says_so(secret: Any):
    assert "No proven guarantee: R is measured on private records and decides the noise" in secret.output
    assert "stay in its node's ledger" in secret.output
    assert "by retraining on coalitions, once, not released" in secret.output
    assert {guarantee["kind"] for guarantee in secret.guarantees.values()} <= {"none", "nominal"}
    assert secret.guarantees["record"]["kind"] == "nominal"
    assert "eps(record)" not in secret.output
    assert "eps(attribute)" not in secret.output
    assert " proven" not in secret.output.replace("No proven", "").replace("no proven", "")
    assert not re.search(r"sigma \d", secret.output)
    assert not re.search(r"\bR \d", secret.output)


def secrets_of(run: Any) -> set[float]:
    """Every number that a client's contribution came from or decided."""
    numbers = {row.sigma for row in run.node_rows}
    for note in run.notes.values():
        numbers |= {note["contribution"], *note["shapley"]}
    # round numbers, as of a contribution of 0 or a difference of accuracies, are found anywhere
    return {number for number in numbers if number not in (0.0, 1.0) and len(repr(number)) > 10}


def test_no_file_but_the_nodes_own_holds_what_decides_the_noise(secret: Any):
    assert set(secret.notes) == {(client, number) for client in range(4) for number in (1, 2, 3)}
    assert {row.chosen for row in secret.node_rows} == {"data-dependent"}
    assert secret.rows == []
    hidden = secrets_of(secret)
    assert len(hidden) >= 5
    files = {path.name: path for path in secret.folder.rglob("*") if path.is_file()}
    assert {
        "config.toml",
        "metrics.parquet",
        "ledger.parquet",
        "model.safetensors",
        "last.safetensors",
    } <= set(files)
    assert "contributions.json" not in files
    for name, path in files.items():
        if name == "node-ledger.sqlite":
            continue
        data = path.read_bytes()
        cells = (
            [value for row in pq.read_table(path).to_pylist() for value in row.values()]
            if name.endswith("parquet")
            else []
        )
        for number in hidden:
            for written in (repr(number).encode(), struct.pack("<d", number), struct.pack(">d", number)):
                assert written not in data, (name, number)
            assert number not in cells, (name, number)
    for number in hidden:
        assert repr(number) not in secret.output
    assert all(math.isnan(row["sigma-min"]) and math.isnan(row["sigma-max"]) for row in secret.metrics)


def test_no_message_of_a_run_that_proves_nothing_tells_of_it(secret: Any):
    for reply in secret.replies:
        if reply.metadata.message_type == "train":
            ledger = reply.content["ledger"]
            assert (ledger["rows"], ledger["released"]) == (b"[]", b"{}")
    for request in secret.requests:
        if request.metadata.message_type == "train":
            assert (request.content["config"]["known"], request.content["config"]["measure"]) == (b"{}", [])


def test_groups_of_records_are_compared_by_retraining(fedsva: Callable[..., Any]):
    run = fedsva(
        SECRET
        | {
            "groups": "rich = class:high",
            "private-groups": "rich",
            "num-server-rounds": 1,
            "private-attributes": "",
        }
    )
    assert {tuple(note["groups"]) for note in run.notes.values()} == {("rich", "others")}
    assert "contribution R of 2 groups of records (rich (private), others) by retraining" in run.output
    assert "in every round, not released" in run.output  # it starts from the received model


# how much R moves


@pytest.mark.parametrize(
    ("delta", "beta", "shown"),
    [
        (1e-5, 0.0, "2.149"),
        (0.02, 0.0, "6.199"),
        (1e-5, 23.5, "1.113"),
        (1e-5, 30.0, "0"),
        (1e-9, 0.0, "1.2"),
    ],
)
def test_the_run_says_how_much_a_contribution_can_move_the_published_noise(
    small: dict[str, Any], delta: float, beta: float, shown: str
):
    plan = plan_run(
        "fedsva", engine="in-process", overrides={**small, **SECRET, "delta": delta, "beta": beta}
    )
    config = FedSVAConfig.from_run_config(plan.config)
    lines: list[str] = []
    with plan.app.importable():
        from fedsva_app.statements import announce

        announce(config, assembly.load_problem(config), seeded=False, say=lines.append)
    (line,) = [line for line in lines if "moves the noise" in line]
    low, high = (
        calibrate_noise(
            clip_norm=1.0,
            epsilon=1.0,
            num_records=1,
            delta=delta,
            contribution=rate,
            beta=beta,
            calibration="paper",
        ).sigma
        for rate in (0.0, 1.0)
    )
    assert shown == ("0" if high == low else _up(100 * (high / low - 1)))
    assert f"by at most {shown} % at delta {delta:g}, beta {beta:g}" in line


# quantiles and weights


def test_the_quantile_rule_moves_the_clip_within_its_budget(fedsva: Callable[..., Any]):
    run = fedsva(
        {"attribute-clip-rule": "quantile", "num-clients": 4, "num-server-rounds": 3, "epsilon": 8.0}
    )
    rows = [row for row in run.rows if row["relation"] == "attribute"]
    norms = {
        number: {
            row["sensitivity"] * 40 / 2
            for row in rows
            if (row["release"], row["round"]) == ("gradient", number)
        }
        for number in (1, 2, 3)
    }
    assert all(len(found) == 1 for found in norms.values())  # one C_p for all clients of 40 records
    (first,), (second,), (third,) = norms.values()
    assert first == pytest.approx(0.2)
    for before, after in ((first, second), (second, third)):
        assert abs(math.log(after / before)) <= 0.2 * 0.5 + 1e-9
        assert after != before
    mu = gaussian_mu(8.0, DELTA)
    for client in range(4):
        own = [row["mu"] ** 2 for row in rows if row["client"] == client]
        assert math.fsum(own) == pytest.approx(mu**2, rel=1e-6)
        assert math.fsum(own) <= mu**2
        sized = [row["mu"] ** 2 for row in rows if (row["client"], row["release"]) == (client, "quantile")]
        assert math.fsum(sized) == pytest.approx(0.05 * mu**2, rel=1e-6)
    assert run.guarantees["attribute"]["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert not (run.folder / "contributions.json").exists()


def test_noise_aware_weights_change_the_model_where_clients_differ_and_not_where_they_do_not(
    fedsva: Callable[..., Any],
):
    def model(**settings: Any) -> dict[str, Any]:
        run = fedsva(
            {"num-server-rounds": 1, "num-clients": 5, "partition": "natural", "epsilon": 4.0, **settings}
        )
        return RunFolder(run.folder).load_model()[0]

    def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
        return max(float(abs(one[name] - other[name]).max()) for name in one)

    # the seeds of noise are keyed by the configuration: without noise to speak of, weights alone remain
    plain, even, steep = (
        model(epsilon=1e6, **weights)
        for weights in (
            {},
            {"aggregation-weights": "noise-aware", "weight-tau": 1e6},
            {"aggregation-weights": "noise-aware", "weight-tau": 1e-9},
        )
    )
    assert distance(plain, even) > 0
    assert distance(even, steep) > 0


def test_the_notes_of_a_model_can_be_read_as_json(released: Any):
    text = (released.folder / "contributions.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["delta"] == DELTA
    assert not list(Path(released.folder).glob("*.tmp"))


def test_sampled_values_are_told_with_the_error_that_sampling_can_have(fedsva: Callable[..., Any]):
    """Thirteen groups and more are sampled; what their sampling did depends on the records, its bound does not."""
    columns = "; ".join(f"g{row}={row}:{row + 1},0:8" for row in range(8))
    inside = "; ".join(f"p{column}=3:5,{column}:{column + 1}" for column in range(2, 6))
    outside = columns.replace("g3=3:4,0:8", "g3=3:4,0:2").replace("g4=4:5,0:8", "g4=4:5,0:2")
    run = fedsva(
        {
            **{"dataset": "digits", "data-path": "", "target": "", "client-column": ""},
            "private-attributes": "3:5,2:6",
            "attribute-clip-rule": "contribution",
            "groups": f"{outside}; {inside}",
            "contribution-pairs": 16,
            "contribution-share": 0.5,
            "epsilon": 1000.0,
            "num-clients": 2,
            "num-server-rounds": 2,
            "seed": 3,
        }
    )
    (facts,) = {values["sampling-error-at-most"] for values in run.contributions["clients"].values()}
    assert facts == 0.25
    assert "the noise of its release, and at most 0.250 of sampled permutations" in run.output
    assert len(run.contributions["groups"]) == 13
