"""The public description of a table's columns: a small TOML file beside it.

It is written before anybody looks at the records and is the same for every client: ranges, categories,
classes, and the values that stand for a missing cell. ``docs/data.md`` shows one.
"""

from __future__ import annotations

import json
import reprlib
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedveil.datasets.attributes import nearest
from fedveil.datasets.description_examples import (
    OR_TEXTS,
    class_example,
    heading,
    quantity_example,
    range_example,
    text_example,
)
from fedveil.datasets.fields import Choice, Label, OneHot, Quantity, Range, Thresholds

__all__ = ["FIRST_LINE", "Description", "is_finite", "is_quantity", "read_description"]

FIRST_LINE = "the first line of the file must name the columns"

_KEYS = ("low", "high", "baseline", "categories", "classes", "thresholds")


def is_finite(value: Any) -> bool:
    """Tell whether a value is a number that a float can hold; math.isfinite raises for larger whole ones."""
    largest = sys.float_info.max
    return type(value) in (int, float) and -largest <= value <= largest


def is_quantity(table: Mapping[str, Any]) -> bool:
    """Tell from a column's table whether it can be predicted as a number."""
    return "low" in table or "high" in table or not {"classes", "categories"} & table.keys()


@dataclass(frozen=True)
class Description:
    """What a schema file says.

    Parameters
    ----------
    path : Path
        The file.
    tables : mapping
        Each described column's table, in the file's order.
    ignore : frozenset of str
        Columns that are not used.
    missing : frozenset of str
        Texts that mean "missing"; the empty text is always one.
    """

    path: Path
    tables: Mapping[str, Mapping[str, Any]]
    ignore: frozenset[str]
    missing: frozenset[str]

    def features(
        self, header: Sequence[str], skip: Iterable[str], source: Path, named_by: str = FIRST_LINE
    ) -> list[Range | OneHot]:
        """Describe the features, in the order of the schema file, which is the same for every client.

        Parameters
        ----------
        header : sequence of str
            Columns of the data file.
        skip : iterable of str
            Columns that are no features: target and client column.
        source : Path
            The data file, for errors.
        named_by : str
            How it names its columns, in words for an error.

        Raises
        ------
        ValueError
            If a column of the data is not described, or a described one is not in the data.
        """
        skipped = {*skip, *self.ignore}
        columns = [column for column in self.tables if column not in skipped]
        absent = [column for column in columns if column not in header]
        if absent:
            raise ValueError(
                f"{self.path} describes the column {absent[0]!r}, which {source} does not have: {named_by};"
                " correct the name or remove its table."
            )
        unknown = [at for at, column in enumerate(header, 1) if column not in self.tables]
        unknown = [at for at in unknown if header[at - 1] not in skipped]
        if unknown:  # by position: the name could be a cell of a file without a header
            places = ", ".join(map(str, unknown[:10])) + (", ..." if len(unknown) > 10 else "")
            raise ValueError(
                f"{source} has columns without a public range, counted from 1: {places}; {named_by}; write a"
                f" table for each into {self.path}, or list its name under ignore at the top, for example:\n\n"
                f'ignore = ["my-id"]  # at the top\n\n{range_example("my-number")}\n\n'
                f"{text_example('my-text')}\n"
            )
        if not columns:
            raise ValueError(
                f"{self.path} describes no column beside the target: describe at least one feature."
            )
        return [self._feature(column) for column in columns]

    def _feature(self, column: str) -> Range | OneHot:
        table, where = self.tables[column], self._where(column)
        if "categories" in table:
            choice = _choice(where, "categories", table["categories"])
            if str(table.get("baseline")) not in choice.names:
                raise ValueError(
                    f"{where} needs a baseline out of its categories, the value of a missing or private cell,"
                    f" as in baseline = {json.dumps(table['categories'][0], ensure_ascii=False)}"
                )
            return OneHot(column, choice, choice.names.index(str(table["baseline"])))
        absent = [key for key in ("low", "high", "baseline") if key not in table]
        if absent:
            raise ValueError(
                f"{where} has no {', no '.join(absent)}: write the column's public range and baseline, for"
                f" example:\n\n{range_example(column)}\n{OR_TEXTS}\n"
            )
        low, high, baseline = (_number(where, key, table[key]) for key in ("low", "high", "baseline"))
        if not low <= baseline <= high or low == high:
            raise ValueError(
                f"{where} needs low < high and a baseline between, got {low}, {high} and {baseline}."
            )
        return Range(column, (low,), (high,), (baseline,))

    def label(self, target: str) -> Label | Thresholds:
        """Describe the target.

        Raises
        ------
        ValueError
            If the schema file does not say which classes the column has.
        """
        table, where = self.tables.get(target, {}), self._where(target)
        missing = table.get("baseline")
        for key in ("classes", "categories"):
            if key in table:
                choice = _choice(where, key, table[key])
                if missing is not None and str(missing) not in choice.names:
                    raise ValueError(f"{where} has a baseline that is not one of its {key}: {choice}.")
                return Label(target, choice, None if missing is None else choice.names.index(str(missing)))
        if "thresholds" not in table:
            raise ValueError(
                f"{self.path} does not say which classes the target {target!r} has: write for example:\n\n"
                f"{class_example(target)}\n# or thresholds = [10.0], to cut a number into classes\n"
            )
        raw = table["thresholds"] if isinstance(table["thresholds"], list) else []
        cuts = tuple(_number(where, "thresholds", cut) for cut in raw)
        if not cuts or any(low >= high for low, high in pairwise(cuts)):
            raise ValueError(f"{where} needs increasing numbers as thresholds, as in thresholds = [10.0]")
        cut = Thresholds(target, cuts, None)
        if missing is None:
            return cut
        return Thresholds(target, cuts, cut.classify(_number(where, "baseline", missing)))

    def quantity(self, target: str) -> Quantity:
        """Describe the target as a number.

        Raises
        ------
        ValueError
            If the schema file says that it is none, or says nothing of the column.
        """
        table, where = self.tables.get(target), self._where(target)
        if table is None:
            raise ValueError(
                f"{self.path} does not describe the target {target!r}: write for example:\n\n"
                f"{quantity_example(target)}\n"
            )
        if not is_quantity(table):
            raise ValueError(
                f"{where} has classes, and a regression predicts a number: choose another target, or write low and"
                " high there if its cells are numbers."
            )
        absent = [key for key in ("low", "high") if key not in table]
        if len(absent) == 1:
            raise ValueError(
                f"{where} has no {absent[0]}: write both ends of the target's public range, or none."
            )
        given = {key: _number(where, key, table[key]) for key in ("low", "high", "baseline") if key in table}
        low, high, missing = given.get("low"), given.get("high"), given.get("baseline")
        if low is not None and high is not None and not low < high:
            raise ValueError(f"{where} needs low < high, got {low} and {high}.")
        if missing is not None and not (low is None or high is None or low <= missing <= high):
            raise ValueError(f"{where} has a baseline outside its range {low} to {high}: choose one within.")
        return Quantity(target, low, high, missing)

    def _where(self, column: str) -> str:
        return f"{self.path}, {heading(column)}"


def _number(where: str, key: str, value: Any) -> float:
    if not is_finite(value):
        raise ValueError(f"{where} needs a finite number as {key}, got {reprlib.repr(value)}.")
    return float(value)


def _choice(where: str, key: str, values: Any) -> Choice:
    if not isinstance(values, list) or not all(type(value) in (str, int, float) for value in values):
        raise ValueError(f'{where} needs a list of texts or numbers as {key}, as in {key} = ["no", "yes"]')
    if len(values) < 2 or len({str(value) for value in values}) < len(values):
        raise ValueError(f"{where} needs at least two {key}, all different.")
    return Choice(values)


def read_description(path: Path, target: str, source: Path) -> Description:
    """Read a schema file.

    Parameters
    ----------
    path : Path
        The TOML file.
    target : str
        The column to predict, to say what to write where there is no schema file.
    source : Path
        The data file, for errors.

    Raises
    ------
    ValueError
        If the file is missing, is not TOML, or holds an unknown key.
    """
    if path.is_dir():
        raise ValueError(f"The schema file {path} is a folder: give the path of a TOML file.")
    if not path.is_file():
        raise ValueError(
            f"There is no schema file {path} with the public description of {source}: write one with a table"
            " for each column that the first line of the data names, for example:\n\n"
            'ignore = ["my-id"]  # columns that are not used\n\n'
            f"{range_example('my-number')}\n\n{text_example('my-text')}\n\n{class_example(target)}\n"
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not valid TOML, since it is not UTF-8: save it as UTF-8.") from None
    except ValueError as error:  # whole numbers of thousands of digits are no TOMLDecodeError
        raise ValueError(f"{path} is not valid TOML: {error}.") from error
    for key in content:
        if key not in ("columns", "ignore", "missing"):
            raise ValueError(
                f"{path} has the unknown key {key!r}: it may hold columns, ignore and missing, and a column's"
                f" table is headed {heading(key)}."
            )
    texts = {"ignore": content.get("ignore", []), "missing": content.get("missing", ["NA"])}
    for key, value in texts.items():
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f'{path} needs a list of texts as {key}, as in {key} = ["NA"]')
    tables = content.get("columns", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(f"{path} needs a table for each column, as in\n\n{range_example('age')}")
    for column, table in tables.items():
        for key in table:
            if key not in _KEYS:
                raise ValueError(
                    f"{path}, {heading(column)} has the unknown key {key!r}; nearest: {nearest(key, _KEYS)}."
                )
    return Description(path, tables, frozenset(texts["ignore"]), frozenset({"", *texts["missing"]}))
