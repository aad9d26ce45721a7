"""Two real image sets of one's own through `fedveil run`: Omniglot with its drawers as clients, CIFAR-10 as a folder.

Omniglot comes as an NPZ with arrays x, alphabet and drawer; CIFAR-10 as an NPZ of JPEG files (blob, off, y), from which
a folder of images is written. The point is that both work end to end with the convolutional network, not the accuracy.

    python benchmarks/natural_clients.py --omniglot omniglot_small_28x28.npz --cifar10 cifar10_jpegs.npz
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from trials import table, write_section

from fedveil.artifacts import RunFolder
from fedveil.privacy import rounded_up

HERE = Path(__file__).parent
IMAGES = 2000  # of CIFAR-10
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Run:
    """One run and what to call it."""

    name: str
    settings: str


def runs(omniglot: Path, cifar: Path) -> list[Run]:
    """Every run, on these files."""
    drawers = (
        f"dataset='npz' data-path='{omniglot}' data-schema='{HERE / 'schemas' / 'omniglot.schema.toml'}' "
        "target='alphabet' partition='natural' num-clients=160 model='cnn' num-server-rounds=8"
    )
    images = f"dataset='image-folder' data-path='{cifar}' num-clients=20 model='cnn' num-server-rounds=8"
    # a gradient of 6 to 8 million numbers for every record: few clients a round where each is clipped
    plain = "privacy='none' fraction-train=0.25 learning-rate=0.2"
    private = "calibration='uniform' epsilon=8.0 delta=1e-3 seed=0 learning-rate=0.1"
    return [
        Run("Omniglot, 160 drawers, no privacy", f"{drawers} {plain}"),
        Run("Omniglot, 160 drawers, `uniform`", f"{drawers} {private} fraction-train=0.05"),
        Run(f"CIFAR-10, {IMAGES} images, no privacy", f"{images} {plain}"),
        Run(f"CIFAR-10, {IMAGES} images, `uniform`", f"{images} {private} fraction-train=0.2"),
    ]


def write_folder(source: Path, place: Path) -> None:
    """Some images of CIFAR-10, evenly spaced, as a folder with one sub-folder a class."""
    with np.load(source, allow_pickle=False) as arrays:
        blob, offsets, labels = arrays["blob"], arrays["off"], arrays["y"]
        for index in range(0, len(labels), len(labels) // IMAGES):
            folder = place / CLASSES[int(labels[index])]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index:05}.jpg").write_bytes(blob[offsets[index] : offsets[index + 1]].tobytes())


def run(settings: str, output_dir: Path) -> tuple[RunFolder, float]:
    """One run through Flower; its folder is the last line that it prints."""
    command = [
        sys.executable,
        "-m",
        "fedveil.cli",
        "run",
        "fedsva",
        "--output-dir",
        str(output_dir),
        "-c",
        settings,
    ]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
    last = ""
    for line in process.stdout or ():
        if line.startswith("fedveil |"):
            print(line, end="", flush=True)
            last = line
    if process.wait() != 0:
        sys.exit(f"the run with {settings} failed with status {process.returncode}")
    return RunFolder(Path(last.partition("run folder: ")[2].strip())), time.monotonic() - began


def stated(guarantee: dict[str, str]) -> str:
    """A guarantee's epsilon, or none."""
    return rounded_up(float(guarantee["epsilon"])) if guarantee["kind"] == "proven" else "none"


def main() -> None:
    """Run all, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--omniglot", type=Path, required=True)
    parser.add_argument("--cifar10", type=Path, required=True)
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "results.md")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "cifar-10"
        write_folder(arguments.cifar10, folder)
        for one in runs(arguments.omniglot.absolute(), folder):
            print(f"\n== {one.name}", flush=True)
            finished, seconds = run(one.settings, Path(place) / "runs")
            facts = finished.load_model()[1]
            spent = {row["relation"]: stated(row) for row in facts["guarantees"]}
            rows.append(
                [one.name, f"{facts['accuracy']:.3f}", spent["attribute"], spent["record"], f"{seconds:.0f}"]
            )
    head = (
        "## Natural clients and one's own images\n\n"
        "`python benchmarks/natural_clients.py`. The convolutional network of LEAF's FEMNIST task, 8 rounds, by "
        "`fedveil run` and Ray. Clients of Omniglot are its 160 drawers, with 10 to 45 training images each; CIFAR-10 "
        "is read from a folder of JPEG files and dealt to 20 clients. A round asks a quarter of the clients, 8 "
        "drawers or 4 clients where gradients are clipped record by record. So few rounds and records show that the "
        "path works, not what it can reach."
    )
    header = ["run", "accuracy", "epsilon attribute", "epsilon record", "s"]
    write_section(arguments.page, "natural_clients", f"{head}\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
