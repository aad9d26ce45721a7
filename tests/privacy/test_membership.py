"""The indicator r_Q: its value, its undefined and infinite cases, its candidates."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.privacy import (
    FEW_CANDIDATES,
    LossMoments,
    distinct_candidates,
    leading_candidates,
    membership_indicator,
)


def by_double_loop(losses):
    """r_Q from its definition, over pairs and records."""
    losses = np.asarray(losses, dtype=float)
    n, m = losses.shape
    means = [math.fsum(losses[:, k]) / n for k in range(m)]
    best = min(range(m), key=lambda k: means[k])
    rates = {}
    for k in range(m):
        if k == best:
            continue
        differences = [losses[i, k] - losses[i, best] for i in range(n)]
        gap = math.fsum(differences) / n
        variance = math.fsum((d - gap) ** 2 for d in differences) / n
        rates[k] = gap**2 / variance / 2
    runner_up = min(rates, key=lambda k: rates[k])
    return rates[runner_up], best, runner_up


def indicator_of(losses, reference=0):
    return membership_indicator(LossMoments.from_losses(losses, reference))


def some_losses(seed, *, n=60, m=6, scale=1.0):
    rng = np.random.default_rng(seed)
    hardness = rng.exponential(size=(n, 1))
    return scale * (hardness + rng.uniform(0, 0.3, size=m) + 0.4 * rng.standard_normal((n, m)))


@given(st.integers(0, 10**6), st.integers(2, 70), st.integers(2, 9), st.integers(0, 8))
def test_it_equals_a_double_loop_over_pairs_and_records(seed, n, m, reference):
    losses = some_losses(seed, n=n, m=m)
    found = indicator_of(losses, reference % m)
    r_q, best, runner_up = by_double_loop(losses)
    assert found.r_q == pytest.approx(r_q, rel=1e-9)
    assert (found.best, found.runner_up) == (best, runner_up)
    assert found.r_q == pytest.approx(found.gap**2 / found.deviation**2 / 2, rel=1e-12)


@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 12))
def test_summed_moments_of_clients_give_what_pooled_losses_give_with_losses_10_000_times_apart(
    seed, reference, parts
):
    rng = np.random.default_rng(seed)
    losses = some_losses(seed, n=120, m=8)
    losses[:, 0] *= 1e4  # one candidate far off, which is the reference in some cases
    losses[:, 1] += 1e4
    losses[:40] *= rng.uniform(1, 1e4)  # and clients whose records are
    cuts = np.sort(rng.choice(np.arange(1, 120), size=parts - 1, replace=False))
    clients = [LossMoments.from_losses(part, reference) for part in np.split(losses, cuts)]
    summed = clients[0]
    for one in clients[1:]:
        summed = summed + one
    r_q, best, runner_up = by_double_loop(losses)
    found = membership_indicator(summed)
    assert found.r_q == pytest.approx(r_q, rel=1e-9)
    assert (found.best, found.runner_up) == (best, runner_up)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_duplicates_change_nothing(seed, copied):
    losses = some_losses(seed)
    alone, together = indicator_of(losses), indicator_of(np.column_stack([losses, losses[:, copied]]))
    assert together.r_q == alone.r_q
    assert (together.best, together.runner_up) == (alone.best, alone.runner_up)
    assert (together.num_distinct, together.num_candidates) == (6, 6 + len(copied))
    assert any("count as one" in warning for warning in together.warnings)


@given(st.integers(0, 10**6), st.permutations(range(6)))
def test_the_order_of_candidates_and_of_records_does_not_matter(seed, order):
    losses = some_losses(seed)
    found, moved = indicator_of(losses), indicator_of(losses[::-1, order])
    assert moved.r_q == pytest.approx(found.r_q, rel=1e-9)
    assert order[moved.best] == found.best
    assert order[moved.runner_up] == found.runner_up


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_scaling_all_losses_or_adding_to_a_record_changes_nothing(seed, factor, shift):
    losses = some_losses(seed)
    moved = factor * losses + shift * np.arange(60)[:, None]
    assert indicator_of(moved).r_q == pytest.approx(indicator_of(losses).r_q, rel=1e-6)


def test_a_farther_competitor_with_a_larger_variance_can_set_the_minimum():
    losses = np.array([[0.0, 0.1, 3.0], [0.0, 0.12, -2.0], [0.0, 0.08, 3.0], [0.0, 0.1, -2.0]])
    found = indicator_of(losses)
    assert (found.best, found.runner_up) == (0, 2)
    assert found.r_q == pytest.approx(0.5 * 0.5**2 / 2.5**2, rel=1e-12)
    assert found.rates[1] == pytest.approx(0.5 * 0.1**2 / 0.0002, rel=1e-12)
    assert math.isnan(found.rates[0])


def test_one_candidate_has_no_indicator():
    found = indicator_of(np.ones((5, 1)))
    assert math.isnan(found.r_q)
    assert (found.best, found.runner_up) == (0, None)
    assert not found.below_resolution
    assert found.statement == "r_Q is undefined: there is one candidate."


def test_candidates_with_the_same_losses_have_no_indicator():
    found = indicator_of(np.arange(5.0)[:, None] * np.ones(3))
    assert math.isnan(found.r_q)
    assert (found.num_distinct, found.runner_up) == (1, None)
    assert "all 3 candidates have the same losses" in found.statement


def test_one_record_has_no_indicator():
    found = indicator_of([[0.0, 1.0, 2.0]])
    assert math.isnan(found.r_q)
    assert found.statement == "r_Q is undefined: one record has no variance."


def test_a_gap_without_variance_is_infinite_and_the_nearest_candidate_is_the_runner_up():
    first = np.random.default_rng(0).exponential(size=50)
    found = indicator_of(np.column_stack([first + 2, first, first + 1]))
    assert math.isinf(found.r_q)
    assert (found.best, found.runner_up) == (1, 2)
    assert not found.below_resolution
    assert found.statement.startswith("r_Q is infinite")
    assert any("Zero variance over 50 records" in warning for warning in found.warnings)


def test_one_finite_pair_among_infinite_ones_sets_the_minimum():
    first = np.random.default_rng(0).exponential(size=50)
    noisy = first + 5 + np.where(np.arange(50) % 2, 1.0, -1.0)
    found = indicator_of(np.column_stack([first, first + 1, noisy]))
    assert found.r_q == pytest.approx(12.5)
    assert found.runner_up == 2


def test_a_tie_in_mean_loss_is_zero_and_the_first_is_the_best():
    found = indicator_of([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert (found.r_q, found.best, found.runner_up) == (0.0, 0, 1)
    assert found.below_resolution
    assert "< 0.125" in found.statement


def test_values_below_one_over_two_n_are_noise_and_said_to_be():
    sign = np.where(np.arange(100) % 2, 1.0, -1.0)
    for gap, below in ((0.099, True), (0.101, False)):  # r = gap^2/2 against 1/200
        found = indicator_of(np.column_stack([np.zeros(100), gap + sign]))
        assert found.r_q == pytest.approx(gap**2 / 2)
        assert found.below_resolution is below
        assert found.statement.startswith("r_Q < 0.005" if below else "r_Q = 0.0051")
        assert any("noise" in warning for warning in found.warnings) is below
        assert any("not settled" in warning for warning in found.warnings) is not below


def test_few_candidates_and_many_close_ones_are_warned_of():
    rng = np.random.default_rng(4)
    equal = np.column_stack([np.zeros(400), 0.5 + rng.standard_normal((400, 12))])
    found = indicator_of(equal)
    assert found.close_competitors >= 10
    assert any("biased down" in warning for warning in found.warnings)
    assert not any("distinct candidates" in warning for warning in found.warnings)
    few = indicator_of(equal[:, : FEW_CANDIDATES - 1])
    assert any(f"fewer than {FEW_CANDIDATES}" in warning for warning in few.warnings)


def test_a_clear_case_has_no_warning():
    rng = np.random.default_rng(4)
    losses = np.arange(10) + 0.5 * rng.standard_normal((4000, 10))
    assert indicator_of(losses).warnings == ()


def test_distinct_candidates_are_the_first_of_each_content():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-1, 2, size=(4, 5)).astype(np.int8) for _ in range(2))
    assert distinct_candidates([a, b, a.copy(), np.asfortranarray(b), a]) == (0, 1)
    first, second = {"x": a, "y": b}, {"x": b, "y": a}
    assert distinct_candidates([first, second, {"y": b, "x": a}]) == (0, 1)


@pytest.mark.parametrize(
    ("codes", "says"),
    [
        ([], "no candidate"),
        ([np.ones(3)], "integer codes"),
        ([np.ones(3, np.int8), np.ones(4, np.int8)], "Candidate 1"),
        ([np.ones(3, np.int8), np.ones(3, np.int16)], "Candidate 1"),
        ([{"a": np.ones(3, np.int8)}, {"b": np.ones(3, np.int8)}], "Candidate 1"),
    ],
)
def test_candidates_that_cannot_be_compared_are_refused(codes, says):
    with pytest.raises(ValueError, match=says):
        distinct_candidates(codes)


def test_leading_candidates_are_the_best_and_those_of_least_rate():
    losses = some_losses(3, n=500)
    moments = LossMoments.from_losses(np.column_stack([losses, losses[:, :2]]))
    rates = membership_indicator(moments).rates
    leading = leading_candidates(moments, 3)
    assert leading[:2] == by_double_loop(losses)[1:]
    assert [rates[k] for k in leading[1:]] == sorted(r for r in rates if not math.isnan(r))[:3]
    assert len(leading_candidates(moments, 64)) == 6


def test_no_candidate_leads_where_the_indicator_is_undefined():
    with pytest.raises(ValueError, match="one candidate"):
        leading_candidates(LossMoments.from_losses(np.ones((4, 1))), 2)
