"""A million clients of one record each: what a node's round costs beside the bare numpy operations of it.

    python benchmarks/modulated_million.py                    encoding and summing, in this process
    python benchmarks/modulated_million.py --flower           the same data through `flwr run` on 2 nodes

The bare operations are the fewest that give the same moments: normals by numpy's own generator, phases, projection,
cosine, adding up, G'G, in float64, in blocks that fit the cache, on the same threads. They clip nothing, have no fixed
counter range a record, and write no ledger. Both take turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STARTED = time.perf_counter()

import numpy as np  # noqa: E402
import psutil  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from fedveil.artifacts import NodeLedger  # noqa: E402
from fedveil.clients.modulated_cohort import ModulatedCohort, VariantPlan  # noqa: E402
from fedveil.clients.modulated_request import MessageRequest  # noqa: E402
from fedveil.moment_sums import block_size  # noqa: E402
from fedveil.privacy import MessagePlan, Modulation, draw_directions, plan_messages  # noqa: E402
from fedveil.streams import Streams  # noqa: E402
from fedveil.threads import set_threads  # noqa: E402

REPEATS = 5
MODULATION = Modulation(alpha=0.3, amplitude=0.5, frequency=1.0, num_directions=1)
EPSILON, DELTA = 8.0, 1e-5
MARK = "FEDVEIL_BENCHMARK"  # environment variable by which a run's processes are known

FloatArray = NDArray[np.float64]


def records(clients: int, features: int) -> tuple[NDArray[np.float32], FloatArray]:
    """Standardised features and targets that stay in memory; a quarter of the records is clipped."""
    stream = Streams.seeded("modulated-million", 1).stream("records")
    x = np.empty((clients, features), dtype=np.float32)
    y = np.empty(clients)
    slopes = np.linspace(-1, 1, features)
    for first in range(0, clients, 10_000):
        part = slice(first, first + 10_000)
        x[part] = 2 * stream.uniform(x[part].shape) - 1
        y[part] = x[part] @ slopes + 0.1 * stream.normal(y[part].size)
    return x, y


def bare(x: NDArray[np.float32], directions: FloatArray, sigma: float) -> FloatArray:
    """Moments by the fewest numpy operations."""
    rng = np.random.default_rng(1)
    clients, features = x.shape
    size, gram = block_size(clients), np.zeros((features, features))
    rows, noise, part = np.empty((size, features)), np.empty((size, features)), np.empty((features, features))
    wave = MODULATION.amplitude / math.sqrt(len(directions)) * directions
    for first in range(0, clients, size):
        chunk = x[first : first + size]
        k = len(chunk)
        messages, normals = rows[:k], noise[:k]
        np.copyto(messages, chunk)
        phases = rng.random((k, len(directions)))
        phases *= 2 * math.pi
        phases += messages @ (MODULATION.frequency * directions).T
        np.cos(phases, out=phases)
        messages *= MODULATION.scale
        np.dot(phases, wave, out=normals) if len(wave) > 1 else np.multiply(phases, wave, out=normals)
        messages += normals
        rng.standard_normal(out=normals)
        normals *= sigma
        messages += normals
        gram += np.dot(messages.T, messages, out=part)
    return gram


def node(
    x: NDArray[np.float32],
    y: FloatArray,
    plan: MessagePlan,
    bound: float,
    directions: FloatArray,
    folder: str,
) -> tuple[float, FloatArray]:
    """One round of a node, ledger on disk and all; its seconds, and its moments."""
    clients, features = x.shape
    variant = VariantPlan("modulated", plan, MODULATION, bound, largest_label=64.0)
    cohort = ModulatedCohort(
        lambda first, last: (x[first:last], y[first:last]),
        0,
        clients,
        clients,
        {"main": variant},
        Streams.seeded("modulated-million", 2),
        NodeLedger(Path(tempfile.mkdtemp(dir=folder)) / "node.sqlite"),
        "run",
        True,
    )
    request = MessageRequest(
        round=1,
        run="run",
        variant="main",
        mechanism="modulated",
        clients=np.arange(clients),
        each=False,
        coefficients=np.zeros(features + 1),
        directions=directions,
    )
    start = time.perf_counter()
    result = cohort.answer(request)
    seconds = time.perf_counter() - start
    return seconds, variant.grid(clients).to_real("gram", result.arrays["gram"])  # type: ignore[arg-type]


def timed(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def peak_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(clients: int, features: int, threads: int) -> None:
    set_threads(threads)
    startup = time.perf_counter() - STARTED
    bound = 0.58 * math.sqrt(features)
    plan = plan_messages(epsilon=EPSILON, delta=DELTA, bound=bound, modulation=MODULATION)
    directions = draw_directions(
        1, features, Streams.seeded("modulated-million", 3).stream("directions").normal
    )
    x, y = records(clients, features)
    before = peak_mb()
    nodes, bares = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):
            seconds, gram = node(x, y, plan, bound, directions, folder)
            nodes.append(seconds)
            if len(nodes) == 1:
                beyond = peak_mb() - before
            bares.append(timed(lambda: bare(x, directions, plan.sigma)))
    ratio = statistics.median(nodes) / statistics.median(bares)
    assert "torch" not in sys.modules
    assert np.all(np.isfinite(gram))
    data = (x.nbytes + y.nbytes) / 2**20
    print(f"clients {clients:,}, features {features}, threads {threads}, blocks of {block_size(clients)}")
    print(f"{'start-up (imports), apart':44s} {startup:8.2f} s")
    print(f"{'bare numpy float64 operations':44s} {statistics.median(bares):8.2f} s   of {shown(bares)}")
    print(
        f"{'a node: encode, sum, record in its ledger':44s} {statistics.median(nodes):8.2f} s   of {shown(nodes)}"
    )
    print(f"{'ratio (at most 2)':44s} {ratio:8.2f}")
    print(f"{'data':44s} {data:8.0f} MB")
    print(f"{'peak memory beyond data and start-up':44s} {beyond:8.0f} MB (at most 512)")
    print(f"{'peak memory of the process':44s} {peak_mb():8.0f} MB")
    print("torch was not imported")


def shown(seconds: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in seconds)


def through_flower(clients: int, features: int, threads: int) -> None:
    """The whole run on 2 nodes; its folder is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "dataset": '"synthetic-regression"',
            "options": f"'dataset = {{records = {clients}, features = {features}}}'",
            "epsilon": EPSILON,
            "delta": DELTA,
            "comparators": '"none"',
            "threads-per-node": threads,
        }
        command = [sys.executable, "-m", "fedveil.cli", "run", "modulated", "--num-supernodes", "2"]
        command += ["--client-resources-num-cpus", "1"]
        command += [
            "--output-dir",
            folder,
            *(word for key, value in config.items() for word in ("-c", f"{key}={value}")),
        ]
        print("$", shlex.join(command), flush=True)
        start = time.perf_counter()
        mark = str(os.getpid())
        with subprocess.Popen(command, env={**os.environ, MARK: mark}) as run:
            largest = watched(run, mark)
        seconds = time.perf_counter() - start
    print(f"{'the whole run, Flower started and stopped':44s} {seconds:8.2f} s")
    print(f"{'peak memory of its largest process':44s} {largest:8.0f} MB")
    if run.returncode:
        raise SystemExit(f"the run failed with status {run.returncode}.")


def watched(run: subprocess.Popen[bytes], mark: str) -> float:
    """Wait for a run; the largest resident memory of any process of it, in MB, looked at ten times a second."""
    largest = 0
    while run.poll() is None:
        for process in psutil.process_iter():
            # Ray's workers overwrite the environment that the system shows, and are children of one that does not
            with contextlib.suppress(psutil.Error):
                if MARK in process.environ() and process.environ()[MARK] == mark:
                    family = [process, *process.children(recursive=True)]
                    largest = max(largest, *(member.memory_info().rss for member in family))
        time.sleep(0.1)
    return largest / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flower", action="store_true", help="the whole app through flwr run on 2 nodes")
    arguments = parser.parse_args()
    run = through_flower if arguments.flower else in_process
    run(arguments.clients, arguments.features, arguments.threads)


if __name__ == "__main__":
    main()
