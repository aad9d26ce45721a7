"""Runs that die by SIGKILL at a chosen instant, for tests of resuming.

Reads a JSON list of ``{"app": ..., "settings": {...}, "at": ..., "round": ...}`` from standard input and starts each
as a process of its own, one after another; without "app" it is "fedsva". ``at`` is one of the instants of :func:`die`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from fedveil.artifacts import NodeLedger, RunFolder, run_folder
from fedveil.run import run_app


def die(at: str, number: int, *, with_ranges: bool) -> None:
    """Arrange for this process to be killed ``at`` that instant of round ``number``; 0 is the ranges', if any."""

    def kill(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def before(function: Callable[..., Any], is_it: Callable[..., bool]) -> Callable[..., Any]:
        return lambda *given, **named: (kill() if is_it(*given) else None, function(*given, **named))[1]

    def after(function: Callable[..., Any], is_it: Callable[..., bool]) -> Callable[..., Any]:
        return lambda *given, **named: (function(*given, **named), kill() if is_it(*given) else None)[0]

    def is_round(_: RunFolder, checkpoint: Any) -> bool:
        if with_ranges and number == 0 and "ranges/center" not in checkpoint.optimizer:
            return False  # saved before anybody was asked
        return bool(checkpoint.round == number)

    if at == "the round was saved":
        RunFolder.save_checkpoint = after(RunFolder.save_checkpoint, is_round)  # type: ignore[method-assign]
    elif at == "every node replied, nothing saved":
        RunFolder.save_checkpoint = before(RunFolder.save_checkpoint, is_round)  # type: ignore[method-assign]
    elif at == "the first node's releases are in its ledger":
        NodeLedger.record = after(  # type: ignore[method-assign]
            NodeLedger.record, lambda ledger, run, digests, rows: rows[0].round == number
        )
    elif at == "the first node's messages are in its ledger":
        NodeLedger.record_cohort = after(  # type: ignore[method-assign]
            NodeLedger.record_cohort, lambda ledger, run, digest, cohort: cohort.release.round == number
        )
    elif at == "a comparator's first messages are in its ledger":
        NodeLedger.record_cohort = after(  # type: ignore[method-assign]
            NodeLedger.record_cohort, lambda ledger, run, digest, cohort: run.endswith("-dp-sgd")
        )
    elif at == "the ledger is written, the model not":
        run_folder.write_bytes = before(
            run_folder.write_bytes, lambda path, data: path.name == "model.safetensors"
        )
    else:
        raise ValueError(f"no such instant: {at}")


def main() -> None:
    """Start and lose every run."""
    cases = json.load(sys.stdin)
    app = cases[0].get("app", "fedsva")
    warm = {**cases[0]["settings"], "num-server-rounds": 1, "output-dir": tempfile.mkdtemp()}
    run_app(app, "in-process", warm)  # what is imported at a first use is there for all
    for case in cases:
        child = os.fork()
        if child == 0:
            with_ranges = case["settings"].get("standardization") == "estimated"
            die(case["at"], case["round"], with_ranges=with_ranges)
            os._exit(run_app(app, "in-process", case["settings"]))
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise RuntimeError(f"{case} was not killed: {status}")


if __name__ == "__main__":
    main()
