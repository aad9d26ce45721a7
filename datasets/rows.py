"""The rows of a CSV file as text, and its first line, which must name the columns.

Where it does not, it is a record, or a line of some other file: errors never repeat it. They name columns
that the user typed or that the schema file has.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

from fedveil.datasets.attributes import nearest
from fedveil.datasets.description import FIRST_LINE

__all__ = ["check_header", "read_rows"]


def read_rows(source: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Read the rows that are not blank, each with the number of its last line; gzip is told by the bytes.

    The first row's cells, the names of the columns, are stripped.

    Raises
    ------
    ValueError
        If there is no such file, or it is not CSV in UTF-8, plain or gzipped.
    """
    if source.is_dir():
        raise ValueError(f"{source} is a folder: give the path of a CSV file.")
    if not source.is_file():
        raise ValueError(f"There is no data file {source}: correct its path.")
    return _rows(source, delimiter)


def _rows(source: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    with source.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    opened = gzip.GzipFile(source) if is_gzip else source.open("rb")
    with TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
        done, is_header = 0, True  # the last line of the row before
        try:
            for row in reader:
                done = reader.line_num
                if row:
                    yield done, [name.strip() for name in row] if is_header else row
                    is_header = False
        except csv.Error as error:
            raise ValueError(_malformed(source, done + 1, reader.line_num, str(error))) from None
        except UnicodeDecodeError:
            place = f" after line {reader.line_num}" if reader.line_num else ""
            raise ValueError(f"{source} is not UTF-8{place}: save it as UTF-8.") from None
        except (gzip.BadGzipFile, EOFError, zlib.error):  # their texts hold checksums of the records
            raise ValueError(f"{source} is not a whole gzip file: copy it again.") from None


def _malformed(source: Path, first: int, last: int, reason: str) -> str:
    """Say what is wrong with the row of lines first to last; the csv module's reasons hold no cell."""
    if reason.startswith("unexpected end"):
        return f"{source} is not valid CSV: a quote opened in line {first} is never closed; close it."
    if first < last:
        return (
            f"{source}, line {last} is not valid CSV: a quote opened in line {first} is not closed in that line;"
            " close it, and double a quote inside a quoted cell."
        )
    if "expected after" in reason:
        return (
            f"{source}, line {last} is not valid CSV: text follows a closing quote; use commas between cells,"
            " and double a quote inside a quoted cell."
        )
    return f"{source}, line {last} is not valid CSV: {reason}."


def check_header(
    header: Sequence[str],
    source: Path,
    roles: Mapping[str, str | None],
    known: Collection[str],
    named_by: str = FIRST_LINE,
) -> None:
    """Refuse a header that does not name the columns.

    Parameters
    ----------
    header : sequence of str
        Names of the columns: in a CSV file the cells of the first line.
    source : Path
        The data file, for errors.
    roles : mapping
        Columns that the user named, by what they are for.
    known : collection of str
        Columns of the schema file; empty where there is none.
    named_by : str
        How the file names its columns, in words for an error.

    Raises
    ------
    ValueError
        If there is no name, a name is empty or doubled, or a column of the user is not there.
    """
    if not header:
        raise ValueError(f"{source} is empty: {named_by}.")
    if any("\0" in name for name in header):
        raise ValueError(f"{source} is not UTF-8 text (it may be UTF-16): save it as UTF-8.")
    if not any(header):
        raise ValueError(f"{source} has only empty names of columns: {named_by}.")
    for role, column in roles.items():
        if column is not None and column not in header:
            for mark, word in ((";", "semicolons"), ("\t", "tabs")):
                if sum(name.count(mark) for name in header) >= len(header):
                    raise ValueError(f"{source} has {word} between its cells: save it with commas instead.")
            hint = (
                f"; nearest in the schema file: {nearest(column, known)}"
                if known and column not in known
                else ""
            )
            raise ValueError(f"{source} has no {role} column {column!r}: {named_by}{hint}.")
    named = {*known, *roles.values()}
    for position, name in enumerate(header):
        if not name:
            raise ValueError(f"{source} has no name for column {position + 1}: {named_by}.")
        if name in header[:position]:
            places = f"columns {header.index(name) + 1} and {position + 1}"
            what = f"{places} both named {name!r}" if name in named else f"{places} of the same name"
            raise ValueError(f"{source} has {what}: {named_by}, each by another name.")
