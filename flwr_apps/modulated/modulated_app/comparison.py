"""The same figures for other methods, side by side, each with what it guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config.modulated import NO_PRIVACY, ModulatedConfig
from fedveil.privacy import gaussian_epsilon, rounded_up

from .figures import Figures, shown

__all__ = ["comparison_lines", "privacy_of"]

_TOLD = {
    "lambda-0": "same, without modulation",
    "one-shot": "one-shot",
    "iterative": "iterative, disjoint cohorts",
    "dp-sgd": "local DP-SGD",
    NO_PRIVACY: "no privacy, nothing clipped",
}


def privacy_of(variant: VariantPlan, config: ModulatedConfig) -> str:
    """What the messages of one method guarantee a client, in words."""
    plan = variant.plan
    if plan is None:
        return "none"
    total = gaussian_epsilon(plan.budget, config.delta)
    return f"epsilon {rounded_up(total)} at delta {config.delta:g}, {plan.relation} relation"


def comparison_lines(
    config: ModulatedConfig, main: VariantPlan, figures: Figures, compared: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """A line a method, the run's own first."""
    rows = [(f"this run ({config.method})", figures.r2, figures.rmse, privacy_of(main, config))]
    rows += [(_TOLD[entry["method"]], entry["r2"], entry["rmse"], entry["privacy"]) for entry in compared]
    width = max(len(row[0]) for row in rows)
    yield f"{'method':<{width}}  {'R^2':>9}  {'RMSE':>9}  privacy of each client"
    for name, r2, rmse, privacy in rows:
        yield f"{name:<{width}}  {shown(r2):>9}  {rmse:>9.4g}  {privacy}"
