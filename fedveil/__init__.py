"""FedVeil: federated learning on Flower whose privacy can be explained and checked."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedveil")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
