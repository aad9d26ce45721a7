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

__all__ = ["Checkpoint", "decode_checkpoint", "encode_checkpoint"]

_FORMAT = 1


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


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Write a checkpoint as one safetensors file: arrays, ledger rows as parquet, the rest as JSON.

    One file, because one rename is atomic and two are not. Floats keep every bit, and so do JSON integers.

    Raises
    ------
    ValueError
        If an array or a value cannot be stored; it is named.
    """
    state = {"metrics": checkpoint.metrics, "extra": checkpoint.extra}
    tensors: dict[str, NDArray[Any]] = {
        # as arrays, not as metadata: the header of the format is limited to 100 MB
        "ledger": _bytes_array(table_bytes(ledger_table(checkpoint.releases, checkpoint.assumed))),
        "state": _bytes_array(plain_json(state).encode()),
    }
    for group, arrays in (("arrays", checkpoint.arrays), ("optimizer", checkpoint.optimizer)):
        tensors |= {f"{group}/{name}": array for name, array in arrays.items()}
    note = {"format": _FORMAT, "round": int(checkpoint.round), "config_hash": checkpoint.config_hash}
    return encode_arrays(tensors, note)


def decode_checkpoint(data: bytes, source: object) -> Checkpoint:
    """Read the checkpoint of :func:`encode_checkpoint`.

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
        releases, assumed = releases_of(table_from_bytes(tensors["ledger"].tobytes(), source))
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
        raise DamagedFile(f"{source} is not a checkpoint: it lacks {error}.") from error


def _group(tensors: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _bytes_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
