"""Moments add, know how their messages were made, and refuse what does not belong together."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    Correction,
    ModulatedMoments,
    Modulation,
    NotAdditive,
    averaged,
    draw_directions,
)

D, K = 4, 60
MODULATION = Modulation(alpha=0.3, amplitude=1.5, frequency=2.0, num_directions=2)
RNG = np.random.default_rng(11)
V = draw_directions(2, D, RNG.standard_normal)
G, Y = 3 * RNG.standard_normal((K, D)), RNG.standard_normal(K) + 2
TOLD = {"alpha": 0.3, "amplitude": 1.5, "sigma": 2.0}


def moments(messages=G, labels=Y, **changes):
    plain = {"modulation": MODULATION, "directions": V, "sigma": 2.0}
    return ModulatedMoments.from_messages(messages, labels, **{**plain, **changes})


def assert_same(one, other):
    for field in ("gram", "cross", "total", "label_total", "label_square"):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-12, atol=1e-11)
    assert (one.count, one.scale, one.label_scale) == (other.count, other.scale, other.label_scale)
    assert [(c.count, c.law) for c in one.corrections] == [(c.count, c.law) for c in other.corrections]


def test_debiasing_is_the_published_formula():
    covariance, cross = moments().debias()
    expected = (G.T @ G / K - 1.5**2 / 4 * V.T @ V - 4 * np.eye(D)) / 0.49
    np.testing.assert_allclose(covariance, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(cross, G.T @ Y / (0.7 * K), rtol=1e-12)
    np.testing.assert_array_equal(covariance, covariance.T)


def test_with_label_privacy_labels_are_brought_back_to_their_unit():
    equations = moments(label_scale=5.0).normal_equations()
    np.testing.assert_allclose(equations.cross[:D], 5 * G.T @ Y / (0.49 * K), rtol=1e-12)
    assert equations.cross[D] == pytest.approx(5 * Y.mean() / 0.7, rel=1e-12)
    assert equations.label_square == pytest.approx(25 * ((Y**2).mean() - 4) / 0.49, rel=1e-12)
    public = moments().normal_equations()
    assert public.cross[D] == pytest.approx(Y.mean(), rel=1e-12)
    assert public.label_square == pytest.approx((Y**2).mean(), rel=1e-12)


def test_the_intercept_is_an_exact_coordinate_placed_last():
    covariance, cross = moments().debias()
    equations = moments().normal_equations()
    assert (equations.dimension, equations.num_features, equations.count) == (D + 1, D, K)
    np.testing.assert_array_equal(equations.covariance[:D, :D], covariance)
    np.testing.assert_array_equal(equations.cross[:D], cross)
    np.testing.assert_allclose(equations.covariance[D, :D], G.mean(axis=0) / 0.7, rtol=1e-12)
    np.testing.assert_array_equal(equations.covariance[D], equations.covariance[:, D])
    assert equations.covariance[D, D] == 1
    assert not equations.noise_covariance[D].any()
    np.testing.assert_allclose(
        equations.noise_covariance[:D, :D], (1.5**2 / 4 * V.T @ V + 4 * np.eye(D)) / 0.49, rtol=1e-12
    )
    assert equations.noise_variance == pytest.approx(4 / 0.49, rel=1e-14)
    without = moments().normal_equations(intercept=False)
    np.testing.assert_array_equal(without.covariance, covariance)
    with pytest.raises(ValueError, match="have an intercept already"):
        equations.with_intercept(np.zeros(D + 1), 0.0)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, K), max_size=6), shuffled=st.booleans(), known=st.booleans())
def test_sums_of_parts_are_the_sums_of_the_whole(cuts, shuffled, known):
    places = [0, *sorted(cuts), K]
    order = np.random.default_rng(0).permutation(K) if shuffled else np.arange(K)
    how = {} if known else {"modulation": None, "directions": None, "sigma": None}
    parts = [moments(G[order[a:b]], Y[order[a:b]], **how) for a, b in itertools.pairwise(places) if b > a]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    assert_same(whole, moments(**how))


def test_rounds_with_their_own_directions_and_noise_are_debiased_together():
    other = draw_directions(2, D, RNG.standard_normal)
    second = moments(G[:20] + 1, Y[:20], directions=other, sigma=0.5)
    both = moments() + second + moments(G[:5], Y[:5])
    assert [one.count for one in both.corrections] == [K + 5, 20]
    gram = G.T @ G + (G[:20] + 1).T @ (G[:20] + 1) + G[:5].T @ G[:5]
    noise = (K + 5) * (1.5**2 / 4 * V.T @ V + 4 * np.eye(D)) + 20 * (
        1.5**2 / 4 * other.T @ other + 0.25 * np.eye(D)
    )
    np.testing.assert_allclose(both.debias()[0], (gram - noise) / (K + 25) / 0.49, rtol=1e-11, atol=1e-11)
    assert both.normal_equations().noise_variance == pytest.approx(
        ((K + 5) * 4 + 20 * 0.25) / (K + 25) / 0.49
    )


def test_moments_that_know_nothing_are_told_how_messages_were_made():
    bare = moments(modulation=None, directions=None, sigma=None)
    for directions in (V, V.T):
        for ours, theirs in zip(bare.debias(directions, **TOLD), moments().debias(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    scaled = bare.debias(V, **TOLD, label_scale=5.0)[1]
    np.testing.assert_array_equal(scaled, moments(label_scale=5.0).debias()[1])
    noise_free = bare.debias(alpha=0.0, amplitude=0.0, sigma=0)[0]
    np.testing.assert_allclose(noise_free, G.T @ G / K, rtol=1e-14)
    for missing in ("alpha", "amplitude", "sigma"):
        with pytest.raises(ValueError, match=f"^{missing} not given"):
            bare.debias(V, **{**TOLD, missing: None})
    with pytest.raises(ValueError, match=r"directions are missing for amplitude = 1.5"):
        bare.debias(**TOLD)
    with pytest.raises(ValueError, match=r"amplitude = 1.5 without directions"):
        bare.debias(np.zeros((0, D)), **TOLD)
    with pytest.raises(ValueError, match="do not know how their messages were made"):
        bare.normal_equations()


def test_what_is_told_must_agree_with_what_is_known():
    known = moments(label_scale=5.0)
    for ours, theirs in zip(known.debias(V, **TOLD, label_scale=5.0), known.debias(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name, value in (("alpha", 0.4), ("amplitude", 1.0), ("sigma", 1.0)):
        with pytest.raises(ValueError, match=f"^{name} contradict"):
            known.debias(**{name: value})
    with pytest.raises(ValueError, match=r"^directions contradict"):
        known.debias(V[::-1])
    with pytest.raises(ValueError, match=r"label_scale = 4.0 contradicts 5.0"):
        known.debias(label_scale=4.0)
    with pytest.raises(ValueError, match="told of 2 kinds of messages"):
        (moments() + moments(sigma=1.0)).debias(sigma=1.0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (moments(modulation=replace(MODULATION, alpha=0.4)), "c = 1 - alpha 0.7 and 0.6"),
        (moments(label_scale=2.0), "label scale None and 2.0"),
        (moments(modulation=None, directions=None, sigma=None), "c = 1 - alpha 0.7 and None"),
        (
            ModulatedMoments.from_messages(np.eye(3), np.ones(3)),
            "number of features 4 and 3",
        ),
    ],
)
def test_moments_of_different_things_do_not_add(other, message):
    for one, two in ((moments(), other), (other, moments())):
        with pytest.raises(NotAdditive, match="do not add: add those of messages made alike"):
            one + two
    with pytest.raises(NotAdditive, match=message):
        moments() + other
    with pytest.raises(TypeError):
        moments() + 0


def test_whole_numbers_and_lists_are_messages_too():
    whole = ModulatedMoments.from_messages([[1, 2], [3, 4]], [1, 0])
    assert whole.gram.dtype == np.float64
    np.testing.assert_array_equal(whole.gram, [[10, 14], [14, 20]])
    big = ModulatedMoments.from_messages(np.full((2, 1), 2**40), np.full(2, 2**40))
    assert big.gram[0, 0] == 2.0**81  # would overflow in whole numbers


@pytest.mark.parametrize(
    ("messages", "labels", "message"),
    [
        (np.zeros((0, D)), np.zeros(0), "count = 0 is not allowed"),
        (G[0], Y[:1], "messages have shape"),
        (G, Y[:-1], "labels have shape"),
        (G, Y[:, None], "labels have shape"),
        (np.full((2, D), math.nan), Y[:2], "messages hold NaN or infinity"),
        (G[:2], [1.0, math.inf], "labels hold NaN or infinity"),
        (np.zeros((3, 0)), Y[:3], "number of features = 0"),
        (np.full((2, D), 1e200), Y[:2], "gram moments hold NaN or infinity"),
        (G.astype(complex), Y, "real numbers"),
    ],
)
def test_messages_that_are_not_a_table_of_finite_numbers_are_refused(messages, labels, message):
    with pytest.raises(ValueError, match=message), np.errstate(over="ignore"):
        moments(messages, labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"directions": draw_directions(3, D, RNG.standard_normal)},
            "3 directions do not fit num_directions = 2",
        ),
        ({"directions": np.eye(3)[:2]}, "do not fit 4 features"),
        ({"directions": None}, "directions are missing"),
        ({"sigma": None}, "sigma not given"),
        ({"sigma": -1.0}, "sigma = -1.0"),
        ({"label_scale": 0.0}, "label_scale = 0.0"),
        ({"modulation": None}, "without a modulation"),
        ({"corrections": [Correction(K, 2.0, 1.5, V)]}, "beside directions or sigma"),
    ],
)
def test_what_is_said_of_messages_must_fit_them(change, message):
    with pytest.raises(ValueError, match=message):
        moments(**change)


def test_corrections_must_fit_the_messages():
    alike = {"directions": None, "sigma": None}
    ours = moments(**alike, corrections=[Correction(20, 2.0, 1.5, V), Correction(40, 2.0, 1.5, V)])
    assert_same(ours, moments())
    for corrections, message in (
        ([Correction(59, 2.0, 1.5, V)], "do not add to 60"),
        ([], "do not add to 60"),
        ([Correction(K, 2.0, 1.5, V[:, :3] * 0 + np.eye(3)[:2])], "do not fit 4 features"),
        ([Correction(K, 2.0, 1.5, V).with_intercept()], "do not fit 4 features"),
    ):
        with pytest.raises(ValueError, match=message):
            moments(**alike, corrections=corrections)


def test_sums_made_elsewhere_are_the_same_moments_and_are_checked():
    sums = {
        "gram": G.T @ G,
        "cross": G.T @ Y,
        "total": G.sum(axis=0),
        "label_total": Y.sum(),
        "label_square": Y @ Y,
    }
    how = {"modulation": MODULATION, "directions": V, "sigma": 2.0, "count": K}
    assert_same(ModulatedMoments.from_sums(**sums, **how), moments())
    for change, message in (
        ({"count": 0}, "count = 0"),
        ({"count": 2.0}, "count = 2.0"),
        ({"gram": np.eye(3)}, "gram moments have shape"),
        ({"gram": G.T @ G + np.triu(np.ones((D, D)), 1)}, "not symmetric"),
        ({"total": np.zeros(3)}, "totals have shape"),
        ({"cross": G.T @ G}, "cross moments have shape"),
        ({"label_total": math.nan}, "label_total = nan"),
        ({"label_square": -1.0}, "label_square = -1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            ModulatedMoments.from_sums(**{**sums, **how, **change})


def test_averages_of_a_clients_messages_are_debiased_by_the_averaged_correction():
    other = draw_directions(2, D, RNG.standard_normal)
    rounds = [Correction(K, 2.0, 1.5, V), Correction(K, 1.0, 1.5, other)]
    ours = moments(directions=None, sigma=None, corrections=[averaged(rounds, K)])
    noise = (1.5**2 / 4 * (V.T @ V + other.T @ other) + 5 * np.eye(D)) / 4
    np.testing.assert_allclose(ours.debias()[0], (G.T @ G / K - noise) / 0.49, rtol=1e-11, atol=1e-11)
