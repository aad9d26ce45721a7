"""Who takes part: the right number, every client equally likely, and nothing of Flower's random node ids."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedveil.strategies import Fleet, sample_fixed, sample_poisson
from fedveil.streams import Streams


def stream(round: int = 1, seed: int = 0):
    return Streams.seeded("c0ffee", seed).stream("client-sampling", round=round)


@given(
    st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=60),
    st.integers(0, 60),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 2**32),
)
def test_a_fixed_sample_is_a_share_of_all_clients_and_has_no_client_twice(clients, spent, fraction, seed):
    sample = sample_fixed(clients, fraction, len(clients) + spent, stream(seed=seed))
    assert len(sample) == min(len(clients), max(1, round(fraction * (len(clients) + spent))))
    assert sample == sorted(set(sample))
    assert set(sample) <= set(clients)


def test_all_clients_are_sampled_without_a_draw():
    def fail(count):
        raise AssertionError("a draw")

    from fedveil.streams import Stream

    assert sample_fixed([3, 1, 2], 1.0, 4, Stream(fail)) == [1, 2, 3]


def test_every_subset_is_equally_likely():
    """Chi-square over the 15 pairs of 6 clients in 15,000 rounds; false alarm 1e-7."""
    clients = [4, 8, 15, 16, 23, 42]
    counts = Counter(tuple(sample_fixed(clients, 1 / 3, 6, stream(round))) for round in range(15_000))
    assert set(counts) == set(combinations(clients, 2))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-7


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_poisson_samples_have_the_rate_and_the_spread(rate):
    """Exact binomial test on all draws, chi-square test on the sizes; false alarms 1e-7 each."""
    clients = list(range(40))
    sizes = [len(sample_poisson(clients, rate, stream(round))) for round in range(5000)]
    assert stats.binomtest(sum(sizes), 40 * 5000, rate).pvalue > 1e-7
    # sum of squared deviations over the variance is chi-square; its kurtosis is nearly that of a normal here
    scaled = sum((size - 40 * rate) ** 2 for size in sizes) / (40 * rate * (1 - rate))
    kurtosis = (1 - 6 * rate * (1 - rate)) / (40 * rate * (1 - rate))
    deviation = (scaled - 5000) / (5000 * (2 + kurtosis)) ** 0.5
    assert abs(deviation) < stats.norm.isf(1e-7 / 2)


def test_poisson_draws_of_two_clients_are_independent():
    """Chi-square test of independence over 20,000 rounds; false alarm 1e-7."""
    table = [[0, 0], [0, 0]]
    for round in range(20_000):
        sample = sample_poisson([5, 9], 0.3, stream(round))
        table[5 in sample][9 in sample] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-7


def test_a_poisson_sample_may_be_empty_or_everyone():
    sizes = {len(sample_poisson([1, 2], 0.5, stream(round))) for round in range(100)}
    assert sizes == {0, 1, 2}
    assert sample_poisson(list(range(1000)), 1.0, stream()) == list(range(1000))


@pytest.mark.parametrize("central", [False, True])
def test_the_sample_does_not_depend_on_node_ids_or_their_number(scene, central):
    from fedveil.strategies import CentralMechanism

    mechanism = CentralMechanism(1.0, 0.5, 0.5, 6) if central else None
    fleets = [
        scene.fleet(1),
        scene.fleet(3),
        Fleet({client: 10**12 - 7 * client for client in range(6)}, scene.examples),
    ]
    asked = []
    for fleet in fleets:
        strategy = scene.strategy(fleet=fleet, central=mechanism, fraction_train=0.5)
        rounds, grid = [], scene.grid(scene.honest, looks=[set(fleet.node_of.values())])
        for server_round in range(1, 20):
            requests = strategy.configure_train(server_round, scene.start(), {}, grid)
            config = [request.content.config_records["config"] for request in requests]
            rounds.append(sorted(client for record in config for client in record["clients"]))
        asked.append(rounds)
    assert asked[0] == asked[1] == asked[2]
    assert len({tuple(clients) for clients in asked[0]}) > 5


@pytest.mark.parametrize(("spent", "asked"), [((), 3), ((0, 1), 3), ((0, 1, 2, 3), 2)])
def test_a_round_asks_a_share_of_all_clients_whoever_has_spent_its_budget(scene, spent, asked):
    strategy = scene.strategy(fraction_train=0.5, out_of_budget=spent)
    requests = strategy.configure_train(1, scene.start(), {}, scene.grid(scene.honest))
    clients = {client for request in requests for client in request.content["config"]["clients"]}
    assert len(clients) == asked
    assert not clients & set(spent)


def test_another_seed_samples_others():
    samples = {tuple(sample_fixed(range(30), 0.5, 30, stream(seed=seed))) for seed in range(20)}
    assert len(samples) == 20
