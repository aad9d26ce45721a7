"""The ServerApp of modulated learning: check everything, meet the nodes, fit, compare, leave a run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fedveil import wire
from fedveil.artifacts import Checkpoint, RunFolder
from fedveil.config.modulated import NO_PRIVACY, ModulatedConfig
from fedveil.config.modulated_data import Regression, load_regression
from fedveil.config.modulated_planning import (
    code_of_data,
    comparison_rounds,
    refuse_empty_cohorts,
    variant_plans,
)
from fedveil.config.places import (
    check_writable,
    open_resumed,
    output_root,
    require_same_hash,
    secret_keys,
)
from fedveil.config.randomness import run_streams
from fedveil.config.same_run import check_unchanged, last_checkpoint
from fedveil.config.sites import check_run_path, refuse_left_out, schema_digest, uses_sites
from fedveil.flower import is_simulation_grid
from fedveil.plugins import resolve
from fedveil.privacy import RANGE_MESSAGE, CohortRelease, gaussian_epsilon
from fedveil.strategies import MessageProgress, ModulatedOutcome, identify_nodes, identify_sites, range_round
from fedveil.strategies.attempts import check_attempts
from fedveil.strategies.hooks import hook_names, hooks_after
from fedveil.strategies.message_strategy import MessageStrategy
from fedveil.strategies.prompt_grid import PromptGrid
from fedveil.threads import set_threads
from fedveil.wire import MAIN, RANGE

from .comparison import comparison_lines, privacy_of
from .conclusion import APP, conclude
from .figures import Figures, HeldOut
from .finished import finished_run
from .history import History
from .methods import Fitting, strategy_of
from .statements import announce, own_plan, relation_of

app = ServerApp()
CODE = wire.fingerprint(Path(__file__).parent)


def say(line: str) -> None:
    """Print a line at once; ``flwr run --stream`` shows it as it comes."""
    print(f"fedveil | {line}", flush=True)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run modulated learning; whatever is wrong with settings or data stops here, before any node is asked."""
    config = ModulatedConfig.from_run_config(context.run_config)
    simulated = is_simulation_grid(grid)
    if not simulated:
        grid = PromptGrid(grid)
    streams = run_streams(config, simulated=simulated)
    sites = uses_sites(config)
    if sites:
        check_run_path(config, simulated=simulated)
    set_threads(config.threads_per_node)
    problem = load_regression(config)
    plans = variant_plans(config, problem, simulated=simulated)
    code = code_of_data(config, CODE)
    for hook in hook_names(config.hooks):
        resolve("hook", hook)  # now, and not when all is done
    announce(config, problem, plans, seeded=streams.is_seeded, say=say)
    resumed = open_resumed(config) if config.resume else None
    checkpoint = last_checkpoint(resumed) if resumed else None
    facts: dict[str, Any] = {"code": code[wire.SOURCE], "data": public_digest(problem)}
    if resumed and checkpoint:
        require_same_hash(config, checkpoint, resumed.path)
        has_spent = simulated and bool(checkpoint.round or checkpoint.extra["cohorts"])
        check_unchanged(checkpoint, facts, resumed.path, has_spent=has_spent)
    else:
        check_writable(config)
    if sites:  # only now the server knows how many records there are
        census = identify_sites(
            grid,
            expected=code,
            schema=schema_digest(problem.data.schema),
            timeout=config.round_timeout,
            say=say,
        )
        if simulated:
            refuse_left_out(config, census.num_nodes)
        problem = problem.of_sites(census.num_clients)
        refuse_empty_cohorts(config, census.num_clients)
        counted = {"number of records at each site": [count for _, count in census.ranges.values()]}
        if resumed and checkpoint:
            check_unchanged(checkpoint, counted, resumed.path, has_spent=False)  # asked above
        facts |= counted
    else:
        census = identify_nodes(
            grid, expected=code, num_clients=problem.num_clients, timeout=config.round_timeout, say=say
        )
    check_attempts(config.min_replies, config.round_attempts, census.num_nodes)
    folder = resumed or RunFolder.create(
        output_root(config), APP, config.to_run_config(), redact=secret_keys(config)
    )
    say(f"{'resuming after round ' + str(checkpoint.round) if checkpoint else 'writing'} in {folder.path}")
    run = str(checkpoint.extra["run"]) if checkpoint else folder.name  # nodes know it by this name
    history = History(problem.num_clients, checkpoint)
    shared: dict[str, Any] = {"run": run, "facts": facts}

    interrupted = resumed is not None and not streams.is_seeded
    if RANGE in plans and history.ranges is None and interrupted:
        # it died before that round was on disk, perhaps after clients had sent what they cannot afford twice
        say(
            "ranges may have been estimated when the run was interrupted, and are not asked for again: public ones "
            "serve"
        )
        if not any(sent.release.name == RANGE_MESSAGE for sent in history.assumed):
            history.pay((), (own_plan(plans[RANGE]).cohort_release(np.arange(problem.num_clients), 0),))
    elif RANGE in plans and history.ranges is None:
        variant = plans[RANGE]
        start = np.zeros(problem.num_features + 1)

        def save() -> None:
            folder.save_checkpoint(history.checkpoint(0, start, {}, config.config_hash, shared))

        def on_repeat(sent: tuple[CohortRelease, ...]) -> None:
            # and what may leave when the clients are asked again: a run that dies does not ask them a third time
            again = own_plan(variant).cohort_release(np.arange(problem.num_clients), 0)
            history.pending = (*sent, again)
            save()

        if resumed is None:  # a run that dies from here on is one that clients may have sent something in
            save()
        found = range_round(
            grid,
            census,
            plan=own_plan(variant),
            modulation=variant.modulation,
            bound=variant.bound,
            dimension=problem.num_features,
            run=run,
            code=code,
            label_scale=variant.label_scale,
            largest_label=variant.largest_label if variant.label_scale is None else None,
            timeout=config.round_timeout,
            min_replies=config.min_replies,
            round_attempts=config.round_attempts,
            repeats_itself=streams.is_seeded,
            on_repeat=on_repeat,
            say=say,
        )
        history.ranges = found.center, found.spread
        history.pay(found.releases, found.assumed)
        save()  # at once: asked again, clients would have spent more than the share
    fitting = Fitting(config, problem, plans, census, streams, run, code, history.ranges, say)
    held_out = HeldOut.of(problem, history.ranges, problem.bound)
    strategy = fit(grid, fitting, held_out, history, folder, checkpoint, shared)
    figures = held_out.figures(strategy.coefficients)
    compare(grid, fitting, held_out, history, folder, strategy, shared, figures)
    conclude(fitting, history, folder, strategy, figures)
    hooks_after(hook_names(config.hooks), lambda: finished_run(folder, config, say, grid), say)
    say(f"run folder: {folder.path}")


def fit(
    grid: Grid,
    fitting: Fitting,
    held_out: HeldOut,
    history: History,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    shared: Mapping[str, Any],
) -> MessageStrategy:
    """Run the rounds of the main method, with a line and a checkpoint after each."""
    config, problem, plan = fitting.config, fitting.problem, fitting.plans[MAIN].plan
    lines: list[str] = []
    progress = MessageProgress(
        config.rounds,
        problem.num_clients,
        config.delta,
        relation_of(config),
        None if plan is None else gaussian_epsilon(plan.budget, config.delta),
        say=lines.append,
    )
    progress.restore(history.all_releases)

    def on_round(outcome: ModulatedOutcome) -> None:
        history.add(outcome, progress.round(outcome))
        if config.trajectory:
            kept = {wire.COEFFICIENTS: outcome.coefficients}
            folder.save_trajectory(outcome.server_round, kept, keep=config.trajectory)
        folder.save_checkpoint(
            history.checkpoint(
                outcome.server_round, outcome.coefficients, strategy.state(), config.config_hash, shared
            )
        )
        say(lines.pop())  # not before it is saved: a resumed run draws other noise for a round that was not

    def on_repeat(server_round: int, sent: tuple[CohortRelease, ...]) -> None:
        # before nodes are asked again: a run that dies then must know what may have left already
        history.pending = sent
        folder.save_checkpoint(
            history.checkpoint(
                server_round - 1, strategy.coefficients, strategy.state(), config.config_hash, shared
            )
        )

    completed = checkpoint.round if checkpoint else 0
    strategy = strategy_of(MAIN, fitting, on_round=on_round, on_repeat=on_repeat, completed_rounds=completed)
    start = np.zeros(problem.num_features + 1)
    if checkpoint and (state := History.state_of(checkpoint)):
        strategy.restore(state)
        start = checkpoint.arrays[wire.COEFFICIENTS]
        if not fitting.streams.is_seeded and completed < config.rounds:
            # with fresh noise, what clients sent in the interrupted round was another release than the one to come
            interrupted = strategy.interrupted(completed + 1, config.rounds)
            history.pay((), interrupted)
            progress.restore(interrupted)
            folder.save_checkpoint(
                history.checkpoint(completed, start, strategy.state(), config.config_hash, shared)
            )
    run_strategy(grid, strategy, held_out, start, config.rounds, config.round_timeout)
    return strategy


def run_strategy(
    grid: Grid,
    strategy: MessageStrategy,
    held_out: HeldOut,
    start: NDArray[np.float64],
    rounds: int,
    timeout: float,
) -> None:
    """All rounds of one method, each evaluated on the public test set."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        figures = held_out.figures(arrays[wire.COEFFICIENTS].numpy())
        return MetricRecord({"r2": figures.r2, "rmse": figures.rmse})

    strategy.start(
        grid,
        ArrayRecord({wire.COEFFICIENTS: Array(start)}),
        num_rounds=rounds,
        timeout=timeout,
        evaluate_fn=evaluate,
    )


def compare(
    grid: Grid,
    fitting: Fitting,
    held_out: HeldOut,
    history: History,
    folder: RunFolder,
    main_strategy: MessageStrategy,
    shared: Mapping[str, Any],
    figures: Figures,
) -> None:
    """Run the comparators, each with every client's whole budget again: in simulations only, but for no-privacy."""
    config = fitting.config
    names = [name for name in fitting.plans if name not in (MAIN, RANGE)]
    if not names:
        return
    if names == [NO_PRIVACY]:
        say(f"comparing with {NO_PRIVACY}: the clients' records leave their nodes without any noise")
    else:
        say(
            f"comparing with {', '.join(names)}: study only, for each of them would spend every client's budget once "
            "more; every figure is of one draw of its noise"
        )

    def save() -> None:
        folder.save_checkpoint(
            history.checkpoint(
                config.rounds, main_strategy.coefficients, main_strategy.state(), config.config_hash, shared
            )
        )

    done = {entry["method"] for entry in history.compared}
    for name in names:
        if name in done:
            continue
        has_begun, sends_once = name in history.begun, not fitting.streams.is_seeded
        if has_begun and sends_once and fitting.plans[name].plan is not None:
            say(
                f"{name} was interrupted, and its clients have sent what they can: it is left out of the comparison"
            )
            continue
        history.begun.append(name)
        save()
        strategy = strategy_of(name, fitting)
        start = np.zeros(fitting.problem.num_features + 1)
        # gradients are clipped, not records
        bound = fitting.plans[name].bound if name == NO_PRIVACY else fitting.problem.bound
        target = HeldOut.of(fitting.problem, strategy.ranges, math.inf if name == "dp-sgd" else bound)
        run_strategy(
            grid,
            strategy,
            target,
            start,
            comparison_rounds(name, config, fitting.problem.num_clients),
            config.round_timeout,
        )
        found = target.figures(strategy.coefficients)
        history.compared.append(
            {
                "method": name,
                "r2": found.r2,
                "rmse": found.rmse,
                "privacy": privacy_of(fitting.plans[name], config),
                "coefficients": strategy.coefficients.tolist(),
            }
        )
        save()
    for line in comparison_lines(config, fitting.plans[MAIN], figures, history.compared):
        say(line)


def public_digest(problem: Regression) -> str:
    """What must be the same when a run is resumed, of the data: public facts only."""
    features, targets = problem.test
    digest = blake2b(f"{problem.num_clients}/{problem.data.schema.names}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(features).tobytes() + targets.tobytes())
    return digest.hexdigest()
