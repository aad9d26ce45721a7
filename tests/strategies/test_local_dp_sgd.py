"""Local DP-SGD: plain gradient descent on clipped gradients, but for noise that the plan accounts for."""

from __future__ import annotations

import numpy as np
import pytest

NODES = {"mechanism": "gradient", "bound": 2.0, "largest_label": None}


@pytest.mark.parametrize("participation", ["all", "cohorts"])
def test_any_number_of_nodes_and_any_order_of_replies_gives_the_same_bits(town, participation):
    plan = town.gradients(3 if participation == "all" else 1)
    got = [
        town.run(
            town.dp_sgd(num_nodes, plan, participation=participation),
            town.grid(num_nodes, plan, arrange=arrange, **NODES),
            rounds=3,
        )
        for num_nodes, arrange in ((1, list), (3, lambda found: found[::-1]), (16, list))
    ]
    assert len({model.tobytes() for model in got}) == 1


def test_it_descends_along_the_mean_of_clipped_gradients(new_town):
    """Against a second implementation without noise; 4 sums of 8 standard errors fail with probability below 1e-14."""
    town = new_town(epsilon=1e4)
    plan = town.gradients(5)
    got = town.run(
        town.dp_sgd(3, plan, learning_rate=0.3, participation="all"), town.grid(3, plan, **NODES), rounds=5
    )
    design = np.column_stack([town.features.astype(np.float64), np.ones(town.num_clients)])
    model = np.zeros(4)
    for _ in range(5):
        gradients = design * (design @ model - town.targets)[:, None]
        norms = np.linalg.norm(gradients, axis=1)
        model -= 0.3 * (gradients * np.minimum(1, 2.0 / norms)[:, None]).mean(axis=0)
    # noise of five steps, none of which the next ones magnify: their step is below 2/L
    error = 0.3 * plan.sigma * np.sqrt(5 / town.num_clients)
    np.testing.assert_allclose(got, model, atol=8 * error)
    assert error < 0.02


def test_each_round_is_a_release_under_the_record_relation(town):
    plan = town.gradients(2)
    town.run(town.dp_sgd(3, plan), town.grid(3, plan, **NODES), rounds=2)
    for number, outcome in enumerate(town.outcomes[1:], start=1):
        (sent,) = outcome.releases
        assert sent.release == plan.release(-1, number)
        assert (sent.release.relation, sent.release.sensitivity) == ("record", 4.0)
        assert sent.count == town.num_clients


def test_a_lost_node_leaves_the_mean_of_the_others(new_town):
    """Against a second implementation without noise; 8 standard errors as above."""
    town = new_town(epsilon=1e4)
    plan = town.gradients()
    town.run(town.dp_sgd(3, plan), town.grid(3, plan, tamper={103: lambda honest: None}, **NODES))
    design = np.column_stack([town.features[:200].astype(np.float64), np.ones(200)])
    gradients = -design * town.targets[:200, None]
    norms = np.linalg.norm(gradients, axis=1)
    want = -0.3 * (gradients * np.minimum(1, 2.0 / norms)[:, None]).mean(axis=0)
    error = 0.3 * plan.sigma / np.sqrt(200)
    np.testing.assert_allclose(town.outcomes[-1].coefficients, want, atol=8 * error)
    assert error < 0.01


def test_a_resumed_run_ends_like_an_unbroken_one(town):
    plan = town.gradients(1)
    own = {"participation": "cohorts"}
    want = town.run(town.dp_sgd(3, plan, **own), town.grid(3, plan, **NODES), rounds=4)
    grid, states = town.grid(3, plan, **NODES), []
    first = town.dp_sgd(3, plan, **own)
    first.on_round = lambda outcome: states.append(first.state())
    town.run(first, grid, rounds=4)
    second = town.dp_sgd(3, plan, **own, completed_rounds=2)
    second.restore(states[2])
    got = town.run(second, grid, rounds=4, start=states[2]["coefficients"])
    assert got.tobytes() == want.tobytes()


def test_slopes_are_cut_at_a_given_radius_and_the_intercept_is_not(town):
    plan = town.gradients()
    got = town.run(town.dp_sgd(1, plan, learning_rate=100.0, radius=0.5), town.grid(1, plan, **NODES))
    assert np.linalg.norm(got[:3]) == pytest.approx(0.5)
    assert abs(got[3]) > 0.5
    assert town.outcomes[-1].projected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate": 0.0}, r"learning_rate = 0\.0 is not allowed"),
        ({"clip_norm": -1.0}, r"clip_norm = -1\.0 is not allowed"),
        ({"radius": 0.0}, r"radius = 0\.0 is not allowed"),
        ({"reply": "each"}, "gradients come as sums only"),
    ],
)
def test_settings_outside_their_range_are_refused(town, settings, words):
    with pytest.raises(ValueError, match=words):
        town.dp_sgd(1, town.gradients(), **settings)


def test_gradients_without_noise_are_refused(town):
    with pytest.raises(ValueError, match="plan = None is not allowed"):
        town.dp_sgd(1, None)
