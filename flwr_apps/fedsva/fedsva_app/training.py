"""The strategy of a run with its optimiser and its place in the run, and what happens after each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedveil.artifacts import Checkpoint, RunFolder
from fedveil.config import ConfigError, FedSVAConfig, assembly, planning
from fedveil.plugins import find, resolve
from fedveil.privacy import Release
from fedveil.strategies import Agenda, Fleet, Knowledge, Progress, RoundOutcome, ServerOptimizer
from fedveil.streams import Streams

from .contributions import lines_about
from .record import Record
from .statements import printed_budgets


def build_strategy(
    config: FedSVAConfig,
    fleet: Fleet,
    problem: assembly.Problem,
    streams: Streams,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    facts: dict[str, str],
    code: Mapping[str, str],
    say: Callable[[str], None],
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
