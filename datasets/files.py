"""The files of a user's own data set: records, their public description, and perhaps a test set of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Files"]


@dataclass(frozen=True)
class Files:
    """Where a data set lies.

    Parameters
    ----------
    records, schema : Path
        Absolute paths of the records and of the public description of their columns.
    test : Path or None
        Absolute path of another file of the same columns that is the whole test set.
    name : str
        Name of the data set, for people.
    """

    records: Path
    schema: Path
    test: Path | None
    name: str

    @classmethod
    def of(
        cls,
        path: str | Path,
        schema_path: str | Path | None,
        test_path: str | Path | None,
        *endings: str,
    ) -> Files:
        """Files as a person names them.

        Parameters
        ----------
        schema_path : str or Path, optional
            ``<path>.schema.toml`` when not given.
        endings : str
            What a file's name ends in, from its end, which is no part of the data set's name.
        """
        records = Path(path).absolute()
        schema = Path(f"{records}.schema.toml") if schema_path is None else Path(schema_path).absolute()
        name = records.name
        for ending in endings:
            name = name.removesuffix(ending)
        return cls(records, schema, None if test_path is None else Path(test_path).absolute(), name)
