"""The hook that quantizes a finished run's model and says how private each quantizer leaves it (r_Q)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedveil.artifacts import WriteFailed
from fedveil.plugins import find, installed, resolve
from fedveil.quantization import (
    SCHEMES,
    Scheme,
    encode_model,
    name_of,
    quantize_model,
    scheme_of,
    theoretical_bits,
)
from fedveil.strategies.client_membership import client_lines
from fedveil.strategies.hooks.configurations import (
    Judged,
    code_entropy,
    distinct_configurations,
    judge,
    late_models,
    stacked,
)
from fedveil.strategies.hooks.finished_run import FinishedRun
from fedveil.strategies.hooks.reason import reason_of
from fedveil.strategies.json_number import json_number

__all__ = ["DEFAULT_SCHEMES", "quantize", "schemes_of"]

_T = TypeVar("_T")
_BYTES_AT_ONCE = 1 << 27  # of models whose losses are taken together
DEFAULT_SCHEMES = "sign,ternary-33,ternary-90,int2,int4,int8"


@dataclass(frozen=True, eq=False)
class _Row:
    """One quantizer of the report."""

    name: str
    size: int
    bits: float
    entropy: float
    figures: Mapping[str, float]
    judged: Judged


def schemes_of(text: str) -> tuple[Scheme, ...]:
    """The quantizers that a configuration names, with commas, FedVeil's own and plugins'.

    Raises
    ------
    ValueError
        If a name is not known, or none is given.
    """
    schemes = tuple(_scheme(name.strip()) for name in text.split(",") if name.strip())
    if not schemes:
        raise ValueError("quantizers is empty: name at least one, as in 'sign,int4'.")
    return tuple({name_of(scheme): scheme for scheme in schemes}.values())


def _scheme(name: str) -> Scheme:
    """One quantizer; of plugins only the one that is named is imported."""
    base = name.partition("/")[0]
    others = [plugin.name for plugin in installed("quantizer") if not plugin.is_own]
    if base not in others or base in SCHEMES:
        try:
            return scheme_of(name)
        except ValueError as error:
            known = f" Installed packages add {', '.join(others)}." if others else ""
            raise ValueError(f"{error}{known}") from error
    scheme = scheme_of(name, {base: resolve("quantizer", base)})
    if scheme.base_name != base:
        raise ValueError(
            f"{find('quantizer', base)} calls itself {scheme.base_name!r}: its base_name must be the name that it is "
            "installed under."
        )
    return scheme


def quantize(run: FinishedRun) -> None:
    """Write the model in each quantizer, with its size, its figures and r_Q; print them and their ranking.

    Writes ``quantized/<scheme>.safetensors`` and ``rq.json`` into the run's folder. r_Q is of the server's public
    records: no client is asked, and nothing is released. What clients were asked before, at the end of training, is
    told beside it.

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
    schemes, note = schemes_of(str(run.config["quantizers"])), _note(run)
    rows = _rows(run, schemes, note, most, last)
    plain = run.figures(run.arrays)
    document = _document(run, rows, plain, float_bytes)
    run.folder.add("rq.json", json.dumps(document, indent=1, allow_nan=False).encode())
    for line in _lines(run, rows, plain, float_bytes):
        run.say(line)
    for line in () if run.clients is None else client_lines(run.clients):
        run.say(line)


def _rows(
    run: FinishedRun, schemes: Sequence[Scheme], note: Mapping[str, Any], most: int, last: int
) -> list[_Row]:
    """A row for each quantizer; one that fails is told by name, and if all do the first says why."""
    failed: list[Exception] = []

    def attempt(scheme: Scheme, work: Callable[[], _T]) -> list[_T]:
        try:
            return [work()]
        except WriteFailed:
            raise
        except Exception as error:  # a plugin's quantizer may fail in any way: the others' results stay
            run.say(f"quantizer {name_of(scheme)} failed: {reason_of(error)}")
            failed.append(error)
            return []

    with ThreadPoolExecutor(1) as beside:  # syncing files and taking moments need not wait for forward passes
        begun = [
            (scheme, finish)
            for scheme in schemes
            for finish in attempt(scheme, partial(_begin, run, scheme, note, most, last, beside))
        ]
    rows = [row for scheme, finish in begun for row in attempt(scheme, finish)]
    if not rows:
        raise failed[0]
    return rows


def _begin(
    run: FinishedRun, scheme: Scheme, note: Mapping[str, Any], most: int, last: int, beside: Executor
) -> Callable[[], _Row]:
    """Do all of a row that needs a forward pass; what is given back waits for the rest, or raises what went wrong."""
    name = name_of(scheme)
    model = quantize_model(run.arrays, scheme, note)
    data = encode_model(model)
    written = beside.submit(run.folder.add, f"quantized/{name.replace('/', '-')}.safetensors", data)
    found = distinct_configurations(
        model, last, late_models(run.trajectory, float(run.config["trajectory-skip"]))
    )
    models = [one for _, one in found]
    # some at a time: all of a large model's candidates would not fit
    step = max(1, _BYTES_AT_ONCE // max(1, sum(array.nbytes for array in run.arrays.values())))
    losses = np.concatenate(
        [run.losses(stacked(models[start : start + step])) for start in range(0, len(models), step)], axis=1
    )
    judged = beside.submit(judge, [server_round for server_round, _ in found], losses, most=most)
    figures = run.figures(model.arrays())

    def finish() -> _Row:
        written.result()
        bits, entropy = theoretical_bits(run.arrays, scheme), code_entropy(model)
        return _Row(name, len(data), bits, entropy, figures, judged.result())

    return finish


def _note(run: FinishedRun) -> dict[str, Any]:
    """What a file says of its model; nothing of when or where it ran, so that equal models give equal bytes."""
    _, note = run.folder.load_model()
    return {
        "app": run.app,
        "model": {key: value for key, value in note.items() if key not in ("guarantees", "readings")},
    }


def _document(
    run: FinishedRun, rows: Sequence[_Row], plain: Mapping[str, float], float_bytes: int
) -> dict[str, Any]:
    head = {
        "records": run.num_records,
        "records-are": "the server's public ones, which no client trained on",
        "scales": "frozen on the final model",
        "most-candidates": int(run.config["candidates"]),
        "trajectory-skip": float(run.config["trajectory-skip"]),
        "float32": {"bytes": float_bytes, **plain},
    }
    answered: Mapping[str, Any] = {}
    if run.clients is not None:
        head["clients"] = {key: value for key, value in run.clients.items() if key != "quantizers"}
        answered = run.clients["quantizers"]
    mine = {row.name: _values(row) for row in rows}
    for name in mine.keys() & answered.keys():
        mine[name]["clients"] = answered[name]
    values = _earlier(run, head) | mine
    defined = [name for name in values if values[name]["r_q"] is not None]
    ranking = sorted(defined, key=lambda name: -_order(values[name]["r_q"]))
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


def _ranked(rows: Sequence[_Row]) -> list[_Row]:
    """Larger r_Q first; undefined ones last."""
    return sorted(rows, key=lambda row: -_order(json_number(row.judged.indicator.r_q)))


def _lines(run: FinishedRun, rows: Sequence[_Row], plain: Mapping[str, float], float_bytes: int) -> list[str]:
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
    lines += _ranking_lines(run, rows)
    told: dict[str, list[str]] = {}
    for row in rows:
        for warning in _warnings(row):
            told.setdefault(warning, []).append(row.name)
    lines += [
        f"warning, {'all quantizers' if len(names) == len(rows) > 1 else ', '.join(names)}: {warning}"
        for warning, names in told.items()
    ]
    return lines


def _ranking_lines(run: FinishedRun, rows: Sequence[_Row]) -> list[str]:
    """The order of those that have one, and who is not in it."""
    defined = [row for row in _ranked(rows) if not math.isnan(row.judged.indicator.r_q)]
    lines = []
    if len(defined) > 1:
        lines.append(
            f"most secure against membership inference first, by r_Q on {run.num_records} public records: "
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


def _warnings(row: _Row) -> list[str]:
    own = row.judged.warning
    return [*row.judged.indicator.warnings, *([own] if own else [])]


def _told(row: _Row) -> str:
    indicator = row.judged.indicator
    if math.isnan(indicator.r_q):
        return "undefined"
    if indicator.below_resolution:
        return f"< {indicator.resolution:.2g}"
    return f"{indicator.r_q:.4g}"
