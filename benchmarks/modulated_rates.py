"""Rates of modulated regression: measured exponents and constants beside the predicted ones.

One-shot: the variance of least squares from one round of messages. Iterative: projected gradient descent as published,
a fresh estimate of the gradient from K newly sampled clients in every round, with constant and decreasing steps. Every
message goes through the real modulation; clients are drawn from a normal law whose coefficients are known.

    python benchmarks/modulated_rates.py [--repeats 1.0] [--page docs/inference.md]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trials import table, write_section

from fedveil.privacy import (
    Correction,
    ModulatedMoments,
    Modulation,
    NormalEquations,
    asymptotic_covariance,
    averaged,
    draw_directions,
    gradient,
    least_squares,
    modulated,
    projected_step,
    score_covariance,
)

Array = NDArray[np.float64]

MODULATION = Modulation(alpha=0.3, amplitude=0.5)
SLOPES = np.array([0.8, -0.5, 0.3, 0.1])
COVARIANCE = np.diag([1.0, 0.8, 0.6, 0.5])
RESIDUAL = 0.5  # standard deviation of a label about its regression
RADIUS = 3.0
BURN_IN = 6.0  # constant steps: rounds left out, in times of 1/(step * smallest eigenvalue)


@dataclass(frozen=True)
class Row:
    """One quantity over a range of one variable: measured against predicted; a rate a round where not logarithmic."""

    what: str
    variable: str
    values: tuple[float, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    law: str
    logarithmic: bool = True

    def cells(self) -> list[str]:
        """Exponents are slopes on logarithmic scales; the constant is the mean quotient, with its range."""
        places = np.log(self.values) if self.logarithmic else np.array(self.values)
        found, due = (np.polyfit(places, np.log(column), 1)[0] for column in (self.measured, self.predicted))
        quotients = np.array(self.measured) / np.array(self.predicted)
        span = f"{self.values[0]:g} to {self.values[-1]:g}"
        return [
            self.what,
            f"{self.variable}, {span}",
            f"{found:.3f}",
            f"{due:.3f}",
            self.law,
            f"{quotients.mean():.3f} ({quotients.min():.3f} to {quotients.max():.3f})",
        ]


def population(sigma: float, count: int, *, rounds: int = 1, amplitude: float = 0.0) -> NormalEquations:
    """The equations that many clients would give, with the noise of messages whose directions are all orthogonal to
    beta: Omega is linear in their covariance then, so the mean over random directions is that of all d - 1."""
    slopes = SLOPES / np.linalg.norm(SLOPES)
    rest = np.linalg.svd(slopes[None, :])[2][1:]
    law = Correction(count, sigma, amplitude, rest)
    return NormalEquations(
        covariance=COVARIANCE,
        cross=COVARIANCE @ SLOPES,
        label_square=float(SLOPES @ COVARIANCE @ SLOPES) + RESIDUAL**2,
        count=count,
        scale=MODULATION.scale,
        corrections=(averaged([law] * rounds, count),),
    )


def clients(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Records and labels of fresh clients."""
    x = rng.standard_normal((count, len(SLOPES))) * np.sqrt(np.diag(COVARIANCE))
    return x, x @ SLOPES + RESIDUAL * rng.standard_normal(count)


def messages(rng: np.random.Generator, x: Array, directions: Array, sigma: float) -> Array:
    """What clients with these records send."""
    phases = rng.uniform(0, 2 * math.pi, (len(x), len(directions)))
    sent = modulated(x, directions, phases, MODULATION)
    sent += sigma * rng.standard_normal(x.shape)
    return sent


def fresh_equations(rng: np.random.Generator, count: int, sigma: float, beta: Array) -> NormalEquations:
    """One round: fresh clients, directions orthogonal to the model."""
    x, y = clients(rng, count)
    directions = draw_directions(1, len(SLOPES), rng.standard_normal, orthogonal_to=beta)
    sent = messages(rng, x, directions, sigma)
    return ModulatedMoments.from_messages(
        sent, y, modulation=MODULATION, directions=directions, sigma=sigma
    ).normal_equations(intercept=False)


def one_shot_error(rng: np.random.Generator, count: int, sigma: float, rounds: int, repeats: int) -> float:
    """Mean squared distance of least squares, from averages of `rounds` messages a client, to the clients' own."""
    total = 0.0
    for _ in range(repeats):
        x, y = clients(rng, count)
        laws, sent = [], np.zeros_like(x)
        for _ in range(rounds):
            directions = draw_directions(1, len(SLOPES), rng.standard_normal, orthogonal_to=SLOPES)
            sent += messages(rng, x, directions, sigma) / rounds
            laws.append(Correction(count, sigma, MODULATION.amplitude, directions))
        equations = ModulatedMoments.from_messages(
            sent, y, modulation=MODULATION, corrections=[averaged(laws, count)]
        ).normal_equations(intercept=False)
        own = np.linalg.solve(x.T @ x, x.T @ y)
        total += float(np.sum((least_squares(equations) - own) ** 2))
    return total / repeats


def predicted_one_shot(count: int, sigma: float, rounds: int) -> float:
    """Trace of the asymptotic covariance."""
    equations = population(sigma, count, rounds=rounds, amplitude=MODULATION.amplitude)
    return float(np.trace(asymptotic_covariance(equations, SLOPES)))


def descent(
    rng: np.random.Generator,
    count: int,
    sigma: float,
    step: Callable[[int], float],
    rounds: int,
    start: Array,
) -> Iterator[Array]:
    """Error of the model after each round of the published iteration."""
    beta = start
    for turn in range(rounds):
        equations = fresh_equations(rng, count, sigma, beta)
        beta = projected_step(beta, gradient(equations, beta), step(turn), RADIUS, intercept=False)
        yield beta - SLOPES


def predicted_errors(
    count: int, sigma: float, step: Callable[[int], float], rounds: int, start: Array
) -> Array:
    """Mean squared error after each round, from the recursion of the error's second moment (derived):

    C <- (I - eta Sigma) C (I - eta Sigma) + eta^2 Omega/K, Omega at the coefficients, population target. Its fixed
    point for small steps has trace (eta/2K) tr(Sigma^-1 Omega); for eta_t = a/t, a lambda_min > 1/2, the trace
    falls as 1/t.
    """
    equations = population(sigma, count, amplitude=MODULATION.amplitude)
    omega = score_covariance(equations, SLOPES, target="population") / count
    moment = np.outer(start - SLOPES, start - SLOPES)
    errors = []
    for turn in range(rounds):
        shrink = np.eye(len(SLOPES)) - step(turn) * COVARIANCE
        moment = shrink @ moment @ shrink + step(turn) ** 2 * omega
        errors.append(float(np.trace(moment)))
    return np.array(errors)


def stationary(
    rng: np.random.Generator, count: int, sigma: float, rate: float, repeats: int
) -> tuple[float, float]:
    """Mean squared error of constant steps once the start is forgotten: measured and predicted."""
    skip = math.ceil(BURN_IN / rate / COVARIANCE.diagonal().min())
    rounds = skip + 300
    found = [
        float(error @ error)
        for _ in range(repeats)
        for error in list(descent(rng, count, sigma, lambda _: rate, rounds, SLOPES.copy()))[skip:]
    ]
    return float(np.mean(found)), float(predicted_errors(count, sigma, lambda _: rate, 4000, SLOPES)[-1])


def contraction(rng: np.random.Generator, rate: float, repeats: int) -> Row:
    """How fast constant steps forget the start, along the flattest direction of the objective."""
    start = SLOPES + np.array([0.0, 0.0, 0.0, 1.5])
    rounds = 24
    runs = np.array(
        [[e[-1] for e in descent(rng, 2000, 0.5, lambda _: rate, rounds, start)] for _ in range(repeats)]
    )
    turns = np.arange(1, rounds + 1)
    due = 1.5 * (1 - rate * COVARIANCE[-1, -1]) ** turns
    return Row(
        f"descent, constant step {rate:g}: distance to go",
        "rounds",
        tuple(turns),
        tuple(runs.mean(axis=0)),
        tuple(due),
        "log(1 - eta lambda_min)",
        logarithmic=False,
    )


def decreasing(rng: np.random.Generator, repeats: int) -> Row:
    """Steps a/(t + t0), a = 2/lambda_min, from a start far away."""
    scale = 2 / COVARIANCE.diagonal().min()
    start = SLOPES + np.array([0.5, -0.5, 0.5, 0.5])

    def step(turn: int) -> float:
        return scale / (turn + 2 * scale)

    marks = [32, 64, 128, 256, 512]
    total = np.zeros(marks[-1])
    for _ in range(repeats):
        total += [float(e @ e) for e in descent(rng, 500, 0.6, step, marks[-1], start)]
    due = predicted_errors(500, 0.6, step, marks[-1], start)
    places = np.array(marks) - 1
    return Row(
        "descent, steps a/(t + 2a): mean squared error",
        "rounds T",
        tuple(float(mark) for mark in marks),
        tuple(total[places] / repeats),
        tuple(due[places]),
        "-1 as T grows",
    )


def rates(repeats: float, seed: int) -> list[Row]:
    """Measure everything; `repeats` scales the number of repetitions."""
    rng = np.random.default_rng(seed)
    often, seldom = max(2, round(400 * repeats)), max(2, round(14 * repeats))
    error = "one-shot: variance of the estimate"
    rows = []
    for variable, values, settings, law in (
        ("K", (1000, 2000, 4000, 8000, 16000), lambda v: (int(v), 0.6, 1), "-1"),
        ("sigma", (0.05, 0.1, 0.2), lambda v: (4000, v, 1), "2, less for lambda"),
        ("sigma", (0.4, 0.8, 1.6), lambda v: (32000, v, 1), "4 where noise rules"),
        ("messages averaged T", (1, 2, 4, 8), lambda v: (4000, 0.8, int(v)), "-2 to -1"),
    ):
        chosen = [settings(value) for value in values]
        measured = tuple(one_shot_error(rng, *one, often) for one in chosen)
        predicted = tuple(predicted_one_shot(*one) for one in chosen)
        rows.append(Row(error, variable, tuple(float(v) for v in values), measured, predicted, law))
    error = "descent, constant steps: stationary mean squared error"
    for variable, values, settings, law in (
        ("step eta", (0.05, 0.1, 0.2, 0.4), lambda v: (500, 0.6, v), "1 for small eta"),
        ("K a round", (250, 500, 1000, 2000), lambda v: (int(v), 0.6, 0.2), "-1"),
        ("sigma", (0.3, 0.6, 1.2), lambda v: (1000, v, 0.2), "4 where noise rules"),
    ):
        pairs = [stationary(rng, *settings(value), seldom) for value in values]
        measured, predicted = zip(*pairs, strict=True)
        rows.append(Row(error, variable, tuple(float(v) for v in values), measured, predicted, law))
    rows.append(contraction(rng, 0.2, seldom * 3))
    rows.append(decreasing(rng, seldom * 7))
    return rows


HEADER = ("quantity", "over", "exponent", "predicted", "law", "measured/predicted (range)")


def main() -> None:
    """Print the table, and put it into a page when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=float, default=1.0, help="scales the number of repetitions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="a page whose section `rates` is replaced")
    options = parser.parse_args()
    text = table(HEADER, [row.cells() for row in rates(options.repeats, options.seed)])
    print(text)
    if options.page is not None:
        write_section(options.page, "rates", text)


if __name__ == "__main__":
    main()
