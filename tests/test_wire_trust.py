"""Nothing from the wire is executed, unpickled, or used as a path; arrays from it are no larger than they must be."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st

import fedveil
from fedveil.wire import MalformedReply
from fedveil.wire_arrays import read_exactly

PACKAGE = Path(fedveil.__file__).resolve().parent
APPS = PACKAGE.parent / "flwr_apps"
LOADERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
    "yaml",
}
RUNNERS = {"eval", "exec", "compile", "__import__"}
OF_THE_WIRE = (
    *("wire.py", "wire_arrays.py", "client_mask.py", "loss_query.py"),
    *("clients/replies.py", "clients/modulated_request.py", "clients/modulated_replies.py"),
    *("clients/loss_release.py", "clients/modulated_cohort.py", "clients/cohort.py"),
)


def sources() -> list[Path]:
    """The package and the apps, links followed, each file once."""
    found = set()
    for folder in (PACKAGE, APPS):
        for path, _, names in os.walk(folder, followlinks=True):
            found |= {(Path(path) / name).resolve() for name in names if name.endswith(".py")}
    return sorted(found)


def offences(tree: ast.AST) -> list[str]:
    """Whatever in a module could run or unpickle what somebody sent."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"import {name}" for name in names if name.partition(".")[0] in LOADERS]
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in RUNNERS:
            found.append(f"{function.id}()")
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            called = f"{function.value.id}.{function.attr}"
            told = {word.arg: word.value for word in node.keywords}
            safe = isinstance(told.get("allow_pickle"), ast.Constant) and told["allow_pickle"].value is False  # type: ignore[attr-defined]
            if called in ("np.load", "numpy.load") and not safe:
                found.append(called)
            if called in ("torch.load", "builtins.eval", "builtins.exec", "pd.read_pickle"):
                found.append(called)
    return found


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from pickle import loads", "import torch, dill as d", "import yaml"),
        *("eval(text)", "exec(text)", "compile(text, '', 'exec')", "__import__(name)"),
        *(
            "np.load(file)",
            "np.load(file, allow_pickle=True)",
            "np.load(file, allow_pickle=flag)",
            "torch.load(file)",
        ),
    ],
)
def test_an_offence_would_be_seen(code):
    assert offences(ast.parse(code))


def test_module_evaluation_and_safe_arrays_are_no_offence():
    assert not offences(ast.parse("module.eval(); re.compile(text); np.load(file, allow_pickle=False)"))


def test_nothing_is_unpickled_or_evaluated_anywhere():
    found = {
        str(path.relative_to(PACKAGE.parent)): offences(ast.parse(path.read_text())) for path in sources()
    }
    assert len(found) > 200
    assert {name: listed for name, listed in found.items() if listed} == {}


def test_modules_that_read_messages_open_no_files():
    """The one that names a path is the hash of the installed source, which no message decides."""
    for name in OF_THE_WIRE + tuple(
        f"strategies/{path.name}" for path in (PACKAGE / "strategies").glob("*.py")
    ):
        tree = ast.parse((PACKAGE / name).read_text())
        called = {
            node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        assert "open" not in called, name
        assert name == "wire.py" or "Path" not in called, name


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_array_is_read_as_it_was_sent_and_cannot_be_written_to():
    got = read_exactly("w", Array(ARRAY), np.dtype(np.float32), (2, 3))
    assert np.array_equal(got, ARRAY)
    assert not got.flags.writeable


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_are_the_right_ones_or_refused(inserted, at):
    sent = Array(ARRAY)
    damaged = sent.data[:at] + inserted + sent.data[at + len(inserted) :]
    try:
        got = read_exactly(
            "w", Array("float32", (2, 3), "numpy.ndarray", damaged), np.dtype(np.float32), (2, 3)
        )
    except MalformedReply:
        return
    assert got.shape == (2, 3)
    assert np.isfinite(got).all()
    assert len(damaged) == len(sent.data)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (6,), (2**40, 2**20), (-2, -3)])
def test_another_shape_is_refused_before_its_size_is_taken(shape):
    with pytest.raises(MalformedReply, match=r"expected numpy\.ndarray float32"):
        read_exactly(
            "w", Array("float32", shape, "numpy.ndarray", Array(ARRAY).data), np.dtype(np.float32), (2, 3)
        )
