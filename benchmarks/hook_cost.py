"""Time of the hook that quantizes a finished run, beside that of the forward passes alone that it must make.

The demo's model (softmax regression, 1,000 public MNIST digits) after 64 rounds: 64 candidates in 6 quantizers. The
hook encodes and evaluates every candidate, takes r_Q with its interval, and writes a file for each quantizer; the
forward passes are its candidates' losses by the same batched evaluation, and the accuracy of each quantizer's model.
Both in turn, in one process, with one thread.

    python benchmarks/hook_cost.py [--repeats 15] [--rounds 64]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import RunFolder
from fedveil.run import run_app
from fedveil.run.app import find_app
from fedveil.strategies.hooks import FinishedRun
from fedveil.strategies.hooks.quantize import quantize

Arrays = Mapping[str, NDArray[np.float32]]

LARGEST_RATIO = 1.3
SETTINGS: dict[str, Any] = {
    "num-clients": 4,
    "learning-rate": 3.0,
    "server-optimizer": "momentum",
    "clip-norm": 1.0,
    "epsilon": 1.0,
    "calibration": "uniform",
    "hooks": "none",
    "trajectory-skip": 0.0,
    "seed": 2026,
}


def finished(root: Path, rounds: int) -> FinishedRun:
    """A run of the demo's model, as the hook is given it."""
    with redirect_stdout(StringIO()):
        status = run_app(
            "fedsva", "in-process", SETTINGS | {"num-server-rounds": rounds, "output-dir": str(root)}
        )
    if status != 0:
        raise SystemExit("the run failed: see its output with `fedveil run`.")
    (path,) = root.glob("*-fedsva-*")
    app, folder = find_app("fedsva"), RunFolder(path)
    assert app.finished is not None
    config = app.config_class().from_run_config(folder.config | {"seed": "", "hooks": "quantize"})
    run: FinishedRun = app.load(app.finished)(folder, config, lambda line: None)
    return run


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        run = finished(Path(root), arguments.rounds)
        candidates: list[Arrays] = []
        models: list[Arrays] = []

        def losses(asked: Arrays) -> NDArray[np.float64]:
            candidates.append(asked)
            return run.losses(asked)

        def figures(asked: Arrays) -> Mapping[str, float]:
            models.append(asked)
            return run.figures(asked)

        def forward_passes() -> None:
            for asked in candidates:
                run.losses(asked)
            for asked in models:
                run.figures(asked)

        quantize(
            replace(run, losses=losses, figures=figures)
        )  # what they are, and a first time for all caches
        hook, forward = [], []
        for _ in range(arguments.repeats):
            hook.append(seconds(lambda: quantize(run)))
            forward.append(seconds(forward_passes))
        counts = [len(next(iter(asked.values()))) for asked in candidates]
    whole, least = statistics.median(hook), statistics.median(forward)
    print(
        f"{len(counts)} quantizers, {counts} candidates, {run.num_records} records, {arguments.repeats} repeats"
    )
    print(
        f"hook {1e3 * whole:.0f} ms, forward passes alone {1e3 * least:.0f} ms (medians): {whole / least:.2f} times "
        f"(at most {LARGEST_RATIO})"
    )
    if whole > LARGEST_RATIO * least:
        raise SystemExit(f"the hook costs more than {LARGEST_RATIO} times its forward passes.")


if __name__ == "__main__":
    main()
