"""Estimated ranges: released means and spreads where they can be told from noise, the public range elsewhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.privacy import ModulatedMoments, Modulation
from fedveil.strategies import NoGoodReplies, range_round, ranges_of

BOUND = 3.0  # no record of the town is clipped


def ask(town, num_nodes, plan, *, nodes=None, **settings):
    """One range round."""
    grid = town.grid(num_nodes, plan, mechanism="range", bound=BOUND, **(nodes or {}))
    told = {
        "plan": plan,
        "modulation": town.modulation,
        "bound": BOUND,
        "dimension": 3,
        "run": "run-1",
        "code": town.code,
        "largest_label": town.largest_label,
        "say": town.said.append,
    }
    return range_round(grid, town.census(num_nodes), **{**told, **settings}), grid


def range_plan(town, **settings):
    return town.plan(bound=BOUND, share=0.1, name="range", **settings)


def moments(values: np.ndarray, sigma: float = 0.0, alpha: float = 0.3) -> ModulatedMoments:
    """Messages without a wave and without noise, which say that they have some."""
    modulation = Modulation(alpha=alpha, amplitude=0)
    return ModulatedMoments.from_messages(
        modulation.scale * values, np.zeros(len(values)), modulation=modulation, sigma=sigma
    )


def test_without_noise_they_are_the_means_and_standard_deviations():
    values = np.random.default_rng(1).uniform(-1, 1, size=(500, 3)) * [1, 0.5, 0.01] + [0, 0.4, -0.9]
    center, spread, fallback = ranges_of(moments(values))
    np.testing.assert_allclose(center, values.mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(spread, values.std(axis=0), rtol=1e-9)
    assert not fallback.any()


def test_a_constant_column_keeps_the_public_range():
    values = np.random.default_rng(1).uniform(-1, 1, size=(500, 3)) * [1, 0, 1] + [0, 0.3, 0]
    center, spread, fallback = ranges_of(moments(values))
    assert fallback.tolist() == [False, True, False]
    assert (center[1], spread[1]) == (0.0, 0.5)


@given(
    variances=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    sigma=st.floats(0, 10),
    count=st.integers(2, 10_000),
)
def test_any_estimate_is_a_usable_range(variances, sigma, count):
    """Debiased variances may be anything; what comes of them is positive and at most the public spread."""
    modulation = Modulation(amplitude=0)
    gram = np.diag(np.array(variances) * count)
    sums = ModulatedMoments.from_sums(
        gram, np.zeros(3), np.zeros(3), 0.0, 0.0, count, modulation=modulation, sigma=sigma
    )
    center, spread, fallback = ranges_of(sums)
    assert np.all((spread > 0) & (spread <= 1))
    assert np.isfinite(center).all()
    noise = sigma**2 / modulation.scale**2 * np.sqrt(2 / count)
    seen = np.diag(gram) / count / modulation.scale**2 - sigma**2 / modulation.scale**2
    assert np.all(fallback[seen < 1.9 * noise])
    assert not np.any(fallback[seen > np.maximum(2.1 * noise, 1e-9)])


def test_any_number_of_nodes_gives_the_same_bits(town):
    plan = range_plan(town)
    (one, _), (many, _) = ask(town, 1, plan), ask(town, 16, plan)
    assert one.center.tobytes() == many.center.tobytes()
    assert one.spread.tobytes() == many.spread.tobytes()


def test_with_little_noise_it_finds_the_range_and_says_what_it_cost(new_town):
    """Means within 8 of their standard errors: fails with probability below 1e-14; spreads to a tenth, on this seed."""
    town = new_town(epsilon=2000.0)
    plan = range_plan(town)
    found, _ = ask(town, 3, plan)
    error = plan.sigma / town.modulation.scale / np.sqrt(town.num_clients)
    x = town.features.astype(np.float64)
    np.testing.assert_allclose(found.center, x.mean(axis=0), atol=8 * error)
    np.testing.assert_allclose(found.spread, x.std(axis=0), rtol=0.1)
    (sent,) = found.releases
    assert sent.release == plan.release(-1, 0)
    assert (sent.release.name, sent.count) == ("range", town.num_clients)
    assert found.assumed == ()
    assert town.said == ["ranges of 3 features estimated from 300 clients"]


def test_where_noise_wins_the_public_range_stays_and_a_line_counts_the_features(new_town):
    town = new_town(epsilon=0.01)
    found, _ = ask(town, 3, range_plan(town))
    kept = np.count_nonzero((found.center == 0) & (found.spread == 0.5))
    assert kept
    assert f"{kept} keep the public range: their estimate is mostly noise" in town.said[-1]


def test_a_lost_reply_counts_as_sent(town):
    plan = range_plan(town)
    found, _ = ask(town, 3, plan, nodes={"tamper": {102: lambda honest: None}})
    (sent,), (assumed,) = found.releases, found.assumed
    assert (sent.count, assumed.clients.tolist()) == (200, list(range(100, 200)))
    assert "ranges: dropped the reply for 100 clients, 100 to 199: none came in time" in town.said


def test_without_a_reply_there_is_no_range(town):
    plan = range_plan(town)
    with pytest.raises(NoGoodReplies, match="round 0"):
        ask(town, 1, plan, nodes={"tamper": {101: lambda honest: None}})


def test_the_run_sends_the_ranges_to_the_clients(town):
    """Records scaled twice as wide and moved: the same coefficients as of records that were so before."""
    ranges = (np.array([0.1, -0.2, 0.0]), np.array([2.0, 0.5, 1.0]))
    got = town.run(town.one_shot(3, None, ranges=ranges), town.grid(3, None))
    town.features = (town.features - ranges[0]) / ranges[1]
    want = town.run(town.one_shot(3, None), town.grid(3, None))
    np.testing.assert_allclose(got, want, rtol=1e-6)


# attempts


def losing(town, plan, failures, **settings):
    """A range round whose nodes are silent so often before they answer; they have made their messages each time."""
    grid = town.grid(3, plan, mechanism="range", bound=BOUND)
    asked, honest = Counter(), grid.answer

    def answer(message):
        node, content = message.metadata.dst_node_id, honest(message)
        asked[node] += 1
        return None if asked[node] <= failures.get(node, 0) else content

    grid.answer, grid.looks = answer, [(101, 102, 103)]
    town.grid = lambda *_, **__: grid
    return ask(town, 3, plan, **settings)[0]


def test_silent_nodes_are_asked_again_for_ranges_and_every_message_counts(new_town):
    town, whole = new_town(), new_town()
    told = []
    plan = range_plan(town)
    expected, _ = ask(whole, 3, range_plan(whole))
    found = losing(town, plan, {102: 1, 103: 2}, round_attempts=3, on_repeat=told.append)
    assert found.center.tobytes() == expected.center.tobytes()
    assert found.spread.tobytes() == expected.spread.tobytes()
    assert found.releases[0].count == 300
    lost = [list(range(100, 300)), list(range(200, 300))]
    assert [cohort.clients.tolist() for cohort in found.assumed] == lost
    assert [[cohort.clients.tolist() for cohort in cohorts] for cohorts in told] == [lost[:1], lost]
    assert sum(line.startswith("ranges: dropped ") for line in town.said) == 3


def test_in_a_seeded_run_a_range_message_that_is_sent_twice_counts_once(town):
    told = []
    found = losing(
        town, range_plan(town), {102: 1}, round_attempts=2, repeats_itself=True, on_repeat=told.append
    )
    assert (found.assumed, told) == ((), [])


def test_too_few_replies_leave_the_public_ranges_and_are_spent(town):
    found = losing(town, range_plan(town), {102: 9, 103: 9}, min_replies=2)
    assert found.center.tolist() == [0, 0, 0]
    assert found.spread.tolist() == [0.5, 0.5, 0.5]
    assert found.releases == ()
    assert sum(cohort.count for cohort in found.assumed) == 300
    assert (
        "ranges: 1 of 3 nodes sent something to average, and min-replies is 2: public ones serve" in town.said
    )
