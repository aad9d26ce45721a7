"""From checked settings to the data of a regression and every message that clients may send, from public values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config.data_source import load_data
from fedveil.config.errors import ConfigError
from fedveil.config.modulated import ModulatedConfig
from fedveil.datasets.regression import RegressionData, RegressionRecords
from fedveil.datasets.request import DataRequest
from fedveil.plugins import find
from fedveil.privacy import MessagePlan, Modulation, plan_gradients, plan_messages
from fedveil.wire import SOURCE

__all__ = [
    "MAIN",
    "RANGE",
    "Regression",
    "code_of_data",
    "comparison_rounds",
    "load_regression",
    "variant_plans",
]

MAIN, RANGE = "main", "range"
"""Names of the messages that the run itself needs; every other variant is a comparator's."""

_ITERATIVE_ROUNDS = 20  # of the comparator "iterative", whose clients send once each
LARGEST_LABEL = (
    64.0  # half ranges: labels in the clear may lie outside their range, and sums need a public bound
)
_BOUND = 0.5  # of sqrt(columns): one rule for all tables, see docs/modulated.md


@dataclass(frozen=True, eq=False)
class Regression:
    """The data of a run, the target on a public scale of its own.

    Attributes
    ----------
    data : RegressionData
        Records as the data set gives them.
    target_center, target_half_range : float
        Public constants that the target is standardised by: of its public range where labels are private, else mean
        and largest deviation of the public test records.
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
        """Clients, each with one record."""
        return self.data.num_records

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
        far = np.abs(targets) > LARGEST_LABEL
        if far.any():
            raise ConfigError(
                f"the label of client {first + int(np.argmax(far))} is more than {LARGEST_LABEL:g} times as far from "
                "the mean of the public test records as any of them: correct it, or take a test set that is like the "
                "clients' records."
            )

    def _standardised(self, records: RegressionRecords) -> NDArray[np.float64]:
        return (records.targets - self.target_center) / self.target_half_range

    def in_own_units(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Slopes and intercept for features and target in their own units."""
        told = self.data.schema.in_own_units(coefficients) * self.target_half_range
        told[-1] += self.target_center
        return told


def load_regression(config: ModulatedConfig) -> Regression:
    """Load and check the data; the same settings give the same data in every process.

    Raises
    ------
    ConfigError
        Naming the file, column, row or setting that is wrong.
    """
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


def variant_plans(config: ModulatedConfig, problem: Regression, *, simulated: bool) -> dict[str, VariantPlan]:
    """What clients may be asked for, with the noise of each message; nodes and server compute the same.

    Raises
    ------
    ConfigError
        If the settings do not fit the data.
    """
    dimension = problem.num_features
    if config.num_directions >= dimension and config.amplitude > 0:
        raise ConfigError(
            f"num-directions = {config.num_directions} must be below the number of features, {dimension} in "
            f"{problem.data.name}: one direction must stay free for the coefficients; lower it, or use amplitude = 0."
        )
    try:
        plans = {MAIN: _modulated(config, problem, config.modulation, main_releases(config))}
        if config.standardization == "estimated":
            plans[RANGE] = _range(config, problem)
        for name in config.comparators_of(simulated=simulated):
            plans[name] = _comparator(name, config, problem)
        _refuse_empty_cohorts(config, problem)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return plans


def main_releases(config: ModulatedConfig) -> int:
    """Messages of one client in the rounds of the main method.

    With sampling it is the expected number, rounded up: a client that happens to be drawn more often spends its budget
    earlier and stops.
    """
    if config.method == "one-shot" or config.participation == "cohorts":
        return 1
    if config.participation == "all":
        return config.rounds
    return max(1, math.ceil(config.fraction_train * config.rounds - 1e-9))


def comparison_rounds(name: str, config: ModulatedConfig, num_clients: int) -> int:
    """Rounds that a comparator takes; of disjoint cohorts no more than there are clients."""
    if name == "lambda-0":
        return config.rounds
    return min({"iterative": _ITERATIVE_ROUNDS, "dp-sgd": config.dp_sgd_rounds}.get(name, 1), num_clients)


def code_of_data(config: ModulatedConfig, code: Mapping[str, str]) -> dict[str, str]:
    """What runs here, for server and nodes to compare: FedVeil's own code, and the version of a plugin's data set."""
    plugin = find("dataset", config.dataset)
    return {**code, SOURCE: code[SOURCE] if plugin.is_own else f"{code[SOURCE]}; {plugin}"}


def _refuse_empty_cohorts(config: ModulatedConfig, problem: Regression) -> None:
    own = config.method == "iterative" and config.participation == "cohorts"
    if own and config.rounds > problem.num_clients:
        raise ConfigError(
            f"num-server-rounds = {config.rounds}: {config.rounds} rounds of disjoint cohorts need as many clients, "
            f"and there are {problem.num_clients}; use fewer rounds."
        )


def _modulated(
    config: ModulatedConfig, problem: Regression, modulation: Modulation, num_releases: int
) -> VariantPlan:
    share = 1 - config.range_share if config.standardization == "estimated" else 1.0
    plan = _messages(config, modulation, problem.bound, num_releases, share, "modulated-message")
    return VariantPlan("modulated", plan, modulation, problem.bound, *_labels(config))


def _range(config: ModulatedConfig, problem: Regression) -> VariantPlan:
    # clipped less than the records themselves: what is estimated is where they lie
    bound = math.sqrt(problem.num_features)
    plain = Modulation(config.alpha, 0.0, 0.0, 1)
    plan = _messages(config, plain, bound, 1, config.range_share, "range-message")
    return VariantPlan("range", plan, plain, bound, *_labels(config))


def _messages(
    config: ModulatedConfig, modulation: Modulation, bound: float, num_releases: int, share: float, name: str
) -> MessagePlan:
    return plan_messages(
        epsilon=config.epsilon,
        delta=config.delta,
        bound=bound,
        modulation=modulation,
        num_releases=num_releases,
        rule=config.sensitivity,
        accounting=config.accounting,
        label_privacy=config.label_privacy,
        share=share,
        name=name,
    )


def _comparator(name: str, config: ModulatedConfig, problem: Regression) -> VariantPlan:
    if name == "no-privacy":
        plain: Any = Modulation(0.0, 0.0, 0.0, 1)
        # a bound that no standardised record reaches: nothing is clipped
        return VariantPlan(
            "unnoised", None, plain, 2.1 * math.sqrt(problem.num_features), None, LARGEST_LABEL
        )
    if name == "dp-sgd":
        plan = plan_gradients(
            epsilon=config.epsilon,
            delta=config.delta,
            clip_norm=config.dp_sgd_clip_norm,
            accounting=config.accounting,
        )
        return VariantPlan("gradient", plan, config.modulation, config.dp_sgd_clip_norm, None)
    if name == "lambda-0":
        plain = replace(config.modulation, amplitude=0.0)
        return _modulated(config, problem, plain, main_releases(config))
    return _modulated(config, problem, config.modulation, 1)


def _labels(config: ModulatedConfig) -> tuple[float | None, float | None]:
    """Scale of a noised label, and public bound of one in the clear; targets are standardised already."""
    return (1.0, None) if config.label_privacy else (None, LARGEST_LABEL)
