"""What leaves a node of one-record clients in a whole run: every field of every reply, and why it may."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedveil import wire
from fedveil.config import modulated_data
from fedveil.strategies import NoGoodReplies
from fedveil.strategies.message_rounds import MessageRounds

APP = Path(__file__).parents[2] / "flwr_apps" / "modulated" / "modulated_app"
ITERATIVE = {"strategy": "modulated-iterative", "num-server-rounds": 3}
WAYS: dict[str, dict[str, Any]] = {
    "one-shot": {},
    "private labels": {"label-privacy": True},
    "each": {"reply": "each", "label-privacy": True},
    "cohorts": ITERATIVE,
    "out of budget": {**ITERATIVE, "participation": "sampled", "fraction-train": 0.5},
    "estimated ranges": {"standardization": "estimated"},
}


def trained(run: Any) -> Iterator[tuple[Message, Message]]:
    """Train requests and their replies."""
    replies = {reply.metadata.reply_to_message_id: reply for reply in run.replies}
    for request in run.requests:
        if request.metadata.message_type == "train":
            yield request, replies[request.metadata.message_id]


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_every_field_of_every_reply_is_accounted_for(modulated: Callable[..., Any], settings: dict[str, Any]):
    run = modulated(settings)
    fingerprint, seen = wire.fingerprint(APP), 0
    for request, reply in trained(run):
        asked, content = request.content["config"], reply.content
        assert set(request.content) == {"arrays", "config"}
        assert set(content) == {"arrays", "metrics", "ledger"}
        assert (len(content.array_records), len(content.config_records), len(content.metric_records)) == (
            1,
            1,
            1,
        )

        # sums in integers, or every noised message
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
        shapes = {"gram": (3, 3), "cross": (3,), "total": (3,), "labels": (2,)}
        took_part = wire.decode_clients(content["ledger"]["client-mask"], 399)
        if asked["reply"] == "each":
            shapes = {"messages": (len(took_part), 3), "labels": (len(took_part),)}
        kind = np.float64 if asked["reply"] == "each" else np.int64
        assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
            name: (np.dtype(kind), shape) for name, shape in shapes.items()
        }
        for array in content["arrays"].values():
            assert array.stype == "numpy.ndarray"
            assert len(array.data) == 128 + array.numpy().nbytes  # NumPy's header and the numbers, no more

        # who took part, their one row, and what code ran
        ledger = content["ledger"]
        assert set(ledger) == {"rows", "client-mask", "out-of-budget", "library", "source"}
        assert {"library": ledger["library"], "source": ledger["source"]} == fingerprint
        refused = wire.decode_clients(ledger["out-of-budget"], 399)
        asked_for = wire.decode_clients(asked["client-mask"], 399)
        assert sorted([*took_part, *refused]) == list(asked_for)
        (row,) = wire.decode_releases(ledger["rows"])
        assert (row.client, row.round) == (-1, asked["server-round"])
        assert ledger["client-mask"] == wire.encode_clients(took_part)
        assert ledger["rows"] == wire.encode_releases((row,))

        # a public number
        assert dict(content["metrics"]) == {"num-examples": len(took_part)}
        seen += len(took_part)
    assert seen == len(run.rows) > 0


def test_the_answer_to_who_is_here_holds_public_numbers_alone(modulated: Callable[..., Any]):
    run = modulated(nodes=4)
    answers = [reply for reply in run.replies if reply.metadata.message_type == wire.QUERY_IDENTIFY]
    told = sorted(
        (dict(answer.content["config"]) for answer in answers), key=lambda each: each["partition-id"]
    )
    assert told == [
        {
            "partition-id": partition,
            "num-partitions": 4,
            "first": 100 * partition,
            "count": 100,
            **wire.fingerprint(APP),
        }
        for partition in range(4)
    ]
    assert {message.metadata.message_type for message in run.requests} == {"query.identify", "train"}


@pytest.mark.parametrize("label_privacy", [False, True])
def test_another_record_changes_the_noised_sums_of_its_node_and_no_other_field(
    modulated: Callable[..., Any], tmp_path: Path, label_privacy: bool
):
    """Two worlds: one client's record is another; the noise is the same, and so is everything that is no sum."""
    schema = "[columns.a]\nlow = 0\nhigh = 9\nbaseline = 4\n[columns.b]\nlow = 0\nhigh = 9\nbaseline = 4\n"
    table, test = tmp_path / "town.csv", tmp_path / "test.csv"
    Path(f"{table}.schema.toml").write_text(schema + "[columns.y]\nlow = 0\nhigh = 90\n")
    rows = [f"{k % 7},{k % 9},{k}" for k in range(80)]
    test.write_text("\n".join(["a,b,y", *rows[:20]]))
    settings = {
        "dataset": "csv",
        "options": "",
        "data-path": str(table),
        "test-path": str(test),
        "target": "y",
        "bound": 0.4,  # both of the records are clipped, or one: how many were is on no reply
        "label-privacy": label_privacy,
    }
    worlds = []
    for record in ("4,4,33", "0,9,33"):
        table.write_text("\n".join(["a,b,y", *rows[:33], record, *rows[34:]]))
        modulated_data._load.cache_clear()
        if "modulated_app.client_app" in sys.modules:
            sys.modules["modulated_app.client_app"].host.cache_clear()
        worlds.append(modulated(settings, nodes=8))
    changed = []
    for number, ((_, first), (_, second)) in enumerate(zip(*map(trained, worlds), strict=True)):
        assert dict(first.content["ledger"]) == dict(second.content["ledger"])
        assert dict(first.content["metrics"]) == dict(second.content["metrics"])
        arrays = [
            {name: array.data for name, array in each.content["arrays"].items()} for each in (first, second)
        ]
        if arrays[0] != arrays[1]:
            changed.append(number)
            labels = [each["labels"] for each in arrays]
            assert (
                labels[0] == labels[1]
            ) is not label_privacy  # a label in the clear does not know of its record
    assert changed == [3]  # clients 30 to 39
    assert worlds[0].rows == worlds[1].rows
    lines = [
        next(line for line in world.output.splitlines() if line.startswith("fedveil | round 1/1")).split(
            " · "
        )
        for world in worlds
    ]
    # the line of a round holds the model's figures and public numbers
    same = [a == b for a, b in zip(*lines, strict=True)]
    assert same[4:] == [True] * len(same[4:])


def test_a_node_refuses_another_run_than_the_one_it_works_for(
    modulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Budgets are a run's: a server that could name a new one in every message would never spend any."""
    requests = MessageRounds.requests

    def other(self: MessageRounds, server_round: int, *arguments: Any) -> Any:
        messages = requests(self, server_round, *arguments)
        if server_round == 2:
            for message in messages:
                message.content["config"]["run"] = "another"
        return messages

    monkeypatch.setattr(MessageRounds, "requests", other)
    with pytest.raises(NoGoodReplies, match="and the request is of run 'another'"):
        modulated(ITERATIVE)
