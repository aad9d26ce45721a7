"""The ledger keeps proven, nominal and nothing apart, by client and relation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import (
    Guarantee,
    Ledger,
    Release,
    compose_mu,
    composed_epsilon,
    gaussian_epsilon,
    gaussian_mu,
    subsampled_epsilon,
)

DELTA = 1e-5


def rows(mu, count=4, relation="record", client=0, **fields):
    return tuple(Release(client, 0, step, "gradient", relation, mu, 1.0, **fields) for step in range(count))


def attribute_rows(mu_attribute, mu_record, count=4, **fields):
    return rows(mu_attribute, count, "attribute", **fields) + rows(mu_record, count, **fields)


def test_fixed_rows_prove_the_epsilon_of_their_composition():
    guarantee = Ledger(rows(0.1)).guarantee(0, "record", DELTA)
    assert (guarantee.kind, guarantee.relation, guarantee.delta) == ("proven", "record", DELTA)
    assert guarantee.epsilon == gaussian_epsilon(0.2, DELTA)


def test_adaptive_rows_prove_the_budget_of_their_filter_and_never_the_sum():
    ledger = Ledger(rows(0.1, 3) + rows(0.1, chosen="released"))
    assert ledger.guarantee(0, "record", DELTA).kind == "none"
    proven = ledger.guarantee(0, "record", DELTA, budget_mu=0.5)
    assert proven.kind == "proven"
    assert proven.epsilon == gaussian_epsilon(0.5, DELTA) > ledger.nominal(0, "record", DELTA).epsilon


def test_a_budget_that_the_rows_pass_proves_nothing():
    guarantee = Ledger(rows(0.1, chosen="released")).guarantee(0, "record", DELTA, budget_mu=0.19)
    assert (guarantee.kind, guarantee.epsilon) == ("none", math.inf)
    assert Ledger(rows(0.5, chosen="released")).guarantee(0, "record", DELTA, budget_mu=1.0).kind == "proven"


def test_one_data_dependent_row_leaves_only_a_nominal_figure():
    ledger = Ledger((*rows(0.1, 3), Release(0, 1, 0, "gradient", "record", 0.1, 1.0, "data-dependent")))
    guarantee = ledger.guarantee(0, "record", DELTA, budget_mu=10.0)
    assert (guarantee.kind, guarantee.epsilon) == ("none", math.inf)
    nominal = ledger.nominal(0, "record", DELTA)
    assert (nominal.kind, nominal.epsilon) == ("nominal", gaussian_epsilon(0.2, DELTA))
    assert "no proven guarantee; nominal by the publication" in nominal.describe()


def test_a_data_dependent_row_under_one_relation_taints_the_other():
    tainted = rows(0.1, 1, "attribute", chosen="data-dependent") + rows(0.3, 1)
    assert Ledger(tainted).guarantee(0, "record", DELTA).kind == "none"


def test_attribute_rows_say_nothing_about_records_but_record_rows_protect_attributes():
    only_attribute = Ledger(rows(0.1, relation="attribute"))
    assert only_attribute.guarantee(0, "record", DELTA).kind == "none"
    assert only_attribute.guarantee(0, "attribute", DELTA).kind == "proven"
    only_record = Ledger(rows(0.1))
    assert (
        only_record.guarantee(0, "attribute", DELTA).epsilon
        == only_record.guarantee(0, "record", DELTA).epsilon
    )
    assert only_record.guarantee(0, "client", DELTA).kind == "none"


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(0.01, 2), st.booleans()), max_size=8))
def test_the_attribute_epsilon_is_at_most_the_record_epsilon(steps):
    releases = []
    for step, (mu_attribute, mu_record, both) in enumerate(steps):
        releases.append(Release(0, 0, step, "gradient", "record", mu_record, 1.0))
        if both:
            releases.append(Release(0, 0, step, "gradient", "attribute", mu_attribute, 1.0))
    ledger = Ledger(releases)
    attribute, record = (ledger.guarantee(0, relation, DELTA) for relation in ("attribute", "record"))
    assert attribute.kind == record.kind == "proven"
    assert attribute.epsilon <= record.epsilon


def test_clients_are_kept_apart():
    ledger = Ledger(rows(0.1, client=3)).add(rows(0.5, client=1))
    assert ledger.clients == (1, 3)
    assert ledger.of(3) == Ledger(rows(0.1, client=3))
    assert ledger.relations(3) == ("record",)
    assert ledger.relations(9) == ()
    assert ledger.guarantee(3, "record", DELTA).epsilon < ledger.guarantee(1, "record", DELTA).epsilon


def test_the_servers_releases_count_for_every_client():
    ledger = Ledger(rows(0.2, client=-1, relation="client"))
    for client in (-1, 0, 7):
        assert ledger.guarantee(client, "client", DELTA).epsilon == gaussian_epsilon(0.4, DELTA)
        assert ledger.guarantee(client, "record", DELTA).kind == "none"


def test_adding_rows_leaves_the_old_ledger_as_it_was():
    first = Ledger(rows(0.1))
    second = first.add(rows(0.2, client=1))
    assert first.clients == (0,)
    assert second.clients == (0, 1)
    assert Ledger(list(rows(0.1))) == first


def test_a_client_without_releases_has_lost_nothing_and_the_ledger_says_why():
    guarantee = Ledger().guarantee(0, "record", DELTA)
    assert (guarantee.epsilon, guarantee.kind) == (0, "proven")
    assert "no release" in guarantee.describe()


def test_subsampled_rows_are_composed_by_privacy_loss_distributions():
    ledger = Ledger(rows(0.5, 30, sampling_rate=0.1))
    epsilon = ledger.guarantee(0, "record", DELTA).epsilon
    assert epsilon == subsampled_epsilon(4.0, 0.1, 30, DELTA)
    assert epsilon < 0.5 * gaussian_epsilon(compose_mu([0.5] * 30), DELTA)


def test_full_batches_and_subsampled_rows_compose_together():
    extra = Release(0, 1, 0, "contribution", "record", 0.5, 1.0)
    epsilon = Ledger((*rows(0.5, 30, sampling_rate=0.1), extra)).guarantee(0, "record", DELTA).epsilon
    assert epsilon == composed_epsilon([(4.0, 0.1, 30), (4.0, 1.0, 1)], DELTA)
    assert epsilon > subsampled_epsilon(4.0, 0.1, 30, DELTA)


def test_subsampled_rows_chosen_adaptively_prove_nothing():
    ledger = Ledger(rows(0.5, 3, sampling_rate=0.1, chosen="released"))
    guarantee = ledger.guarantee(0, "record", DELTA, budget_mu=100.0)
    assert guarantee.kind == "none"
    assert "no filter is valid" in guarantee.describe()


def test_the_odometer_reads_the_realised_mu():
    ledger = Ledger(attribute_rows(0.1, 0.4, chosen="released"))
    assert ledger.odometer(0, "attribute") == 0.2
    assert ledger.odometer(0, "record") == 0.8
    assert ledger.odometer(0, "client") == math.inf
    with pytest.raises(ValueError, match="has no mu"):
        Ledger(rows(0.5, sampling_rate=0.1)).odometer(0, "record")


def test_a_description_is_one_line_that_never_shows_less_than_epsilon():
    rng = np.random.default_rng(5)
    for epsilon in [0.0, 1.0, *10 ** rng.uniform(-6, 4, 200)]:
        line = Guarantee(epsilon, DELTA, "record", "proven", "one release").describe()
        shown = float(line.split()[1])
        assert epsilon <= shown <= epsilon * 1.001
        assert "under the record relation" in line
        assert "\n" not in line
    mu = gaussian_mu(1.0, DELTA)
    assert "epsilon 1 at delta 1e-05" in Ledger(rows(mu, 1)).guarantee(0, "record", DELTA).describe()


@pytest.mark.parametrize("count", [1, 7, 40])
def test_neither_rounding_nor_order_changes_what_a_ledger_proves(count):
    mus = np.random.default_rng(count).uniform(0.01, 0.3, count)
    releases = [Release(0, 0, step, "g", "record", mu, 1.0) for step, mu in enumerate(mus)]
    epsilon = Ledger(tuple(releases)).guarantee(0, "record", DELTA).epsilon
    assert epsilon == Ledger(tuple(reversed(releases))).guarantee(0, "record", DELTA).epsilon
    assert epsilon == pytest.approx(gaussian_epsilon(float(np.linalg.norm(mus)), DELTA), rel=1e-12)
