"""An app folder as Flower defines it, read and checked before anything starts.

Flower's own ``flwr run`` names neither the wrong key nor the wrong value; this does, through the pydantic
model that an app may name in its pyproject.toml::

    [tool.fedveil]
    config = "module:Class"
    plan = "module:function"
    finished = "module:function"

``Class.from_run_config(mapping)`` checks all values; ``Class.path_keys`` lists the keys that hold paths;
``function(checked, say)`` prints what a run would do, for ``fedveil plan``; the last one gives hooks what they
need of a finished run, also long after it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import fedveil
from fedveil.config.errors import explain, nearest
from fedveil.run.overrides import Value, flatten

__all__ = ["App", "BadInput", "built_in_apps", "find_app"]


class BadInput(ValueError):
    """What the user asked for cannot be run; nothing was started."""


@dataclass(frozen=True)
class App:
    """An app folder.

    Attributes
    ----------
    folder : Path
        Absolute path, links resolved.
    name : str
        ``[project] name``.
    serverapp, clientapp : str
        ``module:attribute`` of the two components.
    defaults : Mapping[str, Value]
        ``[tool.flwr.app.config]``, nested tables flattened to dotted keys as Flower does.
    config : str or None
        ``module:Class`` of the pydantic model that checks a configuration.
    plan : str or None
        ``module:function`` that prints the plan of a run: ``function(checked configuration, say)``.
    finished : str or None
        ``module:function`` that gives hooks a finished run: ``function(run folder, checked configuration, say)``.
    """

    folder: Path
    name: str
    serverapp: str
    clientapp: str
    defaults: Mapping[str, Value]
    config: str | None
    plan: str | None = None
    finished: str | None = None

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Modules of this folder come first while this context lasts, as in a run of Flower.

        Modules of the same name that were imported from another copy of the app are forgotten: stale code.
        """
        references = [self.serverapp, self.clientapp, *([self.config] if self.config else [])]
        for top in {reference.partition(":")[0].partition(".")[0] for reference in references}:
            here = (self.folder / top).is_dir() or (self.folder / f"{top}.py").is_file()
            loaded = [name for name in sys.modules if name == top or name.startswith(f"{top}.")]
            if here and not all(_comes_from(sys.modules[name], self.folder) for name in loaded):
                for name in loaded:
                    del sys.modules[name]
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))

    def load(self, reference: str) -> Any:
        """The object that ``module:attribute`` names, imported from this folder first.

        Raises
        ------
        BadInput
            If the module or the attribute does not exist.
        """
        module, _, attribute = reference.partition(":")
        with self.importable():
            try:
                return getattr(import_module(module), attribute)
            except ModuleNotFoundError as error:
                if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                    raise  # the app imports something that is not installed
                raise BadInput(
                    f"app {self.name}: no module {error.name!r}, as {reference!r} says."
                ) from error
            except AttributeError as error:
                raise BadInput(
                    f"app {self.name}: no {attribute!r} in {module}, as {reference!r} says."
                ) from error

    def config_class(self) -> Any | None:
        """The pydantic model that checks this app's configuration; None when it names none."""
        return self.load(self.config) if self.config else None

    def configure(self, overrides: Mapping[str, Value]) -> dict[str, Value]:
        """The whole run configuration: defaults under overrides, checked by the app's own model.

        Raises
        ------
        BadInput
            One sentence: an unknown key and the nearest that exists, or what is wrong with a value.
        """
        for key in overrides:
            if key not in self.defaults:
                raise BadInput(f"app {self.name}: unknown key {key!r}; {nearest(key, self.defaults)}")
        config = {**self.defaults, **overrides}
        model = self.config_class()
        if model is not None:
            try:
                model.from_run_config(config)
            except ValidationError as error:
                raise BadInput(f"app {self.name}: {explain(error, self.defaults)}") from error
            except ValueError as error:
                raise BadInput(f"app {self.name}: {error}") from error
        return config


def built_in_apps() -> dict[str, Path]:
    """Name and folder of the apps inside the installed package."""
    room = Path(fedveil.__file__).resolve().parent / "apps"
    return {folder.name: folder for folder in sorted(room.iterdir()) if (folder / "pyproject.toml").is_file()}


def find_app(name_or_path: str) -> App:
    """The app of that name inside FedVeil, or in that folder.

    Raises
    ------
    BadInput
        If there is none, or its pyproject.toml is not one of a Flower app.
    """
    apps = built_in_apps() if Path(name_or_path).name == name_or_path else {}
    folder = apps.get(name_or_path, Path(name_or_path).expanduser()).resolve()
    file = folder / "pyproject.toml"
    if not os.path.isfile(file):
        advice = nearest(name_or_path, built_in_apps())
        raise BadInput(
            f"{name_or_path!r} is neither an app of FedVeil nor a folder with a pyproject.toml; {advice}"
        )
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        flower = document["tool"]["flwr"]["app"]
        components = flower["components"]
        return App(
            folder=folder,
            name=str(document["project"]["name"]),
            serverapp=_reference(components, "serverapp"),
            clientapp=_reference(components, "clientapp"),
            defaults={key: _default(key, value) for key, value in flatten(flower.get("config", {}))},
            config=document["tool"].get("fedveil", {}).get("config"),
            plan=document["tool"].get("fedveil", {}).get("plan"),
            finished=document["tool"].get("fedveil", {}).get("finished"),
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is not valid TOML: {error}.") from error
    except KeyError as error:
        raise BadInput(f"{file} is not a Flower app: it has no {error.args[0]!r}.") from error
    except TypeError as error:
        raise BadInput(f"{file} is not a Flower app: {error}.") from error


def _reference(components: Mapping[str, object], key: str) -> str:
    reference = components[key]
    if not isinstance(reference, str) or not all(reference.partition(":")):
        raise TypeError(f"{key} must be 'module:attribute', not {reference!r}")
    return reference


def _default(key: str, value: object) -> Value:
    if isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"the default of {key} must be a bool, int, float or str, not {value!r}")


def _comes_from(module: Any, folder: Path) -> bool:
    places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", []))
    return all(Path(place).resolve().is_relative_to(folder) for place in places)
