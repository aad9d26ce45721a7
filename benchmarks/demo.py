"""FedSVA on real digits, beside whole-record privacy, private pixels thrown away, and no privacy.

Four clients with different digits, hence different contributions of their private centre 12x12 pixels. In round 5 each
releases the utilities of its groups of pixels with noise; their Shapley values give its R, R gives its clip C_p and its
noise, and the log and the run's folder explain it client by client.

Four runs through `flwr run` and Ray (each by `fedveil run`, which adds an honest exit status), then the same four on
more splits of the data in two processes, because one test set of 1,000 digits is worth +-1 point. Every run ends with
its model in six quantizers and how private each leaves it (r_Q). The same 5,000 MNIST
digits, clients, rounds, step size and clipping, so that only the noise and what is private differ. The clipping norm,
the step size and kappa = 1 were fixed beforehand, on other digits than the test set's.

    python benchmarks/demo.py [--output-dir FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedveil.artifacts import RunFolder
from fedveil.run import run_app
from fedveil.run.overrides import parse_overrides

SHARED = (
    "num-clients=4 partition='dirichlet' dirichlet-alpha=0.5 min-records=500 num-server-rounds=20 learning-rate=3.0 "
    "server-optimizer='momentum' clip-norm=1.0 private-attributes='8:20,8:20' epsilon=1.0 delta=1e-5 seed=2026"
)
SPLITS = range(5)
NOTE = f"""
accuracy: mean over {len(SPLITS)} splits of the digits, each with its own 1,000 public test digits. first run: the one
through Flower above, on split 0, which took s seconds. attribute: neighbours differ in the private pixels of one
record; record: in one whole record. The epsilons are proven, for each client's total over the run, the release of its
contribution included; inf: none."""


@dataclass(frozen=True)
class Variant:
    name: str
    settings: str


VARIANTS = (
    Variant(
        "private pixels protected (attribute, C_p = R C)",
        "calibration='attribute' attribute-clip-rule='contribution' contribution-release='utilities' "
        "epsilon-record=10.0",
    ),
    Variant("whole records protected (record level)", "calibration='uniform'"),
    Variant(
        "private pixels thrown away, no noise", "privacy='none' clip-without-noise=true drop-private=true"
    ),
    Variant("no privacy", "privacy='none' clip-without-noise=true"),
)


def run(variant: Variant, output_dir: Path) -> tuple[RunFolder, float]:
    """One run through Flower; its folder is the last line that it prints."""
    command = [sys.executable, "-m", "fedveil.cli", "run", "fedsva", "--output-dir", str(output_dir)]
    command += ["--client-resources-num-cpus", "1"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "-c", f"{SHARED} {variant.settings}"], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        if line.startswith("fedveil |"):
            print(line, end="", flush=True)
            last = line
    if process.wait() != 0:
        sys.exit(f"the run '{variant.name}' failed with status {process.returncode}")
    return RunFolder(Path(last.partition("run folder: ")[2].strip())), time.monotonic() - began


def accuracy(variant: Variant, split: int) -> float:
    """Accuracy of the same run on another split of the digits, in one process."""
    overrides = parse_overrides([f"{SHARED} {variant.settings} data-seed={split} hooks='none' trajectory=0"])
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            status = run_app("fedsva", "in-process", overrides, 1, output_dir=folder)
        if status != 0:
            raise SystemExit(f"the run '{variant.name}' failed on split {split}")
        return float(RunFolder(next(Path(folder).iterdir())).load_model()[1]["accuracy"])


def repeat() -> dict[Variant, list[float]]:
    """Every variant on every split, two at a time."""
    tasks = [(variant, split) for split in SPLITS for variant in VARIANTS]
    found: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        results = pool.map(accuracy, *zip(*tasks, strict=True))
        for (variant, split), result in zip(tasks, results, strict=True):
            print(f"split {split}: {result:.3f}  {variant.name}", flush=True)
            found[variant].append(result)
    return found


def explain(folder: RunFolder) -> Table:
    """What each client of the first run has released of its contribution, and what follows from it."""
    told = json.loads((folder.path / "contributions.json").read_text())
    table = Table(
        title="from utilities to noise, client by client (all of it released, none of it exact)", box=None
    )
    names = [*next(iter(told["clients"].values()))["utilities"]]
    for heading in (
        "client",
        "records",
        *(f"v({name})" for name in names),
        "phi private",
        "+-",
        "R",
        "C_p",
        "sigma",
    ):
        table.add_column(heading, justify="right")
    for client, facts in told["clients"].items():
        table.add_row(
            client,
            str(facts["records"]),
            *(f"{facts['utilities'][name]:.3f}" for name in names),
            f"{facts['shapley']['private']:.3f}",
            f"{facts['deviation']:.3f}",
            f"{facts['contribution']:.3f}",
            f"{facts['attribute-clip-norm']:.3f}",
            f"{facts['sigma']:.4f}",
        )
    return table


def quantized(folder: RunFolder) -> Table:
    """The first run's model in each quantizer, the most secure against membership inference first."""
    told = json.loads((folder.path / "rq.json").read_text())
    table = Table(
        title=f"the protected model, quantized; r_Q on {told['records']} public test digits, larger is more secure",
        box=None,
    )
    for heading in ("quantizer", "bytes", "smaller", "accuracy", "r_Q", "95 % interval", "candidates"):
        table.add_column(heading, justify="left" if heading == "quantizer" else "right")
    whole = told["float32"]
    table.add_row("float32", str(whole["bytes"]), "1.0x", f"{whole['accuracy']:.3f}")
    for name in [*told["ranking"], *(name for name in told["quantizers"] if name not in told["ranking"])]:
        facts = told["quantizers"][name]
        ends = (facts["low"], facts["high"])
        table.add_row(
            name,
            str(facts["bytes"]),
            f"{whole['bytes'] / facts['bytes']:.1f}x",
            f"{facts['accuracy']:.3f}",
            _shown(facts["r_q"], told["records"]),
            "none" if None in ends else f"{ends[0]:.3g} to {ends[1]:.3g}",
            str(facts["candidates"]),
        )
    return table


def _shown(r_q: float | str | None, records: int) -> str:
    """Below 1/(2n) it is noise."""
    if r_q is None:
        return "undefined"
    least = 1 / (2 * records)
    return f"< {least:.2g}" if float(r_q) < least else f"{float(r_q):.4g}"


def epsilon(value: float) -> str:
    return "none (inf)" if math.isinf(value) else f"{value:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs"), help="where the run folders go (runs)"
    )
    output_dir = parser.parse_args().output_dir.absolute()
    table = Table(
        title="MNIST 5k, centre 12x12 pixels private; total epsilon of each client, delta 1e-5", box=None
    )
    columns = ("what is protected", "accuracy", "std. error", "first run", "eps attribute", "eps record", "s")
    for heading in columns:
        table.add_column(heading, justify="left" if heading.startswith("what") else "right")
    finished = []
    for variant in VARIANTS:
        print(f"\n== {variant.name}", flush=True)
        finished.append(run(variant, output_dir))
    print(f"\n== the same on {len(SPLITS)} splits of the digits, in two processes", flush=True)
    repeated = repeat()
    for variant, (folder, seconds) in zip(VARIANTS, finished, strict=True):
        found = repeated[variant]
        error = statistics.stdev(found) / math.sqrt(len(found))
        metadata = folder.load_model()[1]
        spent = {guarantee["relation"]: float(guarantee["epsilon"]) for guarantee in metadata["guarantees"]}
        table.add_row(
            variant.name,
            f"{statistics.mean(found):.3f}",
            f"{error:.3f}",
            f"{metadata['accuracy']:.3f}",
            epsilon(spent["attribute"]),
            epsilon(spent["record"]),
            f"{seconds:.0f}",
        )
    console = Console(width=120)
    console.print()
    console.print(explain(finished[0][0]))
    console.print()
    console.print(table)
    console.print(NOTE)
    console.print("\nahead of the others, in points, with the standard error over the splits:")
    protected = repeated[VARIANTS[0]]
    for variant in VARIANTS[1:]:
        ahead = [100 * (ours - theirs) for ours, theirs in zip(protected, repeated[variant], strict=True)]
        error = statistics.stdev(ahead) / math.sqrt(len(ahead))
        console.print(f"  {statistics.mean(ahead):+5.1f} +- {error:.1f}  {variant.name}")
    console.print()
    console.print(quantized(finished[0][0]))
    print(f"run folder: {finished[0][0].path}")


if __name__ == "__main__":
    main()
