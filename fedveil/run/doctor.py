"""Checks of an installation: what goes wrong silently, looked at aloud."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedveil
from fedveil.artifacts import NodeLedger
from fedveil.clients.policy import read_policy
from fedveil.config.node_policy import policy_path
from fedveil.config.places import node_ledger_path
from fedveil.run.scope import executable

__all__ = ["Check", "examine"]

_ROOMS = ("strategies", "clients", "privacy", "datasets", "apps")
_FREE_GIGABYTES = 2.0
_LEDGER_GIGABYTES = 0.05


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes
    ----------
    name : str
        What was looked at.
    ok : bool
        Whether it is as it must be.
    detail : str
        What was found; for a failure also what to do.
    """

    name: str
    ok: bool
    detail: str


def examine(*, node: bool = False) -> list[Check]:
    """Run all checks; none of them changes anything.

    Parameters
    ----------
    node : bool
        Whether this machine serves runs as a node of a deployment: that takes a ledger, and nothing that simulates.
    """
    checks: dict[str, Callable[[], str]] = {"python": _python, "flwr": _flower}
    command = "flower-supernode" if node else "flower-superlink"
    checks[command] = lambda: str(executable(command))
    checks |= {f"room {room}": partial(_room, room) for room in _ROOMS}
    checks["torch"] = partial(_imported, "torch")
    if node:
        checks["ledger"] = _ledger
    else:
        checks |= {
            "ray": partial(_imported, "ray"),
            "datasets": _hugging_face_datasets,
            "free disk": _free_disk,
        }
    checks["policy"] = _policy
    return [_checked(name, check) for name, check in checks.items()]


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        return Check(name, False, " ".join(str(error).split()))


def _python() -> str:
    return f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"


def _flower() -> str:
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise RuntimeError("not installed; pip install 'flwr[simulation]>=1.42,<1.43'.") from None
    if not found.startswith("1.42."):
        raise RuntimeError(f"{found}; FedVeil relies on 1.42: pip install 'flwr[simulation]>=1.42,<1.43'.")
    return found


def _room(room: str) -> str:
    """A room is a link to a folder of the checkout, or a folder of the wheel; a file is a lost link."""
    package = Path(fedveil.__file__).parent
    place = package / room
    if place.is_file():
        raise RuntimeError(
            f"{place} is a file, not a link: the archive or file system lost the links (on Windows use WSL2)."
        )
    if not place.is_dir():
        raise RuntimeError(f"{place} does not exist: reinstall FedVeil, or check it out again with links.")
    if room != "apps":
        import_module(f"fedveil.{room}")
    if (place / "__init__.py").exists() and room in {"datasets", "apps"}:
        raise RuntimeError(
            f"{place} must have no __init__.py: as a package of that name it hides other packages."
        )
    return f"link to {os.readlink(place)}" if place.is_symlink() else str(place)


def _imported(name: str) -> str:
    module = import_module(name)
    return str(getattr(module, "__version__", "installed"))


def _hugging_face_datasets() -> str:
    """A package ``datasets`` in the working folder, which is on the path of Ray's workers, hides it."""
    spec = importlib.util.find_spec("datasets")
    origin = spec.origin if spec is not None else None
    if origin is None or not {"site-packages", "dist-packages"} & set(Path(origin).parts):
        where = origin or "nowhere"
        raise RuntimeError(
            f"Hugging Face datasets is hidden or missing (found: {where}); pip install flwr-datasets."
        )
    here = Path.cwd() / "datasets" / "__init__.py"
    if here.exists():
        raise RuntimeError(
            f"{here} hides Hugging Face datasets from code that runs in this folder; remove it."
        )
    return origin


def _policy() -> str:
    """A node whose policy cannot be used serves no run."""
    path = policy_path()
    if path is None:
        return "none: as a node, this machine serves every run (docs/policy.md)"
    read_policy(path)
    return f"{path}; `fedveil policy` explains it"


def _ledger() -> str:
    """A node that cannot write down what leaves it lets nothing leave."""
    path = node_ledger_path()
    there = os.path.lexists(path)  # a link to nothing is a ledger that is missing, and no new one
    folder = _existing(path.parent)
    place = path if there and os.path.exists(path) else folder
    for needed in (place, folder):  # the folder too: a transaction has its journal there
        if not os.access(needed, os.W_OK):
            raise RuntimeError(
                f"{needed} cannot be written by this user, so that no release can leave: change its owner."
            )
    free = shutil.disk_usage(place).free / 1e9
    if free < _LEDGER_GIGABYTES:
        raise RuntimeError(
            f"{free:.2f} GB free at {place}; a node's ledger needs {_LEDGER_GIGABYTES:g} GB: make room."
        )
    runs = len(NodeLedger(path).spent_by_run("record")) if there else 0
    return f"{path}, {runs} run(s), {free:.1f} GB free"


def _free_disk() -> str:
    found = []
    for place in sorted({tempfile.gettempdir(), os.environ.get("FEDVEIL_HOME", os.path.expanduser("~"))}):
        existing = _existing(Path(place))
        free = shutil.disk_usage(existing).free / 1e9
        if free < _FREE_GIGABYTES:
            raise RuntimeError(
                f"{free:.1f} GB free at {existing}; Ray and run folders need {_FREE_GIGABYTES:.0f} GB."
            )
        found.append(f"{free:.0f} GB at {existing}")
    return ", ".join(found)


def _existing(place: Path) -> Path:
    """The innermost folder of a path that exists, as far as this user can see."""
    while not os.path.exists(place):
        place = place.parent
    return place
