"""Shapley values: the axioms, brute force over permutations, an oracle, and the sensitivity of the released vector."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy.shapley import MAX_EXACT, contribution_rate, shapley_sensitivity, shapley_values

games = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.floats(0, 1), min_size=2**n, max_size=2**n).map(np.array)
)


def brute_force(utilities):
    """Mean over all orders of what each player adds to those before it."""
    num_players = len(utilities).bit_length() - 1
    orders = list(itertools.permutations(range(num_players)))
    total = np.zeros(num_players)
    for order in orders:
        mask = 0
        for player in order:
            total[player] += utilities[mask | 1 << player] - utilities[mask]
            mask |= 1 << player
    return total / len(orders)


def operator(num_players):
    """The N x 2^N matrix of the map from utilities to Shapley values, from the textbook formula."""
    n = num_players
    matrix = np.zeros((n, 2**n))
    for mask, player in itertools.product(range(2**n), range(n)):
        if not mask >> player & 1:
            size = mask.bit_count()
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            matrix[player, mask] -= weight
            matrix[player, mask | 1 << player] += weight
    return matrix


def changeable(num_players, num_private):
    """Coalitions whose utility can change: those with a private group (groups 0..k-1), or all."""
    hidden = 0 if num_private is None else 2**num_private - 1
    return [mask for mask in range(2**num_players) if num_private is None or mask & hidden]


def largest_norm(matrix, starts, rng, rounds=40):
    """Largest norm of matrix @ d over d in {-1, 1}: local ascent from random directions, never above the truth."""
    directions = rng.standard_normal((len(matrix), starts))
    for _ in range(rounds):
        directions = matrix @ np.sign(matrix.T @ directions)
    return np.linalg.norm(directions, axis=0).max()


# values


@given(games)
def test_values_equal_the_mean_over_all_permutations(utilities):
    np.testing.assert_allclose(shapley_values(utilities), brute_force(utilities), rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, MAX_EXACT), st.integers(0, 2**32))
def test_values_sum_to_what_all_players_add(num_players, seed):
    utilities = np.random.default_rng(seed).uniform(size=2**num_players)
    values = shapley_values(utilities)
    assert math.fsum(values) == pytest.approx(utilities[-1] - utilities[0], abs=1e-12)


@given(games, st.data())
def test_players_that_can_be_swapped_are_worth_the_same(utilities, data):
    num_players = len(utilities).bit_length() - 1
    if num_players < 2:
        return
    one, other = data.draw(st.permutations(range(num_players)))[:2]
    swapped = np.array(
        [
            mask & ~(1 << one | 1 << other) | (mask >> one & 1) << other | (mask >> other & 1) << one
            for mask in range(len(utilities))
        ]
    )
    values = shapley_values((utilities + utilities[swapped]) / 2)
    assert values[one] == pytest.approx(values[other], abs=1e-14)


@given(games, st.data())
def test_a_player_that_changes_nothing_is_worth_nothing(utilities, data):
    player = data.draw(st.integers(0, len(utilities).bit_length() - 2))
    without = np.arange(len(utilities)) & ~(1 << player)
    assert shapley_values(utilities[without])[player] == 0.0


@given(games, st.floats(-3, 3), st.integers(0, 2**32))
def test_values_are_linear_in_the_game(utilities, factor, seed):
    other = np.random.default_rng(seed).uniform(size=len(utilities))
    np.testing.assert_allclose(
        shapley_values(utilities + factor * other),
        shapley_values(utilities) + factor * shapley_values(other),
        rtol=0,
        atol=1e-12,
    )


def test_two_groups_are_the_closed_form():
    nothing, private, others, both = 0.1, 0.55, 0.7, 0.9
    values = shapley_values([nothing, private, others, both])
    expected = ((private - nothing + both - others) / 2, (others - nothing + both - private) / 2)
    assert values == pytest.approx(expected, abs=1e-15)


def test_an_additive_game_of_twelve_players_gives_back_its_terms():
    worth = np.random.default_rng(3).uniform(-1, 1, size=12)
    members = np.arange(2**12)[:, None] >> np.arange(12) & 1
    np.testing.assert_allclose(shapley_values(members @ worth), worth, rtol=0, atol=1e-13)


@pytest.mark.parametrize("num_players", [2, 5, 8])
def test_values_equal_those_of_shapiq(num_players):
    shapiq = pytest.importorskip("shapiq")
    utilities = np.random.default_rng(num_players).uniform(size=2**num_players)

    def game(members):
        return utilities[np.asarray(members, dtype=np.int64) @ (1 << np.arange(num_players))]

    found = shapiq.ExactComputer(game=game, n_players=num_players)(index="SV", order=1)
    expected = [found[(player,)] for player in range(num_players)]
    np.testing.assert_allclose(shapley_values(utilities), expected, rtol=0, atol=1e-10)


# contribution rate


@pytest.mark.parametrize(
    ("values", "private", "rate"),
    [
        ([0.3, 0.1], [0], 0.75),
        ([0.3, -0.2], [0], 1.0),
        ([-0.3, 0.2], [0], 0.0),
        ([0.1, 0.2, 0.3, 0.4], [1, 3], 0.6),
        ([0.1, 0.3], [0, 0], 0.25),
        ([0.0, 0.0], [0], 1.0),
        ([-0.1, -0.2], [1], 1.0),
    ],
)
def test_the_rate_is_the_private_share_of_positive_values(values, private, rate):
    assert contribution_rate(values, private) == pytest.approx(rate, abs=1e-15)


def test_values_within_their_noise_count_as_all_private():
    values, noise = [0.04, 0.36], 0.1
    bound = 2 * noise * math.sqrt(2)
    assert sum(values) > bound
    assert contribution_rate(values, [0], noise) == pytest.approx(0.1)
    assert contribution_rate(values, [0], noise * sum(values) / bound * 1.0001) == 1.0


def test_a_sum_equal_to_twice_its_noise_is_not_above_it():
    assert contribution_rate([0.25, 0.25, 0.25, 0.25], [0], 0.25) == 1.0
    assert contribution_rate([0.25, 0.25, 0.25, 0.25], [0], np.nextafter(0.25, 0)) == 0.25


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.data())
def test_the_rate_is_a_share_and_grows_with_the_private_groups(values, data):
    private = data.draw(st.sets(st.integers(0, len(values) - 1)))
    more = private | {data.draw(st.integers(0, len(values) - 1))}
    assert 0 <= contribution_rate(values, private) <= contribution_rate(values, more) <= 1


# sensitivity


@pytest.mark.parametrize("num_players", [1, 2, 3])
def test_no_change_of_one_record_moves_the_vector_further_than_stated(num_players):
    matrix = operator(num_players)
    for private in (None, *range(1, num_players + 1)):
        free = changeable(num_players, private)
        changes = np.array(list(itertools.product((-1, 0, 1), repeat=len(free))))
        largest = np.linalg.norm(changes @ matrix[:, free].T, axis=1).max()
        stated = shapley_sensitivity(num_players, private)
        assert largest <= stated * (1 + 1e-12)
        if private in (None, 1):
            assert largest == pytest.approx(stated, rel=1e-12)


def test_four_groups_attain_two_and_no_vertex_passes_it():
    # The norm is convex, so its largest value over the cube is at a vertex.
    matrix = operator(4)
    signs = (np.arange(2**16)[:, None] >> np.arange(16) & 1) * 2.0 - 1
    assert np.linalg.norm(signs @ matrix.T, axis=1).max() == pytest.approx(2.0, abs=1e-12)
    assert shapley_sensitivity(4) == 2.0
    assert shapley_sensitivity(4, 1) == 1.0


@pytest.mark.parametrize("num_players", [4, 5, 6, 7, 8])
def test_local_ascent_finds_no_change_beyond_the_stated_sensitivity(num_players):
    rng = np.random.default_rng(num_players)
    matrix = operator(num_players)
    for private in (None, 1, 2, num_players):
        found = largest_norm(matrix[:, changeable(num_players, private)], 200, rng)
        stated = shapley_sensitivity(num_players, private)
        # The search must be worth something: it comes within 16 % of the bound.
        assert 0.84 * stated < found <= stated * (1 + 1e-12)


@given(st.integers(2, 6), st.integers(0, 2**32))
def test_random_changes_stay_within_the_stated_sensitivity(num_players, seed):
    rng = np.random.default_rng(seed)
    change = rng.integers(-1, 2, size=2**num_players).astype(float)
    assert np.linalg.norm(shapley_values(change)) <= shapley_sensitivity(num_players) * (1 + 1e-12)
    for private in range(1, num_players + 1):
        kept = np.where(np.isin(np.arange(2**num_players), changeable(num_players, private)), change, 0.0)
        assert np.linalg.norm(shapley_values(kept)) <= shapley_sensitivity(num_players, private) * (1 + 1e-12)


def test_the_bound_is_the_one_of_the_theory():
    for n in range(5, MAX_EXACT + 1):
        balanced = sum(math.sqrt(n / ((n - 1) * s * (n - s))) for s in range(1, n))
        assert shapley_sensitivity(n) == pytest.approx(math.sqrt(balanced**2 + 4 / n), rel=1e-14)
        assert shapley_sensitivity(n, 1) == pytest.approx(shapley_sensitivity(n) / 2, rel=1e-14)
    assert 2.46 < shapley_sensitivity(12) < 2.47
    assert shapley_sensitivity(13) == pytest.approx(2 * math.sqrt(13))


def test_more_private_groups_never_protect_better():
    for n in range(1, 20):
        stated = [shapley_sensitivity(n, k) for k in range(1, n + 1)] + [shapley_sensitivity(n)]
        assert stated == sorted(stated)


# bad input


@pytest.mark.parametrize(
    ("utilities", "words"),
    [
        ([0.1, 0.2, 0.3], "3 values"),
        ([0.1], "1 values"),
        ([], "shape"),
        ([[0.1, 0.2]], "shape"),
        ([0.1, math.nan], "finite"),
        ([0.1, math.inf], "finite"),
        ([0.0, 1e301], "1e300"),
        (["a", "b"], "type"),
        (np.zeros(2**13), "sampled_shapley"),
    ],
)
def test_utilities_that_are_no_table_of_coalitions_are_refused(utilities, words):
    with pytest.raises(ValueError, match=words):
        shapley_values(utilities)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: contribution_rate([0.1, 0.2], [2]), "no player"),
        (lambda: contribution_rate([0.1, 0.2], [-1]), "private = -1"),
        (lambda: contribution_rate([0.1, math.nan], [0]), "finite"),
        (lambda: contribution_rate([0.1, 0.2], [0], -1.0), "noise"),
        (lambda: shapley_sensitivity(0), "num_players"),
        (lambda: shapley_sensitivity(63), "at most 62"),
        (lambda: shapley_sensitivity(3, 4), "above num_players"),
        (lambda: shapley_sensitivity(3, 0), "num_private"),
    ],
)
def test_values_outside_their_range_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
