"""From checked settings to the records of a regression: of one data set, of a site, or none on the server."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.config.data_source import load_data
from fedveil.config.errors import ConfigError
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.sites import SiteData, load_whole, uses_sites
from fedveil.datasets.regression import RegressionData, RegressionRecords, rows_of
from fedveil.datasets.request import DataRequest

__all__ = ["LARGEST_HALF_RANGES", "Regression", "load_regression", "load_site"]

LARGEST_HALF_RANGES = 64.0
"""How far a label in the clear may lie from the target's centre, in its half ranges: sums need a public bound."""
_BOUND = 0.5  # of sqrt(columns): one rule for all tables, see docs/modulated.md


@dataclass(frozen=True, eq=False)
class Regression:
    """The data of a run, the target on a public scale of its own.

    Attributes
    ----------
    data : RegressionData
        Records as the data set gives them.
    target_center, target_half_range : float
        Public constants that the target is standardised by: of its public range where labels are private or sites bring
        the records, else mean and largest deviation of the public test records.
    bound : float
        Clip B of a standardised record.
    """

    data: RegressionData
    target_center: float
    target_half_range: float
    bound: float

    @property
    def num_features(self) -> int:
        """Number d of features."""
        return self.data.schema.num_features

    @property
    def num_clients(self) -> int:
        """Clients, each with one record; 0 where sites bring them and none has said how many it has."""
        return self.data.num_records

    def of_sites(self, num_clients: int) -> Regression:
        """The same, once it is known how many records all sites bring."""
        return replace(self, data=replace(self.data, num_records=num_clients))

    def rows(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Features and standardised targets of clients first to last - 1.

        Raises
        ------
        ConfigError
            If the data set fails or gives something else.
        """
        try:
            records = self.data.rows(first, last)
        except Exception as error:  # a plugin may fail in any way; not its text, which may quote a record
            raise ConfigError(
                f"data set {self.data.name!r} gave no rows ({type(error).__name__}): correct it."
            ) from None
        wanted = (last - first, self.num_features)
        if not isinstance(records, RegressionRecords) or records.features.shape != wanted:
            raise ConfigError(
                f"data set {self.data.name!r} must give RegressionRecords of shape {wanted} for clients {first} to "
                f"{last - 1}, and gave something else: correct it."
            )
        return records.features, self._standardised(records)

    @property
    def test(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Features and standardised targets of the public test set."""
        return self.data.test.features, self._standardised(self.data.test)

    def check_labels(self, first: int, targets: NDArray[np.float64]) -> None:
        """Refuse labels in the clear that no public bound of the sums could hold, before anything is sent.

        Raises
        ------
        ConfigError
            Naming the first client of which the label is too far out.
        """
        far = np.abs(targets) > LARGEST_HALF_RANGES
        if far.any():
            raise ConfigError(
                f"the label of client {first + int(np.argmax(far))} is more than {LARGEST_HALF_RANGES:g} times as far "
                "from the mean of the public test records as any of them: correct it, or take a test set that is like "
                "the clients' records."
            )

    def check_site_labels(self, targets: NDArray[np.float64], site: str) -> None:
        """The same at a site, of which no single record is told of.

        Raises
        ------
        ConfigError
            Naming the site.
        """
        if np.any(np.abs(targets) > LARGEST_HALF_RANGES):
            raise ConfigError(
                f"{site}: a target is more than {LARGEST_HALF_RANGES:g} half widths of the public range of "
                f"{self.data.schema.target!r} away from its baseline, or from its middle where it has none: correct "
                "it, or widen the range in everybody's schema file."
            )

    def _standardised(self, records: RegressionRecords) -> NDArray[np.float64]:
        return (records.targets - self.target_center) / self.target_half_range


def load_regression(config: ModulatedConfig) -> Regression:
    """Load and check the data; the same settings give the same data in every process.

    With partition "sites" it is what the server has: the public test set and description, and no client's record.

    Raises
    ------
    ConfigError
        Naming the file, column, row or setting that is wrong.
    """
    if uses_sites(config):
        public = _whole(config, SiteData(config.test_path, config.data_schema), "the public test set")
        name, records = f"{config.dataset} files of sites", public.data.rows(0, public.num_clients)
        return replace(
            public,
            data=replace(public.data, name=name, num_records=0, rows=rows_of(_no_rows, 0), test=records),
        )
    values = {
        "path": config.data_path,
        "schema_path": config.data_schema,
        "test_path": config.test_path,
        "target": config.target,
        "test_fraction": config.test_fraction,
        "seed": config.data_seed,
    }
    options = json.dumps(config.options_of("dataset"), sort_keys=True)
    return _load(config.dataset, tuple(values.items()), options, config.bound, config.label_privacy)


def load_site(config: ModulatedConfig, place: SiteData, site: str) -> Regression:
    """Load and check the records that a site brings, every one of them a client's.

    Parameters
    ----------
    place : SiteData
        Where they lie.
    site : str
        The site, as errors name it.

    Raises
    ------
    ConfigError
        Naming the site, and the file, column or row that is wrong.
    """
    try:
        return _whole(config, place, site)
    except ConfigError as error:
        raise ConfigError(f"{site}: {error}") from error


def _whole(config: ModulatedConfig, place: SiteData, whose: str) -> Regression:
    options = json.dumps(config.options_of("dataset"), sort_keys=True)
    return _load_whole(config.dataset, place, config.target, options, config.bound, whose)


@lru_cache(maxsize=64)  # simulated sites of one process
def _load_whole(
    dataset: str, place: SiteData, target: str, options: str, bound: float | None, whose: str
) -> Regression:
    try:
        request = DataRequest(
            place.path, place.schema, target=target, options=json.loads(options), task="regression"
        )
        data = load_whole(dataset, request, RegressionData, whose)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    schema = data.schema
    if schema.target_low is None:
        raise ConfigError(
            f"partition = 'sites' needs a public range of the target {schema.target!r}, by which every site scales it: "
            "write its low and high into the data-schema."
        )
    scale = schema.target_center, schema.target_half_range
    return Regression(data, *scale, bound or _BOUND * math.sqrt(schema.num_columns))


def _no_rows(first: int, last: int) -> RegressionRecords:
    raise ValueError(f"rows {first} to {last} are at the sites: the server has none of them.")


@lru_cache(maxsize=2)
def _load(
    dataset: str,
    values: tuple[tuple[str, Any], ...],
    options: str,
    bound: float | None,
    private_labels: bool,
) -> Regression:
    try:
        request = DataRequest(**dict(values), options=json.loads(options), task="regression")
        data = load_data(dataset, request, RegressionData)
        scale = _target_scale(data, private_labels)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    return Regression(data, *scale, bound or _BOUND * math.sqrt(data.schema.num_columns))


def _target_scale(data: RegressionData, private_labels: bool) -> tuple[float, float]:
    """What targets are told from and divided by: of the public range where they are private, else of the test set.

    Raises
    ------
    ValueError
        If labels are private and their range is not known.
    """
    if private_labels:
        data.schema.target_range()
        return data.schema.target_center, data.schema.target_half_range
    shown = data.test.targets
    if not shown.size:
        return 0.0, 1.0
    center = float(np.mean(shown))
    furthest = float(np.abs(shown - center).max())
    if not furthest:  # one record, or equal targets: they tell of no spread
        return center, data.schema.target_half_range if data.schema.target_low is not None else abs(
            center
        ) or 1.0
    return center, furthest
