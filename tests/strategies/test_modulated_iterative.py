"""Iterative learning: one model for any split over nodes, resumable to the bit, and honest about steps that are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from fedveil import wire
from fedveil.artifacts.arrays_file import decode_arrays, encode_arrays
from fedveil.privacy import Modulation, gradient, one_shot
from fedveil.strategies import default_radius
from fedveil.strategies.client_averages import MAX_NUMBERS, ClientAverages

ROUNDS = 4
WAYS = [
    (estimate, participation)
    for estimate, participation in itertools.product(
        ("fresh", "pooled", "averaged"), ("all", "sampled", "cohorts")
    )
    if (estimate, participation) != ("averaged", "cohorts")
]
PAYS = {"all": ROUNDS, "sampled": 2, "cohorts": 1}


def reverse(found: list) -> list:
    return found[::-1]


def chosen(estimate: str, participation: str) -> dict:
    """Settings of one way to iterate."""
    return {
        "estimate": estimate,
        "participation": participation,
        "fraction_train": 0.4 if participation == "sampled" else 1.0,
        "reply": "each" if estimate == "averaged" else "sum",
        "steps": 50,
    }


@pytest.mark.parametrize(("estimate", "participation"), WAYS)
def test_any_number_of_nodes_and_any_order_of_replies_gives_the_same_bits(town, estimate, participation):
    plan, own = town.plan(PAYS[participation]), chosen(estimate, participation)
    one = town.run(town.iterative(1, plan, **own), town.grid(1, plan), rounds=ROUNDS)
    for num_nodes, arrange in ((3, list), (16, reverse)):
        many = town.run(
            town.iterative(num_nodes, plan, **own),
            town.grid(num_nodes, plan, arrange=arrange),
            rounds=ROUNDS,
        )
        assert many.tobytes() == one.tobytes()


@pytest.mark.parametrize("estimate", ["fresh", "pooled"])
def test_single_messages_give_the_same_bits_as_sums(town, estimate):
    plan, own = town.plan(2), chosen(estimate, "sampled")
    sums = town.run(town.iterative(3, plan, **own), town.grid(3, plan), rounds=ROUNDS)
    each = town.run(town.iterative(3, plan, **{**own, "reply": "each"}), town.grid(3, plan), rounds=ROUNDS)
    assert each.tobytes() == sums.tobytes()


@pytest.mark.parametrize("done", [1, 2, 3, 4])
@pytest.mark.parametrize(("estimate", "participation"), WAYS)
def test_a_resumed_run_ends_like_an_unbroken_one(town, estimate, participation, done):
    plan, own = town.plan(PAYS[participation]), chosen(estimate, participation)
    unbroken = town.iterative(3, plan, **own)
    want = town.run(unbroken, town.grid(3, plan), rounds=ROUNDS)
    grid = town.grid(3, plan)  # its nodes outlive the server
    first = town.iterative(3, plan, **own)
    first._num_rounds = ROUNDS
    states = []
    first.on_round = lambda outcome: states.append(encode_arrays(first.state(), {}))
    town.run(first, grid, rounds=ROUNDS)
    state, _ = decode_arrays(states[done], "memory")

    second = town.iterative(3, plan, **own, completed_rounds=done)
    second.restore(state)
    town.outcomes.clear()
    got = town.run(second, grid, rounds=ROUNDS, start=state["coefficients"])
    assert got.tobytes() == want.tobytes()
    assert [outcome.server_round for outcome in town.outcomes] == list(range(done + 1, ROUNDS + 1))
    assert second.moments.gram.tobytes() == unbroken.moments.gram.tobytes()
    assert second.moments.debias()[0].tobytes() == unbroken.moments.debias()[0].tobytes()


def test_a_state_of_another_number_of_features_is_refused(town):
    strategy = town.iterative(1, town.plan())
    with pytest.raises(ValueError, match="the saved state has 3 coefficients, and the run 4"):
        strategy.restore({"coefficients": np.zeros(3)})


def test_directions_are_fresh_and_orthogonal_to_the_slopes(town):
    town.modulation = Modulation(num_directions=2)
    plan = town.plan(ROUNDS)
    grid = town.grid(1, plan)
    town.run(town.iterative(1, plan, estimate="fresh"), grid, rounds=ROUNDS)
    sent = [message.content.array_records[wire.ARRAYS] for message in grid.sent]
    directions = [record[wire.DIRECTIONS].numpy() for record in sent]
    slopes = [record[wire.COEFFICIENTS].numpy()[:-1] for record in sent]
    assert len(sent) == ROUNDS
    assert all(np.any(slope) for slope in slopes[1:])
    for rows, slope in zip(directions, slopes, strict=True):
        np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-12)
        np.testing.assert_allclose(rows @ slope, 0, atol=1e-12)
    assert not np.allclose(directions[0], directions[1])


def test_without_a_wave_no_directions_are_sent(town):
    town.modulation = Modulation(amplitude=0)
    plan = town.plan()
    grid = town.grid(1, plan)
    town.run(town.iterative(1, plan), grid)
    assert grid.sent[0].content.array_records[wire.ARRAYS][wire.DIRECTIONS].numpy().shape == (0, 3)


def test_a_fresh_step_goes_along_the_gradient_of_the_rounds_own_moments(town):
    plan = town.plan(2)
    strategy = town.iterative(1, plan, estimate="fresh", learning_rate=0.1, radius=1e6)
    models, moments = [], []
    learn = strategy._moments_of
    strategy._moments_of = lambda *args: moments.append(learn(*args)) or moments[-1]
    strategy.on_round = lambda outcome: models.append(outcome.coefficients)
    town.run(strategy, town.grid(1, plan), rounds=2)
    for before, after, own in zip(models, models[1:], moments, strict=False):
        equations = own.normal_equations()
        mean, label = equations.covariance[:-1, -1], equations.cross[-1]
        # from the best intercept beside the old slopes, the slopes' gradient is that of the whole model
        start = np.append(before[:-1], label - mean @ before[:-1])
        slopes = before[:-1] - 0.1 * gradient(equations, start)[:-1]
        np.testing.assert_allclose(after[:-1], slopes, rtol=1e-9)
        assert after[-1] == pytest.approx(label - mean @ after[:-1], rel=1e-12)


def test_pooled_steps_converge_to_the_one_shot_estimate_of_all_moments(town):
    plan = town.plan(1)
    strategy = town.iterative(3, plan, participation="cohorts", steps=5000)
    got = town.run(strategy, town.grid(3, plan), rounds=ROUNDS)
    assert strategy.moments.count == town.num_clients
    want = one_shot(strategy.moments.normal_equations(), bound=town.bound).coefficients
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_cohorts_are_asked_once_each(town):
    plan = town.plan(1)
    town.run(town.iterative(3, plan, participation="cohorts"), town.grid(3, plan), rounds=ROUNDS)
    cohorts = [outcome.releases[0].clients for outcome in town.outcomes[1:]]
    assert sorted(np.concatenate(cohorts).tolist()) == list(range(town.num_clients))
    assert {len(cohort) for cohort in cohorts} == {town.num_clients // ROUNDS}


def test_a_run_ends_when_every_budget_is_spent(town):
    plan = town.plan(2)
    town.run(town.iterative(3, plan, estimate="fresh"), town.grid(3, plan), rounds=ROUNDS)
    assert [outcome.server_round for outcome in town.outcomes] == [0, 1, 2]
    assert town.said[-1] == "every client has spent its budget: the run ends after round 2"


def test_averages_know_what_noise_is_left_in_them(town):
    """Second implementation: M of each client's average from the rounds that it took part in, and G'G by einsum."""
    town.modulation = Modulation(num_directions=2, amplitude=0.7)
    plan = town.plan(3)
    strategy = town.iterative(3, plan, estimate="averaged", reply="each")
    rounds = []
    add = strategy._averages.add
    strategy._averages.add = lambda collected, directions: (
        rounds.append((collected, directions)) or add(collected, directions)
    )
    lost = iter([False, True, False])  # the second node's answers of three rounds
    tamper = {102: lambda honest: None if next(lost) else honest}
    town.run(strategy, town.grid(3, plan, tamper=tamper), rounds=3)

    n, c = town.num_clients, town.modulation.scale
    sums, times, left = np.zeros((n, 3)), np.zeros(n), np.zeros((n, 3, 3))
    for collected, rows in rounds:
        members = collected.took_part
        sums[members] += collected.messages
        times[members] += 1
        left[members] += plan.sigma**2 * np.eye(3) + 0.7**2 / (2 * 2) * rows.T @ rows
    assert sorted(set(times)) == [2, 3]
    means, left = sums / times[:, None], left / (times**2)[:, None, None]
    want = (np.einsum("ki,kj->ij", means, means) - left.sum(axis=0)) / (n * c**2)
    np.testing.assert_allclose(strategy.moments.debias()[0], want, rtol=1e-10, atol=1e-12)
    want = means.T @ town.targets / (n * c)
    np.testing.assert_allclose(strategy.moments.debias()[1], want, rtol=1e-10, atol=1e-12)
    assert sorted(one.count for one in strategy.moments.corrections) == [100, 200]


def test_averaging_the_same_people_beats_a_fresh_estimate(new_town):
    """Noise in Sigma_hat goes down by about T = 16; on a fixed seed.

    The smallest ratio over 200 other seeds is 6.3: a false alarm has probability well below 1 in 200.
    """
    town = new_town(epsilon=20.0)
    plan = town.plan(16)
    x = town.features.astype(np.float64)
    x *= np.minimum(1, town.bound / np.linalg.norm(x, axis=1))[:, None]
    truth = x.T @ x / len(x)
    averaged = town.iterative(1, plan, estimate="averaged", reply="each")
    errors = []
    own = averaged._moments_of
    averaged._moments_of = lambda *args: errors.append(own(*args).debias()[0] - truth) or own(*args)
    town.run(averaged, town.grid(1, plan), rounds=16)
    one_round = np.sqrt(np.mean(np.square(errors)))
    assert one_round > 4 * np.sqrt(np.mean(np.square(averaged.moments.debias()[0] - truth)))


@pytest.mark.parametrize("participation", ["all", "sampled", "cohorts"])
def test_an_interrupted_round_counts_for_everyone_whom_it_may_have_asked(town, participation):
    plan = town.plan(PAYS[participation])
    own = chosen("pooled", participation)
    strategy = town.iterative(3, plan, **own)
    strategy.restore(town.iterative(3, plan, **own).state())
    (assumed,) = strategy.interrupted(2, ROUNDS)
    other = town.iterative(3, plan, **own)
    asked = other._attendance.draw(2, ROUNDS)
    assert np.isin(asked, assumed.clients).all()
    assert assumed.release == plan.release(-1, 2)
    if participation == "cohorts":
        assert assumed.clients.tolist() == asked.tolist()
    # whether they have paid is known to the nodes' ledgers alone
    assert strategy._attendance.draw(2, ROUNDS).tolist() == asked.tolist()


def test_a_step_that_runs_away_is_cut_at_the_radius_and_said_once(town):
    plan = town.plan(ROUNDS)
    strategy = town.iterative(1, plan, estimate="fresh", learning_rate=1e6, radius=2.0)
    got = town.run(strategy, town.grid(1, plan), rounds=ROUNDS)
    assert np.linalg.norm(got[:3]) == pytest.approx(2.0)
    assert [outcome.projected for outcome in town.outcomes] == [False] + [True] * ROUNDS
    (line,) = [said for said in town.said if "radius" in said]
    assert line.startswith("round 1: a step left the ball of radius 2 and was cut back to it")


def test_the_published_form_stays_bounded_where_noise_wins(new_town):
    town = new_town(epsilon=0.5)
    plan = town.plan(20)
    got = town.run(town.iterative(1, plan, estimate="fresh"), town.grid(1, plan), rounds=20)
    assert np.isfinite(got).all()
    assert any(outcome.projected or outcome.problem for outcome in town.outcomes)


def test_a_round_without_a_positive_eigenvalue_leaves_the_model_and_says_so(town):
    def drowned(content: RecordDict) -> RecordDict:
        old = {name: array.numpy() for name, array in content.array_records[wire.ARRAYS].items()}
        record = ArrayRecord(
            {name: Array(np.zeros_like(value) if name == "gram" else value) for name, value in old.items()}
        )
        return RecordDict({**dict(content), wire.ARRAYS: record})

    plan = town.plan()
    start = np.array([1.0, 2.0, 3.0, 4.0])
    strategy = town.iterative(1, plan)
    got = town.run(strategy, town.grid(1, plan, tamper={101: drowned}), start=start)
    assert got.tolist() == start.tolist()
    assert "no positive eigenvalue" in town.outcomes[-1].problem
    assert f"round 1: {town.outcomes[-1].problem}" in town.said


def test_without_noise_collinear_columns_and_few_records_still_end_in_a_finite_model(new_town):
    town = new_town(num_clients=2)  # d > K
    town.features[:, 1] = town.features[:, 0]
    got = town.run(town.iterative(1, None, estimate="pooled"), town.grid(1, None))
    assert np.isfinite(got).all()
    x = town.features.astype(np.float64)
    x *= np.minimum(1, town.bound / np.linalg.norm(x, axis=1))[:, None]
    np.testing.assert_allclose(x @ got[:3] + got[3], town.targets, atol=1e-6)


def test_the_default_radius_comes_from_the_known_noise(town):
    """sqrt(var y/t), t = (sigma^2/c^2) sqrt(d/K)."""
    plan = town.plan()
    strategy = town.one_shot(1, plan)
    town.run(strategy, town.grid(1, plan))
    equations = strategy.moments.normal_equations()
    level = (plan.sigma / town.modulation.scale) ** 2 * np.sqrt(3 / 300)
    want = np.sqrt(np.var(town.targets) / level)
    assert default_radius(equations, town.bound) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"estimate": "mean"}, "estimate = 'mean' is not allowed"),
        ({"estimate": "averaged"}, "reply 'sum' is not allowed with estimate 'averaged'"),
        ({"estimate": "averaged", "reply": "each", "participation": "cohorts"}, "use estimate 'pooled'"),
        ({"steps": 0}, "steps = 0 is not allowed"),
        ({"learning_rate": 0.0}, r"learning_rate = 0\.0 is not allowed"),
        ({"learning_rate": 1e7}, r"learning_rate = 1e\+07 is not allowed"),
        ({"radius": -1.0}, r"radius = -1\.0 is not allowed"),
    ],
)
def test_settings_outside_their_range_are_refused(town, settings, words):
    with pytest.raises(ValueError, match=words):
        town.iterative(1, town.plan(), **settings)


def test_too_many_averages_are_refused_before_any_memory_is_taken():
    with pytest.raises(ValueError, match="use estimate 'pooled'"):
        ClientAverages(MAX_NUMBERS, 2, Modulation(), 1.0)
