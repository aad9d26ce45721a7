"""A run's folder: its settings, its last checkpoint, and at the end its metrics, ledger and model."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tomllib
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedveil.artifacts.arrays_file import decode_arrays, encode_arrays
from fedveil.artifacts.atomic import (
    remove_leftovers,
    sync_folder,
    write_bytes,
    write_failures_named,
    write_text,
)
from fedveil.artifacts.checkpoint import Checkpoint, CheckpointEncoder, decode_checkpoint
from fedveil.artifacts.config_file import format_config, parse_config
from fedveil.artifacts.ledger_table import ledger_table, sorted_ledger, table_bytes
from fedveil.artifacts.metrics_table import metrics_table
from fedveil.artifacts.node_tables import NODE_LEDGER
from fedveil.artifacts.readable import RunFolderError, is_there, read_file
from fedveil.artifacts.trajectory import keep_model, kept_models
from fedveil.artifacts.writer_lock import acquire, give_back
from fedveil.privacy import Ledger, Release

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Checkpoint", "RunFolder", "RunFolderError"]

CONFIG, METRICS, LEDGER, MODEL = "config.toml", "metrics.parquet", "ledger.parquet", "model.safetensors"
TRAJECTORY = "trajectory"
CHECKPOINT = Path("checkpoint") / "last.safetensors"
CONTRIBUTIONS, ESTIMATE, MEMBERSHIP = "contributions", "estimate", "membership"  # documents of the apps
GUARANTEES = "guarantees"
_OTHERS = (NODE_LEDGER, *(f"{name}.json" for name in (CONTRIBUTIONS, ESTIMATE, GUARANTEES, MEMBERSHIP)))
_LOCK = Path("checkpoint") / "lock"
_SECRETS = Path("checkpoint") / "secrets.toml"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; ``RunFolder(path)`` looks into it, :meth:`create` and :meth:`open` write to it.

    The model is written last and alone says that a run is finished, so a run that was killed at any instant
    leaves a folder that can be resumed and does not look finished.
    """

    path: Path
    _encoder: CheckpointEncoder = field(
        default_factory=CheckpointEncoder, init=False, repr=False, compare=False
    )

    @classmethod
    def create(
        cls, output_dir: Path | str, app: str, config: Mapping[str, Any], *, redact: Collection[str] = ()
    ) -> RunFolder:
        """Make the folder ``<UTC time>-<app>-<short id>`` with the run's settings in it.

        Parameters
        ----------
        output_dir : Path or str
            Absolute path of the folder of all runs; made if missing.
        app : str
            Name of the app: letters, digits, ".", "_" and "-".
        config : mapping
            Every setting, defaults too.
        redact : collection of str
            Keys of settings that are secrets, a noise seed above all; the file says "secret" in their place. While
            the run is unfinished they lie in a file that only its owner can read, so that it can be resumed.

        Raises
        ------
        ValueError
            If ``output_dir`` is relative, the name is not allowed, or a setting cannot be written.
        WriteFailed
            If the system refuses; then there is no folder.
        """
        root = Path(output_dir)
        if not root.is_absolute():
            raise ValueError(f"output-dir must be an absolute path, got {str(output_dir)!r}.")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", app):
            raise ValueError(f"an app's name has letters, digits, '.', '_' and '-' only, got {app!r}.")
        text = format_config(config, redact=redact)
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{app}-{secrets.token_hex(4)}"
        draft, path = root / f".{name}.tmp", root / name
        with write_failures_named(path):
            root.mkdir(parents=True, exist_ok=True)
            try:
                (draft / CHECKPOINT.parent).mkdir(parents=True)
                write_text(draft / CONFIG, text)
                if redact:
                    _write_secrets(draft / _SECRETS, {key: config[key] for key in redact})
                os.rename(draft, path)  # the folder appears with its settings in it
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            sync_folder(root)
        return cls(path)._locked()

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an unfinished run to resume it.

        Raises
        ------
        RunFolderError
            If the folder is missing, not a run's, finished, in use by another process, or its settings are
            broken.
        """
        folder = cls(Path(path).absolute())
        if not os.path.isdir(folder.path):
            raise RunFolderError(
                f"{folder.path} is not a folder that this user can see: give the folder of the run to resume."
            )
        if not is_there(folder.path / CONFIG):
            raise RunFolderError(
                f"{folder.path} is not the folder of a run (it has no {CONFIG}): give that of the run to resume."
            )
        if folder.is_finished:
            raise RunFolderError(f"the run in {folder.path} is finished (it has a {MODEL}): start a new run.")
        _ = folder.config  # broken settings are told now
        folder._locked()
        folder._refuse_finished()  # by a process that ended while this one waited
        with write_failures_named(folder.path):
            remove_leftovers(folder.path)
            remove_leftovers(folder.path / CHECKPOINT.parent)
            if is_there(folder.path / TRAJECTORY):
                remove_leftovers(folder.path / TRAJECTORY)
        return folder

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """Whether the model is there, the last file that a run writes.

        Raises
        ------
        RunFolderError
            If the system does not say.
        """
        return is_there(self.path / MODEL)

    @property
    def config(self) -> dict[str, Any]:
        """The settings the run was started with; a secret one reads "secret".

        Raises
        ------
        RunFolderError
            If the file cannot be read.
        """
        file = self.path / CONFIG
        try:
            return parse_config(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise RunFolderError(
                f"{file} cannot be read ({error}): restore it or start a new run."
            ) from error

    @property
    def secrets(self) -> dict[str, Any]:
        """The secret settings of an unfinished run; a finished one no longer has them.

        Raises
        ------
        RunFolderError
            If the file cannot be read.
        """
        file = self.path / _SECRETS
        if not is_there(file):
            return {}
        try:
            return parse_config(read_file(file).decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise RunFolderError(
                f"{file} cannot be read ({error}): give the secret settings again."
            ) from error

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the last checkpoint; a crash at any instant leaves the old one or the new one, whole.

        Raises
        ------
        RunFolderError
            If the run is finished.
        WriteFailed
            If the system refuses; the old checkpoint stays.
        """
        self._refuse_finished()
        write_bytes(self.path / CHECKPOINT, self._encoder.encode(checkpoint))

    def load_checkpoint(self) -> Checkpoint | None:
        """Read the last checkpoint, or None if no round was finished.

        Raises
        ------
        DamagedFile
            If the file is truncated or was changed.
        RunFolderError
            If the system cannot read it.
        """
        file = self.path / CHECKPOINT
        data = read_file(file) if is_there(file) else None
        return None if data is None else decode_checkpoint(data, file)

    def finish(
        self,
        arrays: Mapping[str, NDArray[Any]],
        metrics: Sequence[Mapping[str, Any]],
        ledger: Ledger | Iterable[Release] | pa.Table,
        extra: Mapping[str, Any] | None = None,
        *,
        assumed: Iterable[Release] = (),
        documents: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write the results: metrics, then the ledger, then the model, each file atomically.

        The ledger's bytes depend on its rows alone: those of a resumed run and of an unbroken one are equal.

        Parameters
        ----------
        arrays : mapping of str to array
            The final model.
        metrics : sequence of mappings
            One mapping a round.
        ledger : Ledger, iterable of Release, or pyarrow Table
            Rows that arrived with replies, in any order; or the whole table of a run whose clients are too many for
            rows of their own in memory, sorted.
        extra : mapping, optional
            JSON values that describe the model; they become the metadata of its file.
        assumed : iterable of Release
            Rows of clients that gave no valid reply.
        documents : mapping, optional
            JSON values by the name of their file, without its ending: what explains the results.

        Raises
        ------
        RunFolderError
            If the run is finished already.
        ValueError
            If something cannot be stored; then nothing is written.
        WriteFailed
            If the system refuses; the run stays unfinished and can be resumed.
        """
        self._refuse_finished()
        import pyarrow as pa  # here, for nodes write no run's folder

        if not isinstance(ledger, pa.Table):
            rows = ledger.releases if isinstance(ledger, Ledger) else ledger
            ledger = sorted_ledger(ledger_table(rows, assumed))
        files = {METRICS: table_bytes(metrics_table(metrics)), LEDGER: table_bytes(ledger)}
        for name, document in (documents or {}).items():
            files[f"{name}.json"] = json.dumps(document, indent=1, allow_nan=False).encode()
        files[MODEL] = encode_arrays(arrays, extra)
        for name, data in files.items():
            if name == MODEL:  # the last one: from here on the folder may be handed around
                with write_failures_named(self.path / _SECRETS):
                    (self.path / _SECRETS).unlink(missing_ok=True)
            write_bytes(self.path / name, data)

    def discard(self) -> None:
        """Remove the folder of a run that could not begin.

        Raises
        ------
        RunFolderError
            If something of a run is in it.
        """
        if self.is_finished or self.load_checkpoint() is not None:
            raise RunFolderError(
                f"the run in {self.path} has begun, and its folder is not removed: resume it, or remove it yourself."
            )
        with write_failures_named(self.path):
            shutil.rmtree(self.path)

    def save_trajectory(self, round: int, arrays: Mapping[str, NDArray[Any]], *, keep: int) -> None:
        """Keep the model after a round, for what is asked of a run's course later; only the last rounds stay.

        Parameters
        ----------
        round : int
        arrays : mapping of str to array
            The model.
        keep : int
            Most rounds that stay, at least 1; of large models as many as half a gigabyte holds, and two at least.

        Raises
        ------
        RunFolderError
            If the run is finished.
        ValueError
            If an array cannot be stored.
        WriteFailed
            If the system refuses.
        """
        self._refuse_finished()
        keep_model(self.path / TRAJECTORY, round, arrays, keep=keep)

    def load_trajectory(self) -> list[tuple[int, dict[str, NDArray[Any]]]]:
        """Read the models after rounds that were kept, in the order of the rounds; none where none was.

        Raises
        ------
        DamagedFile
            If a file is truncated or was changed.
        RunFolderError
            If the system cannot read one.
        """
        return kept_models(self.path / TRAJECTORY)

    def add(self, name: str, data: bytes) -> Path:
        """Write a further result, atomically, beside those of a finished run; an earlier one is replaced.

        Parameters
        ----------
        name : str
            Its place in the folder: a file, or a file in one sub-folder.

        Raises
        ------
        RunFolderError
            If the run is not finished, the name leads elsewhere or is one of the run's own files.
        WriteFailed
            If the system refuses.
        """
        parts = name.split("/")
        own = {CONFIG, METRICS, LEDGER, MODEL, CHECKPOINT.parent.name, TRAJECTORY, *_OTHERS}
        plain = all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", part) for part in parts)
        if not plain or len(parts) > 2 or parts[0].lower() in own:
            raise RunFolderError(f"{name!r} is no name for a further result of a run: choose another.")
        if not self.is_finished:
            raise RunFolderError(f"the run in {self.path} is not finished: resume it first.")
        place = self.path / name
        with write_failures_named(place):
            place.parent.mkdir(exist_ok=True)
        write_bytes(place, data)
        return place

    def document(self, name: str) -> dict[str, Any] | None:
        """Read JSON values that explain a run's results; None where it has none of that name.

        Raises
        ------
        RunFolderError
            If the file cannot be read.
        """
        file = self.path / f"{name}.json"
        if not is_there(file):
            return None
        try:
            found: dict[str, Any] = json.loads(read_file(file))
        except ValueError as error:
            raise RunFolderError(f"{file} is not what a run writes ({error}): move it away.") from error
        return found

    def load_model(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Read the final model's arrays, and what describes it.

        Raises
        ------
        DamagedFile
            If the file is truncated or was changed.
        RunFolderError
            If the run is not finished.
        """
        return decode_arrays(read_file(self.path / MODEL), self.path / MODEL)

    def _refuse_finished(self) -> None:
        if self.is_finished:
            raise RunFolderError(
                f"the run in {self.path} is finished, and nothing is written to it any more: start a new run."
            )

    def _locked(self) -> RunFolder:
        with write_failures_named(self.path):
            lock = acquire(self.path / _LOCK)
        if lock is None:
            raise RunFolderError(
                f"another process still writes to {self.path}: wait for it or end it, then resume."
            )
        weakref.finalize(self, give_back, lock)
        return self


def _write_secrets(file: Path, secrets: Mapping[str, Any]) -> None:
    """Write settings to a file that is its owner's alone from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(format_config(secrets))
        stream.flush()
        os.fsync(stream.fileno())
