"""The synthetic study in tables: correlations, what they rest on, stability, and the order of the quantizers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from indicator import QUANTIZERS, bits_of
from numpy.typing import NDArray
from page import table
from problems import CHECKPOINTS, FRESH
from ranking import STABLE, interval, kendall, over_runs, runs_needed, spearman, stability, told
from synthetic_study import ALL, LATE, OWN, OWN_LATE, PUBLIC, SUBSETS, Found

from fedveil.privacy import FEW_CANDIDATES

DRAWS = 500  # of the bootstrap
READ_SIZES = (1, 2, 3, 5, 10, 15, 25, 35, 50)
NAMES = {
    ALL: "r_Q, frozen scales, all checkpoints (the definition)",
    LATE: "r_Q, frozen scales, last half of the checkpoints",
    OWN: "r_Q, own scales, all checkpoints",
    OWN_LATE: "r_Q, own scales, last half of the checkpoints",
}
BITS = "number of bits alone, fewer = safer"
ENTROPY = "entropy of the codes alone, less = safer"
SHORT = ("", ", last half", ", own scales")
PUBLISHED = (
    "ternary-90",
    "ternary-33",
    "sign",
    "int8",
)  # the publication's order; "multi-bit" by its clearest case

Values = NDArray[np.float64]


def predictors(found: Found, chosen: NDArray[np.int64] | None = None) -> dict[str, Values]:
    """What might tell MIS, larger for safer, from all runs or from chosen ones."""
    read = {
        name: over_runs(found.r_q(variant) if chosen is None else found.r_q(variant)[:, chosen])
        for variant, name in NAMES.items()
    }
    return {**read, BITS: -np.array([bits_of(name) for name in QUANTIZERS]), ENTROPY: -found.entropy}


def correlations(found: Sequence[Found]) -> tuple[str, str]:
    """The table of Spearman correlations with MIS, and a sentence on the number of bits."""
    rng = np.random.default_rng(3)
    drawn: dict[str, list[float]] = {}
    above: list[float] = []
    for _ in range(DRAWS):
        one: dict[str, list[float]] = {}
        for place in rng.integers(len(found), size=len(found)):
            problem = found[place]
            attacked = rng.integers(problem.accuracy_by_run.shape[1], size=problem.accuracy_by_run.shape[1])
            read = rng.integers(problem.r_q(ALL).shape[1], size=problem.r_q(ALL).shape[1])
            security = -problem.accuracy_by_run[:, attacked].mean(axis=1)
            for name, values in predictors(problem, read).items():
                one.setdefault(name, []).append(spearman(values, security))
        for name, each in one.items():
            drawn.setdefault(name, []).append(float(np.mean(each)))
        above.append(drawn[NAMES[ALL]][-1] - drawn[BITS][-1])
    rows = []
    for name in drawn:
        each = [spearman(predictors(problem)[name], problem.security) for problem in found]
        rows.append(
            [name, *(f"{one:.2f}" for one in each), told(float(np.mean(each)), interval(drawn[name]))]
        )
    alone = [
        float(
            np.mean(
                [
                    spearman(column, problem.security)
                    for column in np.nan_to_num(problem.r_q(ALL).T, nan=np.inf, posinf=np.inf)
                ]
            )
        )
        for problem in found
    ]
    single = "one training run alone, frozen, all (mean over runs)"
    rows.append([single, *(f"{one:.2f}" for one in alone), f"{np.mean(alone):.2f}"])
    rows.append(["the publication", *("" for _ in found), "0.86"])
    low, high = interval(above)
    text = table(["Spearman with MIS", *(one.problem.title for one in found), "mean, 95 % interval"], rows)
    verdict = (
        "r_Q tells more than the number of bits"
        if low > 0
        else "the number of bits alone tells more than r_Q"
        if high < 0
        else "r_Q is not shown to tell more than the number of bits alone, nor less"
    )
    return text, f"r_Q (frozen, all) less bits: {np.mean(above):+.2f} [{low:+.2f}, {high:+.2f}]: {verdict}."


def trust(found: Sequence[Found]) -> str:
    """What decides whether the indicator can be read: distinct candidates, warnings, intervals."""
    rows = []
    for one in found:
        distinct = np.stack([reading.distinct for reading in one.readings[ALL]])
        warned = np.stack([reading.warned for reading in one.readings[ALL]])
        early = np.stack([reading.early for reading in one.readings[ALL]])
        middle = np.median(distinct, axis=1)
        many = middle >= FEW_CANDIDATES
        security, r_q = one.security, over_runs(one.r_q(ALL))
        apart, right = _resolved(one)
        rows.append(
            [
                one.problem.title,
                f"{np.median(distinct):.0f} ({middle.min():.0f} to {middle.max():.0f})",
                f"{warned.mean():.0%}",
                f"{early.mean():.0%}",
                f"{(one.r_q(ALL) < 1 / (2 * PUBLIC)).mean():.0%}",
                f"{spearman(r_q, security):.2f}",
                f"{spearman(r_q[many], security[many]):.2f} ({many.sum()})",
                f"{apart:.0%}",
                f"{right:.0%}" if apart else "none",
            ]
        )
    header = [
        "",
        "distinct candidates, median (by quantizer)",
        "readings with a warning",
        "best candidate from the first half",
        "below 1/(2n)",
        "Spearman",
        f"only quantizers with {FEW_CANDIDATES} or more candidates (how many)",
        "pairs of quantizers whose intervals are apart",
        "of these in the order of MIS",
    ]
    return table(header, rows)


def _resolved(one: Found) -> tuple[float, float]:
    """Share of pairs of quantizers that one run's intervals tell apart, and the share of those that MIS agrees with."""
    low, high = one.bounds[..., 0], one.bounds[..., 1]
    first, second = np.triu_indices(len(QUANTIZERS), 1)
    above = low[:, first] > high[:, second]
    below = high[:, first] < low[:, second]
    order = one.security[first] > one.security[second]
    apart = above | below
    return float(apart.mean()), float((above == order)[apart].mean()) if apart.any() else 0.0


def stable(found: Sequence[Found]) -> str:
    """How many training runs each ranking needs."""
    rng = np.random.default_rng(4)
    rows = []
    for one in found:
        cells = [one.problem.title]
        for variant in (ALL, LATE, OWN):
            taus = stability(one.r_q(variant), READ_SIZES, rng, 40)
            cells.append(f"{runs_needed(taus)} ({taus.get(15, max(taus.values())):.2f})")
        baseline = {
            size: float(np.mean([kendall(values, one.security) for values in np.array(columns).T]))
            for size, columns in one.few.items()
        }
        cells.append(f"{runs_needed(baseline)} ({baseline.get(150, max(baseline.values())):.2f})")
        rows.append(cells)
    header = [
        f"runs until tau >= {STABLE} (tau at 15, of MIS at 150)",
        "r_Q, frozen, all",
        "r_Q, frozen, last half",
        "r_Q, own scales",
        "MIS baseline",
    ]
    return table(header, [*rows, ["the publication", "15", "", "", "150"]])


def orders(found: Sequence[Found]) -> str:
    """What each problem's quantizers come to, in the order of MIS."""
    parts = []
    for one in found:
        read = {variant: over_runs(one.r_q(variant)) for variant in NAMES}
        rows = []
        for place in np.argsort(-one.security):
            reading = one.readings[ALL][place]
            rows.append(
                [
                    QUANTIZERS[place],
                    f"{bits_of(QUANTIZERS[place]):.2f}",
                    f"{one.entropy[place]:.2f}",
                    f"{one.accuracy[place]:.3f}",
                    f"{min(one.security[place], 1):.3f} ± {one.errors[place]:.3f}",
                    f"{read[ALL][place]:.1e}",
                    f"{read[LATE][place]:.1e}",
                    f"{read[OWN][place]:.1e}",
                    f"{np.median(reading.distinct):.0f}",
                ]
            )
        header = [
            "quantizer",
            "bits",
            "entropy",
            "accuracy",
            "MIS",
            *(f"r_Q{each}" for each in SHORT),
            "distinct",
        ]
        parts += [f"**{one.problem.title}**", table(header, rows), _published(one, read)]
    return "\n\n".join(parts)


def _published(one: Found, read: dict[str, Values]) -> str:
    places = [QUANTIZERS.index(name) for name in PUBLISHED]
    lines = []
    for name, values in (("MIS", one.security), ("r_Q", read[ALL]), ("r_Q, last half", read[LATE])):
        order = sorted(places, key=lambda place: -values[place])
        lines.append(f"{name}: {' > '.join(QUANTIZERS[place] for place in order)}")
    return "; ".join([*lines, "published: " + " > ".join(PUBLISHED)]) + "."


def section(found: Sequence[Found], minutes: float) -> str:
    """All tables, in Markdown."""
    first = found[0]
    attacked, read = first.accuracy_by_run.shape[1], first.r_q(ALL).shape[1]
    own = [one for one in found if one.problem not in FRESH]
    fresh = [one for one in found if one.problem in FRESH]
    text, verdict = correlations(own)
    again = correlations(fresh)
    return "\n\n".join(
        [
            f"{len(QUANTIZERS)} quantizers, {CHECKPOINTS} checkpoints a run, {attacked} runs attacked, {read} runs read"
            f" on {PUBLIC} public records, {SUBSETS} draws of few runs; {minutes:.1f} minutes.",
            "### Rank correlation with MIS",
            text,
            verdict,
            "On problems first run when the rows of this table were fixed:",
            *again,
            "### When it can be trusted",
            trust(found),
            "### Training runs until the ranking is stable",
            stable(found),
            "### Order of the quantizers",
            orders(own),
        ]
    )
