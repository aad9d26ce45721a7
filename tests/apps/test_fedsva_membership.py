"""r_Q on the clients' records: asked for once after training, paid for, and told beside that of the public records."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Message

from fedveil.artifacts import NodeLedger, RunFolder
from fedveil.config import ConfigError
from fedveil.loss_query import QUERY_LOSSES, LossQuery
from fedveil.privacy import (
    LossReleases,
    PrivacyFilter,
    Release,
    compose_mu,
    gaussian_epsilon,
    gaussian_mu,
    released_interval,
)
from fedveil.run.quantized import quantize_run
from fedveil.wire import decode_released

KILLED_RUNS = Path(__file__).with_name("killed_runs.py")
# quantizers whose codes change in every round: with one configuration there is nothing to ask
EPSILON, DELTA, SHARE = 8.0, 1e-5, 0.3
FEDERATED = {
    "membership": "federated",
    "membership-share": SHARE,
    "epsilon": EPSILON,
    "quantizers": "int8,int4",
}
STUDY = {"membership": "study", "quantizers": "int8,int4"}
RECORD_LEVEL = {"calibration": "uniform"}
WAYS: dict[str, dict[str, Any]] = {
    "attributes, fixed": {},
    "attributes, two budgets": {"epsilon-record": 40.0},
    "records": RECORD_LEVEL,
    "published formula": {"calibration": "paper", "contribution": "0.3"},
    "released contributions": {
        "attribute-clip-rule": "contribution",
        "epsilon": 30.0,
        "contribution-share": 0.4,
        "contribution-round": 1,
    },
    "quantile": {"attribute-clip-rule": "quantile"},
    "sampled clients": {"fraction-train": 0.5, "num-server-rounds": 8},
}


def document(run: Any, name: str = "rq") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / f"{name}.json").read_text())
    return found


def question(run: Any) -> LossQuery:
    """What the nodes were asked for."""
    first = next(m for m in run.requests if m.metadata.message_type == QUERY_LOSSES)
    return LossQuery.read(first.content)[0]


def told(run: Any) -> dict[int, np.ndarray]:
    """What each client has released."""
    answers = [reply for reply in run.replies if reply.metadata.message_type == QUERY_LOSSES]
    tables = [decode_released(answer.content["ledger"]["released"]) for answer in answers]
    return {
        client: np.array(values["loss-differences"])
        for table in tables
        for client, values in sorted(table.items())
    }


def as_releases(rows: list[dict[str, Any]]) -> list[Release]:
    names = ("client", "round", "step", "relation", "sensitivity", "sigma", "chosen", "sampling_rate")
    return [Release(name=row["release"], **{name: row[name] for name in names}) for row in rows]


def budgets_of(run: Any) -> dict[str, float]:
    """mu of what the run says it has guaranteed, under each relation."""
    return {
        relation: gaussian_mu(stated["epsilon"], DELTA) * (1 + 1e-9)
        for relation, stated in run.guarantees.items()
    }


@pytest.mark.parametrize("name", WAYS)
def test_what_clients_release_is_in_both_ledgers_and_within_what_is_guaranteed(
    fedsva: Callable[..., Any], name: str
):
    run = fedsva({**FEDERATED, **WAYS[name]})
    rounds = WAYS[name].get("num-server-rounds", 3)
    assert {relation: one["kind"] for relation, one in run.guarantees.items()} == {
        "attribute": "proven",
        "record": "proven",
    }
    for client in range(8):
        rows = [row for row in run.rows if row["client"] == client]
        mine = [row for row in rows if row["release"] == "loss-differences"]
        assert [(row["round"], row["step"], row["relation"], row["source"]) for row in mine] == [
            (rounds + 1, step, "record", "reply") for step in (0, 1)
        ]
        assert all(row["chosen"] == "released" for row in mine)
        own = [row for row in run.node_rows if row.client == client]
        key = lambda row: (row.round, row.name, row.step, row.relation)  # noqa: E731
        assert sorted(as_releases(rows), key=key) == sorted(own, key=key)
        assert PrivacyFilter(budgets_of(run)).admits(own)
    relation = "attribute" if name.startswith("attributes") else None
    if relation:
        assert run.guarantees[relation]["epsilon"] <= EPSILON
        assert f"eps({relation})" in run.output


def test_the_release_has_its_share_of_the_budget_and_training_the_rest(fedsva: Callable[..., Any]):
    run = fedsva({**FEDERATED, **RECORD_LEVEL})
    budget = gaussian_mu(EPSILON, DELTA) ** 2
    for client in range(8):
        squares = {
            name: math.fsum(r.mu**2 for r in run.node_rows if r.client == client and r.name == name)
            for name in ("gradient", "loss-differences")
        }
        assert squares["loss-differences"] == pytest.approx(SHARE * budget, rel=1e-9)
        assert squares["gradient"] == pytest.approx((1 - SHARE) * budget, rel=1e-9)
        assert sum(squares.values()) <= budget
    assert run.guarantees["record"]["epsilon"] <= EPSILON


def test_clients_that_train_more_often_than_expected_keep_what_the_release_costs(fedsva: Callable[..., Any]):
    """Without a reserve one step more than planned, a twentieth of the budget, would be taken from a share of 0.3."""
    run = fedsva({**FEDERATED, "fraction-train": 0.5, "num-server-rounds": 30})
    steps = [sum(row["client"] == c and row["release"] == "gradient" for row in run.rows) for c in range(8)]
    assert max(steps) == 2 * 15  # two relations
    assert run.metrics[-1]["out-of-budget"] > 0
    assert document(run)["clients"]["clients"] == 8


def test_r_q_is_read_from_what_the_clients_sent_and_stands_beside_the_public_one(
    fedsva: Callable[..., Any],
):
    run = fedsva({**FEDERATED, **RECORD_LEVEL, "epsilon": 300.0, "num-server-rounds": 6})
    asked, vectors, found = question(run), told(run), document(run)
    mu = gaussian_mu(300.0, DELTA) * math.sqrt(SHARE)
    plan = LossReleases.planned(20, asked.pairs, asked.clip_norms, {"record": mu * (1 - 2.0**-50)})
    assert sorted(vectors) == list(range(8))
    head = found["clients"]
    assert (head["kind"], head["clients"], head["records"]) == ("released", 8, 160)
    assert (head["delta"], head["relation"]) == (DELTA, "record")
    rows = [row for row in run.node_rows if row.client == 0 and row.name == "loss-differences"]
    spent = gaussian_epsilon(compose_mu(row.mu for row in rows), DELTA)
    assert head["epsilon"] == pytest.approx(spent, rel=1e-6)
    assert head["composition"].startswith("2 Gaussian releases a client")
    for index, name in enumerate(("int8", "int4")):
        values = found["quantizers"][name]
        assert values["r_q"] is not None  # the public one
        clients = [plan.read(vector)[index] for vector in vectors.values()]
        pooled = sum(clients[1:], clients[0])
        expected, interval = pooled.indicator(), released_interval(clients)
        mine = values["clients"]
        assert mine["r_q"] == (None if math.isnan(expected.r_q) else pytest.approx(expected.r_q, rel=1e-6))
        if mine["r_q"] is not None:
            assert mine["low"] == pytest.approx(interval.low, rel=1e-4, abs=1e-9)
            assert mine["high"] == pytest.approx(interval.high, rel=1e-4)
        assert mine["clip-norm"] == asked.clip_norms[index]
        errors = [entry["error"] for entry in mine["error-against-epsilon"]]
        assert errors == sorted(errors, reverse=True)
        assert mine["error-against-epsilon"][1]["error"] == pytest.approx(mine["predicted-error"])
        assert re_line(run.output, name)
    assert "predicted error of r_Q by a client's epsilon" in run.output
    assert "r_Q on 160 records of 8 clients, released for epsilon" in run.output
    assert document(run, "membership")["quantizers"]["int8"] == found["quantizers"]["int8"]["clients"]


def re_line(output: str, name: str) -> bool:
    """Whether a quantizer has a line of its own with its clients' r_Q."""
    return any(
        line.startswith(f"fedveil | {name} ") and ("predicted error" in line) for line in output.splitlines()
    )


def test_one_message_a_node_asks_for_all_quantizers_after_the_last_round(fedsva: Callable[..., Any]):
    run = fedsva(FEDERATED)
    kinds = [message.metadata.message_type for message in run.requests]
    assert kinds == ["query.identify"] * 2 + ["train"] * 6 + ["query.losses"] * 2
    asked = question(run)
    assert asked.round == 4
    assert len(asked.pairs) == len(asked.clip_norms) == 2
    assert run.output.index("round 3/3") < run.output.index("predicted error of r_Q")
    assert run.output.index("predicted error of r_Q") < run.output.index("losses of 8 clients")


def test_the_reference_and_its_competitors_are_those_of_the_public_ranking(fedsva: Callable[..., Any]):
    run = fedsva({**FEDERATED, "num-server-rounds": 6})
    asked, found = question(run), document(run)
    for name in ("int8", "int4"):
        compared, pair = (
            found["quantizers"][name]["clients"]["compared-rounds"],
            found["quantizers"][name]["pair"],
        )
        assert compared[:2] == [pair["best-round"], pair["runner-up-round"]]
        assert len(compared) <= 3
    assert asked.num_candidates == sum(
        len(found["quantizers"][name]["clients"]["compared-rounds"]) for name in ("int8", "int4")
    )


@pytest.mark.parametrize("settings", [FEDERATED, STUDY], ids=["federated", "study"])
def test_the_same_seed_gives_the_same_bytes_on_any_number_of_nodes(
    fedsva: Callable[..., Any], settings: dict[str, Any]
):
    first = fedsva(settings, nodes=1)
    for nodes, reverse in ((3, False), (3, True), (8, False)):
        run = fedsva(settings, nodes=nodes, reverse_replies=reverse)
        assert run.results == first.results
        for file in ("membership.json", "rq.json"):
            assert (run.folder / file).read_bytes() == (first.folder / file).read_bytes()


def test_a_run_on_public_records_asks_nobody_and_leaves_no_such_file(fedsva: Callable[..., Any]):
    run = fedsva()
    assert QUERY_LOSSES not in {message.metadata.message_type for message in run.requests}
    assert not (run.folder / "membership.json").exists()
    assert "clients" not in document(run)
    assert "losses" not in run.output


def test_fewer_than_five_clients_get_no_interval_and_one_sentence_says_so(fedsva: Callable[..., Any]):
    run = fedsva({**FEDERATED, "num-clients": 4, "epsilon": 300.0, **RECORD_LEVEL})
    for name in ("int8", "int4"):
        values = document(run)["quantizers"][name]["clients"]
        assert (values["low"], values["high"]) == (None, None)
        assert values["interval"] == "No interval for r_Q: 4 clients are fewer than 5."
    assert run.output.count("No interval for r_Q: 4 clients are fewer than 5.") == 1
    assert ", no interval, predicted error" in run.output


def test_noise_that_hides_everything_is_said(fedsva: Callable[..., Any]):
    run = fedsva({**FEDERATED, "epsilon": 0.01, "membership-share": 0.01})
    values = document(run)["quantizers"]
    assert any(one["clients"]["r_q"] is None for one in values.values())
    assert "not identified: the noise of the releases hides every variance" in run.output


# nodes that fail, clients that cannot pay


class Losing:
    """Makes a Grid whose second node gets the question and whose answer is lost, or is sent twice."""

    @staticmethod
    def grid(base: type, way: str) -> type:
        class Grid(base):  # type: ignore[misc, valid-type]
            def push_messages(self, messages: Any) -> Any:
                messages = list(messages)
                if way == "asked twice" and messages[0].metadata.message_type == QUERY_LOSSES:
                    again = [
                        Message(m.content, dst_node_id=m.metadata.dst_node_id, message_type=QUERY_LOSSES)
                        for m in messages
                    ]
                    list(super().pull_messages(super().push_messages(again)))
                names = list(super().push_messages(messages))
                for name, message in zip(names, messages, strict=True):
                    second = list(self.get_node_ids())[1]
                    if (
                        way == "lost"
                        and message.metadata.dst_node_id == second
                        and message.metadata.message_type == QUERY_LOSSES
                    ):
                        del self._replies[name]
                return names

        return Grid


@pytest.fixture
def watched(fedsva: Callable[..., Any]) -> type:
    """The Grid that the runs of these tests use."""
    default: type = fedsva.__kwdefaults__["grid"]  # type: ignore[attr-defined]
    return default


def test_what_a_lost_answer_may_have_told_is_assumed(fedsva: Callable[..., Any], watched: type):
    run = fedsva({**FEDERATED, "num-clients": 8}, nodes=2, grid=Losing.grid(watched, "lost"))
    rows = [row for row in run.rows if row["release"] == "loss-differences"]
    assert {row["client"] for row in rows if row["source"] == "reply"} == {0, 1, 2, 3}
    assert {row["client"] for row in rows if row["source"] == "assumed"} == {4, 5, 6, 7}
    head = document(run)["clients"]
    assert (head["clients"], head["records"]) == (4, 80)
    assert "none came in time" in head["failures"][0]
    assert "losses: dropped the reply for clients 4" in run.output
    assert "failed replies 1" in run.output
    assert run.guarantees["attribute"]["epsilon"] <= EPSILON


def test_a_second_question_finds_every_client_out_of_budget(fedsva: Callable[..., Any], watched: type):
    run = fedsva({**FEDERATED, "seed": ""}, grid=Losing.grid(watched, "asked twice"))
    assert "losses of 0 clients: released differences, 2 quantizers · out of budget 8" in run.output
    assert "no client has told its losses: r_Q is that of the public records alone" in run.output
    assert not (run.folder / "membership.json").exists()
    assert document(run)["quantizers"]["int8"]["r_q"] is not None
    budget = {"attribute": gaussian_mu(EPSILON, DELTA)}
    for client in range(8):
        own = [row for row in run.node_rows if row.client == client]
        assert sum(row.name == "loss-differences" for row in own) == 2
        assert PrivacyFilter(budget).admits(own)


# runs that were interrupted


DEATHS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "asked, the model not written": ("the ledger is written, the model not", 0, {}),
    "half the answers": ("the first node's releases are in its ledger", 4, {}),
    "unseeded, half the answers": ("the first node's releases are in its ledger", 4, {"seed": ""}),
    "unseeded, the model not written": ("the ledger is written, the model not", 0, {"seed": ""}),
}


@pytest.fixture(scope="module")
def killed(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that the killed runs left, by name."""
    root = tmp_path_factory.mktemp("killed")
    cases = [
        {
            "settings": {**small, **FEDERATED, **settings, "output-dir": str(root / name)},
            "at": at,
            "round": number,
        }
        for name, (at, number, settings) in DEATHS.items()
    ]
    done = subprocess.run(
        [sys.executable, str(KILLED_RUNS)],
        input=json.dumps(cases),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: next((root / name).glob("*-fedsva-*")) for name in DEATHS}


@pytest.fixture
def dead_run(killed: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A killed run's folder of one's own."""
    return lambda name: Path(shutil.copytree(killed[name], tmp_path / "dead" / killed[name].name))


@pytest.mark.parametrize("name", [name for name in DEATHS if "unseeded" not in name])
def test_a_seeded_run_that_died_asks_again_and_ends_byte_equal_to_an_unbroken_one(
    dead_run: Callable[[str], Path], fedsva: Callable[..., Any], fedveil_run: Callable[..., Any], name: str
):
    folder = dead_run(name)
    assert not RunFolder(folder).is_finished
    seed = {} if "half" in name else {"seed": 7}  # no longer in a folder whose results are being written
    result = fedveil_run(seed, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    unbroken = fedsva(FEDERATED)
    for file in ("model.safetensors", "ledger.parquet", "membership.json", "rq.json"):
        assert (folder / file).read_bytes() == (unbroken.folder / file).read_bytes(), file
    assert NodeLedger(folder / "node-ledger.sqlite").releases() == unbroken.node_rows


@pytest.mark.parametrize("name", [name for name in DEATHS if "unseeded" in name])
def test_an_unseeded_run_that_died_counts_what_may_have_left_and_no_client_passes_its_budget(
    dead_run: Callable[[str], Path], fedveil_run: Callable[..., Any], name: str
):
    folder = dead_run(name)
    result = fedveil_run({}, "--resume", folder)
    assert result.exit_code == 0, result.stderr
    paid = range(4) if "half" in name else range(8)  # by the first attempt
    rows = pq.read_table(folder / "ledger.parquet").to_pylist()
    mine = [row for row in rows if row["release"] == "loss-differences"]
    assert {row["client"] for row in mine if row["source"] == "assumed"} == set(range(8))
    assert {row["client"] for row in mine if row["source"] == "reply"} == set(range(8)) - set(paid)
    assert f"out of budget {len(paid)}" in result.stdout
    own = NodeLedger(folder / "node-ledger.sqlite").releases()
    for client in range(8):
        sent = [row for row in own if row.client == client]
        assert sum(row.name == "loss-differences" for row in sent) == 2
        assert PrivacyFilter({"attribute": gaussian_mu(EPSILON, DELTA)}).admits(sent)
    (stated,) = [
        one for one in RunFolder(folder).load_model()[1]["guarantees"] if one["relation"] == "attribute"
    ]
    assert stated["kind"] == "proven"
    assert stated["epsilon"] <= EPSILON


# for study


def test_exact_moments_equal_the_public_value_when_the_public_records_are_the_clients(
    fedsva: Callable[..., Any], people: Path
):
    run = fedsva({**STUDY, "test-path": str(people), "num-server-rounds": 6})
    found = document(run)
    assert found["clients"]["kind"] == "study only, not private"
    assert (found["clients"]["records"], found["records"]) == (200, 200)
    for values in found["quantizers"].values():
        mine = values["clients"]
        assert mine["r_q"] == pytest.approx(values["r_q"], rel=1e-9)
        assert mine["pair"] == {key: values["pair"][key] for key in ("best-round", "runner-up-round")}
        assert mine["low"] is not None
        assert mine["statement"].endswith("study only, not private.")


def test_figures_for_study_are_marked_wherever_they_are_shown(fedsva: Callable[..., Any]):
    run = fedsva(STUDY)
    shown = [
        line
        for line in run.output.splitlines()
        if "exact moments" in line or ("r_Q" in line and "% interval" in line and "quantizer" not in line)
    ]
    assert (
        len(shown) == 6
    )  # beforehand, when asked, beside the guarantees, above the figures, and one a quantizer
    assert all("study only, not private" in line for line in shown)
    assert [row for row in run.rows if row["release"] != "gradient"] == []


@pytest.mark.parametrize("privacy", ["central", "none"])
def test_exact_moments_can_be_had_whatever_the_privacy_of_a_simulation(
    fedsva: Callable[..., Any], privacy: str
):
    run = fedsva({**STUDY, "privacy": privacy})
    assert document(run)["clients"]["clients"] == 8


def test_exact_moments_are_refused_outside_a_simulation(fedsva: Callable[..., Any]):
    with pytest.raises(ConfigError, match="these nodes are not simulated"):
        fedsva({**STUDY, "seed": ""}, simulated=False)


# later, and where there is nothing to ask about


def test_a_later_quantization_tells_what_the_clients_said_then(fedsva: Callable[..., Any]):
    run = fedsva(FEDERATED)
    before, said = document(run), list[str]()
    quantize_run(str(run.folder), schemes="int4,int2", candidates=None, app=None, say=said.append)
    after = document(run)
    assert after["quantizers"]["int4"] == before["quantizers"]["int4"]
    assert after["quantizers"]["int8"] == before["quantizers"]["int8"]
    assert "clients" not in after["quantizers"]["int2"]
    assert after["clients"] == before["clients"]
    assert any(line.startswith("r_Q on 160 records of 8 clients, released") for line in said)


def test_a_quantizer_with_one_configuration_is_not_asked_about_and_costs_nothing(
    fedsva: Callable[..., Any],
):
    """With one candidate there is no pair."""
    run = fedsva({**FEDERATED, **RECORD_LEVEL, "num-server-rounds": 1, "trajectory": 1})
    assert "clients are not asked about int8: No pair of candidates leads" in run.output
    assert QUERY_LOSSES not in {message.metadata.message_type for message in run.requests}
    assert {row["release"] for row in run.rows} == {"gradient"}
