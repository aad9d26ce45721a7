"""A node's policy: read strictly, each rule refuses by its name, and a run exactly at a limit is allowed."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.clients.policy import BadPolicy, Policy, PolicyRefusal, read_policy
from fedveil.clients.run_terms import RunTerms
from fedveil.privacy import gaussian_epsilon, gaussian_mu

EVERY_KEY = """
apps = ["fedsva"]
privacy = ["local"]
relations = ["attribute"]
calibrations = ["attribute"]
sensitivities = ["exact"]
min-records = 10
columns = ["age", "income"]
delta = 1e-5
[epsilon]
attribute = 1.0
record = 4
"""
TERMS = RunTerms(
    "fedsva",
    ("local",),
    ("attribute",),
    {"attribute": gaussian_mu(1.0, 1e-5), "record": gaussian_mu(4.0, 1e-5)},
    calibration="attribute",
    sensitivity="exact",
)


def policy(text: str, folder: Path) -> Policy:
    path = folder / "policy.toml"
    path.write_text(text)
    return read_policy(path)


def test_a_run_that_asks_for_exactly_what_is_allowed_is_served(tmp_path: Path) -> None:
    allowed = policy(EVERY_KEY, tmp_path)
    allowed.check(TERMS)
    allowed.check_columns(["income", "age", "age"])
    allowed.check_records({"client 0": 10, "client 1": 11})
    assert allowed.limits == TERMS.costs


@pytest.mark.parametrize(
    ("change", "rule", "asked", "allowed"),
    [
        ({"app": "modulated"}, "apps", "asks for 'modulated'", "fedsva"),
        ({"privacy": ("central",)}, "privacy", "asks for 'central'", "local"),
        ({"privacy": ("local", "none")}, "privacy", "asks for 'none'", "local"),
        (
            {"privacy": ("local", "unproven")},
            "privacy",
            "asks for noise that proves nothing, since it follows from a contribution that is measured on records and "
            "not released (contribution-release = 'none')",
            'local; to allow it too, list "local" and "unproven" there',
        ),
        ({"relations": ("record",)}, "relations", "promises its epsilon under 'record'", "attribute"),
        ({"relations": ()}, "relations", "promises its epsilon under no relation at all", "attribute"),
        ({"calibration": "paper"}, "calibrations", "asks for 'paper'", "attribute"),
        ({"sensitivity": "paper"}, "sensitivities", "asks for 'paper'", "exact"),
        (
            {"costs": {**TERMS.costs, "attribute": gaussian_mu(1.01, 1e-5)}},
            "epsilon.attribute",
            "may cost epsilon 1.01 at delta 1e-05",
            "1 for all runs together, of which 1 is left for one more",
        ),
        (
            {"costs": {"attribute": 0.01}},
            "epsilon.record",
            "has no bound under the record relation",
            "4 for all runs together, of which 4 is left for one more",
        ),
    ],
)
def test_a_refusal_names_the_rule_what_was_asked_and_what_is_allowed(
    change: dict[str, Any], rule: str, asked: str, allowed: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyRefusal) as refusal:
        policy(EVERY_KEY, tmp_path).check(replace(TERMS, **change))
    assert str(refusal.value) == (
        f"refused by rule {rule!r} of this node's policy: the run {asked}; allowed: {allowed}."
    )


def test_columns_and_records_are_refused_without_telling_how_many_records_there_are(tmp_path: Path) -> None:
    allowed = policy(EVERY_KEY, tmp_path)
    with pytest.raises(PolicyRefusal, match=r"rule 'columns' .* uses 'postcode'; allowed: age, income"):
        allowed.check_columns(["age", "postcode"])
    with pytest.raises(
        PolicyRefusal, match=r"rule 'min-records' .* client 4, which has fewer records"
    ) as refusal:
        allowed.check_records({"client 3": 10, "client 4": 9})
    assert "9" not in str(refusal.value)


def test_a_run_must_protect_the_owners_attributes_and_may_protect_more() -> None:
    owner = Policy.model_validate({"private-attributes": ["age", "job"]})
    owner.check_private({"job", "age", "town"})
    with pytest.raises(PolicyRefusal, match=r"rule 'private-attributes' .* does not protect 'job'"):
        owner.check_private({"age", "town"})
    Policy().check_private(())


def test_an_empty_policy_allows_all_but_records_without_noise() -> None:
    Policy().check(replace(TERMS, privacy=("central",), relations=(), costs={}))
    Policy().check_columns(["anything"])
    Policy().check_records({"client 0": 1})
    with pytest.raises(PolicyRefusal, match="rule 'privacy'"):
        Policy().check(replace(TERMS, privacy=("none",)))
    Policy.model_validate({"privacy": ["none"]}).check(replace(TERMS, privacy=("none",)))


def test_a_run_that_promises_one_of_the_relations_is_enough(tmp_path: Path) -> None:
    policy('relations = ["record"]', tmp_path).check(replace(TERMS, relations=("attribute", "record")))


@given(
    limit=st.floats(0.01, 50),
    delta=st.sampled_from([1e-12, 1e-6, 1e-3]),
    share=st.floats(0.0, 1.0),
    more=st.floats(0, 1),
)
def test_a_run_fits_exactly_if_the_squares_do(limit: float, delta: float, share: float, more: float) -> None:
    allowed = Policy.model_validate({"delta": delta, "epsilon": {"record": limit}})
    mu = allowed.limits["record"]
    assert gaussian_epsilon(mu, delta) <= limit
    spent, cost = Fraction(mu) ** 2 * Fraction(share), mu * more
    terms = RunTerms("fedsva", ("local",), ("record",), {"record": cost})
    if spent + Fraction(cost) ** 2 <= Fraction(mu) ** 2:
        allowed.check_lifetime(terms, {"record": spent})
    else:
        with pytest.raises(PolicyRefusal, match=r"epsilon\.record"):
            allowed.check_lifetime(terms, {"record": spent})


@given(share=st.floats(0, 1))
def test_what_is_said_to_be_left_is_left(share: float) -> None:
    allowed = Policy.model_validate({"delta": 1e-5, "epsilon": {"record": 3.0}})
    spent = Fraction(allowed.limits["record"]) ** 2 * Fraction(share)
    said = allowed.left("record", spent)
    if said != "nothing is left":
        epsilon = float(said.split()[0])
        fits = RunTerms("fedsva", ("local",), ("record",), {"record": gaussian_mu(epsilon, 1e-5)})
        allowed.check_lifetime(fits, {"record": spent})


def test_after_a_run_without_a_bound_nothing_is_left() -> None:
    allowed = Policy.model_validate({"delta": 1e-5, "epsilon": {"record": 3.0}})
    assert allowed.left("record", math.inf) == "nothing is left"
    with pytest.raises(PolicyRefusal):
        allowed.check_lifetime(
            RunTerms("fedsva", ("local",), ("record",), {"record": 1e-6}), {"record": math.inf}
        )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('apps = ["fedsva", "modulatd"]', "there is no app 'modulatd'; did you mean 'modulated'?"),
        ('apps = ["zzz"]', "there is no app 'zzz'; known: fedsva, modulated"),
        ("relation = ['record']", "unknown key 'relation'; did you mean 'relations'?"),
        ("zzz = 1", "unknown key 'zzz'; known: apps, privacy, relations"),
        ("relations = []", "is empty, which would allow nothing"),
        ("relations = ['patient']", "input should be 'record', 'attribute' or 'client'"),
        ("privacy = 'local'", "give a list"),
        ("sensitivities = ['tight']", "input should be 'exact' or 'paper'"),
        ("columns = [1]", "input should be a valid string"),
        ("min-records = 0", "greater than or equal to 1"),
        ("min-records = 1.5", "input should be a valid integer"),
        ("min-records = true", "input should be a valid integer"),
        ("delta = 1e-5", "there is none"),
        ("epsilon = {record = 1.0}", "epsilon needs a delta beside it"),
        ("[epsilon]\nrecord = 1.0\ndelta = 1e-5", "write it at the top of the file, above [epsilon]"),
        ("delta = 1.0\nepsilon = {record = 1.0}", "strictly between 0 and 1"),
        ("delta = 0.0\nepsilon = {record = 1.0}", "strictly between 0 and 1"),
        ("delta = 1e-5\nepsilon = {record = 0.0}", "input should be greater than 0"),
        ("delta = 1e-5\nepsilon = {record = nan}", "finite number"),
        ("delta = 1e-5\nepsilon = {record = inf}", "finite number"),
        ("delta = 1e-5\nepsilon = {record = '1'}", "input should be a valid number"),
        ("delta = 1e-5\nepsilon = {}", "is empty"),
        ("delta = 1e-5\nepsilon = 2.0", "give a table"),
        ("delta = 1e-5\nepsilon = {client = 1.0}", "list 'central' under privacy"),
        (
            "privacy = ['central']\ndelta = 1e-5\nepsilon = {client = 1.0, record = 1.0}",
            "epsilon.client beside epsilon.record would refuse every run",
        ),
        ("relations = ", "is not TOML"),
        ("relations = ['record']\nrelations = ['record']", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_understood_is_one_sentence(
    text: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(BadPolicy) as error:
        policy(text, tmp_path)
    assert complaint in str(error.value)
    assert str(tmp_path / "policy.toml") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_that_cannot_be_read_is_an_error_and_no_freedom(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(BadPolicy, match="cannot be read"):
            read_policy(path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadPolicy, match="is not TOML"):
        read_policy(tmp_path / "bytes.toml")


def test_the_owner_says_in_words_that_the_server_is_trusted(tmp_path: Path) -> None:
    trusting = policy("privacy = ['central']\ndelta = 1e-5\nepsilon = {client = 1.0}", tmp_path)
    trusting.check(RunTerms("fedsva", ("central",), ("client",), {"client": gaussian_mu(1.0, 1e-5)}))
    with pytest.raises(PolicyRefusal, match=r"epsilon\.client"):
        trusting.check(RunTerms("fedsva", ("central",), ("client",), {"client": gaussian_mu(1.1, 1e-5)}))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_bytes(b"\xef\xbb\xbf" + EVERY_KEY.encode())
    assert read_policy(tmp_path / "policy.toml") == policy(EVERY_KEY, tmp_path)
