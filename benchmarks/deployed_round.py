"""A deployed round: FedSVA's beside the same federated averaging written the plain Flower way, on the same nodes.

Both apps run on one deployment (deployment.py): the same SuperLink and SuperNodes over TLS, the same records at each
node, the same network (64 - 64 - 10). plain_flower/ is what Flower's quickstart writes: FedAvg, whose round trains
and then evaluates on the nodes. FedSVA's round is one phase: the server evaluates on its public test set, and looks for
replies four times a second. FedSVA clips every record's gradient, adds noise and keeps ledgers; the plain app does not.

The apps take turns, so that what else the machine does hits both. The ratio of a pair is that of the mean seconds of a
round; rounds are timed from line to line of the log, the first of each run left out. A further deployment, --defaults,
has Flower's default for its SuperExecs' polling too (1 s, in place of 0.25 s).

    python benchmarks/deployed_round.py [--pairs 3] [--rounds 5] [--nodes 3] [--defaults]
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from deployed_data import digits
from deployment import TOP, Deployment, Line
from trials import table

PLAIN = Path(__file__).parent / "plain_flower"
HIDDEN = 64
STARTS = re.compile(r"\[ROUND (\d+)/")
ENDS = re.compile(r"fedveil \| round (\d+)/")
OVER = "Strategy execution finished"


@dataclass(frozen=True)
class Timed:
    """One run: seconds of each round but the first, and of each message's process, with the CPU time it took."""

    rounds: list[float]
    processes: list[float]
    cpu: list[float]

    @property
    def mean(self) -> float:
        """Mean seconds of a round."""
        return statistics.mean(self.rounds)


@dataclass
class Processes(threading.Thread):
    """Watches the processes that SuperExecs start for messages: how long each lives, and the CPU time it takes."""

    parents: list[int]
    seen: dict[int, tuple[float, float, float]] = field(default_factory=dict)  # began, last seen, CPU seconds

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """Look five times a second."""
        while not self._over.wait(0.2):
            for parent in self.parents:
                with suppress(psutil.Error):
                    self._look(psutil.Process(parent))

    def _look(self, parent: psutil.Process) -> None:
        for child in parent.children():
            with suppress(psutil.Error):  # ended meanwhile
                if child.status() != psutil.STATUS_ZOMBIE:
                    cpu = child.cpu_times()
                    self.seen[child.pid] = (child.create_time(), time.time(), cpu.user + cpu.system)

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()


def settings(app: str, data: Path, nodes: int, rounds: int) -> dict[str, Any]:
    """What an app is told."""
    if app == "plain":
        return {"num-server-rounds": rounds, "hidden-units": HIDDEN}
    return {
        "dataset": "csv",
        "partition": "sites",
        "target": "digit",
        "num-clients": nodes,
        "data-schema": str(data / "schema.toml"),
        "test-path": str(data / "test.csv"),
        "model": "mlp",
        "hidden-units": HIDDEN,
        "calibration": "uniform",
        "epsilon": 8.0,
        "hooks": "none",
        "num-server-rounds": rounds,
    }


def timed(deployment: Deployment, app: str, data: Path, nodes: int, rounds: int, source: Path) -> Timed:
    """Run an app once."""
    where = PLAIN if app == "plain" else source / "flwr_apps/fedsva"
    watch = Processes(deployment.node_superexecs)
    watch.start()
    try:
        lines = list(deployment.stream(where, settings(app, data, nodes, rounds)))
    finally:
        watch.stop()
    marks = _marks(app, lines)
    times = [after - before for before, after in pairwise(marks)]
    lives = list(watch.seen.values())
    return Timed(times, [last - began for began, last, _ in lives], [cpu for _, _, cpu in lives])


def _marks(app: str, lines: list[Line]) -> list[float]:
    """The seconds at which rounds end, the first among them: so the first round is no difference of two."""
    if app == "plain":
        starts = {int(found[1]): line.seconds for line in lines if (found := STARTS.search(line.text))}
        (end,) = [line.seconds for line in lines if OVER in line.text]
        return [starts[number] for number in sorted(starts) if number > 1] + [end]
    ends = {int(found[1]): line.seconds for line in lines if (found := ENDS.search(line.text))}
    return [ends[number] for number in sorted(ends) if number > 0]


def compare(
    nodes: int, pairs: int, rounds: int, environment: dict[str, str], source: Path
) -> dict[str, list[Timed]]:
    """Both apps in turn on one deployment."""
    found: dict[str, list[Timed]] = {"fedsva": [], "plain": []}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        paths = digits(data, nodes)
        with Deployment(Path(place) / "deployment", paths, environment, source) as deployment:
            deployment.start_nodes()
            for pair in range(pairs):
                for app in ("fedsva", "plain") if pair % 2 == 0 else ("plain", "fedsva"):
                    one = timed(deployment, app, data, nodes, rounds, source)
                    found[app].append(one)
                    print(f"{app}: {', '.join(f'{seconds:.1f}' for seconds in one.rounds)} s", flush=True)
    return found


def report(found: dict[str, list[Timed]]) -> str:
    """Side by side, and the ratio with its spread."""
    names = {"fedsva": "FedSVA", "plain": "plain Flower"}
    rows = []
    for app, runs in found.items():
        rounds = [seconds for run in runs for seconds in run.rounds]
        lives = [seconds for run in runs for seconds in run.processes]
        cpu = [seconds for run in runs for seconds in run.cpu]
        rows.append(
            [
                names[app],
                str(len(rounds)),
                f"{statistics.mean(rounds):.1f} s",
                f"{statistics.median(rounds):.1f} s ({min(rounds):.1f} to {max(rounds):.1f})",
                f"{statistics.median(lives):.1f} s",
                f"{statistics.median(cpu):.1f} s",
            ]
        )
    ratios = [mine.mean / plain.mean for mine, plain in zip(found["fedsva"], found["plain"], strict=True)]
    low, high = _interval(found)
    head = ["app", "rounds", "mean", "median (range)", "a message's process lives", "its CPU time"]
    line = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    mean = float(np.mean([r.mean for r in found["fedsva"]]) / np.mean([r.mean for r in found["plain"]]))
    return f"{table(head, rows)}\n\nratio of the means {mean:.2f} (95 % {low:.2f} to {high:.2f}); by pair: {line}"


def _interval(found: dict[str, list[Timed]]) -> tuple[float, float]:
    """Bootstrap of the ratio of mean rounds: rounds are drawn within each run."""
    rng = np.random.default_rng(1)
    means = {
        app: np.mean(
            [rng.choice(run.rounds, (2000, len(run.rounds))).mean(axis=1) for run in runs],
            axis=0,
        )
        for app, runs in found.items()
    }
    low, high = np.quantile(means["fedsva"] / means["plain"], [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of each run, the first left out")
    parser.add_argument("--defaults", action="store_true", help="leave the SuperExecs' polling at 1 s")
    parser.add_argument("--source", type=Path, default=TOP, help="folder of the FedVeil that runs")
    arguments = parser.parse_args()
    environment = {} if arguments.defaults else {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
    found = compare(
        arguments.nodes, arguments.pairs, arguments.rounds, environment, arguments.source.resolve()
    )
    print(report(found))


if __name__ == "__main__":
    main()
