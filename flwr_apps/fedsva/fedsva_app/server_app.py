"""FedSVA's ServerApp: check everything, meet the nodes, run the rounds, leave a run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedveil import __version__, wire
from fedveil.artifacts import Checkpoint, RunFolder
from fedveil.config import ConfigError, FedSVAConfig, assembly, planning
from fedveil.config.places import check_writable, open_resumed, output_root, require_same_hash, secret_keys
from fedveil.config.randomness import public_streams, run_streams
from fedveil.config.sites import check_run_path, schema_digest, uses_sites
from fedveil.flower import is_simulation_grid
from fedveil.models import evaluate, initial_arrays, refuse_record_coupling
from fedveil.plugins import find, resolve
from fedveil.privacy import Release, rounded_up
from fedveil.strategies import (
    Agenda,
    Fleet,
    Knowledge,
    Progress,
    RoundOutcome,
    ServerOptimizer,
    identify,
    to_record,
)
from fedveil.strategies.attempts import check_attempts
from fedveil.strategies.hooks import hook_names, hooks_after
from fedveil.strategies.prompt_grid import PromptGrid
from fedveil.streams import Streams
from fedveil.threads import set_threads

from .contributions import explanation_of, lines_about
from .finished import finished_run
from .membership import MEMBERSHIP, Membership, ask_for_membership
from .statements import announce, as_json, printed_budgets, readings, state_guarantees

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
    checkpoint = resumed.load_checkpoint() if resumed else None
    if resumed and checkpoint:
        require_same_hash(config, checkpoint, resumed.path)
    else:
        check_writable(config)

    def settled(problem: assembly.Problem) -> dict[str, str]:
        facts = run_facts(problem, streams, code)
        if resumed and checkpoint:
            check_unchanged(config, checkpoint, facts, resumed.path, simulated=simulated)
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
    elif set(fleet.clients) != set(problem.examples):
        raise ConfigError(
            f"the nodes serve {len(fleet.clients)} clients and the data has {problem.num_clients}."
        )
    check_attempts(config.min_replies, config.round_attempts, fleet.num_nodes)
    folder = resumed or RunFolder.create(
        output_root(config), APP, config.to_run_config(), redact=secret_keys(config)
    )
    say(f"{'resuming after round ' + str(checkpoint.round) if checkpoint else 'writing'} in {folder.path}")
    start = initial_arrays(model, public_streams(config).stream("initial-model"))
    try:
        strategy, record, knowledge = build_strategy(
            config, fleet, problem, streams, folder, checkpoint, facts, code
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
            "guarantees": [as_json(guarantee) for guarantee in guarantees],
            "readings": read,
        },
        assumed=record.assumed,
        documents={
            name: document
            for name, document in (("contributions", explanation), (MEMBERSHIP, asked.document))
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


def run_facts(problem: assembly.Problem, streams: Streams, code: Mapping[str, str]) -> dict[str, str]:
    """What must be the same when a run is resumed, beside its settings: code and data.

    The data's digest covers public facts (n_i, the test set). In a seeded run it covers the clients' records too, under
    a key drawn from the secret seed: a bare digest of records would tell who knows all but one of them which it is.
    Where every node brings its own records it covers their public description instead, for the server has none.
    """
    test = problem.dataset.test
    digest = blake2b(repr(sorted(problem.examples.items())).encode(), digest_size=16)
    parts = [test.features, test.labels]
    if streams.is_seeded:
        key = streams.stream("data-digest").words(4).tobytes()
        digest = blake2b(repr(sorted(problem.examples.items())).encode(), digest_size=16, key=key)
        parts += [problem.dataset.train.features, problem.dataset.train.labels]
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    if problem.sites is not None:
        digest.update(schema_digest(problem.dataset.schema).encode())
    return {"code": code[wire.SOURCE], "data": digest.hexdigest()}


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


def check_unchanged(
    config: FedSVAConfig, checkpoint: Checkpoint, facts: dict[str, str], folder: Path, *, simulated: bool
) -> None:
    """Refuse to go on with a run whose code, data or ledger are not what they were."""
    for name, now in facts.items():
        if checkpoint.extra["facts"][name] != now:
            raise ConfigError(
                f"the {name} is not what it was when the run in {folder} was interrupted: restore it, or start a new "
                "run."
            )
    lost = simulated and config.privacy == "local" and not (folder / "node-ledger.sqlite").exists()
    if lost and checkpoint.round:
        raise ConfigError(
            f"{folder}/node-ledger.sqlite is lost, and with it what the clients have spent: restore it, or start a "
            "new run, which is new spending."
        )


class Record:
    """What a run has produced so far; written to its folder after every round."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        # the initial model is evaluated again
        self.metrics = list(checkpoint.metrics) if checkpoint and checkpoint.round else []
        self.releases: tuple[Release, ...] = checkpoint.releases if checkpoint else ()
        self.assumed: tuple[Release, ...] = checkpoint.assumed if checkpoint else ()

    def add(self, outcome: RoundOutcome, row: dict[str, float]) -> None:
        """Take in one round."""
        self.metrics.append(row)
        self.releases += outcome.releases
        self.assumed += outcome.assumed


def require_told(config: FedSVAConfig, record: Record) -> None:
    """Refuse a strategy that does not tell its rounds: nothing of them would be in the ledger or in a checkpoint.

    Raises
    ------
    ConfigError
        If no round has been told.
    """
    if not record.metrics:
        raise ConfigError(
            f"{find('strategy', config.strategy)} has made a round and not told it: its start() must call on_round "
            "after each, also after round 0, the initial model."
        )


def build_strategy(
    config: FedSVAConfig,
    fleet: Fleet,
    problem: assembly.Problem,
    streams: Streams,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    facts: dict[str, str],
    code: Mapping[str, str],
) -> tuple[Strategy, Record, Knowledge]:
    """The strategy with its optimiser, its place in the run, and what happens after each round."""
    options = config.optimizer_options
    optimizer = ServerOptimizer(
        config.server_optimizer,
        learning_rate=config.server_learning_rate,
        momentum=config.server_momentum,
        beta_1=options.beta_1,
        beta_2=options.beta_2,
        tau=options.tau,
    )
    lines: list[str] = []
    progress = Progress(
        config.num_server_rounds,
        config.delta,
        printed_budgets(config),
        hides_sample=config.privacy == "central" and config.fraction_train < 1,
        say=lines.append,
    )
    record = Record(checkpoint)
    plans = planning.client_plans(config, fleet.examples, problem.groups)
    knowledge = Knowledge(
        plans,
        private=problem.groups.private if problem.groups else (),
        first_round=config.first_release_round,
        quantile=config.attribute_clip_quantile,
        clip_norm=config.clip_norm,
        attribute_clip_norm=config.attribute_clip_norm,
    )
    run = str(checkpoint.extra["run"]) if checkpoint else folder.name  # nodes know it by this name
    if checkpoint:
        optimizer.load_state(checkpoint.optimizer)
        knowledge.restore(checkpoint.extra["knowledge"])
        if not streams.is_seeded and checkpoint.round < config.num_server_rounds:
            # with fresh noise, what clients sent in the interrupted round was another release than the one to come
            going_on = [client for client in fleet.clients if client not in checkpoint.extra["out-of-budget"]]
            interrupted = Agenda.of(
                checkpoint.round + 1, going_on, steps=config.local_steps, plans=plans, knowledge=knowledge
            )
            record.assumed += tuple(row for client in going_on for row in interrupted.rows(client))
            # now: the next attempt may die too
            folder.save_checkpoint(replace(checkpoint, assumed=record.assumed))
        progress.restore(record.releases + record.assumed)
        if config.trajectory:  # it may have died between the two files
            folder.save_trajectory(checkpoint.round, checkpoint.arrays, keep=config.trajectory)

    saved: list[Checkpoint | None] = [checkpoint]

    def on_repeat(server_round: int, rows: tuple[Release, ...]) -> None:
        # before nodes are asked again: a run that dies then must know what may have left already
        if saved[0] is not None:
            folder.save_checkpoint(replace(saved[0], assumed=record.assumed + rows))

    def on_round(outcome: RoundOutcome) -> None:
        record.add(outcome, progress.round(outcome))
        done = Checkpoint(
            round=outcome.server_round,
            arrays=dict(outcome.arrays),
            optimizer=optimizer.state(),
            releases=record.releases,
            metrics=record.metrics,
            config_hash=config.config_hash,
            extra={
                "out-of-budget": list(outcome.out_of_budget),
                "run": run,
                "facts": facts,
                "knowledge": knowledge.state(),
            },
            assumed=record.assumed,
        )
        folder.save_checkpoint(done)
        saved[0] = done
        # not before: a round that is not in the checkpoint is made again, with other noise of the server's
        if config.trajectory:
            folder.save_trajectory(outcome.server_round, outcome.arrays, keep=config.trajectory)
        say(lines.pop())  # not before it is saved: a resumed run draws other noise for a round that was not
        for line in lines_about(outcome.contributions, config, problem, knowledge):
            say(line)

    parts: dict[str, Any] = {
        "fleet": fleet,
        "streams": streams,
        "optimizer": optimizer,
        "plans": plans,
        "run": run,
        "code": code,
        "fraction_train": config.fraction_train,
        "local_steps": config.local_steps,
        "central": assembly.central_mechanism(config, len(fleet.clients)),
        "knowledge": knowledge,
        "weigh": assembly.weigh(config),
        "completed_rounds": checkpoint.round if checkpoint else 0,
        "out_of_budget": tuple(checkpoint.extra["out-of-budget"]) if checkpoint else (),
        "on_round": on_round,
        "say": say,
        "min_replies": config.min_replies,
        "round_attempts": config.round_attempts,
        "bound": assembly.update_bound(config, problem.dataset),
        "on_repeat": on_repeat,
    }
    return make_strategy(config, parts), record, knowledge


def make_strategy(config: FedSVAConfig, parts: dict[str, Any]) -> Strategy:
    """The strategy that the configuration names, FedVeil's own or a plugin's.

    Raises
    ------
    ConfigError
        If it cannot be made, or is no Flower strategy.
    """
    plugin, factory = find("strategy", config.strategy), resolve("strategy", config.strategy)
    try:
        strategy = factory(**parts, **config.options_of("strategy"))
    except Exception as error:  # a plugin may fail in any way; it is named, and nothing goes on
        raise ConfigError(
            f"{plugin} cannot be made ({type(error).__name__}: {error}): check options."
        ) from error
    if not isinstance(strategy, Strategy):
        raise ConfigError(f"{plugin} must give a Flower Strategy, and gave {type(strategy).__name__}.")
    return strategy
