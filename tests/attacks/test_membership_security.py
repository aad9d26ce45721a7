"""The discriminator's MIS of laws whose total variation is known, and the enumerated one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad
from scipy.special import gammaln
from scipy.stats import multivariate_normal, norm

from fedveil.attacks import measure_membership_security, membership_total_variation


def rows(runs: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Run numbers and memberships of ``each`` members and as many others in every run."""
    number = np.repeat(np.arange(runs), 2 * each)
    return number, np.tile(np.repeat([True, False], each), runs)


def correlated_security(correlation: float) -> float:
    """1 - TV between a standard pair and one with this correlation, by quadrature."""
    joint = multivariate_normal(cov=[[1, correlation], [correlation, 1]])
    apart, _ = dblquad(
        lambda y, x: abs(joint.pdf([x, y]) - norm.pdf(x) * norm.pdf(y)), -6, 6, -6, 6, epsabs=2e-3
    )
    return 1 - apart / 2


CASES = {
    "nothing to see": (lambda rng, n: (rng.normal(0, 1, (n, 2)), rng.normal(0, 1, (n, 2))), 1.0),
    "a shift of 0.5": (
        lambda rng, n: (rng.normal(0.5, 1, (n, 1)), rng.normal(0, 1, (n, 1))),
        2 * norm.cdf(-0.25),
    ),
    "a shift of 3": (lambda rng, n: (rng.normal(3, 1, (n, 1)), rng.normal(0, 1, (n, 1))), 2 * norm.cdf(-1.5)),
    # densities cross at x^2 = (8/3) ln 2
    "twice the spread": (
        lambda rng, n: (rng.normal(0, 2, (n, 1)), rng.normal(0, 1, (n, 1))),
        1 - 2 * (norm.cdf(math.sqrt(8 / 3 * math.log(2))) - norm.cdf(math.sqrt(8 / 3 * math.log(2)) / 2)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_known_laws_give_their_security_from_above(case: str) -> None:
    """16,000 rows; 4.5 standard errors at a fixed seed, 7e-6, and 0.02 for what the discriminator misses."""
    draw, true = CASES[case]
    rng = np.random.default_rng(1)
    number, members = rows(800, 10)
    inside, outside = draw(rng, 8000)
    features = np.empty((16_000, inside.shape[1]))
    features[members], features[~members] = inside, outside
    found = measure_membership_security(features, members, number)
    assert found.security > true - 4.5 * found.standard_error
    assert found.security < true + 4.5 * found.standard_error + 0.02
    assert found.num_runs == 800
    # rows are independent here: the error is that of a proportion
    accuracy = found.balanced_accuracy
    assert found.standard_error == pytest.approx(2 * math.sqrt(accuracy * (1 - accuracy) / 16_000), rel=0.15)


def test_a_dependence_between_two_features_is_found() -> None:
    """As between a model and its own member: both margins agree, only the product tells."""
    rng = np.random.default_rng(2)
    number, members = rows(400, 20)
    features = rng.standard_normal((16_000, 2))
    features[members, 1] = 0.8 * features[members, 0] + 0.6 * features[members, 1]
    found = measure_membership_security(features, members, number)
    true = correlated_security(0.8)
    assert true - 4.5 * found.standard_error < found.security < true + 4.5 * found.standard_error + 0.03


def test_a_mean_of_gaussian_records_is_as_secure_as_its_exact_likelihood_ratio_says() -> None:
    """Member z: mean ~ N(z/n, (n-1)/n^2 I), else N(0, I/n). 4.5 standard errors at a fixed seed, and 0.02."""
    rng = np.random.default_rng(6)
    n, d, runs, each = 20, 10, 600, 10
    number, members = rows(runs, each)
    trained = rng.standard_normal((runs, n, d))
    mean = trained.mean(axis=1)
    shown = np.concatenate([trained[:, :each], rng.standard_normal((runs, each, d))], axis=1)
    features = np.stack(
        [
            (shown @ mean[:, :, None])[..., 0],
            (shown**2).sum(axis=2),
            np.broadcast_to((mean**2).sum(axis=1)[:, None], (runs, 2 * each)),
        ],
        axis=2,
    )
    found = measure_membership_security(features.reshape(-1, 3), members, number)

    record = rng.standard_normal((400_000, d))
    other = record / n + math.sqrt(n - 1) / n * rng.standard_normal((400_000, d))
    ratio = norm.logpdf(other, record / n, math.sqrt(n - 1) / n).sum(axis=1)
    ratio -= norm.logpdf(other, 0, 1 / math.sqrt(n)).sum(axis=1)
    true = 1 - np.maximum(0, 1 - np.exp(-ratio)).mean()
    assert true - 4.5 * found.standard_error < found.security < true + 4.5 * found.standard_error + 0.02


def test_a_run_is_judged_by_what_others_taught() -> None:
    """Labels of one run turned round turn its errors round exactly: it taught its own judge nothing."""
    rng = np.random.default_rng(3)
    number, members = rows(50, 6)
    features = rng.standard_normal((600, 3)) + members[:, None]
    before = measure_membership_security(features, members, number)
    turned = np.where(number == 7, ~members, members)
    after = measure_membership_security(features, turned, number)
    assert after.accuracy_by_run[7] == pytest.approx(1 - before.accuracy_by_run[7], abs=1e-12)
    # nor do runs of its own fold: 7 and 12 are dealt to the same one of five
    assert after.accuracy_by_run[12] == before.accuracy_by_run[12]


def test_rows_that_repeat_within_a_run_do_not_make_the_error_smaller() -> None:
    rng = np.random.default_rng(4)
    number, members = rows(200, 1)
    features = rng.standard_normal((400, 1)) + members[:, None]
    alone = measure_membership_security(features, members, number)
    nine = np.repeat(np.arange(400), 9)
    many = measure_membership_security(features[nine], members[nine], number[nine])
    assert many.standard_error > 0.8 * alone.standard_error


def test_units_and_useless_features_change_nothing() -> None:
    rng = np.random.default_rng(5)
    number, members = rows(100, 5)
    features = rng.standard_normal((1000, 2)) + 0.5 * members[:, None]
    plain = measure_membership_security(features, members, number)
    scaled = measure_membership_security(features * [1e9, 1e-9] + [5.0, 0.0], members, number)
    assert scaled.security == pytest.approx(plain.security, abs=0.01)
    constant = np.hstack([features, np.full((1000, 1), 3.0)])
    assert measure_membership_security(constant, members, number).security == pytest.approx(plain.security)
    nothing = measure_membership_security(np.full((1000, 1), 3.0), members, number)
    assert (nothing.security, nothing.balanced_accuracy) == (1.0, 0.5)


def test_rows_that_cannot_be_judged_are_refused_in_a_sentence() -> None:
    number, members = rows(10, 2)
    good = np.zeros((40, 2))
    for features, labels, runs, options, message in (
        (good[:39], members, number, {}, "one row of features"),
        (good[:, 0], members, number, {}, "one row of features"),
        (good, members.astype(float), number, {}, "booleans"),
        (good, members, number.astype(float), {}, "whole numbers"),
        (np.where(good == 0, math.inf, 0), members, number, {}, "not finite"),
        (good, np.ones(40, dtype=bool), number, {}, "equal classes"),
        (good, members, number, {"folds": 11}, "10 training runs cannot be dealt to 11 folds"),
        (good, members, number, {"folds": 1}, "folds"),
    ):
        with pytest.raises(ValueError, match=message):
            measure_membership_security(features, labels, runs, **options)


weights = st.lists(st.floats(0.01, 1), min_size=2, max_size=4)


@settings(max_examples=40, deadline=None)
@given(law=weights, seed=st.integers(0, 1000), outputs=st.integers(1, 5))
def test_enumerated_total_variation_is_the_double_sum(law: list[float], seed: int, outputs: int) -> None:
    records = np.array(law) / sum(law)
    models = np.random.default_rng(seed).dirichlet(np.ones(outputs), len(law))
    average = sum(p * row for p, row in zip(records, models, strict=True))
    expected = sum(
        p * abs(row[k] - average[k]) / 2
        for p, row in zip(records, models, strict=True)
        for k in range(outputs)
    )
    assert membership_total_variation(records, models) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_a_model_that_is_its_record_has_no_security_and_one_that_ignores_it_all() -> None:
    records = np.array([0.5, 0.3, 0.2])
    assert membership_total_variation(records, np.eye(3)) == pytest.approx(1 - np.sum(records**2))
    assert membership_total_variation(records, np.full((3, 2), 0.5)) == 0.0


@pytest.mark.parametrize("n", [10, 400])
def test_a_total_variation_keeps_its_digits_however_small(n: int) -> None:
    """Majority of n coins, heads with probability 0.1, by its closed form 2 p (1 - p) P(one coin decides)."""
    p = 0.1
    logs = np.array(
        [
            gammaln(n) - gammaln(k + 1) - gammaln(n - k) + k * math.log(p) + (n - 1 - k) * math.log1p(-p)
            for k in range(n)
        ]
    )
    others = np.exp(logs)  # law of the number of heads among the n - 1 other coins
    wins = n // 2 + 1
    given = np.array([[0, others[wins - 1 :].sum()], [0, others[wins:].sum()]])
    given[:, 0] = 1 - given[:, 1]
    found = membership_total_variation([p, 1 - p], given)
    assert found == pytest.approx(2 * p * (1 - p) * others[wins - 1], rel=1e-9)
    assert 0 < found < 10.0 ** (-n / 5)


def test_tables_that_are_no_probabilities_are_refused_in_a_sentence() -> None:
    for records, models, message in (
        ([0.5, 0.5], [[1.0]], "table of z rows"),
        ([0.5, 0.6], [[1.0], [1.0]], "sum to 1"),
        ([0.5, 0.5], [[1.5, -0.5], [1.0, 0.0]], "sum to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            membership_total_variation(records, models)
