"""The real data in tables: success of the attacks, performance, r_Q, and what goes with what."""

from __future__ import annotations

import numpy as np
from indicator import bits_of
from numpy.typing import NDArray
from page import table
from ranking import interval, over_runs, spearman, told
from real_study import FULL, PUBLIC, Attacked, Task, Values

DRAWS = 500  # of the bootstrap


def tables(task: Task, found: list[Attacked], runs: int, read_runs: int) -> str:
    """Success and performance by quantizer, and what goes with what."""
    rows = []
    for one in sorted(found, key=lambda one: one.online.auc):
        percent, permille = one.online.rates
        performance = [f"{one.accuracy:.3f}", *([] if np.isnan(one.auc_roc) else [f"{one.auc_roc:.3f}"])]
        is_quantized = one.name != FULL
        rows.append(
            [
                one.name,
                f"{one.online.auc:.3f}",
                str(percent),
                str(permille),
                f"{one.offline.auc:.3f}",
                f"{one.by_loss.auc:.3f}",
                *performance,
                f"{over_runs(one.r_q):.1e}" if is_quantized else "",
                f"{over_runs(one.r_q_late):.1e}" if is_quantized else "",
                f"{one.distinct:.0f}" if is_quantized else "",
                f"{bits_of(one.name):.2f}" if is_quantized else "32",
                f"{one.entropy:.2f}" if is_quantized else "",
            ]
        )
    binary = not np.isnan(found[0].auc_roc)
    header = [
        "quantizer", "LiRA AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "offline AUC", "loss AUC", "accuracy",
        *(["AUC-ROC"] if binary else []), "r_Q", "r_Q, last half", "distinct", "bits", "entropy",
    ]  # fmt: skip
    quantized = [one for one in found if one.name != FULL]
    return "\n\n".join(
        [
            f"**{task.title}**: {runs} runs on halves of {task.pool} records, r_Q of {read_runs} on {PUBLIC} others.",
            table(header, rows),
            _correlations(quantized, binary),
        ]
    )


def _correlations(found: list[Attacked], binary: bool) -> str:
    """Spearman with LiRA's AUC and with performance; intervals over runs, and over quantizers too."""
    rng = np.random.default_rng(6)
    aucs = np.stack([one.aucs for one in found])
    fixed = {
        "number of bits": np.array([bits_of(one.name) for one in found]),
        "entropy of the codes": np.array([one.entropy for one in found]),
    }
    read = {
        "r_Q": np.stack([one.r_q for one in found]),
        "r_Q, last half": np.stack([one.r_q_late for one in found]),
    }
    performance = np.array([one.auc_roc if binary else one.accuracy for one in found])
    rows = []
    for name in (*read, *fixed):

        def values(chosen: NDArray[np.int64], name: str = name) -> Values:
            return over_runs(read[name][:, chosen]) if name in read else fixed[name]

        runs = next(iter(read.values())).shape[1]
        whole = values(np.arange(runs))
        over, across, performing = [], [], []
        for _ in range(DRAWS):
            drawn = values(np.array(rng.integers(runs, size=runs)))
            success = aucs[:, rng.integers(aucs.shape[1], size=aucs.shape[1])].mean(axis=1)
            some = rng.integers(len(found), size=len(found))
            over.append(spearman(drawn, success))
            across.append(spearman(drawn[some], success[some]))
            performing.append(spearman(drawn, performance))
        value = spearman(whole, aucs.mean(axis=1))
        low, high = interval(across)
        rows.append(
            [
                name,
                told(value, interval(over)),
                f"[{low:.2f}, {high:.2f}]",
                told(spearman(whole, performance), interval(performing)),
            ]
        )
    success = aucs.mean(axis=1)
    alone = np.where(np.isnan(read["r_Q"]), np.inf, read["r_Q"]).T
    means = [f"{np.mean([spearman(one, other) for one in alone]):.2f}" for other in (success, performance)]
    rows.append(["r_Q of one run alone (mean over runs)", means[0], "", means[1]])
    header = [
        "Spearman of",
        "with LiRA's AUC, 95 % over runs",
        "95 % over quantizers too",
        "with AUC-ROC" if binary else "with accuracy",
    ]
    return table(header, rows)
