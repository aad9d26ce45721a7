"""Configuration: what a person typed, checked."""

from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig

__all__ = ["ConfigError", "FedSVAConfig"]
