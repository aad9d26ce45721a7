"""Scores of two known Gaussians have a known AUC and known rates; counts agree with brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from fedveil.attacks import (
    LossThreshold,
    attack_by_loss,
    attack_success,
    choose_loss_threshold,
    clopper_pearson,
)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_two_gaussians_give_their_closed_forms(shift: float) -> None:
    """Fixed seed; each comparison is at 4.5 standard errors, false-alarm probability 7e-6."""
    rng = np.random.default_rng(1)
    size = 40_000
    found = attack_success(rng.normal(shift, 1, size), rng.normal(0, 1, size))
    assert abs(found.auc - norm.cdf(shift / math.sqrt(2))) < 4.5 * found.auc_error
    for told in found.rates:
        alpha = told.false_positive_rate
        # the threshold is a sample quantile: its own error moves the rate too
        true = norm.sf(norm.isf(alpha) - shift)
        slope = norm.pdf(norm.isf(alpha) - shift) / norm.pdf(norm.isf(alpha))
        error = math.sqrt((true * (1 - true) + slope**2 * alpha * (1 - alpha)) / size)
        assert abs(told.rate - true) < 4.5 * error + 1 / size
        assert told.low <= told.rate <= told.high
        assert told.attained <= alpha <= told.attained_high
        assert told.enough


def test_the_standard_error_of_the_area_is_that_over_repetitions() -> None:
    """Ratio of 300 repetitions' spread to the mean stated error; 4.5 standard errors of a deviation are 18 %."""
    rng = np.random.default_rng(2)
    found = [attack_success(rng.normal(1, 2, 80), rng.normal(0, 1, 50)) for _ in range(300)]
    assert np.std([one.auc for one in found]) == pytest.approx(
        np.mean([one.auc_error for one in found]), rel=0.18
    )
    covered = np.mean(
        [one.auc_interval[0] <= norm.cdf(1 / math.sqrt(5)) <= one.auc_interval[1] for one in found]
    )
    assert covered > 0.9


scores = st.lists(st.integers(-4, 4), min_size=2, max_size=30)


@settings(max_examples=60, deadline=None)
@given(members=scores, others=scores, rate=st.sampled_from([0.01, 0.1, 0.3, 0.5]))
def test_scores_with_ties_count_as_brute_force_counts(
    members: list[int], others: list[int], rate: float
) -> None:
    found = attack_success(members, others, false_positive_rates=[rate])
    labels = np.repeat([1, 0], [len(members), len(others)])
    assert found.auc == pytest.approx(roc_auc_score(labels, members + others), abs=1e-12)
    (told,) = found.rates
    best = 0.0
    for threshold in [-math.inf, *others, *members]:
        if np.mean(np.array(others) > threshold) <= rate:
            best = max(best, float(np.mean(np.array(members) > threshold)))
    # a threshold set by the others alone can lose members that tie with it, never win any
    assert told.rate <= best
    assert told.attained <= rate
    assert told.rate == np.mean(np.array(members) > told.threshold)
    assert told.enough == (rate * len(others) >= 1)


def test_too_few_others_for_a_rate_are_named() -> None:
    found = attack_success(np.arange(50.0), np.arange(999.0))
    assert [told.enough for told in found.rates] == [True, False]
    assert found.rates[1].threshold == 998.0
    assert "too few non-members for 0.001" in str(found.rates[1])
    assert "too few" not in str(attack_success(np.arange(50.0), np.arange(1000.0)).rates[1])


def test_a_stated_rate_is_not_lost_to_rounding() -> None:
    # 0.001 * 3000 and 0.01 * 700 are not whole in floats
    for rate, count in ((0.001, 3000), (0.01, 700), (0.29, 100)):
        (told,) = attack_success([1.0, 2.0], np.arange(float(count)), false_positive_rates=[rate]).rates
        assert told.attained == pytest.approx(rate, rel=1e-12)


def test_scores_that_tell_all_and_scores_that_tell_nothing() -> None:
    everything = attack_success(np.ones(10) * math.inf, np.zeros(20))
    assert everything.auc == 1.0
    assert everything.auc_error > 0
    assert everything.auc_interval[1] == 1.0
    nothing = attack_success(np.zeros(10), np.zeros(20))
    assert (nothing.auc, nothing.rates[0].rate) == (0.5, 0.0)


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (7, 7), (3, 7), (1, 1000)])
def test_clopper_pearson_limits_are_where_the_tail_has_half_the_risk(successes: int, trials: int) -> None:
    low, high = clopper_pearson(successes, trials, 0.9)
    assert low == 0.0 if successes == 0 else binom.sf(successes - 1, trials, low) == pytest.approx(0.05)
    assert high == 1.0 if successes == trials else binom.cdf(successes, trials, high) == pytest.approx(0.05)


def test_the_loss_attack_ranks_small_losses_first() -> None:
    rng = np.random.default_rng(3)
    inside, outside = rng.exponential(1, 300), rng.exponential(2, 400)
    assert attack_by_loss(inside, outside) == attack_success(-inside, -outside)


def test_the_best_loss_threshold_of_two_exponentials_is_where_their_densities_cross() -> None:
    """exp(-x) = exp(-x/2)/2 at x = 2 ln 2, where accuracy is 5/8; 6 standard errors of 200,000 draws."""
    rng = np.random.default_rng(4)
    rule = choose_loss_threshold(rng.exponential(1, 200_000), rng.exponential(2, 200_000))
    assert rule.threshold == pytest.approx(2 * math.log(2), abs=0.15)
    assert rule.balanced_accuracy == pytest.approx(5 / 8, abs=0.006)
    again = rule.accuracy(rng.exponential(1, 200_000), rng.exponential(2, 200_000))
    assert again == pytest.approx(5 / 8, abs=0.006)


def test_a_loss_that_tells_the_wrong_way_names_nobody() -> None:
    rule = choose_loss_threshold([2.0, 3.0], [0.0, 1.0])
    assert rule == LossThreshold(-math.inf, 0.5)
    assert rule.accuracy([2.0, 3.0], [0.0, 1.0]) == 0.5


def test_scores_that_cannot_be_counted_are_refused_in_a_sentence() -> None:
    good = np.zeros(5)
    for members, others, options, message in (
        (np.zeros(1), good, {}, "members have shape"),
        (good, np.zeros((5, 2)), {}, "others have shape"),
        (good, [0.0, math.nan], {}, "1 of the others' scores are NaN"),
        (good, good, {"false_positive_rates": [0.0]}, "false-positive rate"),
        (good, good, {"confidence": 1.0}, "confidence"),
    ):
        with pytest.raises(ValueError, match=message):
            attack_success(members, others, **options)
    for successes, trials in ((-1, 3), (4, 3), (0, 0)):
        with pytest.raises(ValueError, match="give"):
            clopper_pearson(successes, trials)
