"""The filter: no adaptive policy passes its budget, in exact arithmetic and in what can be inferred."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from fedveil.privacy import (
    BudgetExceeded,
    Ledger,
    PrivacyFilter,
    Release,
    compose_mu,
    gaussian_delta,
    squared_mu,
)


def release(mu, step=0, relation="record", **fields):
    return Release(0, 0, step, "gradient", relation, float(mu), 1.0, **fields)


def exact_sum(mus):
    return sum((Fraction(mu) ** 2 for mu in mus), Fraction(0))


def play(budget, ask, rounds):
    """Let `ask(step, filter)` propose mu until the rounds are over; return the admitted ones."""
    state, admitted = PrivacyFilter({"record": budget}), []
    for step in range(rounds):
        mu = ask(step, state)
        if mu > 0 and state.admits([release(mu, step)]):
            state = state.charge([release(mu, step)])
            admitted.append(mu)
    return state, admitted


def test_exact_shares_fill_a_budget_to_the_last_bit():
    state, admitted = play(1.0, lambda step, state: 0.5, 5)
    assert admitted == [0.5] * 4
    assert state.remaining("record") == 0


def test_the_budget_of_a_composition_admits_that_composition_and_no_more():
    mus = [0.3] * 50
    state, admitted = play(compose_mu(mus), lambda step, state: 0.3, 52)
    assert len(admitted) == 50
    assert state.remaining("record") < 1e-7


@settings(deadline=None)
@given(st.floats(1e-3, 50), st.integers(0, 2**32))
def test_a_policy_that_reads_its_outputs_never_passes_its_budget(budget, seed):
    rng = np.random.default_rng(seed)
    output = 0.0

    def ask(step, state):
        nonlocal output
        mu = abs(output) * budget * 10.0 ** rng.uniform(-6, 0.5)
        output = rng.normal(scale=1 / max(mu, 1e-9)) if step % 3 else rng.normal()
        return mu

    state, admitted = play(budget, ask, 60)
    assert exact_sum(admitted) <= Fraction(budget) ** 2
    assert state.spent.get("record", 0) >= exact_sum(admitted)


@settings(deadline=None, max_examples=30)
@given(st.floats(1e-3, 50))
def test_a_policy_that_asks_for_exactly_what_remains_never_passes_its_budget(budget):
    state, admitted = play(budget, lambda step, state: state.remaining("record"), 20)
    assert exact_sum(admitted) <= Fraction(budget) ** 2
    assert not state.admits([release(budget * 1e-3)])


def test_releases_below_the_rounding_of_a_float_sum_are_not_free():
    # 1 + 1e-18 == 1 in floats: a filter that kept a float sum would admit these for ever.
    state = PrivacyFilter({"record": math.sqrt(1 + 5e-17)}, {"record": 1.0})
    assert Fraction(state.budgets["record"]) ** 2 < 1 + Fraction(1, 10**15)
    admitted = 0
    while state.admits([release(1e-9, admitted)]):
        state = state.charge([release(1e-9, admitted)])
        admitted += 1
        assert admitted < 1000
    assert 1 + admitted * Fraction(1e-9) ** 2 <= Fraction(state.budgets["record"]) ** 2


def test_a_filter_rebuilt_from_floats_every_round_never_passes_its_budget():
    budget, mus = 1.0, []
    while True:
        spent = squared_mu([release(mu, step) for step, mu in enumerate(mus)], "record")
        state = PrivacyFilter({"record": budget}, {"record": spent})
        mu = min(0.07, state.remaining("record"))
        if mu == 0 or len(mus) == 400 or not state.admits([release(mu, len(mus))]):
            break
        mus.append(mu)
    assert 1 - 1e-15 < exact_sum(mus) <= 1


def test_what_the_filter_spent_is_a_sum_rounded_up():
    mus = np.random.default_rng(3).uniform(0, 1, 50).tolist()
    total = squared_mu([release(mu, step) for step, mu in enumerate(mus)], "record")
    assert math.nextafter(total, 0) < exact_sum(mus) <= total
    assert squared_mu([], "record") == 0
    assert squared_mu([release(1.0, relation="attribute")], "record") == math.inf
    assert squared_mu([release(1e200)], "record") == math.inf


def test_a_refused_charge_names_the_budget_and_leaves_the_filter_as_it_was():
    state = PrivacyFilter({"record": 1.0})
    with pytest.raises(BudgetExceeded, match="record mu 1"):
        state.charge([release(1.5)])
    assert state == PrivacyFilter({"record": 1.0})
    assert state.remaining("record") == 1
    assert state.charge([]).remaining("record") == 1


def test_each_relation_has_its_own_budget():
    state = PrivacyFilter({"attribute": 0.5, "record": 1.0})
    step = [release(0.3, relation="attribute"), release(0.8, relation="record")]
    after = state.charge(step)
    assert not after.admits(step)
    assert after.remaining("attribute") == pytest.approx(0.4)
    assert after.remaining("record") == pytest.approx(0.6)
    assert after.remaining("client") == math.inf


def test_a_record_row_alone_is_charged_to_the_attribute_budget_too():
    state = PrivacyFilter({"attribute": 0.5})
    assert not state.admits([release(0.6, relation="record")])
    assert state.charge([release(0.4, relation="record")]).remaining("attribute") == pytest.approx(0.3)


def test_a_release_without_a_row_under_a_budgeted_relation_is_refused():
    assert not PrivacyFilter({"record": 100.0}).admits([release(1e-6, relation="attribute")])


def test_a_subsampled_release_is_an_error_and_never_admitted():
    with pytest.raises(ValueError, match="subsampled release"):
        PrivacyFilter({"record": 100.0}).admits([release(1e-6, sampling_rate=0.1)])


def test_a_filter_keeps_its_own_copy_of_what_it_was_given():
    budgets, spent = {"record": 1.0}, {"record": 0.25}
    state = PrivacyFilter(budgets, spent)
    budgets["record"], spent["record"] = 100.0, 0.0
    assert state.remaining("record") == pytest.approx(math.sqrt(0.75))


N = 200_000


def adaptive_losses(rng, member):
    """Log-likelihood ratios of runs that spend mu 0.6 first, then stop if the attacker is already ahead.

    Otherwise the rest of the budget mu_B = 1 goes in unequal shares that depend on what was seen.
    """
    loss = np.zeros(N)
    spent = np.zeros(N)
    for step in range(4):
        ahead = loss > 0.5
        share = np.where(loss > 0, 0.5, 0.9) if step else 0.36
        mu = np.where(ahead, 0.0, np.sqrt((1 - spent) * share))
        output = rng.normal(size=N) + (mu if member else 0.0)
        loss += mu * output - mu * mu / 2
        spent += mu * mu
    return loss, np.sqrt(spent)


def test_what_an_adaptive_policy_reveals_stays_within_the_budget():
    """Trade-off curve of the best attack against that of one mu_B-GDP release.

    Each of the two empirical distributions is off by more than 0.006 somewhere with probability 2 exp(-2 N 0.006^2)
    < 2e-6 (Dvoretzky-Kiefer-Wolfowitz).
    """
    rng = np.random.default_rng(11)
    (inside, spent), (outside, _) = adaptive_losses(rng, True), adaptive_losses(rng, False)
    assert spent.max() <= 1
    thresholds = np.quantile(np.concatenate([inside, outside]), np.linspace(0.001, 0.999, 500))
    true_positive = np.array([(inside > threshold).mean() for threshold in thresholds])
    false_positive = np.array([(outside > threshold).mean() for threshold in thresholds])
    assert (true_positive - 0.006 <= ndtr(ndtri(np.minimum(false_positive + 0.006, 1)) + 1)).all()


def test_what_was_actually_spent_is_not_a_guarantee():
    """Among runs that stopped early, the attacker knows more than their realised mu would allow.

    The share of large losses is above delta at that epsilon by more than 100 standard errors.
    """
    loss, spent = adaptive_losses(np.random.default_rng(12), True)
    early = spent < 0.61
    epsilon = 0.5
    revealed = np.maximum(0, 1 - np.exp(epsilon - loss[early])).mean()
    assert revealed > 1.5 * gaussian_delta(epsilon, 0.6)


def test_an_odometer_is_a_number_and_says_that_it_proves_nothing():
    ledger = Ledger((release(0.6, chosen="released"),))
    assert isinstance(ledger.odometer(0, "record"), float)
    assert "not a guarantee" in " ".join(Ledger.odometer.__doc__.split())
    assert ledger.guarantee(0, "record", 1e-5).kind == "none"
