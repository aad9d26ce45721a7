"""How many groups of attributes: accuracy, and the time that measuring their contributions takes.

The centre 8 x 8 pixels of a digit are private, one group; bands of the other pixels are the other N - 1 groups. R is
measured by masking groups in the received model and released once, or, as published, by training a model on every
one of the 2^N coalitions, and not released.

    python benchmarks/groups.py [--results FILE]
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise
from pathlib import Path

from trials import Outcome, Sweep, mean_and_error, table, write_section

NUMBERS = (2, 3, 4, 6, 8)
SEEDS = range(2)
ROUNDS = 10
SHARED = (
    "dataset='mnist-5k' private-attributes='10:18,10:18' num-clients=4 clip-norm=1.0 delta=1e-5 epsilon=4.0 "
    f"num-server-rounds={ROUNDS} learning-rate=3.0 contribution-round={ROUNDS // 2}"
)
METHODS = {
    "masked, R released, `attribute`": "calibration='attribute' attribute-clip-rule='contribution' contribution='mask'",
    "masked, R released, `paper`": "calibration='paper' contribution='mask'",
    "retrained, R not released, `paper`": (
        "calibration='paper' contribution='retrain' contribution-release='none' retrain-steps=5"
    ),
}


def groups(number: int) -> str:
    """The key ``groups``: the private centre, and the rest in bands of about equally many rows."""
    cuts = [round(28 * band / (number - 1)) for band in range(number)]
    items = ["centre = 10:18,10:18"]
    for band, (first, last) in enumerate(pairwise(cuts), 1):
        pieces = [
            f"{start}:{stop},{columns}"
            for start, stop, sides in (
                (first, min(last, 10), ("0:28",)),
                (max(first, 10), min(last, 18), ("0:10", "18:28")),
                (max(first, 18), last, ("0:28",)),
            )
            if start < stop
            for columns in sides
        ]
        items.append(f"band{band} = {'+'.join(pieces)}")
    return "; ".join(items)


def trial(method: str, number: int, seed: int) -> str:
    """The settings of one run."""
    return f"{SHARED} {METHODS[method]} groups='{groups(number)}' data-seed={seed} seed={seed}"


def measuring(outcome: Outcome) -> float:
    """Seconds of measuring: what the longest round, the one that measures, takes beyond the others."""
    return max(outcome.rounds) - statistics.median(outcome.rounds)


def section(sweep: Sweep) -> str:
    """The section of the page."""
    rows = []
    for number in NUMBERS:
        row = [str(number), str(2**number)]
        for method in METHODS:
            found = sweep.of(trial(method, number, seed) for seed in SEEDS)
            refused = next((outcome.refused for outcome in found if outcome.refused), "")
            if refused or not found:
                row += ["refused" if refused else "not run"] * 3
                continue
            row += [
                mean_and_error([outcome.accuracy for outcome in found]),
                f"{statistics.mean(outcome.seconds for outcome in found):.1f}",
                f"{min(measuring(outcome) for outcome in found):.2f}",
            ]
        rows.append(row)
    header = ["N", "coalitions"]
    for method in METHODS:
        header += [f"{method}: accuracy", "s, run", "s, measuring"]
    head = (
        "## Number of groups\n\n"
        "`python benchmarks/groups.py`. MNIST, 5,000 digits, softmax regression, 4 clients, "
        f"{ROUNDS} rounds, total epsilon 4 at delta 1e-5, one run at a time on one core; mean ± standard error over "
        f"{len(SEEDS)} seeds. The private centre is one group, bands of the other pixels are the others. Every client "
        "measures once a run. Masking is one forward pass over all coalitions; retraining trains a model on each (5 "
        "steps, all as one batched model), is what the publication does, and proves nothing. Seconds of measuring are "
        "those of all 4 clients: what the longest round takes beyond the median one."
    )
    return f"{head}\n\n{table(header, rows)}"


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("runs/groups.jsonl"), help="where runs are kept")
    parser.add_argument("--page", type=Path, default=Path(__file__).parent.parent / "docs" / "results.md")
    arguments = parser.parse_args()
    sweep = Sweep(arguments.results)
    sweep.run(
        (trial(method, number, seed) for method in METHODS for number in NUMBERS for seed in SEEDS),
        processes=1,
    )
    write_section(arguments.page, "groups", section(sweep))


if __name__ == "__main__":
    main()
