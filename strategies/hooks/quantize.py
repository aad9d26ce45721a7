"""The hook that quantizes a finished run's model and says how private each quantizer leaves it (r_Q)."""

from __future__ import annotations

import json
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
    QuantizedModel,
    Scheme,
    encode_model,
    name_of,
    quantize_model,
    scheme_of,
    theoretical_bits,
)
from fedveil.strategies.client_membership import client_lines
from fedveil.strategies.hooks.configurations import (
    code_entropy,
    distinct_configurations,
    judge,
    late_models,
    stacked,
)
from fedveil.strategies.hooks.finished_run import FinishedRun
from fedveil.strategies.hooks.quantizer_table import Row, order_of, table_lines, values_of
from fedveil.strategies.hooks.reason import reason_of

__all__ = ["DEFAULT_SCHEMES", "quantize", "schemes_of"]

_T = TypeVar("_T")
_BYTES_AT_ONCE = 1 << 27  # of models whose losses are taken together
DEFAULT_SCHEMES = "sign,ternary-33,ternary-90,int2,int4,int8"


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What is known of a quantizer before any forward pass."""

    name: str
    model: QuantizedModel
    data: bytes
    bits: float
    entropy: float
    found: Sequence[tuple[int, QuantizedModel]]


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
    for line in table_lines(rows, plain, float_bytes, run.num_records):
        run.say(line)
    for line in () if run.clients is None else client_lines(run.clients):
        run.say(line)


def _rows(
    run: FinishedRun, schemes: Sequence[Scheme], note: Mapping[str, Any], most: int, last: int
) -> list[Row]:
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

    # beside forward passes: preparing the next quantizer, syncing files, taking moments
    with ThreadPoolExecutor(1) as beside:
        begun: list[tuple[Scheme, Callable[[], Row]]] = []
        coming = beside.submit(_prepare, run, note, last, schemes[0])
        for place, scheme in enumerate(schemes):
            ready = attempt(scheme, coming.result)
            if place + 1 < len(schemes):  # one ahead, no more: each holds a model's candidates
                coming = beside.submit(_prepare, run, note, last, schemes[place + 1])
            for prepared in ready:
                begun += [
                    (scheme, finish)
                    for finish in attempt(scheme, partial(_begin, run, prepared, most, beside))
                ]
    rows = [row for scheme, finish in begun for row in attempt(scheme, finish)]
    if not rows:
        raise failed[0]
    return rows


def _prepare(run: FinishedRun, note: Mapping[str, Any], last: int, scheme: Scheme) -> _Prepared:
    """The model in a quantizer, its file, and its distinct configurations along the run."""
    model = quantize_model(run.arrays, scheme, note)
    data = encode_model(model)
    late = late_models(run.trajectory, float(run.config["trajectory-skip"]))
    found = distinct_configurations(model, last, late)
    bits, entropy = theoretical_bits(run.arrays, scheme), code_entropy(model)
    return _Prepared(name_of(scheme), model, data, bits, entropy, found)


def _begin(run: FinishedRun, prepared: _Prepared, most: int, beside: Executor) -> Callable[[], Row]:
    """Do all of a row that needs a forward pass; what is given back waits for the rest, or raises what went wrong."""
    name, size, bits, entropy = prepared.name, len(prepared.data), prepared.bits, prepared.entropy
    written = beside.submit(run.folder.add, f"quantized/{name.replace('/', '-')}.safetensors", prepared.data)
    models = [one for _, one in prepared.found]
    # some at a time: all of a large model's candidates would not fit
    step = max(1, _BYTES_AT_ONCE // max(1, sum(array.nbytes for array in run.arrays.values())))
    losses = np.concatenate(
        [run.losses(stacked(models[start : start + step])) for start in range(0, len(models), step)], axis=1
    )
    rounds = [server_round for server_round, _ in prepared.found]
    judged = beside.submit(judge, rounds, losses, most=most)
    figures = run.figures(prepared.model.arrays())

    def finish() -> Row:
        written.result()
        return Row(name, size, bits, entropy, figures, judged.result())

    return finish


def _note(run: FinishedRun) -> dict[str, Any]:
    """What a file says of its model; nothing of when or where it ran, so that equal models give equal bytes."""
    _, note = run.folder.load_model()
    return {
        "app": run.app,
        "model": {key: value for key, value in note.items() if key not in ("guarantees", "readings")},
    }


def _document(
    run: FinishedRun, rows: Sequence[Row], plain: Mapping[str, float], float_bytes: int
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
    mine = {row.name: values_of(row) for row in rows}
    for name in mine.keys() & answered.keys():
        mine[name]["clients"] = answered[name]
    values = _earlier(run, head) | mine
    defined = [name for name in values if values[name]["r_q"] is not None]
    ranking = sorted(defined, key=lambda name: -order_of(values[name]["r_q"]))
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
            order_of(one["r_q"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not what a run writes ({error}): move it away.") from error
    return values if all(found.get(key) == value for key, value in head.items()) else {}
