"""Quantizing a finished run again, and using a quantized model without the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.artifacts import RunFolder
from fedveil.plugins import PluginError, installed, resolve
from fedveil.quantization import DamagedFile, QuantizedModel, Scheme, decode_quantized
from fedveil.run.app import BadInput, find_app
from fedveil.strategies.hooks.quantize import quantize

if TYPE_CHECKING:
    from torch import nn

__all__ = ["load_quantized", "quantize_run", "read_quantized"]


def quantize_run(
    path: str, *, schemes: str | None, candidates: int | None, app: str | None, say: Callable[[str], None]
) -> None:
    """Quantize the model of a finished run, as the hook at its end does.

    Parameters
    ----------
    path : str
        Folder of the run.
    schemes : str, optional
        Quantizers, with commas; those of the run when not given.
    candidates : int, optional
        Models that r_Q compares; as in the run when not given.
    app : str, optional
        Name or folder of the app, where it is not one of FedVeil's own.

    Raises
    ------
    BadInput
        If the folder is not a finished run's, or its app cannot do this.
    ValueError
        As the hook says.
    """
    folder = RunFolder(Path(path).expanduser().absolute())
    if not os.path.isfile(folder.path / "config.toml"):
        raise BadInput(f"{path} is not the folder of a run: it has no config.toml.")
    if not folder.is_finished:
        raise BadInput(f"the run in {folder.path} is not finished: resume it first.")
    _, note = folder.load_model()
    found = find_app(app or str(note.get("app", "")))
    if found.finished is None:
        raise BadInput(
            f"app {found.name} does not say how a finished run is read: its pyproject.toml names none."
        )
    settings = dict(folder.config) | {"seed": "", "resume": "", "hooks": "quantize"}
    settings |= {} if schemes is None else {"quantizers": schemes}
    settings |= {} if candidates is None else {"candidates": candidates}
    known = {key: value for key, value in settings.items() if key in found.defaults}
    config, model = found.configure(known), found.config_class()
    build = found.load(found.finished)
    with found.importable():
        try:
            quantize(build(folder, config if model is None else model.from_run_config(config), say))
        except (KeyError, AttributeError, TypeError) as error:
            raise BadInput(
                f"a file in {folder.path} is not what a run writes ({type(error).__name__}: {error}): restore it."
            ) from error


def read_quantized(path: str | Path) -> QuantizedModel:
    """The quantized model in a file, checked.

    Raises
    ------
    DamagedFile
        If the file is truncated, changed, or not one of a quantized model.
    BadInput
        If it cannot be read.
    """
    file = Path(path).expanduser()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read ({error.strerror}): give a file of quantized/ in a run's folder."
        ) from error
    others = [one.name for one in installed("quantizer") if not one.is_own]
    try:
        return decode_quantized(data, file)
    except DamagedFile:
        if not others:
            raise
    # of a plugin's quantizer, perhaps: which one is known only when they are imported
    return decode_quantized(data, file, tuple(_classes(others)))


def _classes(names: Iterable[str]) -> Iterator[type[Scheme]]:
    """Classes of plugins' quantizers, as far as they can be used; `fedveil list` tells of the others."""
    for name in names:
        with suppress(PluginError):
            scheme = resolve("quantizer", name)
            if isinstance(scheme, Scheme):
                yield type(scheme)


def load_quantized(path: str | Path) -> nn.Module:
    """A torch module that computes with a quantized model.

    Nothing of the run that trained it is needed, but a model of the user's own must be importable under its name.

    Parameters
    ----------
    path : str or Path
        A file of ``quantized/`` in a run's folder.

    Returns
    -------
    torch.nn.Module
        In evaluation mode. It takes records as the run did: scaled features in the shape of a record; for a regression
        standardised features (n, d), and it gives standardised targets (n, 1).

    Raises
    ------
    DamagedFile
        If the file is truncated, changed, or not one of a quantized model.
    BadInput
        If it cannot be read.
    ValueError
        If the file does not say which network it is of, or the network cannot be built.
    """
    from torch import nn  # here: reading a file needs no torch

    from fedveil.config.assembly import model_factory
    from fedveil.models import build_learner
    from fedveil.quantization import to_module

    model = read_quantized(path)
    note: dict[str, Any] = dict(model.note.get("model", {}))
    module: nn.Module
    if note.get("app") == "modulated":
        module = nn.Linear(len(note["features"]), 1)
    elif {"model", "shape", "classes"} <= note.keys():
        factory = model_factory(str(note["model"]))
        hidden = int(note.get("hidden-units", 64))
        module = build_learner(factory, tuple(note["shape"]), len(note["classes"]), hidden).module
    else:
        raise ValueError(
            f"{path} does not say which network it is of: build it yourself and use fedveil.quantization.to_module."
        )
    return to_module(model, module).eval()
