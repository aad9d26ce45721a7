"""The reconstruction bound: closed forms, attackers that never beat it, and what does not move it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    Modulation,
    draw_directions,
    modulate,
    modulated_fisher_information,
    reconstruction_bound,
)

D, BOUND, ALPHA, SIGMA = 6, 1.5, 0.3, 0.4
SCALE = 1 - ALPHA
NONE = np.zeros((0, D))


def directions(m, seed=0, d=D):
    return draw_directions(m, d, np.random.default_rng(seed).standard_normal)


def score_table(amplitude, sigma):
    """Log-density and score of amplitude cos U + sigma Z on a grid, by the trapezium rule over the circle."""
    reach = amplitude + 12 * sigma
    points = np.linspace(-reach, reach, 6001)
    offset = points[:, None] - amplitude * np.cos(2 * math.pi * (np.arange(512) + 0.5) / 512)
    kernel = np.exp(-(offset**2) / (2 * sigma**2))
    density = kernel.mean(axis=1) / math.sqrt(2 * math.pi) / sigma
    score = (offset * kernel).mean(axis=1) / (kernel.mean(axis=1) * sigma**2)
    return points, np.log(density), score


def modulated_projections(shift, count, amplitude, sigma, repeats, rng):
    """<message, v> of `count` messages of one client, all with the same v, in each of `repeats` repetitions."""
    wave = amplitude * np.cos(rng.uniform(0, 2 * math.pi, (repeats, count)))
    return shift + wave + sigma * rng.standard_normal((repeats, count))


def most_likely(observed, amplitude, sigma):
    """Maximum likelihood of the shift: the best point of a grid, then Newton steps with the expected information."""
    points, log_density, score = score_table(amplitude, sigma)
    information = modulated_fisher_information(amplitude, sigma)
    centre = observed.mean(axis=1)
    width = 4 * math.sqrt((sigma**2 + amplitude**2 / 2) / observed.shape[1])
    candidates = centre[:, None] + np.linspace(-width, width, 41)
    heights = np.stack(
        [np.interp(observed - column[:, None], points, log_density).sum(axis=1) for column in candidates.T],
        axis=1,
    )
    shift = candidates[np.arange(len(centre)), heights.argmax(axis=1)]
    for _ in range(5):
        shift = shift + np.interp(observed - shift[:, None], points, score).mean(axis=1) / information
    return shift


def best_equivariant(observed, amplitude, sigma):
    """Pitman's estimator: the mean of the likelihood as a density of the shift. None that moves with the data is
    better, and it is unbiased, since the noise is symmetric."""
    points, log_density, _ = score_table(amplitude, sigma)
    centre = observed.mean(axis=1)
    width = 9 * math.sqrt((sigma**2 + amplitude**2 / 2) / observed.shape[1])
    steps = np.linspace(-width, width, 201)
    total = np.zeros((len(observed), steps.size))
    for column in observed.T:
        total += np.interp((column - centre)[:, None] - steps, points, log_density)
    weights = np.exp(total - total.max(axis=1, keepdims=True))
    return centre + (weights @ steps) / weights.sum(axis=1)


def test_without_modulation_it_is_the_noise_on_every_coordinate():
    bound = reconstruction_bound([(SIGMA, 0.0, NONE)] * 3, alpha=ALPHA, dimension=D, bound=BOUND)
    noise = SIGMA**2 / SCALE**2 / 3
    assert bound.unbiased == pytest.approx(D * noise, rel=1e-12)
    assert bound.unbiased_unmodulated == pytest.approx(D * noise, rel=1e-12)
    assert bound.bayesian == pytest.approx(D / (1 / noise + D / BOUND**2), rel=1e-12)
    assert bound.bayesian_unmodulated == pytest.approx(bound.bayesian, rel=1e-12)
    assert bound.guess == BOUND**2


@pytest.mark.parametrize("m", [1, 3])
def test_fixed_directions_add_the_information_of_each_direction(m):
    sigmas = (0.3, 0.5)
    messages = [(sigma, 2.0, directions(m)) for sigma in sigmas]
    bound = reconstruction_bound(messages, alpha=ALPHA, dimension=D, bound=BOUND)
    plain = SCALE**2 * sum(1 / sigma**2 for sigma in sigmas)
    along = SCALE**2 * sum(modulated_fisher_information(2.0 / math.sqrt(m), sigma) for sigma in sigmas)
    assert bound.unbiased == pytest.approx((D - m) / plain + m / along, rel=1e-12)
    prior = D / BOUND**2
    assert bound.bayesian == pytest.approx((D - m) / (plain + prior) + m / (along + prior), rel=1e-12)
    assert bound.unbiased_unmodulated == pytest.approx(D / plain, rel=1e-12)


@given(
    m=st.integers(0, 5),
    amplitude=st.floats(0, 50),
    sigma=st.floats(0.01, 50),
    bound=st.floats(0.1, 10),
    count=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_modulation_never_helps_the_attacker_and_knowing_a_prior_never_hurts(
    m, amplitude, sigma, bound, count
):
    messages = [(sigma, amplitude, directions(m, seed)) for seed in range(count)]
    result = reconstruction_bound(messages, alpha=ALPHA, dimension=D, bound=bound)
    slack = 1 + 1e-9
    assert result.unbiased_unmodulated <= result.unbiased * slack
    assert result.bayesian_unmodulated <= result.bayesian * slack
    assert result.bayesian <= min(result.unbiased, result.guess) * slack


def test_no_message_leaves_the_prior():
    bound = reconstruction_bound([], alpha=ALPHA, dimension=D, bound=BOUND)
    assert bound.unbiased == bound.unbiased_unmodulated == math.inf
    assert bound.bayesian == pytest.approx(BOUND**2)


@pytest.mark.parametrize(("amplitude", "count"), [(0.5, 1), (2.0, 1), (2.0, 4), (8.0, 12)])
def test_the_best_unbiased_attacker_does_not_beat_it(amplitude, count):
    """`count` messages with the same V: the mean off V, Pitman's estimator along it. One-sided at 4 standard errors:
    false alarm 3e-5 each, were the attacker as good as the bound."""
    rng, repeats, m = np.random.default_rng(count), 4000, 1
    v, x = directions(m), rng.standard_normal(D) / 4
    off = SIGMA / math.sqrt(count) * rng.standard_normal((repeats, D))
    off -= np.outer(off @ v[0], v[0])
    along = best_equivariant(
        modulated_projections(SCALE * (v[0] @ x), count, amplitude, SIGMA, repeats, rng), amplitude, SIGMA
    )
    guesses = (SCALE * (x - v[0] * (v[0] @ x)) + off + np.outer(along, v[0])) / SCALE
    errors = ((guesses - x) ** 2).sum(axis=1)
    bound = reconstruction_bound(
        [(SIGMA, amplitude, v)] * count, alpha=ALPHA, dimension=D, bound=BOUND
    ).unbiased
    assert errors.mean() >= bound - 4 * errors.std() / math.sqrt(repeats)


@pytest.mark.parametrize("amplitude", [0.5, 4.0])
def test_maximum_likelihood_over_many_messages_reaches_it_and_does_not_pass_it(amplitude):
    """200 messages with one V: the error along v is within 4 standard errors (false alarm 6e-5 each) and the
    estimator's own second-order excess, 3 %, of the bound."""
    rng, repeats, count = np.random.default_rng(3), 1500, 200
    shift = SCALE * 0.37
    estimates = most_likely(
        modulated_projections(shift, count, amplitude, SIGMA, repeats, rng), amplitude, SIGMA
    )
    errors = ((estimates - shift) / SCALE) ** 2
    v = directions(1)
    bound = reconstruction_bound([(SIGMA, amplitude, v)] * count, alpha=ALPHA, dimension=D, bound=BOUND)
    along = bound.unbiased - (D - 1) * SIGMA**2 / SCALE**2 / count
    standard_error = errors.std() / math.sqrt(repeats)
    assert along - 4 * standard_error <= errors.mean() <= 1.03 * along + 4 * standard_error


@pytest.mark.parametrize("frequency", [0.0, 1.0, 1e4])
def test_the_plain_attacker_on_real_messages_has_the_error_of_the_law_at_every_frequency(frequency):
    """x_hat = message/c on messages of the real modulation: error (d sigma^2 + lambda^2/2)/c^2, above the bound,
    within 4 standard errors (false alarm 6e-5 each)."""
    rng, repeats, m, amplitude = np.random.default_rng(8), 20_000, 3, 1.2
    x, v = rng.standard_normal(D) / 4, directions(m)
    message = modulate(
        np.tile(x, (repeats, 1)), v, alpha=ALPHA, amplitude=amplitude, frequency=frequency, rng=rng
    ) + SIGMA * rng.standard_normal((repeats, D))
    errors = ((message / SCALE - x) ** 2).sum(axis=1)
    expected = (D * SIGMA**2 + amplitude**2 / 2) / SCALE**2
    assert abs(errors.mean() - expected) < 4 * errors.std() / math.sqrt(repeats)
    bound = reconstruction_bound([(SIGMA, amplitude, v)], alpha=ALPHA, dimension=D, bound=BOUND)
    assert expected >= bound.unbiased


def test_the_posterior_mean_reaches_the_bayesian_bound_without_modulation():
    """Records from the reference prior, Gaussian messages: equality, here within 4 standard errors (6e-5)."""
    rng, repeats, count = np.random.default_rng(5), 20_000, 3
    x = BOUND / math.sqrt(D) * rng.standard_normal((repeats, D))
    mean = SCALE * x + SIGMA / math.sqrt(count) * rng.standard_normal((repeats, D))
    precision = count * SCALE**2 / SIGMA**2
    guess = mean / SCALE * precision / (precision + D / BOUND**2)
    errors = ((guess - x) ** 2).sum(axis=1)
    bound = reconstruction_bound([(SIGMA, 0.0, NONE)] * count, alpha=ALPHA, dimension=D, bound=BOUND)
    assert abs(errors.mean() - bound.bayesian) < 4 * errors.std() / math.sqrt(repeats)


def test_directions_that_change_between_rounds_undo_the_effect_of_the_amplitude():
    """Twelve rounds at lambda = 40 sigma. A kept V multiplies the bound along it by more than ten; drawn afresh, the
    directions leave the whole bound within a third of lambda = 0."""
    amplitude, rounds = 40 * SIGMA, 12
    kept = reconstruction_bound(
        [(SIGMA, amplitude, directions(1))] * rounds, alpha=ALPHA, dimension=D, bound=BOUND
    )
    changed = reconstruction_bound(
        [(SIGMA, amplitude, directions(1, seed)) for seed in range(rounds)],
        alpha=ALPHA,
        dimension=D,
        bound=BOUND,
    )
    per_direction = kept.unbiased_unmodulated / D
    assert kept.unbiased - (D - 1) * per_direction > 10 * per_direction
    assert changed.unbiased < 4 / 3 * changed.unbiased_unmodulated
    assert changed.bayesian < 4 / 3 * changed.bayesian_unmodulated


def test_an_attacker_who_drops_the_modulated_part_uses_directions_that_change():
    """Least squares on the parts of each message off its V: with fresh directions and lambda = 40 sigma its error is
    below half of what the bound for a kept V allows an unbiased attacker; it never beats its own bound (4 standard
    errors, false alarm 3e-5)."""
    rng, rounds, repeats, amplitude = np.random.default_rng(2), 12, 3000, 40 * SIGMA
    x = rng.standard_normal(D) / 4
    information, right = np.zeros((D, D)), np.zeros((repeats, D))
    rows = [directions(1, seed) for seed in range(rounds)]
    for v in rows:
        messages = modulate(
            np.tile(x, (repeats, 1)), v, alpha=ALPHA, amplitude=amplitude, frequency=1.0, rng=rng
        ) + SIGMA * rng.standard_normal((repeats, D))
        keep = np.eye(D) - v.T @ v
        information += SCALE * keep
        right += messages @ keep
    errors = ((np.linalg.solve(information, right.T).T - x) ** 2).sum(axis=1)
    own, kept = (
        reconstruction_bound(
            [(SIGMA, amplitude, v) for v in choice], alpha=ALPHA, dimension=D, bound=BOUND
        ).unbiased
        for choice in (rows, [rows[0]] * rounds)
    )
    assert errors.mean() >= own - 4 * errors.std() / math.sqrt(repeats)
    assert errors.mean() < kept / 2


def test_the_statement_gives_the_figures_and_says_that_the_frequency_does_not_matter():
    bound = reconstruction_bound([(SIGMA, 1.0, directions(1))] * 2, alpha=ALPHA, dimension=D, bound=BOUND)
    assert f"{bound.unbiased:.4g}" in bound.statement
    assert "frequency" in bound.statement


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": [(0.0, 1.0, NONE)]}, "sigma"),
        ({"messages": [(1.0, -1.0, NONE)]}, "amplitude"),
        ({"messages": [(1.0, 1.0, np.eye(D))]}, "directions"),
        ({"messages": [(1.0, 1.0)]}, "parts"),
        ({"alpha": 1.0}, "alpha"),
        ({"bound": 0.0}, "bound"),
        ({"dimension": 0}, "dimension"),
    ],
)
def test_arguments_outside_their_range_are_refused(change, words):
    good = {"messages": [(1.0, 1.0, NONE)], "alpha": ALPHA, "dimension": D, "bound": BOUND}
    with pytest.raises(ValueError, match=words):
        reconstruction_bound(**{**good, **change})


def test_one_message_of_the_default_modulation_adds_little_at_common_noise():
    """lambda = 0.5 against sigma = 2.6 (epsilon 1 at delta 1e-5 for B = 1/2): at most what the variance lambda^2/2
    of the wave adds along one direction of six."""
    modulation, sigma = Modulation(), 2.6
    bound = reconstruction_bound(
        [(sigma, modulation.amplitude, directions(1))], alpha=modulation.alpha, dimension=D, bound=0.5
    )
    most = 1 + modulation.amplitude**2 / 2 / sigma**2 / D
    assert 1 < bound.unbiased / bound.unbiased_unmodulated < most < 1.004
