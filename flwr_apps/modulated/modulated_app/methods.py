"""The methods of a run, each as a strategy with its own budget: the main one, and those it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.clients.modulated_cohort import VariantPlan
from fedveil.config.modulated import NO_PRIVACY, ModulatedConfig
from fedveil.config.modulated_data import Regression
from fedveil.privacy import CohortRelease
from fedveil.strategies import Census, LocalDPSGD, ModulatedIterative, ModulatedOneShot, ModulatedOutcome
from fedveil.strategies.attendance import Participation
from fedveil.strategies.message_strategy import MessageStrategy
from fedveil.streams import Streams
from fedveil.wire import MAIN

__all__ = ["Fitting", "strategy_of"]

Ranges = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Fitting:
    """Everything that the methods of one run share."""

    config: ModulatedConfig
    problem: Regression
    plans: Mapping[str, VariantPlan]
    census: Census
    streams: Streams
    run: str
    code: Mapping[str, str]
    ranges: Ranges | None
    say: Callable[[str], None]


def strategy_of(
    name: str,
    fitting: Fitting,
    *,
    on_round: Callable[[ModulatedOutcome], None] | None = None,
    on_repeat: Callable[[int, tuple[CohortRelease, ...]], None] | None = None,
    completed_rounds: int = 0,
) -> MessageStrategy:
    """The strategy of the main method (``MAIN``) or of a comparator, by its name in the configuration."""
    config, variant = fitting.config, fitting.plans[name]
    common: dict[str, Any] = {
        "census": fitting.census,
        "plan": variant.plan,
        "dimension": fitting.problem.num_features,
        "streams": fitting.streams,
        "run": fitting.run,
        "code": fitting.code,
        "variant": name,
        # what was released about ranges is paid for by the methods whose plans leave room for it
        "ranges": None if name in ("dp-sgd", NO_PRIVACY) else fitting.ranges,
        "completed_rounds": completed_rounds,
        "on_round": on_round,
        "on_repeat": on_repeat,
        "min_replies": config.min_replies,
        "round_attempts": config.round_attempts,
        "say": fitting.say if name == MAIN else _silent,
    }
    if name == "dp-sgd":
        return LocalDPSGD(
            **common,
            participation="cohorts",
            clip_norm=config.dp_sgd_clip_norm,
            learning_rate=config.dp_sgd_learning_rate,
        )
    common |= {
        "modulation": variant.modulation,
        "bound": variant.bound,
        "label_scale": variant.label_scale,
        "largest_label": variant.largest_label if variant.label_scale is None else None,
        "reply": config.reply if name == MAIN else "sum",
    }
    if name == NO_PRIVACY:
        return ModulatedOneShot(**common, ridge=0.0)
    as_main = name in (MAIN, "lambda-0")
    if (config.method if as_main else name) == "one-shot":
        share = config.fraction_train if as_main else 1.0
        participation: Participation = "sampled" if share < 1 else "all"
        return ModulatedOneShot(
            **common,
            participation=participation,
            fraction_train=share,
            ridge=config.ridge if as_main else None,
        )
    if not as_main:
        return ModulatedIterative(**common, participation="cohorts", estimate="pooled")
    common["reply"] = config.reply  # averages need every message
    return ModulatedIterative(
        **common,
        participation=config.participation,
        fraction_train=config.fraction_train,
        estimate=config.estimate,
        learning_rate=config.learning_rate,
        radius=config.radius,
    )


def _silent(line: str) -> None:
    """Comparators tell their result only."""
