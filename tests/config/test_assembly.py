"""From a configuration to the parts of a run: shares of clients, and noise that fits the budget."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedveil.config import ConfigError, FedSVAConfig, assembly
from fedveil.privacy import Ledger, PrivacyFilter, gaussian_epsilon, gaussian_mu


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


# shares


@given(st.integers(1, 400), st.data())
def test_nodes_share_all_clients_exactly(num_clients, data):
    num_nodes = data.draw(st.integers(1, num_clients))
    shares = [assembly.hosted_clients(num_clients, node, num_nodes) for node in range(num_nodes)]
    assert list(itertools.chain.from_iterable(shares)) == list(range(num_clients))
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 0, 4), "4 nodes for 3 clients: start at most one node a client"),
        ((3, 2, 2), "partition-id = 2 must lie between 0 and num-partitions - 1 = 1"),
        ((3, -1, 2), "partition-id = -1 must lie between 0"),
        ((3, 0, 0), "partition-id = 0 must lie between 0"),
    ],
)
def test_a_node_without_a_share_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        assembly.hosted_clients(*arguments)


@pytest.mark.parametrize(
    ("rounds", "fraction", "steps", "expected"),
    [
        (40, 1.0, 1, 40),
        (40, 1.0, 3, 120),
        (40, 0.5, 1, 20),
        (7, 0.5, 2, 8),  # 3.5 rounds a client, rounded up
        (10, 0.1, 1, 1),
        (100, 0.07, 1, 7),  # 7.000000000000001 in floating point
        (3, 0.01, 5, 5),
        (1, 1.0, 1, 1),
    ],
)
def test_a_clients_releases_are_its_expected_share_of_the_rounds(rounds, fraction, steps, expected):
    settings = config(num_server_rounds=rounds, fraction_train=fraction, local_steps=steps)
    assert assembly.num_releases(settings) == expected


# local privacy

EXAMPLES = {0: 400, 1: 1, 2: 37, 3: 400, 4: 10_000}
LOCAL = {
    "attribute": {},
    "attribute, several steps": {"local_steps": 3, "num_server_rounds": 7},
    "attribute, half the clients": {"fraction_train": 0.5},
    "attribute, two budgets": {"epsilon_record": 4.0},
    "attribute, a tight second budget": {"epsilon_record": 0.5},
    "uniform": {"calibration": "uniform"},
    "uniform, weak": {"calibration": "uniform", "epsilon": 100.0},
    "uniform, one round": {"calibration": "uniform", "num_server_rounds": 1},
}


def schedule(settings: FedSVAConfig, client: int, mechanism) -> list:
    """All rows that the client may release."""
    return [
        row
        for index in range(assembly.num_releases(settings))
        for row in mechanism.releases(client, 1 + index, 0)
    ]


@pytest.mark.parametrize("name", LOCAL)
def test_the_whole_schedule_of_every_client_spends_its_budget_and_no_more(name):
    settings = config(**LOCAL[name])
    mechanisms = assembly.local_mechanisms(settings, EXAMPLES)
    allowed = assembly.local_budgets(settings)
    limits = {"attribute" if settings.is_attribute_level else "record": settings.epsilon}
    if settings.epsilon_record is not None:
        limits["record"] = settings.epsilon_record
    assert allowed == {r: gaussian_mu(epsilon, settings.delta) for r, epsilon in limits.items()}
    assert list(mechanisms) == list(EXAMPLES)
    for client, n in EXAMPLES.items():
        mechanism = mechanisms[client]
        assert mechanism.num_records == n
        rows = schedule(settings, client, mechanism)
        assert PrivacyFilter(allowed).admits(rows)
        spent = {
            relation: Ledger(tuple(rows)).guarantee(client, relation, settings.delta).epsilon / epsilon
            for relation, epsilon in limits.items()
        }
        assert max(spent.values()) == pytest.approx(1.0, rel=1e-9)
        assert all(share <= 1.0 for share in spent.values())
        one_more = mechanism.releases(client, 10**6, 0)
        assert not PrivacyFilter(allowed).admits([*rows, *one_more])


def test_the_noise_is_the_closed_form():
    settings = config(num_server_rounds=25, epsilon=2.0, delta=1e-6, attribute_clip_norm=0.1)
    mechanism = assembly.local_mechanisms(settings, {0: 400})[0]
    mu = gaussian_mu(2.0, 1e-6)
    assert mechanism.sigma == pytest.approx(2 * 0.1 / 400 * math.sqrt(25) / mu, rel=1e-9)


def test_clients_of_equal_size_share_one_plan():
    mechanisms = assembly.local_mechanisms(config(), EXAMPLES | {5: 400})
    assert mechanisms[0] == mechanisms[3] == mechanisms[5]


@pytest.mark.parametrize("privacy", ["none", "central"])
def test_clients_add_no_noise_where_privacy_is_not_theirs(privacy):
    settings = config(privacy=privacy)
    assert assembly.local_mechanisms(settings, EXAMPLES) == dict.fromkeys(EXAMPLES)
    assert assembly.local_budgets(settings) == {}


@pytest.mark.parametrize("values", [{"mu_release": 5.0}, {"mu_release": 0.2, "local_steps": 3}])
def test_a_first_round_over_budget_names_the_client(values):
    with pytest.raises(ConfigError, match="the first round would pass the budget of client 7") as refused:
        assembly.local_mechanisms(config(**values), {7: 400, 9: 300})
    assert f"mu-release = {values['mu_release']}" in str(refused.value)
    assert str(refused.value).endswith("lower mu-release or raise epsilon.")


def test_a_given_mu_is_each_releases_own():
    settings = config(mu_release=0.03)
    mechanism = assembly.local_mechanisms(settings, {0: 400})[0]
    assert mechanism.releases(0, 1, 0)[0].mu == pytest.approx(0.03, rel=1e-12)
    assert len(schedule(settings, 0, mechanism)) == 2 * 40  # and the filter ends them earlier, if need be


def test_sampled_records_have_no_filter_and_a_fixed_schedule():
    settings = config(calibration="uniform", sampling_rate=0.1, num_server_rounds=20, epsilon=2.0)
    assert assembly.local_budgets(settings) == {}
    mechanism = assembly.local_mechanisms(settings, {0: 4000})[0]
    assert (mechanism.sampling_rate, mechanism.num_releases) == (0.1, 20)
    ledger = Ledger(tuple(schedule(settings, 0, mechanism)))
    assert 1.99 < ledger.guarantee(0, "record", settings.delta).epsilon <= 2.0


@pytest.mark.filterwarnings("error")
def test_a_weak_delta_is_planned_without_a_warning_for_each_client():
    """The app names all such clients in one line."""
    assert assembly.local_mechanisms(config(delta=0.05), {0: 37, 1: 38})[1].num_records == 38


# the trusted server


def test_there_is_no_central_mechanism_without_central_privacy():
    assert assembly.central_mechanism(config(), 10) is None
    assert assembly.central_mechanism(config(privacy="none"), 10) is None


@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 40), (0.05, 3), (20.0, 100)])
def test_the_servers_noise_spends_the_budget_when_all_take_part(epsilon, rounds):
    settings = config(privacy="central", epsilon=epsilon, num_server_rounds=rounds, clip_norm=3.0)
    mechanism = assembly.central_mechanism(settings, 25)
    ledger = Ledger(tuple(mechanism.release(t) for t in range(1, rounds + 1)))
    spent = ledger.guarantee(-1, "client", settings.delta).epsilon
    assert spent == pytest.approx(epsilon, rel=1e-9)
    assert spent <= epsilon
    # and by hand: the sum moves by 2 C, so that mu of a round is 2 over the noise multiplier
    mu = 2 / mechanism.noise_multiplier * math.sqrt(rounds)
    assert gaussian_epsilon(mu, settings.delta) == pytest.approx(epsilon, rel=1e-9)
    assert mechanism.sigma == pytest.approx(mechanism.noise_multiplier * 3.0 / 25, rel=1e-12)


def dp_accounting_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """dp-accounting's own account of it, through its events and not through its loss distributions."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3
    )
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    accountant.compose(event, rounds)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("epsilon", "rounds", "fraction"), [(2.0, 40, 0.1), (0.5, 10, 0.5), (8.0, 100, 0.02)]
)
def test_dp_accounting_agrees_with_the_servers_noise_when_clients_are_sampled(epsilon, rounds, fraction):
    settings = config(privacy="central", epsilon=epsilon, num_server_rounds=rounds, fraction_train=fraction)
    mechanism = assembly.central_mechanism(settings, 100)
    assert mechanism.sampling_rate == fraction
    assert mechanism.denominator == pytest.approx(100 * fraction)
    spent = dp_accounting_epsilon(mechanism.noise_multiplier, fraction, rounds, settings.delta)
    assert 0.97 * epsilon < spent <= epsilon * 1.001
    ledger = Ledger(tuple(mechanism.release(t) for t in range(1, rounds + 1)))
    assert ledger.guarantee(-1, "client", settings.delta).epsilon <= epsilon


@pytest.mark.parametrize(("epsilon", "delta", "rate"), [(1.0, 1e-3, 0.3), (0.3, 1e-2, 0.5)])
def test_one_sampled_round_satisfies_the_definition_of_privacy(epsilon, delta, rate):
    """By quadrature: the hockey-stick divergence of the server's sum with one client's data replaced.

    A client's update is +C under one data set and -C under the other, and joins with probability q.
    """
    settings = config(
        privacy="central", epsilon=epsilon, delta=delta, num_server_rounds=1, fraction_train=rate
    )
    z = assembly.central_mechanism(settings, 10).noise_multiplier

    def divergence(z: float) -> float:
        x, step = np.linspace(-9 * z, 9 * z, 200_001, retstep=True)
        nothing, up, down = (stats.norm.pdf(x, center, z) for center in (0.0, 1.0, -1.0))
        excess = (1 - rate) * nothing + rate * up - math.exp(epsilon) * ((1 - rate) * nothing + rate * down)
        return float(np.sum(np.maximum(excess, 0.0)) * step)

    assert divergence(z) <= delta
    # and no more noise than that takes: with 2 % less it would not hold
    assert divergence(0.98 * z) > delta
