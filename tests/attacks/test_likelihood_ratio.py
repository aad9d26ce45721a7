"""The audit itself: its limits are exact, its bound holds and is near the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, norm

from fedveil.attacks import audit_likelihood_ratio, clopper_pearson_upper, log_likelihood_ratio
from fedveil.privacy import gaussian_epsilon


def test_clopper_pearson_limits_are_the_quantiles_of_the_beta_distribution() -> None:
    for trials in (1, 7, 300):
        errors = np.arange(trials + 1)
        limits = clopper_pearson_upper(errors, trials, 0.01)
        np.testing.assert_allclose(
            limits[:-1], beta.ppf(0.99, errors[:-1] + 1, trials - errors[:-1]), rtol=1e-10
        )
        assert limits[-1] == 1.0
    # no error in n trials: 1 - risk^(1/n)
    assert clopper_pearson_upper(0, 50, 0.05) == pytest.approx(1 - 0.05 ** (1 / 50), rel=1e-12)


def test_log_likelihood_ratio_is_the_difference_of_the_log_densities() -> None:
    rng = np.random.default_rng(1)
    outputs, mean, neighbour = rng.standard_normal((20, 3)), rng.standard_normal(3), rng.standard_normal(3)
    expected = (norm.logpdf(outputs, neighbour, 0.7) - norm.logpdf(outputs, mean, 0.7)).sum(axis=1)
    np.testing.assert_allclose(
        log_likelihood_ratio(outputs, mean, neighbour, 0.7), expected, rtol=1e-12, atol=1e-12
    )
    with pytest.raises(ValueError, match="sigma must be positive"):
        log_likelihood_ratio(outputs, mean, neighbour, 0.0)


@pytest.mark.parametrize("threshold", [None, 0.0])
@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0, 5.0])
def test_the_bound_is_below_the_true_mu_and_near_it(mu: float, threshold: float | None) -> None:
    """False-alarm probability 1e-3 for each of the 20 audits of a case, at fixed seeds."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        here, there = rng.normal(-mu / 2, 1, 20_000), rng.normal(mu / 2, 1, 20_000)
        audit = audit_likelihood_ratio(here, there, delta=1e-5, threshold=threshold)
        assert audit.mu <= mu
        assert audit.mu >= mu * 0.85 - 0.1
        assert audit.epsilon == gaussian_epsilon(audit.mu, 1e-5)
        assert audit.trials == (20_000 if threshold == 0.0 else 10_000)


def test_scores_that_tell_nothing_bound_nothing() -> None:
    same = np.zeros(100)
    audit = audit_likelihood_ratio(same, same, delta=1e-5)
    assert (audit.mu, audit.epsilon) == (0.0, 0.0)


def test_scores_that_tell_all_bound_mu_by_the_number_of_trials() -> None:
    audit = audit_likelihood_ratio(np.zeros(1000), np.ones(1000), delta=1e-5, confidence=0.99, threshold=0.5)
    assert (audit.false_positives, audit.false_negatives) == (0, 0)
    assert audit.mu == pytest.approx(-2 * norm.ppf(1 - 0.005 ** (1 / 1000)), rel=1e-10)


def test_scores_that_cannot_be_counted_are_refused() -> None:
    good = np.zeros(10)
    for scores, options, message in (
        (np.zeros(1), {}, "at least 2 scores"),
        (np.zeros((5, 2)), {}, "at least 2 scores"),
        (np.full(10, math.nan), {}, "NaN"),
        (good, {"confidence": 1.0}, "confidence"),
    ):
        with pytest.raises(ValueError, match=message):
            audit_likelihood_ratio(scores, good, delta=1e-5, **options)
