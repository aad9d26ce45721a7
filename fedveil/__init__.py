"""FedVeil: federated learning on Flower whose privacy can be explained and checked."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

__all__ = ["__version__", "load_quantized"]

__version__ = (
    "0.1.0"  # pyproject.toml reads it here: server and nodes compare it, and looking for metadata can fail
)


def load_quantized(path: str | Path) -> nn.Module:
    """A torch module that computes with a quantized model; see :func:`fedveil.run.quantized.load_quantized`."""
    # by name: this package is below all of its parts, and `import fedveil` stays quick
    module: nn.Module = import_module("fedveil.run.quantized").load_quantized(path)
    return module
