"""What a run has found, as JSON values and as lines: coefficients, intervals, figures, reconstruction, comparators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.modulated_data import Regression
from fedveil.privacy import (
    Intervals,
    ModulatedMoments,
    ReconstructionBound,
    Region,
    confidence_intervals,
    confidence_region,
    reconstruction_bound,
)
from fedveil.strategies.json_number import json_number
from fedveil.wire import MAIN, RANGE

from .methods import Ranges

__all__ = [
    "coefficient_lines",
    "coefficients_of",
    "inference_of",
    "json_values",
    "reconstruction_of",
    "region_values",
]

_MOST_LINES = 40


def inference_of(
    config: ModulatedConfig, moments: ModulatedMoments | None, effective_clients: float | None
) -> tuple[Intervals, Region] | None:
    """Intervals and region of least squares from the run's moments; None where no message arrived."""
    if moments is None:
        return None
    equations = moments.normal_equations()
    kind: dict[str, Any] = {"target": config.interval_target}
    if config.interval_target == "population":
        kind["effective_clients"] = effective_clients
    return (
        confidence_intervals(equations, level=config.confidence, **kind),
        confidence_region(equations, level=config.confidence, **kind),
    )


def coefficients_of(
    problem: Regression, ranges: Ranges | None, model: NDArray[np.float64], intervals: Intervals | None
) -> list[dict[str, Any]]:
    """One entry for each feature and the intercept, in their own units.

    The interval is of least squares without regularisation, which has one; the model's coefficient is regularised. The
    intercept is told where every feature is at its public centre, so that its interval is its own.
    """
    schema, half = problem.data.schema, problem.target_half_range
    spread = np.ones(problem.num_features) if ranges is None else ranges[1]
    units = np.append(half / (schema.half_range * spread), half)
    shift = np.append(np.zeros(problem.num_features), problem.target_center)
    entries = []
    for index, name in enumerate((*schema.names, "intercept")):
        entry: dict[str, Any] = {
            "name": name,
            "coefficient": float(model[index] * units[index] + shift[index]),
        }
        if intervals is not None and intervals.identified:
            entry |= {
                "least-squares": float(intervals.estimate[index] * units[index] + shift[index]),
                "standard-error": float(intervals.standard_errors[index] * units[index]),
                "lower": float(intervals.lower[index] * units[index] + shift[index]),
                "upper": float(intervals.upper[index] * units[index] + shift[index]),
            }
        entries.append(entry)
    return entries


def coefficient_lines(entries: Sequence[Mapping[str, Any]], config: ModulatedConfig) -> Iterator[str]:
    """A line for each coefficient, up to a number that can be read."""
    width = max(len(entry["name"]) for entry in entries)
    for entry in entries[:_MOST_LINES]:
        line = f"{entry['name']:<{width}}  {entry['coefficient']:>12.5g}"
        if "lower" in entry:
            line += (
                f"   least squares {entry['least-squares']:.5g}, {100 * config.confidence:g} % "
                f"[{entry['lower']:.5g}, {entry['upper']:.5g}]"
            )
        yield line
    if len(entries) > _MOST_LINES:
        yield f"... and {len(entries) - _MOST_LINES} more in estimate.json"


def region_values(region: Region) -> dict[str, Any]:
    """A confidence region as JSON values."""
    return {
        "level": region.level,
        "threshold": region.threshold,
        "bounded": region.is_bounded,
        "statement": region.statement,
    }


def reconstruction_of(
    plans: Mapping[str, VariantPlan],
    problem: Regression,
    config: ModulatedConfig,
    ranges: Ranges | None,
    directions: Sequence[NDArray[np.float64]],
) -> ReconstructionBound:
    """How well anybody can reconstruct the scaled record of a client that has sent all its messages.

    Parameters
    ----------
    directions : sequence of (m, d) arrays
        Those of the rounds, in order; a client's messages are counted along the first of them.
    """
    main = plans[MAIN]
    if main.plan is None:
        raise ValueError("the run's own messages have noise, and this plan has none.")
    amplitude = main.modulation.amplitude
    shown = directions[: main.plan.num_releases]
    messages: list[tuple[float, float, NDArray[np.float64]]] = [
        (main.plan.sigma, amplitude, rows) for rows in shown
    ]
    if ranges is not None:
        # told in the unit of the scaled record, whose widest feature shows most; more information is a lower bound
        sigma = plans[RANGE].sigma / float(ranges[1].max())
        messages.append((sigma, 0.0, np.zeros((0, problem.num_features))))
    return reconstruction_bound(
        messages, alpha=config.alpha, dimension=problem.num_features, bound=problem.bound
    )


def json_values(values: Any) -> Any:
    """The same values, every number in them as :func:`fedveil.strategies.json_number.json_number` has it."""
    if isinstance(values, Mapping):
        return {key: json_values(value) for key, value in values.items()}
    if isinstance(values, list):
        return [json_values(value) for value in values]
    return json_number(values) if isinstance(values, float) else values
