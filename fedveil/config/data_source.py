"""Asking the data set that a configuration names for its records, FedVeil's own or a plugin's."""

from __future__ import annotations

from typing import TypeVar

from fedveil.config.errors import ConfigError
from fedveil.datasets.request import DataRequest
from fedveil.plugins import find, resolve

__all__ = ["load_data"]

T = TypeVar("T")


def load_data(name: str, request: DataRequest, expected: type[T]) -> T:
    """Load a data set.

    Parameters
    ----------
    name : str
        Name of the data set.
    request : DataRequest
        Its settings.
    expected : type
        What the loader must return.

    Raises
    ------
    ValueError, OSError, ModuleNotFoundError
        As the loader says.
    ConfigError
        If a plugin fails in another way or returns something else; it is named.
    """
    plugin = find("dataset", name)
    try:
        data = resolve("dataset", name)(request)
    except (ValueError, OSError, ModuleNotFoundError):
        raise
    except Exception as error:  # a plugin may fail in any way; it is named, and nothing goes on
        # not its text, which may quote a record and would travel to the server
        raise ConfigError(
            f"{plugin} failed ({type(error).__name__}): correct it; `fedveil run --verbose` shows where."
        ) from error
    if not isinstance(data, expected):
        raise ConfigError(
            f"{plugin} must return a {expected.__module__}.{expected.__name__}, and returned {type(data).__name__}."
        )
    return data
