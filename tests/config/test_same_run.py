"""Whether a run is still the same one: its name at a node, its facts and its ledger at the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedveil.artifacts import Checkpoint, NodeLedger
from fedveil.config import ConfigError
from fedveil.config.same_run import check_unchanged, known_run


def checkpoint(**facts: Any) -> Checkpoint:
    arrays = {"w": np.zeros(1, np.float32)}
    return Checkpoint(
        round=1, arrays=arrays, optimizer={}, releases=(), metrics=[], config_hash="", extra={"facts": facts}
    )


def test_a_node_works_for_the_run_that_it_was_first_asked_for_and_for_no_other():
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    for _ in range(2):
        assert known_run(context, "first") == "first"
    with pytest.raises(ConfigError, match="works for run 'first', and the request is of run 'second'"):
        known_run(context, "second")
    # what Flower keeps for the node between messages is enough to know it by
    later = Context(run_id=1, node_id=2, node_config={}, state=context.state, run_config={})
    with pytest.raises(ConfigError, match="works for run 'first'"):
        known_run(later, "second")
    other = Context(run_id=2, node_id=2, node_config={}, state=RecordDict(), run_config={})
    assert known_run(other, "second") == "second"


@pytest.mark.parametrize("facts", [{"data": "other"}, {"number of records at each site": [3]}])
def test_a_fact_that_is_another_or_was_not_there_stops_a_resumed_run(facts: dict[str, Any], tmp_path: Path):
    before = checkpoint(code="c", data="d")
    check_unchanged(before, {"code": "c", "data": "d"}, tmp_path, has_spent=False)
    check_unchanged(before, {}, tmp_path, has_spent=False)
    (name,) = facts
    with pytest.raises(ConfigError, match=f"the {name} is not what it was when the run in {tmp_path} was"):
        check_unchanged(before, {"code": "c"} | facts, tmp_path, has_spent=False)


def test_a_run_whose_clients_have_spent_does_not_go_on_without_their_ledger(tmp_path: Path):
    check_unchanged(checkpoint(), {}, tmp_path, has_spent=False)
    with pytest.raises(
        ConfigError, match=r"node-ledger\.sqlite is lost, and with it what the clients have spent"
    ):
        check_unchanged(checkpoint(), {}, tmp_path, has_spent=True)
    NodeLedger(tmp_path / "node-ledger.sqlite")
    check_unchanged(checkpoint(), {}, tmp_path, has_spent=True)
