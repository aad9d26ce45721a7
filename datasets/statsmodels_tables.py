"""Four real tables embedded in the statsmodels wheel, each read by a public description that comes with FedVeil.

The descriptions lie in ``tables/``: ranges, categories and thresholds follow the documentation of each study, and
nothing in them was computed from the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.datasets.described import load_table
from fedveil.datasets.description import is_quantity, read_description
from fedveil.datasets.encoding import Block, Source
from fedveil.datasets.files import Files
from fedveil.datasets.regression import RegressionData
from fedveil.datasets.regression_table import load_regression_table
from fedveil.datasets.request import TASKS, DataRequest
from fedveil.datasets.schema import Dataset
from fedveil.datasets.table import open_csv

__all__ = ["load_co2", "load_fair", "load_modechoice", "load_randhie"]

_TARGET_KEYS = {"classes", "categories", "thresholds"}


def load_fair(request: DataRequest) -> Dataset | RegressionData:
    """Load 6,366 women's answers about their marriage: any affair, or (``yrs_married``) how long they are married.

    Parameters
    ----------
    request : DataRequest
        ``target``, ``test_fraction``, ``seed`` and ``task`` are used.

    Returns
    -------
    Dataset or RegressionData
        8 columns. The target is ``affairs``, none or any, or for a regression ``yrs_married``, where the request names
        none; the split depends on the number of rows and the seed only.

    Raises
    ------
    ModuleNotFoundError
        If statsmodels is not installed.
    ValueError
        If the request asks for something that the table does not have.
    """
    return _load("fair", request, ("affairs", "yrs_married"), "rate_marriage,religious")


def load_randhie(request: DataRequest) -> Dataset | RegressionData:
    """Load 20,190 person-years of the RAND Health Insurance Experiment: visits to a physician.

    The target is ``mdvis``: none, one to three, or more, or for a regression their number. Parameters, result and
    errors as for :func:`load_fair`.
    """
    return _load("randhie", request, ("mdvis", "mdvis"), "physlm,disea,hlthg,hlthf,hlthp")


def load_modechoice(request: DataRequest) -> Dataset | RegressionData:
    """Load 210 trips, 840 rows of one trip and one mode each, to predict whether the mode was chosen.

    The target is ``choice``, or ``gc`` or ``mode``, and for a regression ``gc``, the generalised cost of the trip.
    ``client_column`` may be ``individual``, whose four rows are then one client's, less those that are drawn for the
    test set; in a regression each row is a client's. Result and errors as for :func:`load_fair`.
    """
    if request.client_column not in ("", "individual"):
        raise ValueError(
            f"client-column = {request.client_column!r}: the clients of dataset 'modechoice' can be those of the"
            " column 'individual'; name it, or leave client-column empty."
        )
    return _load("modechoice", request, ("choice", "gc"), "hinc", "client-column", delimiter=";")


def load_co2(request: DataRequest) -> Dataset | RegressionData:
    """Load 2,225 weeks of carbon dioxide at Mauna Loa, told from the date alone.

    The features are the year (with decimals) and sine and cosine of the season; the target is ``co2``, cut at public
    thresholds or, for a regression, as it is. The 59 weeks without a measurement are left out: the series is public,
    and so is which weeks it has. Parameters, result and errors as for :func:`load_fair`.
    """
    return _load("co2", request, ("co2", "co2"), "", derive=_from_date)


def _load(
    name: str,
    request: DataRequest,
    defaults: tuple[str, str],
    private: str,
    *keys: str,
    delimiter: str = ",",
    derive: Callable[[Source], Source] | None = None,
) -> Dataset | RegressionData:
    """Load a table; ``defaults`` are its targets for classification and for regression."""
    request.allow(name, "target", *keys, tasks=TASKS)
    is_regression = request.task == "regression"
    if find_spec("statsmodels") is None:
        raise ModuleNotFoundError(
            f"The data set {name} comes with statsmodels, which is not installed: pip install 'fedveil[data]'."
        )
    described = Path(__file__).with_name("tables") / f"{name}.schema.toml"
    target = request.target or defaults[is_regression]
    tables = read_description(described, target, _packed(name)).tables
    possible = [
        column
        for column, table in tables.items()
        if (is_quantity(table) if is_regression else _TARGET_KEYS & table.keys())
    ]
    if target not in possible:
        raise ValueError(
            f"target = {target!r}: dataset {name!r} can predict {', '.join(sorted(possible))}; choose one of them, or"
            f" leave target empty for {defaults[is_regression]}."
        )

    def opened(path: Path) -> Source:
        # importing statsmodels takes seconds; its file is read without, unless a version keeps it elsewhere
        source = open_csv(path, delimiter) if path.is_file() else _from_loader(name, path)
        return source if derive is None else derive(source)

    shared = opened, Files(_packed(name), described, None, name), target, request.test_fraction, request.seed
    if is_regression:
        return load_regression_table(*shared)
    return replace(load_table(*shared, request.client_column or None), private=private)


def _packed(name: str) -> Path:
    """Where statsmodels keeps a table's file."""
    package = find_spec("statsmodels")
    origin = "" if package is None or package.origin is None else package.origin
    return Path(origin).parent / "datasets" / name / f"{name}.csv"


def _from_loader(name: str, path: Path) -> Source:
    """Ask statsmodels' own loader for a table, as texts like those of its file."""
    frame = import_module(f"statsmodels.datasets.{name}").load_pandas().data
    columns: dict[str, Sequence[Any]] = {column: frame[column].tolist() for column in frame.columns}
    if name == "co2":  # the dates are the frame's index
        columns = {"date": [day.strftime("%Y%m%d") for day in frame.index], **columns}
    texts = {column: [_text(value) for value in values] for column, values in columns.items()}

    def blocks(used: Collection[str]) -> Iterator[Block]:
        yield Block({column: texts[column] for column in used}, range(1, len(frame) + 1))

    return Source(path, list(texts), blocks, "row")


def _text(value: Any) -> str:
    return "" if value != value else str(value)  # NaN is a missing cell there


def _from_date(source: Source) -> Source:
    """The series as a table of year, season and measurement, without the weeks that have none."""

    def blocks(used: Collection[str]) -> Iterator[Block]:
        for block in source.blocks(("date", "co2")):
            weeks = [
                (number, date.fromisoformat(str(day)), value)
                for number, day, value in zip(
                    block.numbers, block.cells["date"], block.cells["co2"], strict=True
                )
                if value
            ]
            years = [_decimal_year(day) for _, day, _ in weeks]
            cells: dict[str, list[str | None]] = {
                "year": [repr(year) for year in years],
                "season_sin": [repr(math.sin(2 * math.pi * year)) for year in years],
                "season_cos": [repr(math.cos(2 * math.pi * year)) for year in years],
                "co2": [value for _, _, value in weeks],
            }
            yield Block({column: cells[column] for column in used}, [number for number, _, _ in weeks])

    return replace(source, header=("year", "season_sin", "season_cos", "co2"), blocks=blocks)


def _decimal_year(day: date) -> float:
    first, last = date(day.year, 1, 1), date(day.year, 12, 31)
    return day.year + (day - first) / (last - first + timedelta(days=1))
