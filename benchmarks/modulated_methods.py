"""Forms of modulated regression as functions of a trial and the noise of its messages; each gives the coefficients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from modulated_trial import DELTA, ROUNDS, FloatArray, Part, Table, clipped

from fedveil.privacy import (
    Accounting,
    Correction,
    MessagePlan,
    ModulatedMoments,
    Modulation,
    NormalEquations,
    NotIdentified,
    SensitivityRule,
    averaged,
    draw_directions,
    modulated,
    one_shot,
    plan_messages,
    projected_step,
    regularised,
)
from fedveil.strategies.range_round import ranges_of

MODULATION = Modulation(alpha=0.3, amplitude=0.5, frequency=1.0, num_directions=1)
NO_WAVE = replace(MODULATION, amplitude=0.0)
STEPS = 50  # a round, on pooled moments
PLAIN_RATE = 0.5  # step of the published iterative form where nothing else chooses one
RANGE_SHARE = 0.1  # of the budget mu^2


def directions_of(table: Table, round: int, slopes: FloatArray, modulation: Modulation) -> FloatArray:
    """The server's directions of a round, orthogonal to the slopes so far."""
    count = modulation.num_directions if modulation.amplitude else 0
    normal = table.draws.streams.stream("directions", round=round).normal
    return draw_directions(count, table.dimension, normal, orthogonal_to=slopes)


def plan(
    table: Table,
    epsilon: float,
    modulation: Modulation = MODULATION,
    rule: SensitivityRule = "exact",
    accounting: Accounting = "exact",
    num_releases: int = 1,
    share: float = 1.0,
) -> MessagePlan:
    return plan_messages(
        epsilon=epsilon,
        delta=DELTA,
        bound=table.bound,
        modulation=modulation,
        num_releases=num_releases,
        rule=rule,
        accounting=accounting,
        share=share,
    )


def messages(
    table: Table,
    sigma: float,
    draw: int,
    directions: FloatArray,
    modulation: Modulation,
    part: Part = slice(None),
) -> FloatArray:
    """The messages of these clients; `draw` counts how often they have sent before."""
    phases = table.draws.phases[draw][part, : len(directions)]
    sent = modulated(table.clipped[part], directions, phases, modulation)
    sent += sigma * table.draws.noise[draw][part]
    return sent


def moments(
    table: Table,
    sigma: float,
    round: int,
    modulation: Modulation,
    part: Part = slice(None),
    beta: FloatArray | None = None,
    draw: int = 0,
) -> ModulatedMoments:
    """Moments of the messages of these clients in one round, along directions orthogonal to beta."""
    slopes = np.zeros(table.dimension) if beta is None else beta[:-1]
    directions = directions_of(table, round, slopes, modulation)
    sent = messages(table, sigma, draw, directions, modulation, part)
    return ModulatedMoments.from_messages(
        sent, table.labels[part], modulation=modulation, directions=directions, sigma=sigma
    )


def solve_once(table: Table, noise: MessagePlan, modulation: Modulation = MODULATION) -> FloatArray:
    """One-shot: one message of every client."""
    equations = moments(table, noise.sigma, 0, modulation).normal_equations()
    return one_shot(equations, bound=table.bound).coefficients


def with_estimated_ranges(table: Table, epsilon: float) -> Table:
    """The table scaled by means and spreads that every client's first message told, for `RANGE_SHARE` of its budget."""
    bound = math.sqrt(table.dimension)
    noise = plan(replace(table, bound=bound), epsilon, NO_WAVE, share=RANGE_SHARE)
    sent = NO_WAVE.scale * clipped(table.records, bound) + noise.sigma * table.draws.normal("range-noise")
    sums = ModulatedMoments.from_messages(sent, table.labels, modulation=NO_WAVE, sigma=noise.sigma)
    center, spread, _ = ranges_of(sums)
    return replace(table, ranges=(center, spread))


def solve_with_private_labels(table: Table, epsilon: float) -> FloatArray:
    """One-shot, the label hidden too: (x, y), y in half ranges, clipped jointly; relation record."""
    noise = plan_messages(
        epsilon=epsilon, delta=DELTA, bound=table.bound, modulation=MODULATION, label_privacy=True
    )
    joint = clipped(np.column_stack([table.records, table.labels]), table.bound)
    directions = directions_of(table, 0, np.zeros(table.dimension), MODULATION)
    sent = (
        modulated(joint[:, :-1], directions, table.draws.phases[0], MODULATION)
        + noise.sigma * table.draws.noise[0]
    )
    label_noise = table.draws.streams.stream("label-noise").normal(len(joint))
    labels = MODULATION.scale * joint[:, -1] + noise.sigma * label_noise
    sums = ModulatedMoments.from_messages(
        sent, labels, modulation=MODULATION, directions=directions, sigma=noise.sigma, label_scale=1.0
    )
    return one_shot(sums.normal_equations(), bound=table.bound).coefficients


def iterate_pooled(table: Table, noise: MessagePlan, modulation: Modulation = MODULATION) -> FloatArray:
    """Disjoint cohorts, one a round; `STEPS` steps a round on all moments so far, regularised as one-shot's."""
    beta, pooled = np.zeros(table.dimension + 1), None
    for round, part in enumerate(table.cohorts()):
        fresh = moments(table, noise.sigma, round, modulation, part, beta)
        pooled = fresh if pooled is None else pooled + fresh
        try:
            equations = regularised(pooled.normal_equations(), bound=table.bound)
        except NotIdentified:
            continue  # this round's moments say nothing: the coefficients stay
        beta = steps_along(equations, beta, STEPS)
    return beta


def iterate_fresh(table: Table, noise: MessagePlan, parts: list[Part], *, project: bool = True) -> FloatArray:
    """Published form: a step a round along the gradient of the messages that these clients send in that round.

    Without projection the step is `PLAIN_RATE` and nothing bounds the coefficients.
    """
    beta = np.zeros(table.dimension + 1)
    for round, part in enumerate(parts):
        fresh = moments(table, noise.sigma, round, MODULATION, part, beta, draw=round)
        equations = fresh.normal_equations()
        if project:
            beta = steps_along(equations, beta, 1, radius(equations))
        else:
            beta = steps_along(equations, beta, 1, rate=PLAIN_RATE)
        if not np.isfinite(beta).all():
            break
    return beta


def steps_along(
    equations: NormalEquations,
    beta: FloatArray,
    steps: int,
    radius: float | None = None,
    rate: float | None = None,
) -> FloatArray:
    """Projected steps of the slopes, by default of 1/L; the intercept, not noised, is solved for beside them."""
    covariance, cross = equations.slopes_alone()
    slopes = beta[:-1]
    if rate is None:
        rate = 1 / float(np.abs(np.linalg.eigvalsh(covariance)).max())
    for _ in range(steps):
        slopes = projected_step(slopes, covariance @ slopes - cross, rate, radius, intercept=False)
    return equations.complete(slopes)


def radius(equations: NormalEquations) -> float:
    """Norm that slopes of least squares keep to along directions in which records vary more than the noise does."""
    variance = equations.label_square - float(equations.cross[-1]) ** 2
    level = equations.noise_variance * math.sqrt(equations.num_features / equations.count)
    return math.sqrt(variance / level)


def solve_averages(table: Table, noise: MessagePlan) -> FloatArray:
    """Every client sends every round; its messages are averaged, then solved for: steps would reach the same."""
    total, corrections = np.zeros((len(table.labels), table.dimension)), []
    for round in range(ROUNDS):
        directions = directions_of(table, round, np.zeros(table.dimension), MODULATION)
        total += messages(table, noise.sigma, round, directions, MODULATION)
        corrections.append(Correction(len(total), noise.sigma, MODULATION.amplitude, directions))
    sums = ModulatedMoments.from_messages(
        total / ROUNDS, table.labels, modulation=MODULATION, corrections=[averaged(corrections, len(total))]
    )
    return one_shot(sums.normal_equations(), bound=table.bound).coefficients
