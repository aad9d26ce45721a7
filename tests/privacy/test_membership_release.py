"""Released loss differences: sensitivity, cost, and what r_Q is worth with their noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedveil.privacy import (
    LossMoments,
    LossRelease,
    NotAdditive,
    PrivacyFilter,
    ReleasedMoments,
    clipped_differences,
    compose_mu,
    gaussian_mu,
    membership_indicator,
    public_clip_norm,
    release_deviation,
    rows_under,
)


def change(a, b):
    """|(a - b, aa' - bb')| for differences clipped to norm 1, written out as full matrices."""
    a, b = (x / max(1.0, np.linalg.norm(x)) for x in (a, b))
    return math.hypot(np.linalg.norm(a - b), np.linalg.norm(np.outer(a, a) - np.outer(b, b)))


@pytest.mark.parametrize(("q", "least_upper_bound"), [(1, 2.0), (2, 3 / math.sqrt(2)), (4, 3 / math.sqrt(2))])
def test_the_joint_sensitivity_is_the_numerical_maximum(q, least_upper_bound):
    rng = np.random.default_rng(q)
    found = max(
        -minimize(
            lambda x: -change(x[:q], x[q:]), rng.standard_normal(2 * q), method="Nelder-Mead",
            options={"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-12},
        ).fun
        for _ in range(12)
    )  # fmt: skip
    assert found == pytest.approx(least_upper_bound, rel=1e-6)
    stated = LossRelease(10, q, 1.0, 1.0).sensitivity
    assert found <= stated <= least_upper_bound * (1 + 1e-11)


differences = st.lists(st.floats(-3, 3), min_size=3, max_size=3).map(np.array)


@given(differences, differences, st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_the_vector_of_neighbours_moves_as_the_full_matrices_do_and_within_the_sensitivity(a, b, seed, norm):
    rng = np.random.default_rng(seed)
    others = rng.standard_normal((20, 4)) * norm
    release = LossRelease(21, 3, norm, 1.0)
    reference = rng.standard_normal()
    moved = np.subtract(
        *(release.vector(np.vstack([others, np.append(0.0, x * norm) + reference * norm])) for x in (a, b))
    )
    assert np.linalg.norm(moved) == pytest.approx(norm * change(a, b), rel=1e-9, abs=1e-12 * norm)
    assert np.linalg.norm(moved) <= release.sensitivity


@pytest.mark.parametrize("size", [1e-90, 1e-162, 1e-200, 1e-300])
def test_differences_whose_squares_vanish_are_clipped_all_the_same(size):
    """A loss with an exponential tail has such differences, and a server chooses the clip norm."""
    losses = np.array([[0.0, size, -size], [0.0, 3 * size, 0.0]])
    norm = size / 10
    clipped = clipped_differences(losses, norm)[:, 1:]
    assert max(math.hypot(*(row / norm)) for row in clipped) <= 1 + 1e-9
    if norm >= 1e-100:
        release = LossRelease(2, 2, norm, 1.0)
        moved = release.vector(losses) - release.vector(np.vstack([losses[:1], -losses[1:]]))
        assert np.abs(moved / norm).max() <= release.sensitivity / norm


@pytest.mark.parametrize("norm", [1e-101, 5e-324, 1e101, 1.7e308])
def test_a_clip_norm_beyond_what_floats_can_do_is_refused(norm):
    with pytest.raises(ValueError, match=r"clip_norm = .* is not allowed: give 1e-100 to 1e\+100"):
        LossRelease(10, 2, norm, 1.0)


def test_the_vector_without_noise_gives_the_moments_of_clipped_differences():
    rng = np.random.default_rng(1)
    losses = rng.exponential(size=(50, 4))
    release = LossRelease(50, 3, 0.8, 1.0)
    l = clipped_differences(losses, 0.8)[:, 1:]  # noqa: E741
    norms = np.linalg.norm(l, axis=1)
    assert norms.max() <= 0.8 * (1 + 1e-15)
    raw = losses[:, 1:] - losses[:, :1]
    inside = np.linalg.norm(raw, axis=1) <= 0.8
    np.testing.assert_allclose(l[inside], raw[inside])
    np.testing.assert_allclose(norms[~inside], 0.8)
    read = release.read(release.vector(losses))
    np.testing.assert_allclose(read.total, l.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(read.second, l.T @ l, rtol=1e-12)
    assert (read.count, read.noise, release.size) == (50, 1.0, 9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_a_record_with_a_loss_that_is_not_finite_or_huge_stays_within_the_sensitivity(bad):
    losses = np.random.default_rng(0).exponential(size=(10, 3))
    release = LossRelease(10, 2, 1.0, 1.0)
    for column in range(3):
        changed = losses.copy()
        changed[4, column] = bad
        assert np.linalg.norm(release.vector(changed) - release.vector(losses)) <= release.sensitivity


def test_off_diagonal_noise_is_that_of_a_full_matrix_made_symmetric():
    """4,000 draws: a variance is off by 8 % with probability 4e-4 (3.6 standard errors); five are looked at."""
    release = LossRelease(10, 2, 0.5, 3.0)
    noise = np.random.default_rng(0).standard_normal((4000, release.size)) * release.sigma
    read = [release.read(one) for one in noise]
    total, second = (np.array([getattr(one, name) for one in read]) for name in ("total", "second"))
    np.testing.assert_allclose(total.var(axis=0), [9.0, 9.0], rtol=0.08)
    full = np.array([[2.25, 1.125], [1.125, 2.25]])
    np.testing.assert_allclose(second.var(axis=0), full, rtol=0.08)


@given(
    st.integers(1, 10**5),
    st.integers(1, 6),
    st.floats(1e-3, 1e3),
    st.dictionaries(st.sampled_from(["attribute", "record"]), st.floats(1e-3, 20), min_size=1),
)
def test_a_plan_costs_no_more_than_its_share_and_hardly_less(num_records, q, norm, mus):
    rows = LossRelease.planned(num_records, q, norm, mus).releases(client=3, round=9)
    assert PrivacyFilter(mus).admits(rows)
    assert compose_mu(row.mu for row in rows) == pytest.approx(min(mus.values()), rel=1e-12)
    assert Fraction(rows[0].sensitivity) <= Fraction(min(mus.values())) * Fraction(rows[0].sigma)


def test_the_row_of_the_ledger_bounds_both_relations():
    rows = LossRelease(100, 2, 1.5, 4.0).releases(client=3, round=9)
    assert [(r.client, r.round, r.step, r.name, r.relation, r.chosen) for r in rows] == [
        (3, 9, -1, "loss-differences", "record", "released")
    ]
    assert rows[0].mu == pytest.approx(1.5 * 3 / math.sqrt(2) / 4, rel=1e-9)
    assert rows_under(rows, "attribute") == rows_under(rows, "record") == rows


def population(n, *, gaps=(0.06, 0.1, 0.15), seed=0):
    rng = np.random.default_rng(seed)
    noise = np.column_stack([np.zeros(n), *(g + 0.3 * rng.standard_normal(n) for g in gaps)])
    return rng.exponential(size=(n, 1)) + noise


def estimates(losses, clip_norm, mu, clients, trials, seed):
    """What `trials` federated releases of the same records give: the sum over clients, with noise drawn afresh."""
    rng = np.random.default_rng(seed)
    parts = np.split(losses, clients)
    plan = LossRelease.planned(len(parts[0]), losses.shape[1] - 1, clip_norm, {"record": mu})
    vectors = [plan.vector(part) for part in parts]
    found = []
    for _ in range(trials):
        noisy = [plan.read(v + plan.sigma * rng.standard_normal(plan.size)) for v in vectors]
        whole = noisy[0]
        for one in noisy[1:]:
            whole = whole + one
        found.append(whole.indicator())
    return found, clients * plan.sigma**2


@pytest.mark.parametrize(("gap", "epsilon"), [(0.06, 1.0), (0.06, 4.0), (0.3, 1.0), (0.3, 8.0), (0.005, 4.0)])
def test_the_error_of_one_pair_is_the_predicted_one_at_every_epsilon(gap, epsilon):
    """300 draws: a standard deviation is off by 15 % with probability 3e-4 (3.7 standard errors), for normal errors."""
    losses = population(4000, gaps=(gap,))
    norm = public_clip_norm(population(1000, gaps=(gap,), seed=9), 0.99)
    clipped = membership_indicator(LossMoments.from_losses(clipped_differences(losses, norm)))
    found, noise = estimates(losses, norm, gaussian_mu(epsilon, 1e-5), 4, 300, seed=2)
    due = release_deviation(clipped.gap, clipped.deviation, num_records=4000, clip_norm=norm, noise=noise)
    errors = np.array([one.r_q for one in found]) - clipped.r_q
    if gap < 0.01:  # negative squares count as 0, so the error is at most the predicted one
        assert np.sqrt(np.mean(errors**2)) <= 1.15 * due
    else:
        assert np.std(errors) == pytest.approx(due, rel=0.15)
        assert abs(np.mean(errors)) <= 4 * due / math.sqrt(300)  # noise is subtracted: 6e-5 a case


def test_the_error_of_the_minimum_over_pairs_falls_as_epsilon_grows_and_is_about_that_of_its_pair():
    losses = population(4000)
    norm = public_clip_norm(population(1000, seed=9))
    clipped = membership_indicator(LossMoments.from_losses(clipped_differences(losses, norm)))
    last = math.inf
    for epsilon in (0.5, 1, 2, 4, 8):
        found, noise = estimates(losses, norm, gaussian_mu(epsilon, 1e-5), 4, 60, seed=3)
        error = math.sqrt(np.mean([(one.r_q - clipped.r_q) ** 2 for one in found]))
        due = release_deviation(clipped.gap, clipped.deviation, num_records=4000, clip_norm=norm, noise=noise)
        assert 0.6 * due < error < 1.5 * due
        assert error < last
        last = error


# 200 draws, at most 14 misses: 0.078 for an interval that covers 95 %; these are conservative and miss almost never.
@pytest.mark.parametrize("gaps", [(0.06, 0.1, 0.15), (0.02, 0.02, 0.02), (0.4, 0.5, 0.6)])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 8.0])
def test_the_interval_holds_r_q_of_the_clipped_differences_of_the_population(gaps, epsilon):
    norm = public_clip_norm(population(1000, gaps=gaps, seed=9))
    truth = membership_indicator(
        LossMoments.from_losses(clipped_differences(population(400_000, gaps=gaps, seed=5), norm))
    ).r_q
    misses = 0
    for trial in range(20):
        losses = population(1000, gaps=gaps, seed=100 + trial)
        found, _ = estimates(losses, norm, gaussian_mu(epsilon, 1e-5), 4, 10, seed=trial)
        misses += sum(not one.low <= truth <= one.high for one in found)
    assert misses <= 14


def test_noise_that_hides_every_variance_leaves_r_q_undefined_and_the_interval_unbounded():
    found, _ = estimates(population(100), 1.0, 0.01, 4, 50, seed=0)
    hidden = [one for one in found if not any(np.delete(one.identified, one.best))]
    assert len(hidden) > 35
    for one in hidden:
        assert math.isnan(one.r_q)
        assert one.runner_up is None
        assert (one.low, one.high) == (0.0, math.inf)
        assert "not identified" in one.statement


def test_a_squared_gap_that_noise_makes_negative_counts_as_zero():
    read = ReleasedMoments(1000, np.array([1.0]), np.array([[90.0]]), 1.0, 4.0)  # gap 0.001, noise 0.002
    found = read.indicator()
    assert (found.r_q, found.low) == (0.0, 0.0)
    assert found.high > 0
    assert "noise alone" in found.statement


def test_noise_is_subtracted_from_the_squared_gap_and_the_variance():
    read = ReleasedMoments(1000, np.array([100.0]), np.array([[90.0]]), 1.0, 4.0)
    gap, noise = 0.1**2 - 4e-6, 4e-6
    assert read.indicator().r_q == pytest.approx(gap / (2 * (0.09 - (0.1**2 - noise))), rel=1e-12)


def test_the_best_candidate_may_differ_from_the_reference():
    """Candidate 1 lies 0.1 below the reference, candidate 2 at 0: pairs (0, 1) and (2, 1) by hand."""
    n, second = 1000, np.array([[50.0, 10.0], [10.0, 40.0]])
    read = ReleasedMoments(n, np.array([-100.0, 0.0]), second, 1.0, 1e-6)
    found = read.indicator()
    square = {0: 0.05, 2: 0.05 + 0.04 - 2 * 0.01}
    assert (found.best, found.runner_up) == (1, 2)
    assert found.r_q == pytest.approx(0.1**2 / (2 * (square[2] - 0.1**2)), rel=1e-6)


def test_releases_planned_otherwise_do_not_add():
    one = LossRelease(10, 2, 1.0, 1.0).read(np.zeros(5))
    with pytest.raises(NotAdditive, match="clip norm 1 and 2"):
        one + LossRelease(10, 2, 2.0, 1.0).read(np.zeros(5))
    with pytest.raises(NotAdditive, match="number of pairs 2 and 1"):
        one + LossRelease(10, 1, 1.0, 1.0).read(np.zeros(2))
    with pytest.raises(TypeError):
        one + 1


def test_a_clip_norm_is_a_quantile_of_public_norms():
    losses = np.column_stack([np.ones(5), 1 + np.arange(5) * 0.6, 1 + np.arange(5) * 0.8])
    assert public_clip_norm(losses, 0.5) == pytest.approx(2.0)
    assert public_clip_norm(losses, 1) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="hardly differ"):
        public_clip_norm(np.ones((5, 3)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: LossRelease(10, 2, 1.0, 1.0).vector(np.ones((9, 3))), r"shape \(9, 3\)"),
        (lambda: LossRelease(10, 2, 1.0, 1.0).vector(np.ones((10, 2))), r"shape \(10, 2\)"),
        (lambda: LossRelease(10, 2, 1.0, 1.0).read(np.ones(4)), "shape"),
        (lambda: LossRelease(10, 2, 1.0, 1.0).read(np.full(5, np.nan)), "NaN"),
        (lambda: LossRelease(0, 2, 1.0, 1.0), "num_records"),
        (lambda: LossRelease(10, 0, 1.0, 1.0), "num_pairs"),
        (lambda: LossRelease(10, 2, 0.0, 1.0), "clip_norm"),
        (lambda: LossRelease(10, 2, 1.0, 0.0), "sigma"),
        (lambda: LossRelease(10, 2, 1.0, 1.0, "freely"), "chosen"),
        (lambda: LossRelease.planned(10, 2, 1.0, {}), "mus is empty"),
        (lambda: LossRelease.planned(10, 2, 1.0, {"client": 1.0}), "relation"),
        (lambda: clipped_differences(np.ones((3, 2)), -1), "clip_norm"),
        (lambda: ReleasedMoments(5, np.ones(1), np.ones((2, 2)), 1.0, 1.0), "shape"),
        (lambda: ReleasedMoments(5, np.ones(2), np.array([[1.0, 2], [3, 1]]), 1.0, 1.0), "symmetric"),
        (lambda: ReleasedMoments(5, np.ones(1), np.ones((1, 1)), 1.0, 1.0).indicator(level=2), "level"),
    ],
)
def test_wrong_arguments_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
