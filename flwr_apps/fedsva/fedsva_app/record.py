"""What a run has produced so far, and that its strategy has told it."""

from __future__ import annotations

from fedveil.artifacts import Checkpoint
from fedveil.config import ConfigError, FedSVAConfig
from fedveil.plugins import find
from fedveil.privacy import Release
from fedveil.strategies import RoundOutcome


class Record:
    """What a run has produced so far; written to its folder after every round."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        # the initial model is evaluated again
        self.metrics = list(checkpoint.metrics) if checkpoint and checkpoint.round else []
        self.releases: tuple[Release, ...] = checkpoint.releases if checkpoint else ()
        self.assumed: tuple[Release, ...] = checkpoint.assumed if checkpoint else ()

    def add(self, outcome: RoundOutcome, row: dict[str, float]) -> None:
        """Take in one round."""
        self.metrics.append(row)
        self.releases += outcome.releases
        self.assumed += outcome.assumed


def require_told(config: FedSVAConfig, record: Record) -> None:
    """Refuse a strategy that does not tell its rounds: nothing of them would be in the ledger or in a checkpoint.

    Raises
    ------
    ConfigError
        If no round has been told.
    """
    if not record.metrics:
        raise ConfigError(
            f"{find('strategy', config.strategy)} has made a round and not told it: its start() must call on_round "
            "after each, also after round 0, the initial model."
        )
