"""Hooks of a finished run: found by name, run in order, and none of them loses anything."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedveil.plugins import PluginError
from fedveil.strategies.hooks import hook_names, run_hooks

_SCENE = runpy.run_path(str(Path(__file__).with_name("finished_scene.py")))

Package = Callable[..., Path]

HOOKS = """
from pathlib import Path

def first(run):
    run.folder.add("order.txt", b"first")

def second(run):
    run.folder.add("order.txt", (run.folder.path / "order.txt").read_bytes() + b" second")

def raising(run):
    raise RuntimeError("broke in the\\n middle")

def silent(run):
    raise ValueError

def leaving(run):
    raise SystemExit(3)

def refusing(run):
    raise ValueError("there is nothing to do: leave the hook out.")
"""
NAMES = ("first", "second", "raising", "silent", "leaving", "refusing")


@pytest.fixture
def finished(tmp_path: Path) -> Any:
    """A finished run."""
    return _SCENE["Finished"](tmp_path)


@pytest.fixture
def hooks(package: Package) -> None:
    """A package with hooks of every temper."""
    points = {name: f"some_hooks:{name}" for name in NAMES} | {"gone": "no_such_module:f"}
    package("some-hooks", {"hook": points}, some_hooks=HOOKS)


@pytest.mark.parametrize("text", ["none", "", " , ", " none "])
def test_none_and_nothing_are_no_hooks(text: str):
    assert hook_names(text) == ()


@pytest.mark.usefixtures("hooks")
def test_names_keep_their_order_and_count_once():
    assert hook_names("second, quantize,second ,first") == ("second", "quantize", "first")


@pytest.mark.parametrize("text", ["quantise", "quantize,none"])
def test_an_unknown_hook_is_refused_with_those_there_are(text: str):
    with pytest.raises(PluginError, match=r"hook = '\w+' is not installed; .*quantize\.$"):
        hook_names(text)


@pytest.mark.usefixtures("hooks")
def test_hooks_run_in_the_order_of_their_names(finished: Any):
    assert run_hooks(("first", "second"), finished.run()) == ()
    assert finished.files["order.txt"] == b"first second"
    assert finished.said == []


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raising", "RuntimeError: broke in the middle"),
        ("silent", "ValueError"),
        ("leaving", "SystemExit: 3"),
        ("refusing", "there is nothing to do: leave the hook out."),
        ("gone", "hook 'gone' of some-hooks 1.0 cannot be imported from no_such_module:f: "),
    ],
)
def test_a_hook_that_fails_is_told_in_one_line_and_neither_stops_others_nor_loses_anything(
    finished: Any, name: str, reason: str
):
    before = finished.files
    assert run_hooks((name, "first"), finished.run()) == (name,)
    (line,) = finished.said
    assert line.startswith(f"hook {name!r} failed, the run's other results stay: {reason}")
    assert "\n" not in line
    assert finished.files == before | {"order.txt": b"first"}


@pytest.mark.usefixtures("hooks")
def test_an_interrupt_is_no_failure_of_a_hook(finished: Any, monkeypatch: pytest.MonkeyPatch):
    def interrupted(kind: str, name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedveil.strategies.hooks.running.resolve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_hooks(("first",), finished.run())
