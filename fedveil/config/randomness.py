"""Which random streams a run may use: a seed in a simulation, the system's entropy everywhere else."""

from __future__ import annotations

from fedveil.config.base import RunConfig
from fedveil.config.errors import ConfigError
from fedveil.streams import Streams

__all__ = ["public_streams", "run_streams"]


def run_streams(config: RunConfig, *, simulated: bool) -> Streams:
    """The secret streams of noise and sampling: seeded in a simulation that asks for it, else the system's entropy.

    Raises
    ------
    ConfigError
        If a seed is given outside a simulation.
    """
    if config.seed is None:
        return Streams.system()
    if not simulated:
        raise ConfigError(
            f"seed = {config.seed} in a deployment: whoever knows it could subtract the noise; leave seed empty."
        )
    return Streams.seeded(config.config_hash, config.seed)


def public_streams(config: RunConfig) -> Streams:
    """Streams that anyone may know: of the initial model."""
    return Streams.seeded("public", config.data_seed)
