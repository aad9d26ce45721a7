"""The ClientApp of modulated learning: a node that hosts clients of one record each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedveil import wire
from fedveil.artifacts import NodeLedger
from fedveil.clients.modulated_cohort import ModulatedCohort
from fedveil.clients.modulated_replies import handle_identify_modulated, handle_message
from fedveil.clients.policy import Policy
from fedveil.clients.record_digest import refuse_changed_records
from fedveil.config import ConfigError
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import Regression, load_regression, load_site
from fedveil.config.modulated_planning import code_of_data, variant_plans
from fedveil.config.node_policy import admit_run, check_loaded, limits_of
from fedveil.config.places import ledger_path, place_of_node
from fedveil.config.randomness import run_streams
from fedveil.config.same_run import known_run
from fedveil.config.sites import SiteData, refuse_foreign_path, schema_digest, site_data, uses_sites
from fedveil.flower import is_simulated
from fedveil.moment_sums import share_of
from fedveil.threads import set_threads

Records = tuple[NDArray[np.float32], NDArray[np.float64]]

app = ClientApp()
CODE = wire.fingerprint(Path(__file__).parent)


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Say which clients this node serves, and which code runs here."""
    config = ModulatedConfig.from_run_config(context.run_config)
    partition_id, num_partitions = place_of_node(context.node_config)
    site = site_of(config, context)
    policy = admit_run(config, run=None, node=partition_id, simulated=is_simulated(), site=site)
    cohort = host(config, partition_id, num_partitions, None, is_simulated(), site, policy)
    schema = None if site is None else schema_digest(problem_of(config, partition_id, site).data.schema)
    code = code_of_data(config, CODE)
    answer = handle_identify_modulated(cohort, partition_id, num_partitions, code, schema)
    return Message(answer, reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of messages of the clients that the server drew."""
    config = ModulatedConfig.from_run_config(context.run_config)
    request = message.content.config_records.get(wire.CONFIG)
    if request is None or not request.get(wire.RUN):
        raise ConfigError("a request for messages must name its run.")
    run = known_run(context, str(request[wire.RUN]))
    site = site_of(config, context)
    partition_id, num_partitions = place_of_node(context.node_config)
    policy = admit_run(config, run=run, node=partition_id, simulated=is_simulated(), site=site)
    cohort = host(config, partition_id, num_partitions, run, is_simulated(), site, policy)
    return Message(handle_message(message.content, cohort, code_of_data(config, CODE)), reply_to=message)


def site_of(config: ModulatedConfig, context: Context) -> SiteData | None:
    """Where this node's own records lie; None where it has a share of one data set.

    Raises
    ------
    ConfigError
        If a real node is not told by its owner, or was to open a file that the server names.
    """
    simulated = is_simulated()
    if not uses_sites(config):
        refuse_foreign_path(config, simulated=simulated)
        return None
    partition_id, _ = place_of_node(context.node_config)
    try:
        return site_data(config, context.node_config, partition_id, simulated=simulated)
    except ConfigError as error:
        raise ConfigError(f"node {partition_id}: {error}") from error


def problem_of(config: ModulatedConfig, partition_id: int, site: SiteData | None) -> Regression:
    """The data set that this node has a share of, or its own records."""
    return load_regression(config) if site is None else load_site(config, site, f"node {partition_id}")


@lru_cache(maxsize=1)
def own_records(
    config: ModulatedConfig, first: int, count: int, partition_id: int, site: SiteData | None
) -> Records:
    """The records of this node, and of no other; in memory while its process lives."""
    problem = problem_of(config, partition_id, site)
    features, targets = problem.rows(first, first + count)
    if not config.label_privacy and site is None:
        problem.check_labels(first, targets)
    elif not config.label_privacy:
        problem.check_site_labels(targets, f"node {partition_id}")
    return features, targets


@lru_cache(maxsize=4)
def host(
    config: ModulatedConfig,
    partition_id: int,
    num_partitions: int,
    run: str | None,
    simulated: bool,
    site: SiteData | None,
    policy: Policy | None = None,
) -> ModulatedCohort:
    """The clients of this node in one run; kept while its process lives, for a node is asked every round.

    Without a run, to say who is here, no ledger is opened.
    """
    set_threads(config.threads_per_node)
    problem = problem_of(config, partition_id, site)
    if site is not None:
        first, count = 0, problem.num_clients
    else:
        try:
            first, count = share_of(partition_id, num_partitions, problem.num_clients)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    schema = problem.data.schema
    check_loaded(policy, {"this node": count}, schema, None if config.label_privacy else schema.sources)
    features, targets = own_records(config, first, count, partition_id, site)

    def rows(start: int, stop: int) -> Records:
        return features[start - first : stop - first], targets[start - first : stop - first]

    ledger = (
        NodeLedger(ledger_path(config, run, simulated=simulated), limits=limits_of(policy)) if run else None
    )
    # simulated sites share a file, in which each is a run of its own
    filed_as = f"{run}-site-{partition_id}" if run and site is not None and simulated else run or ""
    if ledger is not None and site is not None:
        refuse_changed_records(ledger, filed_as, features, targets, f"node {partition_id}")
    return ModulatedCohort(
        rows,
        None if site is not None else first,
        count,
        None if site is not None else problem.num_clients,
        plans=variant_plans(config, problem, simulated=simulated),
        streams=run_streams(config, simulated=simulated),
        node_ledger=ledger,
        run=run or "",
        simulated=simulated,
        filed_as=filed_as,
        allows_unnoised=policy is not None and policy.allows_unnoised,
    )
