"""Plugins: what a name in a configuration stands for, FedVeil's own or an installed package's.

A package gives a strategy, calibration, data set or model a name by an entry point; FedVeil's own have theirs the same
way. Names are read from the packages' metadata: nothing is imported until it is asked for, and only that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from types import MappingProxyType
from typing import Any

__all__ = ["GROUPS", "Checked", "Plugin", "PluginError", "check_all", "find", "installed", "load", "resolve"]

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "strategy": "fedveil.strategies",
        "calibration": "fedveil.calibrations",
        "dataset": "fedveil.datasets",
        "model": "fedveil.models",
        "hook": "fedveil.hooks",
        "quantizer": "fedveil.quantizers",
    }
)
"""Entry-point group of each kind of plugin; a kind is named as its key in a configuration."""

_OURS = "fedveil"
_REFERENCE = re.compile(r"(?P<module>[\w.]+)\s*:\s*(?P<object>[\w.]+)\s*(\[.*\])?")  # extras are pip's
_CALLED = ("strategy", "dataset", "model", "hook")  # calibrations and quantizers are values
_LONGEST = 300  # characters of a plugin's own error


class PluginError(ValueError):
    """A name that stands for nothing usable; the message names the plugin and its distribution."""


@dataclass(frozen=True, order=True)
class Plugin:
    """A name that an installed distribution gives to an object of its own.

    Attributes
    ----------
    kind : str
        A key of :data:`GROUPS`.
    name : str
        What a configuration calls it.
    reference : str
        ``module:object``.
    distribution, version : str
        The installed distribution, as ``pip list`` names it.
    where : str
        Folder that the distribution is installed in.
    """

    kind: str
    name: str
    reference: str
    distribution: str
    version: str
    where: str

    @property
    def is_own(self) -> bool:
        """Whether FedVeil itself gives the name."""
        return re.sub(r"[-_.]+", "-", self.distribution).lower() == _OURS

    @property
    def source(self) -> str:
        """Distribution and version."""
        return f"{self.distribution} {self.version}"

    def __str__(self) -> str:
        """As a message names it."""
        return f"{self.kind} {self.name!r} of {self.source}"


@dataclass(frozen=True)
class Checked:
    """A plugin, and why it cannot be used; ``problem`` is empty where it can."""

    plugin: Plugin
    problem: str


def installed(kind: str) -> tuple[Plugin, ...]:
    """All plugins of one kind in the order of their names, usable or not; none is imported.

    A distribution that is on the path twice (an editable installation, run inside its checkout) counts once: the
    first, which is also the one that Python imports.

    Parameters
    ----------
    kind : str
        A key of :data:`GROUPS`.

    Raises
    ------
    PluginError
        If there is no such kind.
    """
    if kind not in GROUPS:
        raise PluginError(f"there are no plugins of kind {kind!r}; kinds are {', '.join(GROUPS)}.")
    return _on_path(kind, tuple(sys.path))


@lru_cache(
    maxsize=64
)  # asked for with every message, and the same for all of a process, also while pip is at work
def _on_path(kind: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    return tuple(sorted({_plugin(kind, point) for point in entry_points(group=GROUPS[kind])}))


def find(kind: str, name: str) -> Plugin:
    """The plugin that a name stands for, without importing it.

    FedVeil's own names always mean FedVeil's own: a package that gives one of them again is passed over here, and
    shown as unusable by :func:`check_all`.

    Raises
    ------
    PluginError
        If nothing of that name is installed, or two distributions give it.
    """
    plugins = installed(kind)
    claims = [plugin for plugin in plugins if plugin.name == name]
    if not claims:
        raise PluginError(f"{kind} = {name!r} is not installed; {_advice(name, plugins)}")
    meant = [plugin for plugin in claims if plugin.is_own] or claims
    if len(meant) > 1:
        raise PluginError(_ambiguous(meant))
    return meant[0]


def load(plugin: Plugin) -> Any:
    """Import the object that a plugin names.

    Raises
    ------
    PluginError
        If its import fails in any way, or gives what cannot be called where it has to be.
    """
    reference = _REFERENCE.fullmatch(plugin.reference)
    if reference is None:
        raise PluginError(f"{plugin} must point to 'module:object', and does to {plugin.reference!r}.")
    try:
        loaded = attrgetter(reference["object"])(import_module(reference["module"]))
    except (Exception, SystemExit) as error:  # code of others: it may fail in any way
        raise PluginError(
            f"{plugin} cannot be imported from {plugin.reference}: {_first_line(error)}"
        ) from error
    if plugin.kind in _CALLED and not callable(loaded):
        raise PluginError(
            f"{plugin} must be a function or a class, and {plugin.reference} is of type {type(loaded).__name__}."
        )
    return loaded


def resolve(kind: str, name: str) -> Any:
    """The object that a name in a configuration stands for; only its own package is imported.

    Parameters
    ----------
    kind : str
        A key of :data:`GROUPS`, which is also the key in the configuration.
    name : str
        Its value.

    Raises
    ------
    PluginError
        As :func:`find` and :func:`load` do.
    """
    return load(find(kind, name))


def check_all() -> tuple[Checked, ...]:
    """Try every installed plugin of every kind; one that fails does not stop the others."""
    return tuple(Checked(plugin, _problem(plugin)) for kind in GROUPS for plugin in installed(kind))


def _problem(plugin: Plugin) -> str:
    try:
        meant = find(plugin.kind, plugin.name)
        if meant != plugin:
            return f"{plugin} takes FedVeil's own name: {plugin.distribution} must choose another."
        load(plugin)
    except PluginError as error:
        return str(error)
    return ""


def _plugin(kind: str, point: EntryPoint) -> Plugin:
    distribution = point.dist
    if distribution is None:
        raise PluginError(f"{kind} {point.name!r} ({point.value}) belongs to no installed distribution.")
    return Plugin(
        kind=kind,
        name=point.name,
        reference=point.value,
        distribution=distribution.name,
        version=distribution.version,
        where=str(distribution.locate_file("")),
    )


def _advice(name: str, plugins: tuple[Plugin, ...]) -> str:
    names = sorted({plugin.name for plugin in plugins})
    if not any(plugin.is_own for plugin in plugins):
        # on the path without being installed, or installed before there were such names
        return "FedVeil's own names are missing too: install FedVeil again (pip install, or make)."
    match = get_close_matches(name, names, n=1, cutoff=0.5)
    nearest = f"did you mean {match[0]!r}? " if match else ""
    return f"{nearest}installed: {', '.join(names)}."


def _ambiguous(claims: list[Plugin]) -> str:
    sources = " and ".join(f"{claim.source} ({claim.reference}, in {claim.where})" for claim in claims)
    first = claims[0]
    return f"{first.kind} {first.name!r} is given by {sources}; uninstall all but one."


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
