"""Releases: what a row is worth, and which rows bound which relation."""

import pytest

from fedveil.privacy import Release, rows_under


def row(relation, sensitivity=1.0, *, step=0, name="gradient", **fields):
    return Release(0, 1, step, name, relation, sensitivity, 2.0, **fields)


def test_mu_is_sensitivity_over_sigma_and_the_multiplier_twice_its_inverse():
    release = row("record", 0.5)
    assert release.mu == 0.25
    # Noise on the sum over C, where the sensitivity of the sum is 2 C.
    assert release.noise_multiplier == 8


def test_a_subsampled_release_has_a_multiplier_but_no_mu():
    release = row("record", sampling_rate=0.1)
    assert release.noise_multiplier == 4
    with pytest.raises(ValueError, match=r"sampling_rate = 0\.1 has no mu"):
        _ = release.mu


def test_a_release_is_an_immutable_value():
    assert row("record") == row("record")
    assert hash(row("record")) == hash(row("record"))
    with pytest.raises(AttributeError):
        row("record").sigma = 0.0


def test_a_record_row_bounds_the_attribute_relation_and_nothing_else_does():
    assert rows_under([row("record")], "attribute") == (row("record"),)
    assert rows_under([row("attribute")], "record") is None
    assert rows_under([row("attribute")], "client") is None
    assert rows_under([row("client")], "record") is None
    assert rows_under([], "record") == ()


def test_of_two_rows_of_one_release_the_stronger_counts_once():
    both = [row("attribute", 0.3), row("record", 1.0)]
    assert rows_under(both, "attribute") == (both[0],)
    assert rows_under(both, "record") == (both[1],)


def test_one_unbounded_release_among_many_leaves_nothing():
    releases = [row("attribute", 0.3), row("record"), row("attribute", 0.3, step=1)]
    assert rows_under(releases, "record") is None
    assert len(rows_under(releases, "attribute")) == 2


def test_a_repeated_send_counts_again():
    once = [row("attribute", 0.3), row("record")]
    assert len(rows_under(once * 2, "attribute")) == 2
    # Sent once with both rows and once record-level: the attribute row covers only one of the two.
    mixed = [*once, row("record")]
    assert rows_under(mixed, "attribute") == (row("record"), row("record"))
    assert rows_under([*once, row("attribute", 0.3)], "record") is None
