"""The hook that quantizes a finished run's model and says how private each quantizer leaves it (r_Q)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.plugins import installed, resolve
from fedveil.quantization import (
    Scheme,
    encode_model,
    name_of,
    quantize_model,
    scheme_of,
    theoretical_bits,
)
from fedveil.strategies.hooks.configurations import Judged, distinct_configurations, judge, stacked
from fedveil.strategies.hooks.finished_run import FinishedRun

__all__ = ["DEFAULT_SCHEMES", "quantize", "schemes_of"]

DEFAULT_SCHEMES = "sign,ternary-33,ternary-90,int2,int4,int8"


@dataclass(frozen=True, eq=False)
class _Row:
    """One quantizer of the report."""

    name: str
    size: int
    bits: float
    figures: Mapping[str, float]
    judged: Judged


def schemes_of(text: str) -> tuple[Scheme, ...]:
    """The quantizers that a configuration names, with commas, FedVeil's own and plugins'.

    Raises
    ------
    ValueError
        If a name is not known, or none is given.
    """
    others = {
        plugin.name: resolve("quantizer", plugin.name)
        for plugin in installed("quantizer")
        if not plugin.is_own
    }
    schemes = tuple(scheme_of(name.strip(), others) for name in text.split(",") if name.strip())
    if not schemes:
        raise ValueError("quantizers is empty: name at least one, as in 'sign,int4'.")
    return tuple({name_of(scheme): scheme for scheme in schemes}.values())


def quantize(run: FinishedRun) -> None:
    """Write the model in each quantizer, with its size, its figures and r_Q; print them and their ranking.

    Writes ``quantized/<scheme>.safetensors`` and ``rq.json`` into the run's folder. r_Q is of the server's public
    records: no client is asked, and nothing is released.

    Raises
    ------
    ValueError
        If a quantizer is not known, the model has nothing to quantize or is not finite, there is no public record, or
        no trajectory was kept.
    """
    if run.num_records == 0:
        raise ValueError("there is no public record to judge quantizers on: set test-fraction or test-path.")
    if not run.trajectory:
        raise ValueError(
            f"{run.folder.path} holds no trajectory, so that no competitor of the final model is known: run again with "
            "trajectory above 0."
        )
    most = int(run.config["candidates"])
    last = run.trajectory[-1][0]
    float_bytes = sum(array.nbytes for array in run.arrays.values())
    rows = [_row(run, scheme, most, last) for scheme in schemes_of(str(run.config["quantizers"]))]
    plain = run.figures(run.arrays)
    document = _document(run, rows, plain, float_bytes)
    run.folder.add("rq.json", json.dumps(document, indent=1, allow_nan=False).encode())
    for line in _lines(run, rows, plain, float_bytes):
        run.say(line)


def _row(run: FinishedRun, scheme: Scheme, most: int, last: int) -> _Row:
    name = name_of(scheme)
    note = {"app": run.app, "run": run.folder.name, "model": _model_note(run)}
    model = quantize_model(run.arrays, scheme, note)
    data = encode_model(model)
    run.folder.add(f"quantized/{name.replace('/', '-')}.safetensors", data)
    found = distinct_configurations(model, last, run.trajectory)
    losses = run.losses(stacked([one for _, one in found]))
    judged = judge([server_round for server_round, _ in found], losses, most=most)
    return _Row(name, len(data), theoretical_bits(run.arrays, scheme), run.figures(model.arrays()), judged)


def _model_note(run: FinishedRun) -> dict[str, Any]:
    _, note = run.folder.load_model()
    return {key: value for key, value in note.items() if key not in ("guarantees", "readings")}


def _document(
    run: FinishedRun, rows: Sequence[_Row], plain: Mapping[str, float], float_bytes: int
) -> dict[str, Any]:
    head = {
        "records": run.num_records,
        "records-are": "the server's public ones, which no client trained on",
        "scales": "frozen on the final model",
        "most-candidates": int(run.config["candidates"]),
        "float32": {"bytes": float_bytes, **plain},
    }
    values = _earlier(run, head) | {row.name: _values(row) for row in rows}
    ranking = sorted(values, key=lambda name: -_order(values[name]["r_q"]))
    return {**head, "ranking": ranking, "quantizers": values}


def _earlier(run: FinishedRun, head: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier quantization of this run found under the same conditions; its files are still there."""
    file = run.folder.path / "rq.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
        values: dict[str, Any] = found.pop("quantizers")
        for one in values.values():
            _order(one["r_q"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not what a run writes ({error}): move it away.") from error
    return values if all(found.get(key) == value for key, value in head.items()) else {}


def _order(r_q: float | str | None) -> float:
    """r_Q as it is in JSON, as a number to sort by: undefined below all."""
    return -1.0 if r_q is None else float(r_q)


def _values(row: _Row) -> dict[str, Any]:
    indicator, interval = row.judged.indicator, row.judged.interval
    pair = None
    if indicator.runner_up is not None:
        pair = {
            "best-round": row.judged.rounds[indicator.best],
            "runner-up-round": row.judged.rounds[indicator.runner_up],
            "gap": _number(indicator.gap),
            "deviation": _number(indicator.deviation),
        }
    return {
        "bytes": row.size,
        "theoretical-bytes": row.bits / 8,
        **row.figures,
        "r_q": _number(indicator.r_q),
        "low": _number(interval.low),
        "high": _number(interval.high),
        "level": interval.level,
        "candidates": indicator.num_candidates,
        "distinct": row.judged.num_distinct,
        "pair": pair,
        "statement": indicator.statement,
        "interval": interval.statement,
        "warnings": list(indicator.warnings),
    }


def _number(value: float) -> float | str | None:
    """JSON has no infinity and no NaN."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "inf"


def _ranked(rows: Sequence[_Row]) -> list[_Row]:
    """Larger r_Q first; undefined ones last."""
    return sorted(rows, key=lambda row: -_order(_number(row.judged.indicator.r_q)))


def _lines(run: FinishedRun, rows: Sequence[_Row], plain: Mapping[str, float], float_bytes: int) -> list[str]:
    shown = next(iter(plain))
    width = max(len("quantizer"), *(len(row.name) for row in rows))
    lines = [
        f"{'quantizer':<{width}}  {'bytes':>9}  {'smaller':>7}  {shown:>8}  {'r_Q':>10}  {'95 % interval':>22}  "
        "candidates",
        f"{'float32':<{width}}  {float_bytes:>9}  {1.0:>6.1f}x  {plain[shown]:>8.4f}",
    ]
    for row in _ranked(rows):
        indicator, interval = row.judged.indicator, row.judged.interval
        ends = f"{interval.low:.3g} to {interval.high:.3g}" if interval.is_given else "none"
        lines.append(
            f"{row.name:<{width}}  {row.size:>9}  {float_bytes / row.size:>6.1f}x  {row.figures[shown]:>8.4f}  "
            f"{_told(row):>10}  {ends:>22}  {indicator.num_candidates}"
        )
    ranking = " > ".join(row.name for row in _ranked(rows))
    lines.append(
        f"most secure against membership inference first, by r_Q on {run.num_records} public records: {ranking}"
    )
    told: dict[str, list[str]] = {}
    for row in rows:
        for warning in row.judged.indicator.warnings:
            told.setdefault(warning, []).append(row.name)
    lines += [
        f"warning, {'all quantizers' if len(names) == len(rows) > 1 else ', '.join(names)}: {warning}"
        for warning, names in told.items()
    ]
    return lines


def _told(row: _Row) -> str:
    indicator = row.judged.indicator
    if math.isnan(indicator.r_q):
        return "undefined"
    if indicator.below_resolution:
        return f"< {indicator.resolution:.2g}"
    return f"{indicator.r_q:.4g}"
