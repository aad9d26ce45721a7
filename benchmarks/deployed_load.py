"""Load on a deployment: how much memory a hundred rounds leave behind, and what forty nodes cost.

    python benchmarks/deployed_load.py rounds [--app modulated] [--nodes 2] [--rounds 100] [--warm-up 20]
    python benchmarks/deployed_load.py nodes [--nodes 40] [--rounds 3]

Processes of this machine, over TLS, with keys: deployment.py. `rounds` reads the resident memory of every long-lived
process at each round's line and fits a slope as memory.py does, to the means of six stretches. `nodes` takes the
seconds until all are online and of each round, and the memory of a node: its SuperNode, its SuperExec, and the process
that it starts for a message. There, SuperExecs poll as Flower's default is, and nodes run at a lower priority: one
machine plays forty, and what they do must not starve the server as it would not there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from deployed_data import digits, regression
from deployment import TOP, Deployment, Line
from memory import slope
from trials import table

MB = 2**20
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
PROCESSES = {
    "superlink": "SuperLink",
    "server_superexec": "SuperExec of the server",
    "serverapp": "ServerApp",
    "supernodes": "SuperNode",
    "node_superexecs": "SuperExec of a node",
}


def settings(app: str, data: Path, nodes: int, rounds: int) -> dict[str, Any]:
    """The run of an app on the sites whose files lie in this folder."""
    common: dict[str, Any] = {
        "dataset": "csv",
        "partition": "sites",
        "data-schema": str(data / "schema.toml"),
        "test-path": str(data / "test.csv"),
        "hooks": "none",
        "num-server-rounds": rounds,
    }
    if app == "fedsva":
        return common | {
            "target": "digit",
            "num-clients": nodes,
            "calibration": "uniform",
            "epsilon": 50.0,
        }
    return common | {
        "target": "y",
        "strategy": "modulated-iterative",
        "participation": "sampled",
        "fraction-train": 0.1,
        "comparators": "none",
    }


def round_of(line: Line) -> int | None:
    """The number of the round that a line of FedVeil's ends; None for other lines."""
    words = line.text.removeprefix("fedveil | ").split()
    if not line.text.startswith("fedveil | round ") or not words[1].partition("/")[0].isdigit():
        return None
    return int(words[1].partition("/")[0])


class Peak(threading.Thread):
    """Watches the largest memory of a node's ClientApps, while a block lasts."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(daemon=True)
        self.deployment, self.largest, self._done = deployment, 0, threading.Event()

    def run(self) -> None:
        """Look twice a second."""
        while not self._done.wait(0.5):
            self.largest = max(self.largest, self.deployment.memory().clientapps)

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self.join()


def measure_rounds(app: str, nodes: int, rounds: int, source: Path) -> dict[str, Any]:
    """Memory at each round of one run."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        paths = digits(data, nodes) if app == "fedsva" else regression(data, nodes, 1000)
        readings: list[dict[str, float]] = []
        with Deployment(Path(place) / "deployment", paths, POLL, source) as deployment:
            deployment.start_nodes()
            for line in deployment.stream(source / "flwr_apps" / app, settings(app, data, nodes, rounds)):
                number = round_of(line)
                if number:
                    readings.append({"round": number, "seconds": line.seconds, **asdict(deployment.memory())})
                    print(f"round {number} after {line.seconds:.0f} s", file=sys.stderr, flush=True)
    return {"app": app, "nodes": nodes, "readings": readings}


def rounds_table(found: dict[str, Any], warm_up: int) -> str:
    """Slope of each process's memory after the warm-up."""
    after = [reading for reading in found["readings"] if reading["round"] > warm_up]
    numbers = [int(reading["round"]) for reading in after]
    rows = []
    for name, title in PROCESSES.items():
        share = found["nodes"] if name in ("supernodes", "node_superexecs") else 1
        resident = [int(reading[name]) // share for reading in after]
        fit = slope(numbers, resident)
        rows.append(
            [
                title,
                f"{resident[0] / MB:.1f} MB",
                f"{resident[-1] / MB:.1f} MB",
                f"{fit.value:,.0f} ({fit.low:,.0f} to {fit.high:,.0f})",
            ]
        )
    took = [b["seconds"] - a["seconds"] for a, b in pairwise(after)]
    head = f"{found['app']}, {found['nodes']} nodes, {numbers[-1]} rounds; a round took {statistics.median(took):.1f} s"
    columns = ["process", f"after round {numbers[0]}", f"after round {numbers[-1]}", "bytes a round (95 %)"]
    return f"{head} (median)\n\n{table(columns, rows)}"


def measure_nodes(nodes: int, rounds: int, source: Path) -> str:
    """Start so many nodes, run the modulated app on all, and say what it took."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        paths = regression(data, nodes)
        began = time.monotonic()
        with Deployment(Path(place) / "deployment", paths, source=source, nice=10) as deployment:
            deployment.start_nodes(900)
            online = time.monotonic() - began
            print(f"{nodes} nodes are online after {online:.0f} s", flush=True)
            idle = deployment.memory()
            lines: list[Line] = []
            with Peak(deployment) as peak:
                for line in deployment.stream(
                    source / "flwr_apps/modulated", settings("modulated", data, nodes, rounds)
                ):
                    lines.append(line)
                    print(f"{line.seconds:7.1f} {line.text}", flush=True)
            after = deployment.memory()
    ends = [line.seconds for line in lines if round_of(line)]
    took = [b - a for a, b in pairwise(ends)]
    rows = [[f"until {nodes} nodes are online", f"{online:.0f} s"]]
    rows.append(
        ["from `flwr run` to the end of round 1, with the roll call", f"{ends[0]:.0f} s" if ends else "-"]
    )
    if took:
        rows.append(["a further round", f"{statistics.median(took):.0f} s"])
    for title, memory in (("before the run", idle), ("after it", after)):
        each = (memory.supernodes + memory.node_superexecs) / nodes / MB
        rows.append([f"SuperNode and SuperExec of a node, {title}", f"{each:.0f} MB"])
    rows.append(["ClientApps of all nodes at once, at most", f"{peak.largest / MB:.0f} MB"])
    rows += [
        [f"SuperLink, {title}", f"{m.superlink / MB:.0f} MB"]
        for title, m in (("before", idle), ("after", after))
    ]
    return table(["", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rounds", "nodes"))
    parser.add_argument("--app", choices=("fedsva", "modulated"), default="modulated")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warm-up", type=int, default=20, help="rounds that are left out of the slope")
    parser.add_argument("--readings", type=Path, help="where the readings of `rounds` go, as JSON")
    parser.add_argument("--source", type=Path, default=TOP, help="folder of the FedVeil that runs")
    arguments = parser.parse_args()
    if arguments.what == "nodes":
        print(measure_nodes(arguments.nodes or 40, arguments.rounds or 3, arguments.source))
        return
    found = measure_rounds(
        arguments.app, arguments.nodes or 2, arguments.rounds or 100, arguments.source.resolve()
    )
    if arguments.readings:
        arguments.readings.write_text(json.dumps(found))
    print(rounds_table(found, arguments.warm_up))


if __name__ == "__main__":
    main()
