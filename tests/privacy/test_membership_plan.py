"""Releases of losses for several quantizers: what they cost together, and what noise leaves of them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import LossRelease, LossReleases, PrivacyFilter

QUANTIZERS = st.lists(st.tuples(st.integers(1, 4), st.floats(1e-6, 1e6)), min_size=1, max_size=9)


@given(QUANTIZERS, st.integers(1, 10_000), st.floats(1e-3, 30.0), st.floats(1e-3, 30.0))
@settings(deadline=None)
def test_all_together_cost_no_more_than_given_under_any_relation_and_nearly_all_of_the_least(
    quantizers: list[tuple[int, float]], records: int, attribute: float, record: float
) -> None:
    pairs, norms = zip(*quantizers, strict=True)
    plan = LossReleases.planned(records, pairs, norms, {"attribute": attribute, "record": record})
    rows = plan.releases(3, 7)
    assert PrivacyFilter({"attribute": attribute, "record": record}).admits(rows)
    spent = sum(Fraction(row.sensitivity) ** 2 / Fraction(row.sigma) ** 2 for row in rows)
    assert float(spent) == pytest.approx(min(attribute, record) ** 2, rel=1e-12)
    assert [(row.client, row.round, row.step, row.name) for row in rows] == [
        (3, 7, step, "loss-differences") for step in range(len(pairs))
    ]


@given(QUANTIZERS)
@settings(deadline=None)
def test_every_quantizer_pays_the_same(quantizers: list[tuple[int, float]]) -> None:
    pairs, norms = zip(*quantizers, strict=True)
    rows = LossReleases.planned(50, pairs, norms, {"record": 1.0}).releases(0, 1)
    for row in rows:
        assert row.mu == pytest.approx(1 / math.sqrt(len(rows)), rel=1e-12)


def test_what_leaves_is_each_quantizers_vector_with_noise_of_its_own_sigma_and_no_low_bits() -> None:
    rng = np.random.default_rng(1)
    plan = LossReleases.planned(20, (1, 3), (0.5, 2.0), {"record": 2.0})
    losses, normals = rng.normal(size=(20, 6)), rng.normal(size=plan.size)
    sent = plan.release(losses, normals)
    first, second = plan.parts
    assert plan.size == (1 + 1) + (3 + 6)
    exact = np.concatenate([first.vector(losses[:, :2]), second.vector(losses[:, 2:])])
    sigmas = np.repeat([first.sigma, second.sigma], [2, 9])
    # at most half a step of 2^-23 sigma
    assert np.all(np.abs(sent - exact - sigmas * normals) <= sigmas * 2.0**-24)
    for sigma, numbers in ((first.sigma, sent[:2]), (second.sigma, sent[2:])):
        steps = numbers / 2.0 ** (math.frexp(sigma)[1] - 24)
        assert np.array_equal(steps, np.rint(steps))


def test_reading_gives_each_quantizer_its_own_part() -> None:
    plan = LossReleases.planned(20, (2, 1), (0.5, 2.0), {"record": 2.0})
    vector = np.arange(plan.size, dtype=np.float64)
    read = plan.read(vector)
    assert read[0].total.tolist() == [0.0, 1.0]
    assert read[1].total.tolist() == [5.0]
    assert read[1].second.tolist() == [[6.0 * 2.0]]
    assert [one.clip_norm for one in read] == [0.5, 2.0]
    assert [one.noise for one in read] == [part.sigma**2 for part in plan.parts]


@pytest.mark.parametrize(("pairs", "norms"), [((), ()), ((1,), ()), ((1, 2), (1.0,))])
def test_pairs_and_clip_norms_come_one_a_quantizer(pairs: tuple[int, ...], norms: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="give one of each a quantizer"):
        LossReleases.planned(20, pairs, norms, {"record": 1.0})


def test_parts_of_different_numbers_of_records_are_refused() -> None:
    parts = tuple(LossRelease(n, 1, 1.0, 1.0) for n in (5, 6))
    with pytest.raises(ValueError, match="all of one client"):
        LossReleases(parts)


def test_losses_of_other_candidates_are_refused() -> None:
    plan = LossReleases.planned(20, (2, 1), (0.5, 2.0), {"record": 2.0})
    with pytest.raises(ValueError, match="of 5 candidates"):
        plan.release(np.zeros((20, 4)), np.zeros(plan.size))
