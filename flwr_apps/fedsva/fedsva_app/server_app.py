"""FedSVA's ServerApp: check everything, meet the nodes, run the rounds, leave a run's folder."""

from __future__ import annotations

import math
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedveil import __version__, wire
from fedveil.artifacts import RunFolder
from fedveil.artifacts.run_folder import CONTRIBUTIONS, GUARANTEES, MEMBERSHIP
from fedveil.config import ConfigError, FedSVAConfig, assembly, planning
from fedveil.config.places import check_writable, open_resumed, output_root, require_same_hash, secret_keys
from fedveil.config.randomness import public_streams, run_streams
from fedveil.config.same_run import check_unchanged, last_checkpoint
from fedveil.config.sites import check_run_path, schema_digest, uses_sites
from fedveil.flower import is_simulation_grid
from fedveil.models import evaluate, initial_arrays, refuse_record_coupling
from fedveil.plugins import resolve
from fedveil.privacy import rounded_up
from fedveil.strategies import (
    Fleet,
    identify,
    to_record,
)
from fedveil.strategies.attempts import check_attempts
from fedveil.strategies.fleet import require_examples
from fedveil.strategies.hooks import hook_names, hooks_after
from fedveil.strategies.prompt_grid import PromptGrid
from fedveil.threads import set_threads

from .contributions import explanation_of
from .finished import finished_run
from .membership import Membership, ask_for_membership
from .record import require_told
from .same_run import run_facts
from .statements import announce, as_json, readings, state_guarantees
from .training import build_strategy

app = ServerApp()
CODE = wire.fingerprint(Path(__file__).parent)
APP = "fedsva"


def say(line: str) -> None:
    """Print a line at once; ``flwr run --stream`` shows it as it comes."""
    print(f"fedveil | {line}", flush=True)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedSVA; whatever is wrong with the configuration or the data stops here, before any node is asked."""
    config = FedSVAConfig.from_run_config(context.run_config)
    simulated, sites = is_simulation_grid(grid), uses_sites(config)
    if not simulated:
        grid = PromptGrid(grid)
    streams = run_streams(config, simulated=simulated)
    if config.membership == "study" and not simulated:
        raise ConfigError(
            "membership = 'study' would show losses on private records, and these nodes are not simulated: use "
            "'federated', which releases them, or 'public'."
        )
    if sites:
        check_run_path(config, simulated=simulated)
    set_threads(config.threads_per_node)
    problem = assembly.load_problem(config)
    schema = problem.dataset.schema
    model = assembly.learner(config, problem.dataset).module
    refuse_record_coupling(model)  # as every node does, whatever the privacy
    planning.client_plans(config, problem.examples, problem.groups)
    resolve("strategy", config.strategy)
    code = assembly.code_of(config, CODE)
    for hook in hook_names(config.hooks):
        resolve("hook", hook)  # now, and not when all is trained
    if not sites:
        announce(config, problem, seeded=streams.is_seeded, say=say)
    resumed = open_resumed(config) if config.resume else None
    checkpoint = last_checkpoint(resumed) if resumed else None
    if resumed and checkpoint:
        require_same_hash(config, checkpoint, resumed.path)
    else:
        check_writable(config)

    def settled(problem: assembly.Problem) -> dict[str, str]:
        facts = run_facts(problem, streams, code)
        if resumed and checkpoint:
            has_spent = (
                simulated and config.privacy == "local" and bool(checkpoint.round or checkpoint.assumed)
            )
            check_unchanged(checkpoint, facts, resumed.path, has_spent=has_spent)
        return facts

    facts = {} if sites else settled(problem)
    digest = schema_digest(schema) if sites else None
    fleet = identify(grid, expected=code, timeout=config.round_timeout, say=say, schema=digest)
    if sites:  # only now the server knows how many records there are
        require_all_sites(config, fleet)
        problem = problem.met(fleet.examples)
        planning.client_plans(config, problem.examples, problem.groups)
        announce(config, problem, seeded=streams.is_seeded, say=say)
        facts = settled(problem)
    else:
        require_examples(fleet, problem.examples)
    check_attempts(config.min_replies, config.round_attempts, fleet.num_nodes)
    folder = resumed or RunFolder.create(
        output_root(config), APP, config.to_run_config(), redact=secret_keys(config)
    )
    say(f"{'resuming after round ' + str(checkpoint.round) if checkpoint else 'writing'} in {folder.path}")
    start = initial_arrays(model, public_streams(config).stream("initial-model"))
    try:
        strategy, record, knowledge = build_strategy(
            config, fleet, problem, streams, folder, checkpoint, facts, code, say
        )
    except ConfigError:
        if resumed is None:
            folder.discard()
        raise

    def evaluate_public(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round > 0:
            require_told(config, record)
        test = problem.dataset.test
        result = evaluate(
            model, {k: v.numpy() for k, v in arrays.items()}, test.features, test.labels, schema.shape
        )
        if not math.isfinite(result.loss):
            raise ValueError(
                f"the model's loss on the public test set is {result.loss} after round {server_round}: training "
                "diverged, or the model divides by zero; lower learning-rate or server-learning-rate."
            )
        return MetricRecord({"accuracy": result.accuracy, "loss": result.loss})

    result = strategy.start(
        grid=grid,
        initial_arrays=to_record(checkpoint.arrays if checkpoint else start),
        num_rounds=config.num_server_rounds,
        timeout=config.round_timeout,
        train_config=ConfigRecord(),
        evaluate_fn=evaluate_public,
    )
    require_told(config, record)
    final = {name: array.numpy() for name, array in result.arrays.items()}
    asked = Membership()
    if config.membership != "public":
        asked = ask_for_membership(
            config,
            problem,
            folder,
            final,
            grid=grid,
            fleet=fleet,
            streams=streams,
            run=str(checkpoint.extra["run"]) if checkpoint else folder.name,
            code=code,
            assumed=record.assumed,
            say=say,
        )
        record.releases += asked.releases
        record.assumed += asked.assumed
    guarantees = state_guarantees(config, record.releases + record.assumed)
    read = readings(config, record.releases + record.assumed)
    explanation = explanation_of(config, problem, knowledge)
    stated = [as_json(guarantee) for guarantee in guarantees]
    folder.finish(
        final,
        record.metrics,
        record.releases,
        {
            "app": APP,
            "library": __version__,
            "model": config.model,
            "hidden-units": config.hidden_units,
            "shape": list(schema.shape),
            "classes": list(schema.classes),
            "accuracy": record.metrics[-1]["accuracy"],
            "guarantees": stated,
            "readings": read,
        },
        assumed=record.assumed,
        documents={
            name: document
            for name, document in (
                (CONTRIBUTIONS, explanation),
                (GUARANTEES, {"guarantees": stated, "readings": read, "of": "the worst-off client"}),
                (MEMBERSHIP, asked.document),
            )
            if document is not None
        },
    )
    for guarantee in guarantees:
        say(f"{guarantee.relation} relation, worst-off client: {guarantee.describe()}")
    if config.membership == "study":
        say(
            "exact moments of losses left the clients, study only, not private: these guarantees do not cover them"
        )
    if read:
        values = ", ".join(f"eps({relation}) {rounded_up(value)}" for relation, value in read.items())
        say(f"read from the ledger of the worst-off client, no guarantee: {values}")
    if config.is_attribute_level and config.epsilon_record is None:
        say(
            "the other attributes and the label have the record relation's guarantee only, which is far weaker"
        )
    say(f"accuracy {record.metrics[-1]['accuracy']:.4f} on {len(problem.dataset.test)} public test records")
    hooks_after(hook_names(config.hooks), lambda: finished_run(folder, config, say, grid), say)
    say(f"run folder: {folder.path}")


def require_all_sites(config: FedSVAConfig, fleet: Fleet) -> None:
    """Refuse a fleet whose nodes are not the sites that the run was set up for.

    Raises
    ------
    ConfigError
        If a site is missing, or one too many is there.
    """
    if fleet.clients != list(range(config.num_clients)):
        served = ", ".join(map(str, fleet.clients[:10])) + (", ..." if len(fleet.clients) > 10 else "")
        raise ConfigError(
            f"the nodes serve the clients {served}, and num-clients = {config.num_clients} sites are numbered from 0: "
            "start the others, or correct num-clients."
        )
