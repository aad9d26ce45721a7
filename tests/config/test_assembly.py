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

from fedveil.config import ConfigError, FedSVAConfig, assembly, places
from fedveil.privacy import Ledger, gaussian_epsilon


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


# shares


@given(st.integers(1, 400), st.data())
def test_nodes_share_all_clients_exactly(num_clients, data):
    num_nodes = data.draw(st.integers(1, num_clients))
    shares = [places.hosted_clients(num_clients, node, num_nodes) for node in range(num_nodes)]
    assert list(itertools.chain.from_iterable(shares)) == list(range(num_clients))
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_a_node_without_a_share_is_refused():
    with pytest.raises(ConfigError, match="4 nodes for 3 clients: start at most one node a client"):
        places.hosted_clients(3, 0, 4)


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
