"""FedSVA's ClientApp: a node that hosts a cohort of logical clients and trains them privately."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedveil import wire
from fedveil.artifacts import NodeLedger
from fedveil.clients import ClientData, Cohort, LossNode, handle_identify, handle_losses, handle_train
from fedveil.clients.policy import Policy
from fedveil.config import ConfigError, FedSVAConfig, assembly, planning
from fedveil.config.node_policy import admit_run, check_loaded, limits_of
from fedveil.config.places import hosted_clients, ledger_path, node_ledger_path, place_of_node
from fedveil.config.protected import protected_columns
from fedveil.config.randomness import run_streams
from fedveil.config.same_run import known_run
from fedveil.config.sites import (
    SiteData,
    own_client,
    refuse_foreign_path,
    schema_digest,
    site_data,
    uses_sites,
)
from fedveil.datasets.schema import check_records
from fedveil.flower import is_simulated
from fedveil.threads import set_threads

app = ClientApp()
CODE = wire.fingerprint(Path(__file__).parent)


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Say which clients this node serves, how many records each has, and which code runs here."""
    config = FedSVAConfig.from_run_config(context.run_config)
    partition_id, num_partitions = place_of_node(context.node_config)
    try:
        sites = _sites(config, context)
        policy = _admit(config, None, context, sites)
        cohort = host(config, partition_id, num_partitions, None, is_simulated(), sites, policy)
        schema = None
        if uses_sites(config):
            schema = schema_digest(assembly.load_sites(config, dict(sites)).dataset.schema)
    except ConfigError as error:  # every site's file may have the same name
        raise ConfigError(f"node {partition_id}: {error}") from error
    code = assembly.code_of(config, CODE)
    return Message(
        handle_identify(cohort, partition_id, num_partitions, code, schema),
        reply_to=message,
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of private training of the clients that the server sampled."""
    config = FedSVAConfig.from_run_config(context.run_config)
    request = message.content.config_records.setdefault(wire.CONFIG, ConfigRecord())
    run = _run_of(request, context)
    sites = _sites(config, context)
    policy = _admit(config, run, context, sites)
    cohort = host(config, *place_of_node(context.node_config), run, is_simulated(), sites, policy)
    # a plain Flower strategy knows neither logical clients nor sums
    request.setdefault(wire.CLIENTS, list(cohort.clients))
    request.setdefault(wire.REPLY, "mean")
    if request[wire.REPLY] == "each" and config.privacy != "central":
        raise ConfigError(
            f"privacy is {config.privacy!r} here: single updates leave this node with 'central' only."
        )
    if request[wire.REPLY] == "mean" and config.aggregation_weights != "records":
        raise ConfigError(
            "aggregation-weights = 'noise-aware' needs FedVeil's own strategy, since Flower's weigh by num-examples."
        )
    return Message(handle_train(message.content, cohort, assembly.code_of(config, CODE)), reply_to=message)


@app.query("losses")
def losses(message: Message, context: Context) -> Message:
    """Release, after training, how clients' losses under the leading candidates of each quantizer differ."""
    config = FedSVAConfig.from_run_config(context.run_config)
    run = _run_of(message.content.config_records.setdefault(wire.CONFIG, ConfigRecord()), context)
    sites = _sites(config, context)
    policy = _admit(config, run, context, sites)
    node = loss_node(config, *place_of_node(context.node_config), run, is_simulated(), sites, policy)
    return Message(handle_losses(message.content, node, assembly.code_of(config, CODE)), reply_to=message)


def _run_of(request: ConfigRecord, context: Context) -> str:
    """The run that a request is of, the only one this node works for."""
    return known_run(context, str(request.setdefault(wire.RUN, f"flower-{context.run_id}")))


Sites = tuple[tuple[int, SiteData], ...]


def _sites(config: FedSVAConfig, context: Context) -> Sites:
    """Where the records of the clients that this node hosts lie; nothing unless every node brings its own.

    Raises
    ------
    ConfigError
        If a real node is not told by its owner, or was to open a file that the server names.
    """
    simulated = is_simulated()
    if not uses_sites(config):
        refuse_foreign_path(config, simulated=simulated)
        return ()
    place = place_of_node(context.node_config)
    if simulated:
        clients = hosted_clients(config.num_clients, *place)
    else:
        clients = (own_client(config.num_clients, *place),)
    return tuple(
        (client, site_data(config, context.node_config, client, simulated=simulated)) for client in clients
    )


def _admit(config: FedSVAConfig, run: str | None, context: Context, sites: Sites) -> Policy | None:
    """Ask the node owner's policy, before any record is read."""
    node, _ = place_of_node(context.node_config)
    site = sites[0][1] if sites else None
    return admit_run(config, run=run, node=node, simulated=is_simulated(), site=site)


@lru_cache(maxsize=4)
def host(
    config: FedSVAConfig,
    partition_id: int,
    num_partitions: int,
    run: str | None,
    simulated: bool,
    sites: Sites = (),
    policy: Policy | None = None,
) -> Cohort:
    """The cohort of this node in one run; kept while its process lives, for a simulated node is asked every round.

    Without a run, to say who is here, no ledger is opened.
    """
    set_threads(config.threads_per_node)
    streams = run_streams(config, simulated=simulated)
    problem, examples = _hosted(config, partition_id, num_partitions, sites, policy)
    if run and sites and not simulated:
        _keep_site(run, problem)
    learner = assembly.learner(config, problem.dataset)
    return Cohort(
        learner,
        _data_of(problem),
        planning.client_plans(config, examples, problem.groups),
        budgets=planning.training_budgets(config),
        streams=streams,
        node_ledger=NodeLedger(ledger_path(config, run, simulated=simulated), limits=limits_of(policy))
        if run and config.privacy == "local"
        else None,
        run=run or "",
        steps=config.local_steps,
        learning_rate=config.learning_rate,
        clip_norm=config.clip_norm if config.clip_without_noise else math.inf,
        meter=planning.contribution_meter(config, problem, learner),
        weigh=assembly.weigh(config),
    )


@lru_cache(maxsize=4)
def loss_node(
    config: FedSVAConfig,
    partition_id: int,
    num_partitions: int,
    run: str,
    simulated: bool,
    sites: Sites = (),
    policy: Policy | None = None,
) -> LossNode:
    """What this node needs to answer for its clients' losses; its ledger is the one that training has written to."""
    set_threads(config.threads_per_node)
    streams = run_streams(config, simulated=simulated)
    problem, examples = _hosted(config, partition_id, num_partitions, sites, policy)
    if run and sites and not simulated:
        _keep_site(run, problem)
    return LossNode(
        learner=assembly.learner(config, problem.dataset),
        data=_data_of(problem),
        examples=examples,
        run=run,
        streams=streams,
        mus=planning.loss_budgets(config),
        budgets=planning.local_budgets(config),
        ledger=NodeLedger(ledger_path(config, run, simulated=simulated), limits=limits_of(policy))
        if config.releases_losses
        else None,
        study=config.membership == "study" and simulated,
    )


def _hosted(
    config: FedSVAConfig, partition_id: int, num_partitions: int, sites: Sites, policy: Policy | None
) -> tuple[assembly.Problem, dict[int, int]]:
    """The data, and the checked clients of this node with their numbers of records."""
    if uses_sites(config):
        problem = assembly.load_sites(config, dict(sites))
        _check_loaded(policy, problem, problem.examples)
        return problem, problem.examples
    problem = assembly.load_problem(config)
    clients = hosted_clients(problem.num_clients, partition_id, num_partitions)
    examples = {client: problem.examples[client] for client in clients}
    _check_loaded(policy, problem, examples)
    for client in clients:
        check_records(problem.records(client), problem.dataset.schema, f"client {client}")
    return problem, examples


def _keep_site(run: str, problem: assembly.Problem) -> None:
    """Refuse to go on in a run whose server was told of other records; before anything is computed and paid for."""
    schema = schema_digest(problem.dataset.schema)
    for client, count in problem.examples.items():
        what = f"the description or the number of records of client {client}"
        NodeLedger(node_ledger_path()).bind(run, what, f"{schema} {count}")


def _check_loaded(policy: Policy | None, problem: assembly.Problem, examples: Mapping[int, int]) -> None:
    named = {f"client {client}": count for client, count in examples.items()}
    schema, protected = problem.dataset.schema, None
    if problem.private is not None:
        protected = protected_columns(schema.names, schema.sources, problem.private)
    check_loaded(policy, named, schema, protected)


def _data_of(problem: assembly.Problem) -> Callable[[int], ClientData]:
    """Each client's records, prepared when they are first used."""
    shape = problem.dataset.schema.shape

    @cache
    def data(client: int) -> ClientData:
        records = problem.records(client)
        return ClientData(records.features, records.labels, problem.baseline_features(records), shape)

    return data
