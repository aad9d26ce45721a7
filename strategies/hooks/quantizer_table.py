"""How a quantizer's row is told: as values for ``rq.json``, and as lines of a table with their ranking and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.strategies.hooks.configurations import Judged
from fedveil.strategies.json_number import json_number

__all__ = ["Row", "order_of", "table_lines", "values_of"]


@dataclass(frozen=True, eq=False)
class Row:
    """One quantizer of the report.

    Attributes
    ----------
    name : str
    size : int
        Bytes of its file.
    bits : float
        What its codes, scales and floats need in theory.
    entropy : float
        Of its codes, in bits a weight.
    figures : mapping of str to float
        How good its model is on the public records; the first one is shown.
    judged : Judged
        Its indicator.
    """

    name: str
    size: int
    bits: float
    entropy: float
    figures: Mapping[str, float]
    judged: Judged


def order_of(r_q: float | str | None) -> float:
    """r_Q as it is in JSON, as a number to sort by: undefined below all."""
    return -1.0 if r_q is None else float(r_q)


def values_of(row: Row) -> dict[str, Any]:
    """What the report says of a quantizer, as JSON values."""
    indicator, interval = row.judged.indicator, row.judged.interval
    pair = None
    if indicator.runner_up is not None:
        pair = {
            "best-round": row.judged.rounds[indicator.best],
            "runner-up-round": row.judged.rounds[indicator.runner_up],
            "gap": json_number(indicator.gap),
            "deviation": json_number(indicator.deviation),
        }
    return {
        "bytes": row.size,
        "theoretical-bytes": row.bits / 8,
        "code-entropy-bits": row.entropy,
        **row.figures,
        "r_q": json_number(indicator.r_q),
        "low": json_number(interval.low),
        "high": json_number(interval.high),
        "level": interval.level,
        "candidates": indicator.num_candidates,
        "distinct": row.judged.num_distinct,
        "pair": pair,
        "statement": indicator.statement,
        "interval": interval.statement,
        "warnings": _warnings(row),
    }


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Larger r_Q first; undefined ones last."""
    return sorted(rows, key=lambda row: -order_of(json_number(row.judged.indicator.r_q)))


def table_lines(
    rows: Sequence[Row], plain: Mapping[str, float], float_bytes: int, num_records: int
) -> list[str]:
    """The table of all quantizers, larger r_Q first, then their ranking and warnings.

    Parameters
    ----------
    plain : mapping of str to float
        Figures of the model without quantization.
    float_bytes : int
        Its size.
    num_records : int
        Public records that r_Q is from.
    """
    shown = next(iter(plain))
    width = max(len("quantizer"), *(len(row.name) for row in rows))
    lines = [
        f"{'quantizer':<{width}}  {'bytes':>9}  {'smaller':>7}  {'code-bits':>9}  {shown:>8}  {'r_Q':>10}  "
        f"{'95 % interval':>22}  candidates",
        f"{'float32':<{width}}  {float_bytes:>9}  {1.0:>6.1f}x  {'':>9}  {plain[shown]:>8.4f}",
    ]
    for row in _ranked(rows):
        indicator, interval = row.judged.indicator, row.judged.interval
        ends = f"{interval.low:.3g} to {interval.high:.3g}" if interval.is_given else "none"
        lines.append(
            f"{row.name:<{width}}  {row.size:>9}  {float_bytes / row.size:>6.1f}x  {row.entropy:>9.2f}  "
            f"{row.figures[shown]:>8.4f}  {_told(row):>10}  {ends:>22}  {indicator.num_candidates}"
        )
    lines += _ranking_lines(rows, num_records)
    told: dict[str, list[str]] = {}
    for row in rows:
        for warning in _warnings(row):
            told.setdefault(warning, []).append(row.name)
    lines += [
        f"warning, {'all quantizers' if len(names) == len(rows) > 1 else ', '.join(names)}: {warning}"
        for warning, names in told.items()
    ]
    return lines


def _ranking_lines(rows: Sequence[Row], num_records: int) -> list[str]:
    """The order of those that have one, and who is not in it."""
    defined = [row for row in _ranked(rows) if not math.isnan(row.judged.indicator.r_q)]
    lines = []
    if len(defined) > 1:
        lines.append(
            f"most secure against membership inference first, by r_Q on {num_records} public records: "
            f"{' > '.join(row.name for row in defined)}; one run's ranking is a weak one (docs/r_q_study.md)"
        )
    noise = [row.name for row in defined if row.judged.indicator.below_resolution]
    if len(noise) > 1:
        lines.append(f"below 1/(2n), so that noise alone orders them: {', '.join(noise)}")
    missing: dict[str, list[str]] = {}
    for row in rows:
        if math.isnan(row.judged.indicator.r_q):
            missing.setdefault(row.judged.indicator.statement, []).append(row.name)
        if not row.judged.interval.is_given and not math.isnan(row.judged.indicator.r_q):
            missing.setdefault(row.judged.interval.statement, []).append(row.name)
    lines += [f"{', '.join(names)}: {why}" for why, names in missing.items()]
    return lines


def _warnings(row: Row) -> list[str]:
    own = row.judged.warning
    return [*row.judged.indicator.warnings, *([own] if own else [])]


def _told(row: Row) -> str:
    indicator = row.judged.indicator
    if math.isnan(indicator.r_q):
        return "undefined"
    if indicator.below_resolution:
        return f"< {indicator.resolution:.2g}"
    return f"{indicator.r_q:.4g}"
