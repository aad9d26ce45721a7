"""The end of a run: its results on disk, and what was found and guaranteed, said."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from fedveil import __version__, wire
from fedveil.artifacts import RunFolder, cohort_table
from fedveil.artifacts.run_folder import ESTIMATE, GUARANTEES
from fedveil.config import ConfigError
from fedveil.strategies import NoGoodReplies
from fedveil.strategies.message_strategy import MessageStrategy

from .figures import Figures
from .history import History
from .methods import Fitting
from .report import (
    coefficient_lines,
    coefficients_of,
    inference_of,
    json_values,
    reconstruction_of,
    region_values,
)
from .statements import guarantees_of

__all__ = ["APP", "conclude"]

APP = "modulated"


def conclude(
    fitting: Fitting, history: History, folder: RunFolder, strategy: MessageStrategy, figures: Figures
) -> None:
    """Write the results and say them.

    Raises
    ------
    NoGoodReplies
        If not one message arrived in the whole run: there is no result. The folder keeps what was spent.
    """
    config, problem, plans, say = fitting.config, fitting.problem, fitting.plans, fitting.say
    schema, main_plan = problem.data.schema, plans[wire.MAIN].plan
    if main_plan is None:
        raise ConfigError("the run's own messages must have noise.")
    inference = inference_of(config, strategy.moments, history.effective_clients())
    if inference is None:
        raise NoGoodReplies(
            "no client has sent a message: all had spent their budget before, as when a run was interrupted while they "
            "sent; start a new run, which is new spending."
        )
    intervals, region = inference
    entries = coefficients_of(problem, history.ranges, strategy.coefficients, intervals)
    bound = reconstruction_of(plans, problem, config, history.ranges, history.directions)
    guarantees = guarantees_of(config, history.all_releases, main_plan.budget)
    center, spread = history.ranges or (np.zeros(problem.num_features), np.ones(problem.num_features))
    stated = [asdict(guarantee) for guarantee in guarantees]
    warning = problem_of(history, figures)
    document: dict[str, Any] = {
        "method": config.method,
        "dataset": problem.data.name,
        "target": schema.target,
        "clients": problem.num_clients,
        "epsilon": config.epsilon,
        "delta": config.delta,
        "seeded": fitting.streams.is_seeded,
        "clipped-to-norm": problem.bound,
        "held-out": {"records": len(problem.data.test), "r2": figures.r2, "rmse": figures.rmse},
        "coefficients-are": f"of {schema.target!r} for one unit of a feature more, of records clipped to that norm",
        "coefficients": entries,
        "problem": warning,
        "identification": intervals.statement,
        "identified": intervals.identified,
        "interval-target": config.interval_target,
        "region": region_values(region),
        "reconstruction": asdict(bound),
        "comparators": history.compared,
        "guarantees": stated,
        "guarantees-cover": "this run's own messages; not the comparators' figures",
    }
    folder.finish(
        {
            wire.COEFFICIENTS: strategy.coefficients,
            "center": schema.center + schema.half_range * center,
            "half-range": schema.half_range * spread,
            "low": schema.low,
            "high": schema.high,
            "target": np.array([problem.target_center, problem.target_half_range]),
        },
        history.metrics,
        cohort_table(history.releases, history.assumed),
        json_values(
            {
                "app": APP,
                "library": __version__,
                "model": "linear regression",
                "features": list(schema.names),
                "target": schema.target,
                "bound": problem.bound,
                "r2": figures.r2,
                "rmse": figures.rmse,
                "guarantees": stated,
            }
        ),
        documents={
            ESTIMATE: json_values(document),
            GUARANTEES: json_values({"guarantees": stated, "of": "the worst-off client"}),
        },
    )
    if warning:
        say(f"warning: {warning}")
    say(intervals.statement if intervals.identified else region.statement)
    if intervals.identified and config.interval_target == "population":
        say("intervals are for a population in which the residuals' variance does not depend on the features")
    centres = "public" if history.ranges is None else "estimated"
    say(
        f"{'coefficients' if intervals.identified else 'regularised coefficients, not identified one by one,'} of "
        f"{schema.target!r} for one unit more, of records clipped to norm {problem.bound:.4g} (steeper than of whole "
        f"ones; a larger bound clips fewer), the intercept at the features' {centres} centres:"
    )
    for line in coefficient_lines(entries, config):
        say(f"  {line}")
    say(bound.statement)
    if history.assumed:
        count = sum(cohort.count for cohort in history.assumed)
        say(
            f"{count} rows of the ledger are assumed: messages that may have left and did not arrive. A client's rows "
            "can so add up to more than it sent; its own filter stopped it at its budget"
        )
    if history.compared:
        say("guaranteed by this run's own messages; the comparators' figures are not covered:")
    for guarantee in guarantees:
        say(f"{guarantee.relation} relation, worst-off client: {guarantee.describe()}")
    say(
        f"held-out {figures.told} on {len(problem.data.test)} public test records (unit of {schema.target!r}); "
        f"{history.sent_by} of {problem.num_clients} clients took part"
    )


def problem_of(history: History, figures: Figures) -> str | None:
    """Why the model should not be used, in a sentence; None where nothing speaks against it."""
    if history.problem is not None:
        return history.problem
    if math.isnan(figures.r2):
        return "how well the model predicts is not known: the public test records have one target only."
    if figures.r2 < 0:
        return (
            f"the model predicts the public test records worse than their own mean does (R^2 {figures.r2:.4g}): noise "
            "outweighs the records, or a given ridge, radius or learning-rate is wrong."
        )
    return None
