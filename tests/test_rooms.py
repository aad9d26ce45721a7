"""The building: rooms are links, nothing hides another package, layers import what they may, nothing is global."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedveil

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "fedveil"
ROOMS = {
    "strategies": "strategies",
    "clients": "clients",
    "privacy": "privacy",
    "datasets": "datasets",
    "apps": "flwr_apps",
}
NO_PACKAGES = ("datasets", "flwr_apps", "tests", "benchmarks")


def python_files(*folders: Path) -> list[Path]:
    """All Python files in these folders, links followed, each once."""
    found = set()
    for folder in folders:
        for path, _, names in os.walk(folder, followlinks=True):
            found |= {(Path(path) / name).resolve() for name in names if name.endswith(".py")}
    return sorted(found)


OURS = python_files(PACKAGE, CHECKOUT / "flwr_apps", CHECKOUT / "benchmarks")


def name_of(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def loaded_by(statement: str, *, folder: Path = CHECKOUT) -> set[str]:
    """Top-level names of all modules that a fresh process has after this statement."""
    code = f"{statement}\nimport sys\nprint(*sorted(name for name in sys.modules if '.' not in name))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


# rooms


def test_the_package_under_test_is_this_checkout():
    assert Path(fedveil.__file__).resolve().parent == PACKAGE


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_a_relative_link(room):
    link = PACKAGE / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{ROOMS[room]}"
    assert link.is_dir()


def test_git_keeps_rooms_as_links():
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "fedveil"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    modes = {line.split("\t")[1]: line.split()[0] for line in listed.stdout.splitlines()}
    assert {modes.get(f"fedveil/{room}") for room in ROOMS} == {"120000"}


@pytest.mark.parametrize("folder", NO_PACKAGES)
def test_folders_that_lie_on_the_path_of_others_are_no_packages(folder):
    """A regular package named ``datasets`` hides Hugging Face's in every Ray worker."""
    inits = [name_of(path) for path in python_files(CHECKOUT / folder) if path.name == "__init__.py"]
    # an app's own package, one level further down, is a package if it likes
    assert [path for path in inits if not (folder == "flwr_apps" and len(Path(path).parts) > 3)] == []


@pytest.mark.parametrize("folder", [CHECKOUT, CHECKOUT / "tests", CHECKOUT / "flwr_apps"])
def test_datasets_is_hugging_faces_from_everywhere(folder):
    code = "import importlib.util as u; print(u.find_spec('datasets').origin)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert Path(result.stdout.strip()).name == "__init__.py"
    assert not Path(result.stdout.strip()).is_relative_to(CHECKOUT / "datasets")


def test_importing_datasets_in_the_checkout_gives_hugging_faces():
    code = "import datasets; print(datasets.Dataset.from_dict({'x': [1, 2]}).num_rows)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split()[-1] == "2"


# layers


def test_privacy_imports_no_torch_no_flower_and_no_ray():
    every = "\n".join(
        f"import fedveil.privacy.{path.stem}"
        for path in (PACKAGE / "privacy").glob("*.py")
        if path.stem != "__init__"
    )
    loaded = loaded_by(every)
    assert not loaded & {
        "torch",
        "flwr",
        "ray",
        "torchvision",
        "pandas",
        "pyarrow",
        "datasets",
        "flwr_datasets",
    }
    assert "dp_accounting" not in loaded  # 1 s, and full-batch runs never need it


def test_privacy_does_its_sums_without_them_too():
    loaded = loaded_by(
        "from fedveil.privacy import *\n"
        "step = plan_step(num_records=100, clip_norm=1.0, calibration='uniform', epsilon=1.0, delta=1e-5, "
        "num_releases=3, sampling_rate=0.5)\n"
        "Ledger(step.releases(0, 1, 0)).guarantee(0, 'record', 1e-5)"
    )
    assert "dp_accounting" in loaded
    assert not loaded & {"torch", "flwr", "ray"}


def test_streams_import_numpy_and_scipy_only():
    assert not loaded_by("import fedveil.streams") & {"torch", "flwr", "ray", "pydantic", "pyarrow"}


@pytest.mark.parametrize("module", ["clients", "strategies", "config", "artifacts", "wire", "models"])
def test_heavy_packages_wait_until_they_are_needed(module):
    loaded = loaded_by(f"import fedveil.{module}")
    heavy = {"ray", "torchvision", "flwr_datasets", "datasets", "mlxtend", "statsmodels", "sklearn", "pandas"}
    assert not loaded & heavy


def test_a_node_without_networks_needs_no_torch():
    assert "torch" not in loaded_by(
        "import fedveil.strategies, fedveil.wire, fedveil.artifacts, fedveil.threads"
    )


# what no file of ours does

BANNED_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "random",
}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
GLOBAL_TORCH = {
    "manual_seed", "seed", "set_rng_state", "rand", "randn", "randint", "randperm", "normal", "bernoulli",
    "multinomial", "rand_like", "randn_like", "load", "save",
}  # fmt: skip


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or an attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def sins(source: str) -> Iterator[str]:
    """What a file does and must not."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                if alias.name.partition(".")[0] in BANNED_MODULES:
                    yield f"line {node.lineno}: imports {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if (node.module or "").partition(".")[0] in BANNED_MODULES:
                    yield f"line {node.lineno}: imports {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, _, rest = dotted(node).partition(".")
            name = aliases.get(first, first) + (f".{rest}" if rest else "")
            # a Generator is named where a caller gives one
            allowed = ("numpy.random.Philox", "numpy.random.Generator")
            if name.startswith("numpy.random.") and name not in allowed:
                yield f"line {node.lineno}: {name}"
            if (
                name.startswith("torch.")
                and name.rpartition(".")[0] in ("torch", "torch.random", "torch.cuda")
                and name.rpartition(".")[2] in GLOBAL_TORCH
            ):
                yield f"line {node.lineno}: {name}"
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
                yield f"line {node.lineno}: calls {node.func.id}"
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"line {node.lineno}: allow_pickle"
                if keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"line {node.lineno}: a shell"
        if isinstance(node, ast.Assert):
            yield f"line {node.lineno}: assert"
        if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
            broad = node.type is None or dotted(node.type) in ("Exception", "BaseException")
            if broad:
                yield f"line {node.lineno}: swallows every exception"


def test_there_are_files_to_read():
    assert len(OURS) > 60
    assert {name_of(path).partition("/")[0] for path in OURS} >= {"fedveil", *ROOMS.values()}


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_no_pickle_no_eval_no_global_randomness(path):
    found = list(sins(path.read_text(encoding="utf-8")))
    if path.is_relative_to(CHECKOUT / "benchmarks"):
        # nobody's input comes there, and nobody's noise: numpy's own generator is what ours is measured against
        found = [sin for sin in found if not sin.endswith((": assert", ": numpy.random.default_rng"))]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import random",
        "eval('1')",
        "import numpy as np\nnp.random.seed(1)",
        "import numpy\nnumpy.random.default_rng(1)",
        "from numpy.random import normal\nnormal()",
        "from numpy import random as r\nr.normal()",
        "import torch\ntorch.manual_seed(0)",
        "import torch\ntorch.randn(3)",
        "import torch as t\nt.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "assert True",
        "try:\n    pass\nexcept Exception:\n    pass",
    ],
)
def test_such_a_file_would_be_noticed(source):
    assert list(sins(source))


def test_only_streams_make_random_words():
    makers = {
        name_of(path)
        for path in OURS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if dotted(node) in ("os.urandom", "np.random.Philox", "numpy.random.Philox", "secrets.randbits")
    }
    assert makers == {"fedveil/streams.py"}


def test_no_file_imports_a_room_by_its_folder():
    """``from privacy import ...`` works in a checkout and nowhere else."""
    wrong = []
    for path in OURS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            wrong += [
                f"{name_of(path)}: {name}"
                for name in names
                if name.partition(".")[0] in {"privacy", "clients", "strategies", "flwr_apps"}
            ]
    assert wrong == []


def test_every_module_says_what_it_is_first():
    silent = [
        name_of(path) for path in OURS if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_an_app_lists_no_dependency_that_flower_would_install():
    for file in (CHECKOUT / "flwr_apps").glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        assert project["dependencies"] == [], file
