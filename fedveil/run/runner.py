"""Running an app to an honest end: an exit status that says whether it worked, and nothing left behind.

``flwr run`` in Flower 1.42 returns 0 for failed runs; these functions return 0 only for a run that completed
and that got a good reply in every training round.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping

import tomli_w
from flwr.app import Context, RecordDict

from fedveil.run.in_process import InProcessGrid
from fedveil.run.log_watch import LogWatch, unanswered, without_colours
from fedveil.run.overrides import Value
from fedveil.run.plan import RunPlan, plan_run
from fedveil.run.scope import RunScope
from fedveil.run.stop import Stopped, stop_signals
from fedveil.run.superlink import RunStatus, SuperLink, SuperLinkFailed

__all__ = ["RunFailed", "execute", "run_app"]

_TICK = 0.2
_REFUSAL_LINES = 12
_QUIET_SECONDS = 15.0  # a log this quiet is a reason to ask for the status
_LOST_SECONDS = 10.0  # Flower itself notices after a minute that a simulation process died
_PLACE = "fedveil | run folder: "  # how an app names its run's folder, in its last line
_START_SECONDS = 180.0  # the longest a run may wait to be started


class RunFailed(RuntimeError):
    """A run did not work; the message is the reason."""


def run_app(
    app: str,
    engine: str = "flower",
    overrides: Mapping[str, Value] | None = None,
    num_nodes: int = 2,
    *,
    num_cpus: int | None = None,
    num_gpus: float = 0.0,
    resume: str | None = None,
    output_dir: str | None = None,
    verbose: bool = False,
) -> int:
    """Check a request (see ``plan_run``), then run it (see ``execute``).

    Returns
    -------
    int
        Exit status: 0 it worked; 1 it failed, and the reason is on standard error; 130 or 143 it was stopped.

    Raises
    ------
    BadInput
        If the request cannot be run; nothing was started.
    """
    plan = plan_run(
        app,
        engine=engine,
        overrides=overrides,
        num_nodes=num_nodes,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resume=resume,
        output_dir=output_dir,
    )
    return execute(plan, verbose=verbose)


def execute(plan: RunPlan, *, verbose: bool = False) -> int:
    """Run a plan and say how it ended, as an exit status; on failure one sentence goes to standard error."""
    try:
        with stop_signals():
            if plan.engine == "flower":
                _run_through_flower(plan)
            else:
                _run_in_process(plan)
    except Stopped as stopped:
        print(f"fedveil: the run was stopped {stopped}.", file=sys.stderr, flush=True)
        return stopped.exit_status
    except (RunFailed, SuperLinkFailed, OSError) as error:
        if verbose:
            traceback.print_exception(error)
        print(f"fedveil: the run failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run_in_process(plan: RunPlan) -> None:
    run_id = 1
    with plan.app.importable():
        try:
            server_app = plan.app.load(plan.app.serverapp)
            grid = InProcessGrid(
                plan.app.load(plan.app.clientapp), plan.num_nodes, run_config=plan.config, run_id=run_id
            )
            context = Context(run_id, 1, {}, state=RecordDict(), run_config=dict(plan.config))
            server_app(grid, context)
        except (Exception, SystemExit) as error:  # whatever an app raises is the reason why its run failed
            raise RunFailed(_reason(error)) from error
    if problem := unanswered(grid.rounds_without_reply, grid.last_error):
        raise RunFailed(problem)


def _run_through_flower(plan: RunPlan) -> None:
    with RunScope() as scope:
        superlink = SuperLink(scope)
        run_config = scope.folder / "run-config.toml"
        run_config.write_text(tomli_w.dumps(plan.overrides), encoding="utf-8")
        federation = f"num-supernodes={plan.num_nodes} client-resources-num-cpus={plan.num_cpus}"
        federation += f" client-resources-num-gpus={plan.num_gpus}"
        log = superlink.submit(plan.app.folder, run_config, federation)
        watch = LogWatch()
        status = _follow(superlink, log, watch)
    if status.status != "finished:completed":
        reason = status.details.removeprefix("Simulation failed with exception: ")
        raise RunFailed(f"{' '.join(reason.split())} (status {status.status})")
    if watch.problem:
        raise RunFailed(watch.problem)


def _follow(superlink: SuperLink, log: subprocess.Popen[str], watch: LogWatch) -> RunStatus:
    """Show a run's log until the run has ended; its last status."""
    lines = _lines_of(log)
    colours, is_open = sys.stdout.isatty(), True
    last_lines: deque[str] = deque(maxlen=_REFUSAL_LINES)
    place, has_ended = "", False  # the line that names the run's folder
    begun = heard = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=_TICK)
        except queue.Empty:
            line = ""
        if superlink.process.poll() is not None:
            raise SuperLinkFailed(f"its SuperLink ended before the run did: {superlink.last_words()}")
        if line:
            watch.read(line)
            plain = without_colours(line)
            if plain.strip() != "INFO :":  # Flower's empty line: an app's last line is to be the last
                print(line if colours else plain, end="", flush=True)
                last_lines.append(plain)
            if _PLACE in plain:
                place = plain
            heard = time.monotonic()
            continue
        is_open = is_open and line is not None
        lost = superlink.simulation_ended_for > _LOST_SECONDS
        if is_open and not lost and time.monotonic() - heard < _QUIET_SECONDS:
            continue
        status, heard = superlink.run_status(), time.monotonic()
        if status is not None and status.is_final:
            if is_open and status.status == "finished:completed" and not has_ended:
                has_ended = True
                continue  # the stream of the log lags behind the run: until it closes, or is quiet again
            if place and last_lines[-1] != place:
                print(place, end="", flush=True)  # Flower or Ray had more to say
            return status
        if lost:
            raise RunFailed("its simulation process died, perhaps killed for its memory")
        if status is None and not is_open:
            raise RunFailed(f"Flower did not accept the app: {_without_frame(last_lines)}")
        if (status is None or status.status == "pending") and time.monotonic() - begun > _START_SECONDS:
            raise RunFailed(f"Flower did not start it within {_START_SECONDS:.0f} s")


def _without_frame(lines: Iterable[str]) -> str:
    """What stands in the box that Flower draws around an error."""
    words = " ".join(line.strip("\n ╭╮╰╯─│") for line in lines).split()
    before, _, after = " ".join(words).partition("Error ")
    return after or before or "no reason given"


def _lines_of(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """The lines that a process writes, then None."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        if process.stdout is not None:
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _reason(error: BaseException) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, (ValueError, RuntimeError)) and message:
        return message  # these are written for people
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
