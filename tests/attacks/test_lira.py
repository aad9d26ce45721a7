"""LiRA on statistics whose law is known is the Neyman-Pearson test, and attacks each run as if alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedveil.attacks import attack_success, lira_scores, lira_scores_each, logit_confidence

SHIFT, SPREAD = 1.5, 0.7


def shadow_runs(
    runs: int, records: int, *, seed: int, deviation_in: float = SPREAD
) -> tuple[np.ndarray, np.ndarray]:
    """Statistics N(m_z, SPREAD^2) without record z, N(m_z + SHIFT, deviation_in^2) with it; m_z spreads widely."""
    rng = np.random.default_rng(seed)
    members = rng.random((runs, records)) < 0.5
    hardness = rng.normal(0, 5, records)
    noise = rng.standard_normal((runs, records))
    return hardness + np.where(members, SHIFT + deviation_in * noise, SPREAD * noise), members


def test_the_logit_of_a_loss_is_that_of_its_probability() -> None:
    p = np.array([1e-12, 0.2, 0.5, 0.9999])
    np.testing.assert_allclose(logit_confidence(-np.log(p)), np.log(p / (1 - p)), rtol=1e-9, atol=1e-12)
    # where the probability itself would round: loss l has logit -l and -log(l)
    assert logit_confidence(800.0) == pytest.approx(-800)
    assert logit_confidence(1e-14) == pytest.approx(-math.log(1e-14))
    assert logit_confidence(0.0) == pytest.approx(53 * math.log(2))
    with pytest.raises(ValueError, match="at least 0"):
        logit_confidence([-1.0, 2.0])
    with pytest.raises(ValueError, match="at least 0"):
        logit_confidence([math.nan])


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("variance", ["record", "pooled"])
def test_the_attack_reaches_the_auc_of_the_best_test(mode: str, variance: str) -> None:
    """Equal deviations: Phi(shift/(spread sqrt 2)); fits to 200 runs cost little. Six standard errors, 1e-9."""
    statistics, members = shadow_runs(400, 50, seed=1)
    scores = lira_scores_each(statistics, members, mode=mode, variance=variance)
    found = attack_success(scores[members], scores[~members])
    best = norm.cdf(SHIFT / SPREAD / math.sqrt(2))
    assert found.auc < best + 6 * found.auc_error
    assert found.auc > best - 6 * found.auc_error - 0.005
    # one threshold for all records knows nothing of their hardness
    assert attack_success(statistics[members], statistics[~members]).auc < 0.65


def test_online_sees_a_change_of_spread_that_offline_does_not() -> None:
    rng = np.random.default_rng(2)
    members = rng.random((300, 40)) < 0.5
    statistics = np.where(members, 0.2, 1.0) * rng.standard_normal((300, 40))
    online = lira_scores_each(statistics, members)
    offline = lira_scores_each(statistics, members, mode="offline")
    assert attack_success(online[members], online[~members]).auc > 0.75
    assert abs(attack_success(offline[members], offline[~members]).auc - 0.5) < 0.05


def test_a_score_is_the_log_ratio_of_the_fitted_densities() -> None:
    statistics, members = shadow_runs(30, 4, seed=3, deviation_in=0.3)
    target = np.array([0.1, -2.0, 3.0, 0.0])
    online = lira_scores(statistics, members, target, variance="record")
    offline = lira_scores(statistics, members, target, mode="offline", variance="record")
    for record in range(4):
        kept, column = members[:, record], statistics[:, record]
        inside = norm(column[kept].mean(), column[kept].std(ddof=1))
        outside = norm(column[~kept].mean(), column[~kept].std(ddof=1))
        assert online[record] == pytest.approx(inside.logpdf(target[record]) - outside.logpdf(target[record]))
        assert offline[record] == pytest.approx((target[record] - outside.mean()) / outside.std())


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("variance", ["record", "pooled"])
def test_attacking_every_run_equals_attacking_each_with_the_others(mode: str, variance: str) -> None:
    statistics, members = shadow_runs(20, 6, seed=4)
    statistics += 1e6  # far from 0: plain sums of squares would lose the spread
    at_once = lira_scores_each(statistics, members, mode=mode, variance=variance)
    for run in range(20):
        rest = np.arange(20) != run
        alone = lira_scores(statistics[rest], members[rest], statistics[run], mode=mode, variance=variance)
        np.testing.assert_allclose(at_once[run], alone, rtol=1e-6, atol=1e-6)


def test_scores_of_statistics_without_a_secret_tell_nothing() -> None:
    """5,000 scores of each kind; 6 standard errors of the AUC, 2e-9."""
    rng = np.random.default_rng(5)
    members = rng.random((200, 50)) < 0.5
    scores = lira_scores_each(rng.standard_normal((200, 50)), members)
    found = attack_success(scores[members], scores[~members])
    assert abs(found.auc - 0.5) < 6 * found.auc_error


def test_a_model_that_never_changes_gives_finite_scores_that_tell_nothing() -> None:
    members = np.random.default_rng(6).random((40, 5)) < 0.5
    assert (lira_scores_each(np.ones((40, 5)), members) == 0).all()


def test_runs_that_cannot_be_attacked_are_refused_in_a_sentence() -> None:
    statistics, members = shadow_runs(12, 3, seed=7)
    for change, message in (
        ({"members": members[:, :2]}, "same shape"),
        ({"members": members.astype(int)}, "booleans"),
        ({"statistics": np.where(members, math.nan, statistics)}, "not finite"),
        ({"members": np.ones_like(members)}, "0 shadow runs without it"),
        ({"members": np.zeros_like(members)}, "0 shadow runs with it"),
        ({"mode": "onlin"}, "did you mean 'online'"),
        ({"variance": "mine"}, "record, pooled"),
        ({"least_deviation": 0.0}, "least_deviation"),
    ):
        arguments = {"statistics": statistics, "members": members, **change}
        with pytest.raises(ValueError, match=message):
            lira_scores_each(**arguments)
    with pytest.raises(ValueError, match="target"):
        lira_scores(statistics, members, np.zeros(4))
    offline = lira_scores_each(statistics, np.zeros_like(members), mode="offline")  # needs no run with it
    assert np.isfinite(offline).all()
