"""The ClientApp of modulated learning: a node that hosts clients of one record each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedveil import wire
from fedveil.artifacts import NodeLedger
from fedveil.clients.modulated_cohort import ModulatedCohort
from fedveil.clients.modulated_replies import handle_identify_modulated, handle_message
from fedveil.config import ConfigError
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_planning import code_of_data, load_regression, variant_plans
from fedveil.config.places import ledger_path, place_of_node
from fedveil.config.randomness import run_streams
from fedveil.flower import is_simulated
from fedveil.moment_sums import share_of
from fedveil.threads import set_threads

app = ClientApp()
CODE = wire.fingerprint(Path(__file__).parent)


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Say which clients this node serves, and which code runs here."""
    config = ModulatedConfig.from_run_config(context.run_config)
    partition_id, num_partitions = place_of_node(context.node_config)
    cohort = host(config, partition_id, num_partitions, None, is_simulated())
    answer = handle_identify_modulated(cohort, partition_id, num_partitions, code_of_data(config, CODE))
    return Message(answer, reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of messages of the clients that the server drew."""
    config = ModulatedConfig.from_run_config(context.run_config)
    request = message.content.config_records.get(wire.CONFIG)
    if request is None or not request.get(wire.RUN):
        raise ConfigError("a request for messages must name its run.")
    run = known_run(context, str(request[wire.RUN]))
    cohort = host(config, *place_of_node(context.node_config), run, is_simulated())
    return Message(handle_message(message.content, cohort, code_of_data(config, CODE)), reply_to=message)


def known_run(context: Context, run: str) -> str:
    """The run that this node works for, which the first request names.

    Budgets are a run's: a server that could name a new one in every message would never spend any.

    Raises
    ------
    ConfigError
        If a later request names another.
    """
    known = context.state.config_records.setdefault("fedveil", ConfigRecord()).setdefault(wire.RUN, run)
    if run != known:
        raise ConfigError(f"this node works for run {known!r}, and the request is of run {run!r}.")
    return run


@lru_cache(maxsize=1)
def own_records(
    config: ModulatedConfig, first: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The records of this node, and of no other; in memory while its process lives."""
    problem = load_regression(config)
    features, targets = problem.rows(first, first + count)
    if not config.label_privacy:
        problem.check_labels(first, targets)
    return features, targets


@lru_cache(maxsize=4)
def host(
    config: ModulatedConfig, partition_id: int, num_partitions: int, run: str | None, simulated: bool
) -> ModulatedCohort:
    """The clients of this node in one run; kept while its process lives, for a node is asked every round.

    Without a run, to say who is here, no ledger is opened.
    """
    set_threads(config.threads_per_node)
    problem = load_regression(config)
    try:
        first, count = share_of(partition_id, num_partitions, problem.num_clients)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    features, targets = own_records(config, first, count)

    def rows(start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        return features[start - first : stop - first], targets[start - first : stop - first]

    return ModulatedCohort(
        rows,
        first,
        count,
        problem.num_clients,
        plans=variant_plans(config, problem, simulated=simulated),
        streams=run_streams(config, simulated=simulated),
        node_ledger=NodeLedger(ledger_path(config, run, simulated=simulated)) if run else None,
        run=run or "",
        simulated=simulated,
    )
