"""Names and JSON of schemes: there and back, and what is said about others."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.quantization import (
    SCHEMES,
    AbsmeanTernary,
    Scheme,
    Sign,
    Ternary,
    Uniform,
    name_of,
    scheme_from_json,
    scheme_of,
)

shares = st.floats(0, 1, exclude_min=True, exclude_max=True)
bases = st.one_of(
    st.builds(Sign),
    st.builds(AbsmeanTernary),
    st.builds(Ternary, shares),
    st.builds(Uniform, st.sampled_from([2, 3, 4, 8]), st.booleans()),
)
granularities = st.one_of(
    st.sampled_from([("tensor", None), ("channel", None)]),
    st.tuples(st.just("group"), st.integers(1, 2**31)),
)
configs = st.builds(
    lambda one, way: replace(one, granularity=way[0], group_size=way[1]), bases, granularities
)


@given(configs)
def test_json_gives_the_scheme_back(scheme: Scheme) -> None:
    text = scheme.to_json()
    assert json.loads(text)["granularity"] == scheme.granularity
    assert type(scheme).from_json(text) == scheme
    assert scheme_from_json(text) == scheme


@given(configs)
def test_the_name_gives_the_scheme_back(scheme: Scheme) -> None:
    assert scheme_of(name_of(scheme)) == scheme


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("sign", Sign()),
        ("ternary-33", Ternary(0.33)),
        ("ternary-90", Ternary(0.9)),
        ("ternary-12.5", Ternary(0.125)),
        ("absmean-ternary", AbsmeanTernary()),
        ("int2", Uniform(2)),
        ("int8/channel", Uniform(8, granularity="channel")),
        ("uint4/group-64", Uniform(4, symmetric=False, granularity="group", group_size=64)),
        ("ternary-90/group-128", Ternary(0.9, granularity="group", group_size=128)),
    ],
)
def test_names_as_a_user_types_them(name: str, scheme: Scheme) -> None:
    assert scheme_of(name) == scheme
    assert name_of(scheme) == name


def test_every_name_of_the_table_is_the_name_of_its_scheme() -> None:
    assert {name: name_of(scheme) for name, scheme in SCHEMES.items()} == {name: name for name in SCHEMES}
    assert len(SCHEMES) == 12


def test_a_scheme_is_given_back_as_it_is() -> None:
    scheme = Uniform(3, granularity="channel")
    assert scheme_of(scheme) is scheme


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tenary-33", "ternary-33"),
        ("ternary-33%", "ternary-33"),
        ("Sign", "sign"),
        ("int5", "int"),
        ("sign/chanel", "sign/channel"),
        ("ternary-42/chanel", "ternary-42/channel"),
        ("int4/group", "int4/group-64"),
        ("int4/group-0", "int4/group-64"),
        ("itn4/group-32", "int4/group-32"),
        ("abs-mean-ternary", "absmean-ternary"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(
        ValueError, match=rf"scheme {name!r} is not known: give .* \(did you mean '{meant}"
    ) as caught:
        scheme_of(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "zzz", "/channel", "sign/", "sign\n", "ternary-٣"])
def test_a_name_that_is_near_nothing_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(ValueError, match="is not known: give ternary-<percent>, sign, absmean-ternary, int2"):
        scheme_of(name)


@pytest.mark.parametrize("name", ["ternary-0", "ternary-100", "ternary-900", "ternary-0.0", "ternary-1e-999"])
def test_a_percentage_out_of_range_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the percentage of zeros is above 0 and below 100"):
        scheme_of(name)


def test_something_else_than_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="by its name, or as a Scheme, got int"):
        scheme_of(4)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1, 33, -0.1, float("nan"), True, "0.3", None])
def test_a_sparsity_is_a_share(value: object) -> None:
    with pytest.raises(ValueError, match=r"sparsity = .* is not allowed: give the share"):
        Ternary(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [0, 1, 5, 16, True, "4", 2.5])
def test_bits_are_2_3_4_or_8(bits: object) -> None:
    with pytest.raises(ValueError, match="give 2, 3, 4 or 8"):
        Uniform(bits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("granularity", "group_size", "message"),
    [
        ("chanel", None, "did you mean 'channel'"),
        ("tensor", 64, "not allowed with granularity = 'tensor'"),
        ("channel", 64, "not allowed with granularity = 'channel'"),
        ("group", None, "needs a whole number"),
        ("group", 0, "needs a whole number"),
        ("group", 2.0, "needs a whole number"),
        ("group", True, "needs a whole number"),
    ],
)
def test_a_granularity_and_its_group_size_belong_together(
    granularity: str, group_size: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sign(granularity=granularity, group_size=group_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is none"),
        ("[" * 100_000, "is none"),
        ("[]", "scheme = None is not known"),
        ('{"scheme": 3}', "scheme = 3 is not known"),
        ('{"scheme": "unifrom", "bits": 4}', "did you mean 'uniform'"),
        ('{"scheme": "uniform"}', "bits"),
        ('{"scheme": "uniform", "bits": 5}', "give 2, 3, 4 or 8"),
        ('{"scheme": "uniform", "bits": 4, "symetric": true}', "did you mean 'symmetric'"),
        ('{"scheme": "sign", "granularity": "group"}', "needs a whole number"),
    ],
)
def test_json_of_no_scheme_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheme_from_json(text)


def test_a_class_reads_only_its_own_json() -> None:
    with pytest.raises(ValueError, match="scheme = 'sign' is not known: give uniform"):
        Uniform.from_json(Sign().to_json())


@dataclass(frozen=True)
class Louder(Sign):
    """A quantizer of a plugin."""

    kind: ClassVar[str] = "louder"
    factor: float = 2.0

    @property
    def base_name(self) -> str:
        return "louder"


def test_names_of_plugins_are_known_when_given_with_suffixes_too() -> None:
    others = {"louder": Louder()}
    assert scheme_of("louder", others) == Louder()
    assert scheme_of("louder/group-8", others) == Louder(granularity="group", group_size=8)
    assert scheme_of("sign", {"sign": Louder()}) == Sign()
    with pytest.raises(ValueError, match="did you mean 'louder'"):
        scheme_of("lauder", others)


def test_json_of_plugins_is_read_when_their_classes_are_given() -> None:
    text = Louder(factor=3.0).to_json()
    assert scheme_from_json(text, (Louder,)) == Louder(factor=3.0)
    with pytest.raises(ValueError, match="scheme = 'louder' is not known"):
        scheme_from_json(text)


def test_what_a_plugin_gives_must_be_a_scheme() -> None:
    with pytest.raises(ValueError, match="'loud' of a plugin is of type ABCMeta: a plugin gives an instance"):
        scheme_of("loud/channel", {"loud": Louder})  # type: ignore[dict-item]
