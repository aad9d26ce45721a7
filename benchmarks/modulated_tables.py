"""R^2 against privacy on five real tables: modulated regression in all its forms, local DP-SGD, and no privacy.

One process, no Flower, a few minutes. What is done is kept in a file, and a stopped sweep goes on where it was; remove
the file when the code has changed. The tables are printed, and with --page go into docs/modulated.md.

    python benchmarks/modulated_tables.py --canada co2_emissions_canada.csv --cps1988 cps1988.csv --hi hi.csv
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from modulated_methods import MODULATION
from modulated_sweep import (
    BOUND,
    EPSILONS,
    ESTIMATED,
    FORMS,
    HELD_OUT,
    MAIN,
    NO_PRIVACY,
    NOT_CLIPPED,
    OF_FILES,
    PRIVATE_LABELS,
    SGD,
    TITLES,
    Figures,
    sweep,
)
from modulated_trial import DELTA, ROUNDS
from trials import table as markdown
from trials import write_section

from fedveil.privacy import draw_directions, plan_messages, reconstruction_bound
from fedveil.streams import Streams

BEST_SGD, ONE_SETTING = "local DP-SGD, best of the grid", "clip 0.3, step 1, 20 rounds, last"
NAMES = {f"{SGD}{ONE_SETTING}": "local DP-SGD, one setting for all"}
SHORT = [
    "one-shot, `exact`",
    "one-shot, `paper`, zCDP (as published)",
    "iterative, pooled cohorts, `exact`",
    BEST_SGD,
    NO_PRIVACY,
]
WILD = -10.0  # an R^2 below which a run has run away


def best_of_the_grid(figures: Figures, place: int) -> str:
    """The setting of local DP-SGD with the best mean R^2 on the test records: chosen in its favour."""
    settings = [method for method in figures if method.startswith(SGD)]
    return max(settings, key=lambda method: statistics.mean(r2 for r2, _ in figures[method][place]))


def cell(found: list[tuple[float, float]], column: int) -> str:
    """Mean and standard error; where some run has run away, how many."""
    wild = sum(not r2 > WILD for r2, _ in found)
    if wild:
        return f"diverges ({wild} of {len(found)})"
    values = [each[column] for each in found]
    digits = 2 if column == 0 else (2 if statistics.mean(values) < 100 else 1)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def rows(figures: Figures, methods: list[str], column: int) -> Iterator[list[str]]:
    for method in methods:
        cells = []
        for place in range(len(EPSILONS)):
            kept = best_of_the_grid(figures, place) if method == BEST_SGD else method
            cells.append(cell(figures[kept][place], column))
        yield [NAMES.get(method, method), *cells]


def reconstruction() -> str:
    """Least error of an attacker who knows a reference prior, on records like those of fair."""
    d, bound = 16, BOUND * math.sqrt(8)
    normal = Streams.seeded("modulated tables: reconstruction", 0).stream("directions").normal
    directions = [draw_directions(1, d, normal) for _ in range(ROUNDS)]
    lines: dict[str, list[str]] = {}
    for epsilon in EPSILONS:
        for count in (1, ROUNDS):
            noise = plan_messages(
                epsilon=epsilon, delta=DELTA, bound=bound, modulation=MODULATION, num_releases=count
            )
            sent = [(noise.sigma, MODULATION.amplitude, each) for each in directions[:count]]
            told = reconstruction_bound(sent, alpha=MODULATION.alpha, dimension=d, bound=bound)
            many = "one message" if count == 1 else f"{count} messages, new directions each"
            lines.setdefault(f"{many}, lambda = 0.5", []).append(f"{told.bayesian:.4f}")
            lines.setdefault(f"{many}, lambda = 0", []).append(f"{told.bayesian_unmodulated:.4f}")
    header = ["epsilon", *(f"{epsilon:g}" for epsilon in EPSILONS)]
    return markdown(header, [[name, *cells] for name, cells in lines.items()])


def section(done: Mapping[str, Figures]) -> str:
    """All tables, in Markdown."""
    header = ["epsilon", *(f"{epsilon:g}" for epsilon in EPSILONS)]
    main = [*MAIN, ESTIMATED, BEST_SGD, f"{SGD}{ONE_SETTING}", NO_PRIVACY, NOT_CLIPPED]
    own = {name: figures for name, figures in done.items() if name not in HELD_OUT}
    parts = ["### R^2"]
    for name, figures in own.items():
        parts += [f"**{TITLES[name]}**", markdown(header, rows(figures, main, 0))]
    if len(own) < len(done):
        parts += ["### R^2 on tables with which nothing was chosen"]
    for name in [name for name in done if name in HELD_OUT]:
        parts += [f"**{TITLES[name]}**", markdown(header, rows(done[name], SHORT, 0))]
    parts += ["### RMSE, in the target's own units"]
    for name, figures in own.items():
        parts += [f"**{TITLES[name]}**", markdown(header, rows(figures, SHORT, 1))]
    parts += [f"### Ways to iterate: R^2 after {ROUNDS} rounds, `exact`"]
    for name, figures in own.items():
        parts += [f"**{TITLES[name]}**", markdown(header, rows(figures, list(FORMS), 0))]
    private = [[TITLES[name], *next(rows(each, [PRIVATE_LABELS], 0))[1:]] for name, each in own.items()]
    chosen = [
        [TITLES[name], *(best_of_the_grid(each, place)[len(SGD) :] for place in range(len(EPSILONS)))]
        for name, each in own.items()
    ]
    parts += [
        "### The label private too: R^2 of one-shot under the record relation",
        markdown(header, private),
    ]
    parts += ["### Reconstruction: least mean squared error, 2 for a guess", reconstruction()]
    parts += ["### Settings with which local DP-SGD did best", markdown(header, chosen)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (file, _) in OF_FILES.items():
        parser.add_argument(f"--{name}", type=Path, metavar="CSV", help=f"the table {file}")
    parser.add_argument("--tables", nargs="+", choices=list(TITLES), help="all for which there is a file")
    parser.add_argument("--results", type=Path, default=Path("runs/modulated_tables.jsonl"))
    parser.add_argument("--page", type=Path, help="put the tables between their marks on this page too")
    arguments = parser.parse_args()
    files = {name: path for name in OF_FILES if (path := getattr(arguments, name))}
    names = arguments.tables or [name for name in TITLES if name not in OF_FILES or name in files]
    if missing := [name for name in names if name in OF_FILES and name not in files]:
        parser.error(f"{missing[0]} needs --{missing[0]}, its file")
    text = section(sweep(names, files, arguments.results))
    print(text)
    if arguments.page:
        write_section(arguments.page, "modulated_tables", text)


if __name__ == "__main__":
    main()
