"""The planned release of a contribution: its sensitivity, noise, ledger rows, and what is read from it."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedveil.privacy import PrivacyFilter
from fedveil.privacy.contribution import LARGEST_DEVIATION, ContributionRelease, plan_contribution
from fedveil.privacy.shapley import shapley_sensitivity, shapley_values
from fedveil.streams import Streams


def plan(kind="shapley", num_groups=2, num_private=1, num_records=2000, **mus):
    return plan_contribution(
        kind=kind,
        num_groups=num_groups,
        num_private=num_private,
        num_records=num_records,
        mus=mus or {"attribute": 0.1},
    )


shapes = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


# noise and rows


def test_two_groups_cost_the_closed_form_under_both_relations():
    release = plan(attribute=0.1, num_records=500)
    assert release.sigma == pytest.approx(1 / 500 / 0.1, rel=1e-9)
    attribute, record = release.releases(client=3, round=5)
    assert attribute.mu == pytest.approx(0.1, rel=1e-9)
    assert record.mu == pytest.approx(0.2, rel=1e-9)
    for row, relation in ((attribute, "attribute"), (record, "record")):
        assert (row.client, row.round, row.step, row.name) == (3, 5, -1, "contribution")
        assert (row.relation, row.chosen, row.sigma) == (relation, "fixed", release.sigma)


def test_utilities_cost_the_square_root_of_the_coalitions_that_can_change():
    release = ContributionRelease("utilities", 3, 2, 400, 0.01)
    assert release.size == 8
    assert release.sensitivity("record") == pytest.approx(math.sqrt(8) / 400, rel=1e-9)
    assert release.sensitivity("attribute") == pytest.approx(math.sqrt(6) / 400, rel=1e-9)


def test_many_groups_release_the_sampled_values():
    release = plan(num_groups=16, num_records=5000, attribute=0.5)
    assert release.size == 16
    assert release.sensitivity("record") == pytest.approx(8 / 5000, rel=1e-9)
    assert release.sensitivity("attribute") == pytest.approx(4 / 5000, rel=1e-9)


@settings(deadline=None)
@given(
    shapes,
    st.sampled_from(["shapley", "utilities"]),
    st.integers(1, 10**7),
    st.dictionaries(st.sampled_from(["attribute", "record"]), st.floats(1e-3, 10), min_size=1),
)
def test_the_noise_is_the_least_that_keeps_every_mu_in_exact_arithmetic(shape, kind, num_records, mus):
    try:
        release = plan(kind, *shape, num_records, **mus)
    except ValueError:
        return
    ratios = []
    for row in release.releases(0, 1):
        if row.relation in mus:
            ratio = Fraction(row.sensitivity) / Fraction(row.sigma)
            assert ratio <= Fraction(mus[row.relation])
            ratios.append(float(ratio) / mus[row.relation])
    assert max(ratios) == pytest.approx(1, rel=1e-12)
    # So a filter with that budget admits it.
    assert PrivacyFilter(mus).admits(release.releases(0, 1))


def test_rounding_of_the_computed_values_is_inside_the_sensitivity():
    # Vertices of the change of one record among 10 million: the difference of two rounded vectors.
    rng = np.random.default_rng(0)
    m = 10**7
    release = ContributionRelease("shapley", 4, 1, m, 1.0)
    for _ in range(200):
        counts = rng.integers(1, m, size=16)
        change = np.array([1 if mask & 1 else -1 for mask in range(16)])
        moved = shapley_values((counts + change) / m) - shapley_values(counts / m)
        assert np.linalg.norm(moved) <= release.sensitivity("record")
    assert release.sensitivity("record") == pytest.approx(2 / m, rel=1e-6)


# plans that are refused


@settings(deadline=None)
@given(shapes, st.sampled_from(["shapley", "utilities"]), st.floats(1e-3, 0.5))
def test_a_refused_plan_names_what_would_do(shape, kind, mu):
    few = 3
    try:
        release = plan(kind, *shape, few, record=mu)
    except ValueError as error:
        words = str(error).split()
        records = int(words[words.index("bring") + 1])
        factor = float(words[words.index("release") + 1])
    else:
        assert release.deviation <= LARGEST_DEVIATION * (1 + 1e-9)
        return
    assert plan(kind, *shape, records, record=mu).deviation <= LARGEST_DEVIATION * (1 + 1e-9)
    assert plan(kind, *shape, few, record=mu * factor * 1.005).deviation <= LARGEST_DEVIATION
    with pytest.raises(ValueError):
        plan(kind, *shape, max(1, int(0.9 * records)), record=mu)


def test_the_deviation_in_the_message_is_that_of_the_plan():
    with pytest.raises(ValueError, match=r"deviation 0\.2 with 50 records, above 0\.1: bring 1\d\d records"):
        plan(num_records=50, record=0.2)


@pytest.mark.parametrize("kind", ["shapley", "utilities"])
@pytest.mark.parametrize("mu", [1e-20, 1e-160, 1e-307, 5e-324])
def test_a_mu_that_no_records_make_up_for_is_refused_without_naming_any(kind, mu):
    with pytest.raises(
        ValueError, match=r"noise .*: give the release a larger mu, or state a public R\.$"
    ) as said:
        plan(kind, attribute=mu)
    assert "bring" not in str(said.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "votes"}, "kind"),
        ({"num_groups": 0}, "num_players"),
        ({"num_private": 0}, "num_private"),
        ({"num_private": 3}, "num_private"),
        ({"num_records": 0}, "num_records"),
        ({"kind": "utilities", "num_groups": 13}, "too many coalitions"),
        ({"record": 0.0}, "mu"),
        ({"record": math.nan}, "mu"),
        ({"client": 1.0}, "relation"),
    ],
)
def test_plans_outside_their_range_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        plan(**arguments)


def test_a_plan_without_a_budget_is_refused():
    with pytest.raises(ValueError, match="mus is empty"):
        plan_contribution(kind="shapley", num_groups=2, num_private=1, num_records=100, mus={})


# reading


def test_a_vector_without_noise_reads_as_what_it_is():
    release = ContributionRelease("shapley", 3, 1, 10**6, 1e-6)
    read = release.read([0.3, 0.1, 0.2], [0])
    assert read.values == (0.3, 0.1, 0.2)
    assert read.rate == pytest.approx(0.5)
    assert read.deviation == 1e-6
    assert read.utilities is None


def test_utilities_read_as_their_shapley_values():
    release = ContributionRelease("utilities", 2, 1, 10**6, 1e-6)
    read = release.read([0.1, 0.55, 0.7, 0.9], [0])
    assert read.values == pytest.approx((0.325, 0.475))
    assert read.utilities == (0.1, 0.55, 0.7, 0.9)
    assert read.rate == pytest.approx(0.325 / 0.8)


def test_values_within_their_noise_read_as_all_private():
    release = ContributionRelease("shapley", 2, 1, 100, 0.1)
    assert release.read([0.05, 0.23], [0]).rate == 1.0
    assert release.read([0.05, 0.24], [0]).rate == pytest.approx(0.05 / 0.29)


@pytest.mark.parametrize("kind", ["shapley", "utilities"])
@pytest.mark.parametrize("num_groups", [1, 2, 5])
def test_read_values_spread_by_the_stated_deviation(kind, num_groups):
    # Each check of one value fails by chance with a probability of 1e-7: 16 checks, 2e-6 in all.
    release = ContributionRelease(kind, num_groups, 1, 100, 0.05)
    truth = np.linspace(0.1, 0.9, release.size)
    exact = release.read(truth, [0]).values
    draws = 2000
    noise = Streams.seeded("test", 7).stream("noise").normal((draws, release.size)) * release.sigma
    values = np.array([release.read(truth + z, [0]).values for z in noise])
    squares = np.square((values - exact) / release.deviation).sum(axis=0)
    low, high = chi2.ppf([5e-8, 1 - 5e-8], draws)
    assert (low < squares).all()
    assert (squares < high).all()


@given(st.integers(1, 10))
def test_the_deviation_of_values_read_from_utilities_is_that_of_their_weights(num_groups):
    # Each value is a fixed combination of independent noises: its weights are the values of unit games.
    release = ContributionRelease("utilities", num_groups, 1, 100, 0.5)
    n = num_groups
    squares = sum(
        2 * math.comb(n - 1, s) * (math.factorial(s) * math.factorial(n - s - 1) / math.factorial(n)) ** 2
        for s in range(n)
    )
    assert release.deviation == pytest.approx(0.5 * math.sqrt(squares), rel=1e-12)


def test_releasing_the_values_costs_less_noise_than_releasing_all_utilities():
    for n in range(2, 13):
        values, utilities = (ContributionRelease(kind, n, 1, 1000, 1.0) for kind in ("shapley", "utilities"))
        by_values = values.sensitivity("record") * values.deviation
        by_utilities = utilities.sensitivity("record") * utilities.deviation
        assert by_values <= by_utilities * (1 + 1e-9)
        assert by_values == pytest.approx(shapley_sensitivity(n) / 1000, rel=1e-9)


@pytest.mark.parametrize(
    ("vector", "private", "words"),
    [
        ([0.1, 0.2], [0], "2 values"),
        ([0.1, 0.2, math.nan], [0], "finite"),
        ([0.1, 0.2, 0.3], [0, 1], "2 groups"),
        ([0.1, 0.2, 0.3], [], "0 groups"),
        ([0.1, 0.2, 0.3], [3], "no player"),
    ],
)
def test_a_vector_that_does_not_fit_the_plan_is_refused(vector, private, words):
    with pytest.raises(ValueError, match=words):
        ContributionRelease("shapley", 3, 1, 100, 0.1).read(vector, private)


@pytest.mark.parametrize("relation", ["client", "records"])
def test_other_relations_have_no_sensitivity(relation):
    with pytest.raises(ValueError, match="relation"):
        ContributionRelease("shapley", 3, 1, 100, 0.1).sensitivity(relation)
