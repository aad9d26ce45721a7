"""Configuration: what a person typed, checked, and turned into data, plans and models."""

from fedveil.config.errors import ConfigError
from fedveil.config.fedsva import FedSVAConfig

__all__ = ["ConfigError", "FedSVAConfig"]
