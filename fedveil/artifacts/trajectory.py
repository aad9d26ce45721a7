"""The course of a run: the models after its last rounds, a file each, and no more than can be looked at at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts.arrays_file import DamagedFile, decode_arrays, encode_arrays
from fedveil.artifacts.atomic import write_bytes, write_failures_named
from fedveil.artifacts.readable import read_file

__all__ = ["keep_model", "kept_models"]

# whoever looks at a trajectory holds all of it in memory, and more than once
_LARGEST = 1 << 29  # bytes
_LEAST = 2  # models: a course has two ends
_FILES = "round-*.safetensors"


def keep_model(place: Path, round: int, arrays: Mapping[str, NDArray[Any]], *, keep: int) -> None:
    """Write the model after a round, atomically, and remove those of rounds too long ago.

    Parameters
    ----------
    place : Path
        Folder of the trajectory; made if missing.
    round : int
        At least 0; a model of this round that is there is replaced.
    arrays : mapping of str to array
        The model.
    keep : int
        Most rounds that stay, at least 1; of large models as many as half a gigabyte holds, and two at least.

    Raises
    ------
    ValueError
        If an array cannot be stored.
    WriteFailed
        If the system refuses.
    """
    with write_failures_named(place):
        place.mkdir(exist_ok=True)
        write_bytes(place / _name(round), encode_arrays(arrays, {"round": int(round)}))
        size = max(1, sum(np.asarray(array).nbytes for array in arrays.values()))
        kept = min(keep, max(_LEAST, _LARGEST // size))
        models = sorted((file for file in place.glob(_FILES) if _round_of(file) >= 0), key=_round_of)
        for old in models[:-kept]:
            old.unlink(missing_ok=True)


def kept_models(place: Path) -> list[tuple[int, dict[str, NDArray[Any]]]]:
    """Read the models that were kept, in the order of their rounds; none where there is no such folder.

    Raises
    ------
    DamagedFile
        If a file is truncated or was changed.
    RunFolderError
        If the system cannot read one.
    """
    found = []
    for file in sorted(place.glob(_FILES), key=_round_of):
        arrays, note = decode_arrays(read_file(file), file)
        if not isinstance(note.get("round"), int) or file.name != _name(note["round"]):
            raise DamagedFile(f"{file} is not the model after the round that it is named for: restore it.")
        found.append((int(note["round"]), arrays))
    return found


def _name(round: int) -> str:
    return f"round-{round:06d}.safetensors"


def _round_of(file: Path) -> int:
    """The round that a file is named for, by number: a name of seven digits sorts before one of six. -1 if none."""
    number = file.name.removeprefix("round-").removesuffix(".safetensors")
    return int(number) if number.isdecimal() and file.name == _name(int(number)) else -1
