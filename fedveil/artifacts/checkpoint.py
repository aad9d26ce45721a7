"""The state of a run after a round, as one file: all that a resumed run needs to end like an unbroken one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts.arrays_file import DamagedFile, decode_arrays, encode_arrays, plain_json
from fedveil.artifacts.ledger_table import ledger_table, releases_of, table_bytes, table_from_bytes
from fedveil.privacy import Release

__all__ = ["Checkpoint", "CheckpointEncoder", "decode_checkpoint"]

_FORMAT = 2
_ROWS = 1024  # ledger rows in a block


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round.

    Parameters
    ----------
    round : int
        The last finished round.
    arrays : dict of str to array
        The model.
    optimizer : dict of str to array
        State of the server's optimiser.
    releases : tuple of Release
        Ledger rows that arrived with replies, so far.
    metrics : list of dict
        One mapping a finished round.
    config_hash : str
        Hash of every setting that changes what is computed.
    extra : dict
        Anything else the server keeps, as JSON values.
    assumed : tuple of Release
        Ledger rows of clients that gave no valid reply: their releases may have left them.
    """

    round: int
    arrays: dict[str, NDArray[Any]]
    optimizer: dict[str, NDArray[Any]]
    releases: tuple[Release, ...]
    metrics: list[dict[str, Any]]
    config_hash: str
    extra: dict[str, Any] = field(default_factory=dict)
    assumed: tuple[Release, ...] = ()


class CheckpointEncoder:
    """Encodes the checkpoints of one run, one after another: rows that were in the last one are not encoded again.

    A run's ledger only grows, and each checkpoint holds all of it. Whole blocks of rows are kept encoded, so that a
    round costs as much after a thousand rounds as after ten, but for copying bytes.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, tuple[tuple[Release, ...], NDArray[np.uint8]]] = {}

    def encode(self, checkpoint: Checkpoint) -> bytes:
        """Write a checkpoint as one safetensors file: arrays, ledger rows as parquet, the rest as JSON.

        One file, because one rename is atomic and two are not. Floats keep every bit, and so do JSON integers. Equal
        checkpoints give equal bytes, whatever was encoded before.

        Raises
        ------
        ValueError
            If an array or a value cannot be stored; it is named.
        """
        state = {"metrics": checkpoint.metrics, "extra": checkpoint.extra}
        # as arrays, not as metadata: the header of the format is limited to 100 MB
        tensors: dict[str, NDArray[Any]] = {"state": _bytes_array(plain_json(state).encode())}
        for source, rows in (("reply", checkpoint.releases), ("assumed", checkpoint.assumed)):
            for start in range(0, len(rows), _ROWS):
                name = f"ledger/{source}/{start // _ROWS:06d}"
                tensors[name] = self._block(name, source, tuple(rows[start : start + _ROWS]))
        for group, arrays in (("arrays", checkpoint.arrays), ("optimizer", checkpoint.optimizer)):
            tensors |= {f"{group}/{name}": array for name, array in arrays.items()}
        note = {"format": _FORMAT, "round": int(checkpoint.round), "config_hash": checkpoint.config_hash}
        return encode_arrays(tensors, note)

    def _block(self, name: str, source: str, rows: tuple[Release, ...]) -> NDArray[np.uint8]:
        # equal rows are the same objects nearly always, and comparing those is quick
        if name not in self._blocks or self._blocks[name][0] != rows:
            table = ledger_table(rows) if source == "reply" else ledger_table((), rows)
            self._blocks[name] = rows, _bytes_array(table_bytes(table))
        return self._blocks[name][1]


def decode_checkpoint(data: bytes, source: object) -> Checkpoint:
    """Read the checkpoint of :class:`CheckpointEncoder`.

    Raises
    ------
    DamagedFile
        If the file, called ``source`` in the message, is truncated, changed, or of another format.
    """
    tensors, note = decode_arrays(data, source)
    if note.get("format") != _FORMAT:
        raise DamagedFile(
            f"{source} is not a checkpoint of format {_FORMAT}: resume it with the version that wrote it."
        )
    try:
        state = json.loads(tensors["state"].tobytes())
        releases, assumed = _ledger(tensors, source)
        return Checkpoint(
            round=note["round"],
            arrays=_group(tensors, "arrays/"),
            optimizer=_group(tensors, "optimizer/"),
            releases=releases,
            metrics=state["metrics"],
            config_hash=note["config_hash"],
            extra=state["extra"],
            assumed=assumed,
        )
    except (KeyError, json.JSONDecodeError) as error:
        raise DamagedFile(
            f"{source} is not a checkpoint (it lacks {error}): restore it or start anew."
        ) from error


def _ledger(
    tensors: Mapping[str, NDArray[Any]], source: object
) -> tuple[tuple[Release, ...], tuple[Release, ...]]:
    """Rows that arrived and rows that were assumed, in the order in which they were given."""
    releases: tuple[Release, ...] = ()
    assumed: tuple[Release, ...] = ()
    for _, block in sorted(_group(tensors, "ledger/").items()):
        some, others = releases_of(table_from_bytes(block.tobytes(), source))
        releases, assumed = releases + some, assumed + others
    return releases, assumed


def _group(tensors: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _bytes_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
