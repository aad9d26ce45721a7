"""FedVeil: federated learning on Flower whose privacy can be explained and checked."""

__all__ = ["__version__"]

__version__ = (
    "0.1.0"  # pyproject.toml reads it here: server and nodes compare it, and looking for metadata can fail
)
