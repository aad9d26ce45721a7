"""Accuracy against privacy: every calibration of FedSVA on real data, each with its epsilon under both relations.

The sweep keeps every run in a file and goes on where it was stopped; the tables go into docs/results.md.

    python benchmarks/fedsva_tables.py --cps1988 cps1988.csv.gz [--data mnist-5k fair cps1988] [--results FILE]
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trials import Outcome, Sweep, mean_and_error, table, write_section

from fedveil.privacy import rounded_up

HERE = Path(__file__).parent
EPSILONS = (0.1, 0.2, 0.5, 1.0, 4.0)
SEEDS = range(5)
# Step sizes from a total epsilon on, chosen on other records (see Data).
DIGIT_ATTRIBUTE_RATES = {0.0: 0.3, 0.2: 1.0, 1.0: 3.0}
DIGIT_RECORD_RATES = {0.0: 0.1, 0.5: 0.3, 4.0: 1.0, 8.0: 3.0}
TABLE_ATTRIBUTE_RATES = {0.0: 1.0, 0.5: 3.0}
TABLE_RECORD_RATES = {0.0: 0.1, 0.5: 0.3, 1.0: 1.0, 4.0: 3.0}


@dataclass(frozen=True)
class Data:
    """One data set and the settings that all its runs share.

    The step sizes were chosen on records that no run here reads, one for each kind of release and budget: for the
    digits on other digits of MNIST, for fair on the tables `hi` and `nlswork` (both by a plain second
    implementation), for cps1988 on another split of the same table (seed 100).

    Attributes
    ----------
    settings : str
        Data, clients, rounds.
    attribute_rates, record_rates : mapping of float to float
        Step size from this total epsilon on, for attribute-level and record-level runs.
    plain_rate : float
        Step size without noise.
    fixed : tuple of float
        C_p of the rule that takes a number.
    """

    name: str
    title: str
    settings: str
    attribute_rates: Mapping[float, float]
    record_rates: Mapping[float, float]
    plain_rate: float
    fixed: tuple[float, ...]

    def rate(self, variant: Variant, epsilon: float) -> float:
        """The step size of a variant at a total epsilon."""
        if not variant.is_private:
            return self.plain_rate
        rates = self.attribute_rates if "'attribute'" in variant.settings else self.record_rates
        return rates[max(least for least in rates if least <= epsilon)]

    def trial(self, variant: Variant, epsilon: float, seed: int) -> str:
        """The settings of one run."""
        budget = f" epsilon={epsilon!r} seed={seed}" if variant.is_private else ""
        rate = self.rate(variant, epsilon)
        return f"{self.settings} data-seed={seed} learning-rate={rate!r} {variant.settings}{budget}"


@dataclass(frozen=True)
class Variant:
    """One way to treat the private attributes."""

    name: str
    settings: str

    @property
    def is_private(self) -> bool:
        """Whether its noise follows from a total epsilon."""
        return "privacy='none'" not in self.settings


UNIFORM = Variant("`uniform`: whole records", "calibration='uniform'")
CONTRIBUTION = Variant(
    "`attribute`, C_p by contribution, R released",
    "calibration='attribute' attribute-clip-rule='contribution'",
)
OTHERS = (
    Variant("`attribute`, C_p by quantile", "calibration='attribute' attribute-clip-rule='quantile'"),
    UNIFORM,
    Variant(
        "`paper`, as published: R not released",
        "calibration='paper' contribution='retrain' contribution-release='none' retrain-steps=5",
    ),
    Variant("`paper`, R released", "calibration='paper'"),
    Variant("`tight`, R released", "calibration='tight'"),
    Variant(
        "private attributes thrown away, no noise", "privacy='none' clip-without-noise=true drop-private=true"
    ),
    Variant("no privacy", "privacy='none' clip-without-noise=true"),
)


def clipped(data: Data) -> list[Variant]:
    """Attribute level with C_p a number."""
    return [
        Variant(
            f"`attribute`, C_p = {norm:g} C",
            f"calibration='attribute' attribute-clip-rule='fixed' attribute-clip-norm={norm!r}",
        )
        for norm in data.fixed
    ]


def variants(data: Data) -> list[Variant]:
    """All rows of a data set's tables."""
    return [CONTRIBUTION, *clipped(data), *OTHERS]


def data_sets(cps1988: Path | None) -> dict[str, Data]:
    """The data sets, those with a file of their own where it is given."""
    shared = "num-clients=4 clip-norm=1.0 delta=1e-5 server-optimizer='momentum' server-momentum=0.9"
    found = [
        Data(
            "mnist-5k",
            "MNIST, 5,000 digits; private: the centre 12 x 12 pixels",
            f"dataset='mnist-5k' private-attributes='8:20,8:20' {shared} num-server-rounds=20",
            DIGIT_ATTRIBUTE_RATES,
            DIGIT_RECORD_RATES,
            3.0,
            (0.3,),
        ),
        Data(
            "fair",
            "fair, 6,366 women, any affair; private: rate_marriage, religious",
            f"dataset='fair' private-attributes='rate_marriage,religious' {shared} num-server-rounds=40",
            TABLE_ATTRIBUTE_RATES,
            TABLE_RECORD_RATES,
            3.0,
            (0.1, 0.3),
        ),
    ]
    if cps1988 is not None:
        schema = HERE / "schemas" / "cps1988.schema.toml"
        found.append(
            Data(
                "cps1988",
                "cps1988, 28,155 men, wage in classes; private: education, ethnicity",
                f"dataset='csv' data-path='{cps1988.absolute()}' data-schema='{schema}' target='wage' "
                f"private-attributes='education,ethnicity' {shared} num-server-rounds=20",
                {0.0: 3.0},
                {0.0: 1.0, 1.0: 3.0},
                3.0,
                (0.1, 0.3),
            )
        )
    return {data.name: data for data in found}


def trials_of(data: Data) -> list[str]:
    """All runs at equal total epsilon."""
    return [
        data.trial(variant, epsilon, seed)
        for variant in variants(data)
        for epsilon in (EPSILONS if variant.is_private else EPSILONS[:1])
        for seed in SEEDS
    ]


def at_record_epsilon(data: Data, sweep: Sweep, variant: Variant, epsilon: float) -> list[str]:
    """Whole-record runs at the record epsilon that the ledgers of attribute-level runs state, seed by seed."""
    return [
        data.trial(UNIFORM, float(outcome.guarantees["record"]["epsilon"]), seed)
        for seed in SEEDS
        for outcome in sweep.of([data.trial(variant, epsilon, seed)])
    ]


def accuracy(outcomes: list[Outcome]) -> str:
    """Mean accuracy with its standard error, or why there is none."""
    refused = [outcome.refused for outcome in outcomes if outcome.refused]
    if refused:
        found = re.search(r"standard deviation ([\d.e+-]+)", refused[0])
        return f"refused (sd {found[1] if found else '?'})"
    return mean_and_error([outcome.accuracy for outcome in outcomes])


def stated(outcomes: list[Outcome], relation: str) -> str:
    """What the ledgers state under one relation, for the worst-off client of the worst run."""
    good = [outcome for outcome in outcomes if not outcome.refused]
    if not good:
        return "-"
    rows = [outcome.guarantees[relation] for outcome in good]
    if any(row["kind"] == "nominal" for row in rows):
        return f"none (nominal {max(float(row['epsilon']) for row in rows):g})"
    if any(row["kind"] == "none" for row in rows):
        return "none"
    text = rounded_up(max(float(row["epsilon"]) for row in rows))
    read = [outcome.readings[relation] for outcome in good if relation in outcome.readings]
    return f"{text} (read {rounded_up(max(read))})" if read and float(text) > max(read) * 1.05 else text


def of_data(data: Data, sweep: Sweep) -> str:
    """The tables of one data set."""
    accuracies, epsilons, equal, rates = [], [], [], []
    for variant in variants(data):
        cells = {
            epsilon: sweep.of(data.trial(variant, epsilon, seed) for seed in SEEDS) for epsilon in EPSILONS
        }
        accuracies.append([variant.name, *map(accuracy, cells.values())])
        if variant.is_private:
            found = [f"{stated(cell, 'attribute')} / {stated(cell, 'record')}" for cell in cells.values()]
        else:
            found = [
                f"{stated(cells[EPSILONS[0]], 'attribute')} / {stated(cells[EPSILONS[0]], 'record')}"
            ] * len(EPSILONS)
        epsilons.append([variant.name, *found])
        if any(outcome.rates for cell in cells.values() for outcome in cell):
            rates.append([variant.name, *map(spread, cells.values())])
    for variant in clipped(data):
        for epsilon in EPSILONS:
            own = sweep.of(data.trial(variant, epsilon, seed) for seed in SEEDS)
            plain = sweep.of(at_record_epsilon(data, sweep, variant, epsilon))
            equal.append(
                [
                    variant.name,
                    f"{epsilon:g}",
                    stated(own, "record"),
                    accuracy(own),
                    accuracy(plain),
                    ahead(own, plain),
                ]
            )
    header = ["total epsilon", *(f"{epsilon:g}" for epsilon in EPSILONS)]
    return "\n\n".join(
        (
            f"### {data.title}",
            "Accuracy at equal total epsilon, each calibration under its own relation:",
            table(header, accuracies),
            "What is stated for the worst-off client, attribute / record epsilon:",
            table(header, epsilons),
            "Released contribution R of the private attributes, median of all clients and runs, with 10 % and 90 %:",
            table(header, rates),
            "At equal **record** epsilon, attribute-level noise against plain record-level noise:",
            table(
                [
                    "attribute-level run",
                    "attribute epsilon",
                    "record epsilon",
                    "its accuracy",
                    "`uniform`",
                    "ahead, points",
                ],
                equal,
            ),
        )
    )


def spread(outcomes: list[Outcome]) -> str:
    """Median and outer tenths of the released contributions."""
    rates = sorted(rate for outcome in outcomes for rate in outcome.rates)
    if len(rates) < 2:
        return "-"
    tenths = statistics.quantiles(rates, n=10, method="inclusive")
    return f"{statistics.median(rates):.2f} ({tenths[0]:.2f} to {tenths[-1]:.2f})"


def ahead(ours: list[Outcome], theirs: list[Outcome]) -> str:
    """Difference in accuracy, run by run on the same splits, in points with its standard error."""
    if len(ours) != len(theirs) or len(ours) < 2:
        return "not run"
    gains = [100 * (one.accuracy - other.accuracy) for one, other in zip(ours, theirs, strict=True)]
    return f"{statistics.mean(gains):+.1f} ± {statistics.stdev(gains) / math.sqrt(len(gains)):.1f}"


def section(sets: Iterable[Data], sweep: Sweep) -> str:
    """The whole section of the page."""
    head = (
        "## Accuracy and privacy of every calibration\n\n"
        "`python benchmarks/fedsva_tables.py`. Softmax regression, 4 clients with equal shares, clip norm"
        " 1, delta 1e-5, 20 rounds (fair: 40), one noised full-batch step a round, server momentum 0.9."
        f" Mean ± standard error over {len(SEEDS)} seeds, each with its own split, partition and noise. Step sizes were"
        " chosen on other records (cps1988: another split), one for each kind of release and budget.\n\n"
        "The total epsilon is a client's over the whole run: under the attribute relation for `attribute` (neighbours"
        " differ in the private attributes of one record), under the record relation for the others. **Figures in one"
        " column under different relations are different promises**: the second table says what each run proves under"
        " both. *none*: nothing is proven. *nominal*: the publication's figure, whose noise depends on unreleased data."
        " *read*: what the rows add up to where the proven figure is the budget that had to hold for every noise level"
        " that could have come out. The cost of releasing R (10 % of mu^2) or the quantile (5 %) is inside the total."
        " *refused*: the released contribution would have had more noise (sd) than 0.1."
    )
    return "\n\n".join((head, *(of_data(data, sweep) for data in sets)))


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cps1988", type=Path, help="the table of that name (R package AER), as CSV")
    parser.add_argument("--data", nargs="+", help="data sets (all for which there is a file)")
    parser.add_argument(
        "--results", type=Path, default=Path("runs/fedsva_tables.jsonl"), help="where runs are kept"
    )
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "results.md")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--render-only", action="store_true", help="run nothing; write the tables of what is there"
    )
    arguments = parser.parse_args()
    known = data_sets(arguments.cps1988)
    if unknown := [name for name in arguments.data or () if name not in known]:
        parser.error(f"no data set {unknown[0]!r} (cps1988 needs --cps1988): {', '.join(known)}")
    sets = [known[name] for name in arguments.data or known]
    sweep = Sweep(arguments.results)
    if not arguments.render_only:
        sweep.run((trial for data in sets for trial in trials_of(data)), arguments.processes)
        sweep.run(
            (
                trial
                for data in sets
                for variant in clipped(data)
                for epsilon in EPSILONS
                for trial in at_record_epsilon(data, sweep, variant, epsilon)
            ),
            arguments.processes,
        )
    write_section(arguments.page, "fedsva_tables", section(sets, sweep))


if __name__ == "__main__":
    main()
