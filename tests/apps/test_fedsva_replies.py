"""What leaves a node in a private run: every field of every reply, and why it may."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedveil import wire
from fedveil.artifacts import RunFolder
from fedveil.clients import Cohort
from fedveil.config import FedSVAConfig, assembly, planning
from fedveil.config.loading import _load_problem
from fedveil.privacy import Known
from fedveil.strategies import FleetError

CLIENTS = {2: {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}}
FEDSVA = Path(__file__).parents[2] / "flwr_apps" / "fedsva" / "fedsva_app"


def trained(run: Any) -> Iterator[tuple[Message, Message]]:
    """Train requests and their replies."""
    replies = {reply.metadata.reply_to_message_id: reply for reply in run.replies}
    for request in run.requests:
        if request.metadata.message_type == "train":
            yield request, replies[request.metadata.message_id]


PRIVATE = {
    "attribute level": {"local-steps": 2},
    "attribute level, out of budget": {"fraction-train": 0.5, "num-server-rounds": 6},
    "attribute level, released contribution": {
        "attribute-clip-rule": "contribution",
        "epsilon": 20.0,
        "contribution-share": 0.6,
        "contribution-round": 2,
    },
    "attribute level, quantile": {"attribute-clip-rule": "quantile"},
    "record level, sampled records": {"calibration": "uniform", "sampling-rate": 0.5, "epsilon": 4.0},
}


@pytest.mark.parametrize("settings", PRIVATE.values(), ids=PRIVATE)
def test_every_field_of_every_reply_of_a_private_run_is_accounted_for(
    fedsva: Callable[..., Any], small: dict[str, Any], settings: dict[str, Any]
):
    run = fedsva(settings)
    config = FedSVAConfig.from_run_config({**small, **settings})
    plans = planning.client_plans(config, dict.fromkeys(range(8), 20), assembly.load_problem(config).groups)
    model, _ = RunFolder(run.folder).load_model()
    fingerprint = wire.fingerprint(FEDSVA)
    seen = 0
    for request, reply in trained(run):
        asked = request.content.config_records["config"]
        content = reply.content
        assert not reply.has_error()
        assert set(content) == {"arrays", "metrics", "ledger"}

        # a sum of noised updates, in integers, of the model's shapes
        assert set(content.array_records) == {"arrays"}
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
        assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
            name: (np.dtype(np.int64), array.shape) for name, array in model.items()
        }
        for array in content["arrays"].values():
            assert array.stype == "numpy.ndarray"
            assert len(array.data) == 128 + array.numpy().nbytes  # NumPy's header and the numbers, no more

        # who took part: a function of who was asked and of the ledger
        ledger = content["ledger"]
        assert set(content.config_records) == {"ledger"}
        assert set(ledger) == {"rows", "released", "clients", "out-of-budget", "library", "source"}
        assert sorted(ledger["clients"] + ledger["out-of-budget"]) == sorted(asked["clients"])
        assert {"library": ledger["library"], "source": ledger["source"]} == fingerprint

        # the public number of records of those that took part
        assert set(content.metric_records) == {"metrics"}
        assert dict(content["metrics"]) == {"num-examples": 20 * len(ledger["clients"])}

        # the planned rows of those that took part, and nothing else
        known, number = wire.decode_known(asked["known"]), asked["server-round"]

        def planned(
            client: int, known: Any = known, number: int = number, measure: Any = asked["measure"]
        ) -> Any:
            facts = known.get(client, Known())
            return plans[client].rows(client, number, config.local_steps, facts, measure=client in measure)

        rows = wire.decode_releases(ledger["rows"])
        assert list(rows) == [row for client in ledger["clients"] for row in planned(client)]
        assert ledger["rows"] == wire.encode_releases(rows)

        # values that those rows pay for: of each client that was asked for its contribution, and each round's quantile
        released = wire.decode_released(ledger["released"])
        assert {
            client: {name: len(values) for name, values in named.items()}
            for client, named in released.items()
        } == {
            client: sizes
            for client in ledger["clients"]
            if (
                sizes := ({"contribution": 2} if client in asked["measure"] else {})
                | ({"quantile": 1} if plans[client].quantile else {})
            )
        }
        assert ledger["released"] == wire.encode_released(released)
        seen += len(rows)
    assert seen == len(run.rows) == len(run.node_rows) > 0


def test_the_answer_to_who_is_here_holds_public_numbers_alone(fedsva: Callable[..., Any]):
    run = fedsva()
    answers = [reply for reply in run.replies if reply.metadata.message_type == wire.QUERY_IDENTIFY]
    assert len(answers) == 2
    for partition, answer in enumerate(answers):
        assert set(answer.content) == {"config"}
        assert dict(answer.content["config"]) == {
            "partition-id": partition,
            "num-partitions": 2,
            "clients": [4 * partition + client for client in range(4)],
            "examples": [20] * 4,
            **wire.fingerprint(FEDSVA),
        }


def test_a_node_is_asked_for_nothing_but_who_it_is_and_to_train(fedsva: Callable[..., Any]):
    run = fedsva()
    assert {message.metadata.message_type for message in run.requests} == {"query.identify", "train"}
    for request, _ in trained(run):
        assert set(request.content) == {"arrays", "config"}
        assert dict(request.content["config"]) == {
            "server-round": request.content["config"]["server-round"],
            "clients": request.content["config"]["clients"],
            "run": run.folder.name,
            "reply": "sum",
            "known": b"{}",
            "measure": [],
        }


def test_another_record_changes_the_noised_arrays_of_its_node_and_no_other_field(
    fedsva: Callable[..., Any], people: Path, tmp_path: Path
):
    """Two worlds: the data of one client differ in one record's private attribute; the noise is the same."""
    lines = people.read_text().splitlines()
    # in place, for the path of the data is part of the settings; what is cached of the first world is forgotten
    other = tmp_path / "people.csv"
    Path(f"{other}.schema.toml").write_text(Path(f"{people}.schema.toml").read_text())
    worlds = []
    for age in ("18", "90"):
        cells = lines[42].split(",")
        other.write_text("\n".join([*lines[:42], ",".join([cells[0], age, *cells[2:]]), *lines[43:]]) + "\n")
        _load_problem.cache_clear()
        worlds.append(fedsva({"data-path": str(other), "seed": 7, "num-server-rounds": 1}, nodes=8))
        _forget_cohorts()
    changed = 0
    for (_, first), (_, second) in zip(*map(trained, worlds), strict=True):
        assert _all_but_arrays(first) == _all_but_arrays(second)
        changed += _arrays(first) != _arrays(second)
    assert changed <= 1  # 0 if the record is a test record
    assert changed == 1
    for first, second in zip(*(world.replies[:8] for world in worlds), strict=True):
        assert dict(first.content["config"]) == dict(second.content["config"])


def _forget_cohorts() -> None:
    import sys

    sys.modules["fedsva_app.client_app"].host.cache_clear()


def _all_but_arrays(message: Message) -> str:
    ledger = {k: v.decode() if isinstance(v, bytes) else v for k, v in message.content["ledger"].items()}
    return json.dumps([ledger, dict(message.content["metrics"])])


def _arrays(message: Message) -> list[bytes]:
    return [array.data for array in message.content["arrays"].values()]


@pytest.mark.parametrize("privacy", ["local", "none"])
def test_single_updates_leave_a_node_with_central_privacy_only(
    fedsva: Callable[..., Any], privacy: str, monkeypatch: pytest.MonkeyPatch
):
    from fedveil.strategies import NoGoodReplies, PrivateAveraging

    monkeypatch.setattr(PrivateAveraging, "mode", "each")
    with pytest.raises(NoGoodReplies, match=f"privacy is '{privacy}' here: single updates leave this node"):
        fedsva({"privacy": privacy})


@pytest.mark.parametrize("privacy", ["local", "none"])
def test_a_node_that_claims_more_records_than_the_servers_data_gives_it_ends_the_run(
    fedsva: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, privacy: str
):
    """Weights follow from numbers of records, so such a client would be given nearly all of it."""
    honest = Cohort.num_records
    monkeypatch.setattr(
        Cohort, "num_records", lambda self, client: 2**30 if client == 3 else honest(self, client)
    )
    with pytest.raises(
        FleetError, match=r"client 3 \(of node \d+\) says it has 1073741824 records, and the .* gives it 20"
    ):
        fedsva({"privacy": privacy})
    assert list((tmp_path / "runs").glob("*")) == []
