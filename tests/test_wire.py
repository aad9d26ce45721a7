"""The wire: fixed point, ledger rows, and which code runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, astuple
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedveil import __version__, wire
from fedveil.privacy import Known, Release
from fedveil.wire import MalformedReply, decode_releases, encode_releases, from_fixed, to_fixed

PACKAGE = Path(wire.__file__).parent
STEP = Fraction(1, 2**32)
LIMIT = 2.0**30

fitting = st.floats(-(LIMIT - 1), LIMIT - 1)


# fixed point


@given(fitting)
@example(2.0**-33)  # ties go to the even neighbour
@example(3 * 2.0**-33)
@example(-(2.0**-33))
@example(np.nextafter(2.0**-33, 1))
@example(5e-324)
def test_values_are_rounded_to_the_nearest_step_exactly(value):
    assert int(to_fixed(np.array([value]))[0]) == round(Fraction(value) / STEP)


@given(fitting)
def test_the_way_back_is_off_by_half_a_step_at_most(value):
    back = float(from_fixed(to_fixed(np.array([value])))[0])
    # numbers of 2^21 and more have no bits below the grid, and the way back then loses none
    assert abs(Fraction(back) - Fraction(value)) <= STEP / 2


@given(npst.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=fitting), st.data())
def test_sums_of_fixed_point_numbers_have_the_same_bits_in_any_order(values, data):
    rows = [to_fixed(row / len(values)) for row in values]
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(0, len(rows)))
    total = np.sum(rows, axis=0)
    again = np.zeros_like(total)
    for part in (order[:cut], order[cut:]):  # as two nodes would
        again = again + sum((rows[index] for index in part), np.zeros_like(total))
    assert total.tobytes() == again.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, LIMIT, -LIMIT, 1e300])
def test_what_does_not_fit_the_grid_is_refused(bad):
    with pytest.raises(ValueError, match="training diverged; lower learning-rate or clip-norm"):
        to_fixed(np.array([0.0, bad, 1.0]))


def test_the_largest_number_that_fits_is_the_one_before_the_limit():
    largest = np.nextafter(LIMIT, 0)
    assert int(to_fixed(np.array([largest]))[0]) == int(Fraction(largest) / STEP) < 2**62


def test_float32_goes_to_the_same_grid():
    values = np.linspace(-5, 5, 101, dtype=np.float32)
    assert to_fixed(values).tolist() == to_fixed(values.astype(np.float64)).tolist()


def test_nothing_at_all_has_a_fixed_point_form():
    assert to_fixed(np.zeros((0, 3))).shape == (0, 3)


# ledger rows

positive = st.floats(min_value=5e-324, max_value=1.7e308, allow_nan=False, allow_infinity=False)
releases = st.builds(
    Release,
    client=st.integers(-1, 2**53),
    round=st.integers(-1, 2**53),
    step=st.integers(-1, 2**53),
    name=st.text(min_size=1, max_size=20),
    relation=st.sampled_from(["record", "attribute", "client"]),
    sensitivity=positive,
    sigma=positive,
    chosen=st.sampled_from(["fixed", "released", "data-dependent"]),
    sampling_rate=st.floats(min_value=5e-324, max_value=1.0),
)


@given(st.lists(releases, max_size=5))
def test_ledger_rows_come_back_with_every_bit(rows):
    back = decode_releases(encode_releases(rows))
    assert back == tuple(rows)
    for row, again in zip(rows, back, strict=True):
        assert [type(value) for value in astuple(row)] == [type(value) for value in astuple(again)]
        for one, two in zip(astuple(row), astuple(again), strict=True):
            assert not isinstance(one, float) or one.hex() == two.hex()


def refused_or_rows(payload: bytes) -> tuple[Release, ...]:
    """Decode; no other error than MalformedReply may come."""
    try:
        rows = decode_releases(payload)
    except MalformedReply:
        return ()
    assert all(isinstance(row, Release) for row in rows)
    return rows


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**300, 10**320), st.floats(), st.text(max_size=8)
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=20,
)
good = asdict(Release(3, 1, 0, "gradient", "record", 0.2, 0.1))


@given(st.binary(max_size=300))
def test_random_bytes_are_malformed_and_nothing_else(payload):
    assert refused_or_rows(payload) == ()


@given(junk)
def test_random_json_is_malformed_and_nothing_else(value):
    assert refused_or_rows(json.dumps(value).encode()) == ()


@given(st.fixed_dictionaries({key: st.one_of(st.just(value), junk) for key, value in good.items()}))
def test_rows_with_wild_values_are_malformed_or_rows(row):
    for decoded in refused_or_rows(json.dumps([row]).encode()):
        assert asdict(decoded) == row


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 60))
def test_damaged_rows_are_malformed_or_rows(insert, at, removed):
    payload = encode_releases([Release(**good)])
    refused_or_rows(payload[:at] + insert + payload[at + removed :])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"{}",
        b"3",
        b'"rows"',
        b"[1]",
        b"[null]",
        b"[[]]",
        b"[[[1]]]",
        b'["client"]',
        json.dumps([list(good)]).encode(),  # a list of the names is no row
        json.dumps([good, {**good, "sigma": 0}]).encode(),
        json.dumps([{**good, "surplus": 1}]).encode(),
        json.dumps([{key: value for key, value in good.items() if key != "chosen"}]).encode(),
        json.dumps([{**good, "sigma": float("nan")}]).encode(),
        json.dumps([good]).replace("0.1", "1e999").encode(),
        json.dumps([good]).replace("0.1", "9" * 5000).encode(),
        json.dumps([{**good, "client": True}]).encode(),
        json.dumps([{**good, "client": 3.0}]).encode(),
        json.dumps([{**good, "client": "3"}]).encode(),
        json.dumps([{**good, "client": 2**60}]).encode(),
        json.dumps([{**good, "round": -2}]).encode(),
        json.dumps([{**good, "relation": "everything"}]).encode(),
        json.dumps([{**good, "relation": ["record"]}]).encode(),
        json.dumps([{**good, "relation": {}}]).encode(),
        json.dumps([{**good, "chosen": None}]).encode(),
        json.dumps([{**good, "name": ""}]).encode(),
        json.dumps([{**good, "sampling_rate": 1.5}]).encode(),
        json.dumps([{**good, "sigma": "0.1"}]).encode(),
        "[]".encode("utf-16"),
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[" + b"0," * 500_000 + b"0]",
        b"[]]",
        b"[]\0",
    ],
)
def test_malformed_rows_are_named_as_such(payload):
    with pytest.raises(MalformedReply, match="ledger rows"):
        decode_releases(payload)


def test_more_rows_than_allowed_are_refused():
    payload = encode_releases([Release(**good)] * 4)
    assert len(decode_releases(payload, max_rows=4)) == 4
    with pytest.raises(MalformedReply, match="at most 3 records"):
        decode_releases(payload, max_rows=3)


def test_a_reply_mode_is_one_of_three():
    assert [wire.check_mode(mode) for mode in ("sum", "mean", "each")] == ["sum", "mean", "each"]
    with pytest.raises(MalformedReply, match="reply must be one of sum, mean, each, got 'all'"):
        wire.check_mode("all")


# what was released beside updates, and what is known of clients

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=12)
released_values = st.dictionaries(
    st.integers(0, 2**53),
    st.dictionaries(names, st.lists(finite, max_size=4).map(tuple), max_size=3),
    max_size=4,
)
known_facts = st.dictionaries(
    st.integers(0, 2**53),
    st.builds(Known, st.none() | st.floats(0, 1), st.none() | st.floats(min_value=5e-324, max_value=1e300)),
    max_size=4,
)


@given(released_values)
def test_released_values_come_back_with_every_bit(released):
    back = wire.decode_released(wire.encode_released(released))
    assert back == released
    for client, named in released.items():
        for name, values in named.items():
            assert [value.hex() for value in back[client][name]] == [value.hex() for value in values]


@given(known_facts)
def test_what_is_known_comes_back_with_every_bit(known):
    back = wire.decode_known(wire.encode_known(known))
    assert back == known
    assert repr(back) == repr(known)


@given(st.one_of(st.binary(max_size=300), junk.map(lambda value: json.dumps(value).encode())))
def test_any_payload_is_malformed_or_holds_finite_numbers(payload):
    try:
        released = wire.decode_released(payload)
    except MalformedReply:
        return
    for client, named in released.items():
        assert type(client) is int
        for name, values in named.items():
            assert type(name) is str
            assert all(type(value) is float and np.isfinite(value) for value in values)


@given(st.one_of(st.binary(max_size=300), junk.map(lambda value: json.dumps(value).encode())))
def test_any_knowledge_is_malformed_or_in_its_range(payload):
    try:
        known = wire.decode_known(payload)
    except MalformedReply:
        return
    for client, facts in known.items():
        assert type(client) is int
        assert facts.contribution is None or 0 <= facts.contribution <= 1
        assert facts.attribute_clip_norm is None or 0 < facts.attribute_clip_norm < np.inf


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"3",
        b"[]",
        b'"{}"',
        b"\xff",
        b"[" * 200_000,
        b'{"0":' * 200_000,
        b'{"0":[0.1]}',
        b'{"0":{"contribution":0.1}}',
        b'{"0":{"contribution":"0.1"}}',
        b'{"0":{"contribution":[true]}}',
        b'{"0":{"contribution":[null]}}',
        b'{"0":{"contribution":[[0.1]]}}',
        b'{"0":{"contribution":[NaN]}}',
        b'{"0":{"contribution":[-Infinity]}}',
        b'{"0":{"contribution":[1e999]}}',
        b'{"0":{"contribution":[' + b"9" * 400 + b"]}}",
        b'{"x":{"contribution":[0.1]}}',
        b'{"0.5":{"contribution":[0.1]}}',
    ],
)
def test_malformed_released_values_are_named_as_such(payload):
    with pytest.raises(MalformedReply, match="released values"):
        wire.decode_released(payload)


def test_more_released_values_than_allowed_are_refused():
    most = 2**20
    assert len(wire.decode_released(wire.encode_released({0: {"contribution": (0,) * most}}))) == 1
    payload = wire.encode_released({0: {"contribution": (0,) * most}, 1: {"quantile": (0.3,)}})
    with pytest.raises(MalformedReply, match=f"more than {most} released values"):
        wire.decode_released(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"null",
        b'{"0":0.5}',
        b'{"0":{"contribution":1.5}}',
        b'{"0":{"contribution":NaN}}',
        b'{"0":{"contribution":true}}',
        b'{"0":{"attribute_clip_norm":0}}',
        b'{"0":{"attribute_clip_norm":-1}}',
        b'{"0":{"surplus":1}}',
        b'{"x":{}}',
        b"[" * 200_000,
    ],
)
def test_malformed_knowledge_is_named_as_such(payload):
    with pytest.raises(MalformedReply, match="what is known of clients cannot be read"):
        wire.decode_known(payload)


# which code runs


def code_of(package: Path, *app: Path) -> dict[str, str]:
    """The fingerprint that a process finds whose FedVeil lies in this folder."""
    shown = "import json, sys, pathlib; from fedveil import wire; print(wire.__file__);"
    shown += "print(json.dumps(wire.fingerprint(*map(pathlib.Path, sys.argv[1:]))))"
    environment = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", shown, *map(str, app)]
    lines = subprocess.run(
        command, env=environment, cwd=package.parent, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert Path(lines[0]).parent.samefile(package)
    return json.loads(lines[1])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedVeil as a wheel installs it: folders where the checkout has links."""
    target = tmp_path_factory.mktemp("site") / "fedveil"
    shutil.copytree(PACKAGE, target, symlinks=False, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def test_a_checkout_and_an_installed_copy_have_the_same_fingerprint(installed):
    assert (PACKAGE / "privacy").is_symlink()
    assert not any(path.is_symlink() for path in installed.rglob("*"))
    app = Path("apps/fedsva/fedsva_app")
    here = wire.fingerprint(PACKAGE / app)
    assert code_of(installed, installed / app) == here
    assert here["library"] == __version__


def fingerprint_of(package: Path, *app: Path) -> str:
    """The same in this process, without what it remembers."""
    file = wire.__file__
    try:
        wire.__file__ = str(package / "wire.py")
        return wire.fingerprint.__wrapped__(*app)["source"]
    finally:
        wire.__file__ = file


def test_a_change_in_any_file_changes_the_fingerprint(installed, tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "client_app.py").write_text("learning = True\n")
    before = fingerprint_of(installed, app)
    assert before == fingerprint_of(installed, app) != fingerprint_of(installed)

    rooms = {path.relative_to(installed).parts[0]: path for path in sorted(installed.rglob("*.py"))}
    seen = {before}
    for path in [*rooms.values(), app / "client_app.py"]:
        text = path.read_bytes()
        path.write_bytes(text + b"# changed\n")
        seen.add(fingerprint_of(installed, app))
        path.write_bytes(text)
    assert len(seen) == len(rooms) + 2
    assert fingerprint_of(installed, app) == before


def test_files_that_appear_disappear_or_move_change_the_fingerprint(installed):
    before = fingerprint_of(installed)
    added = installed / "surplus.py"
    added.write_text("")
    with_it = fingerprint_of(installed)
    added.rename(installed / "models" / "surplus.py")
    moved = fingerprint_of(installed)
    (installed / "models" / "surplus.py").unlink()
    assert len({before, with_it, moved}) == 3
    assert fingerprint_of(installed) == before


def test_what_is_no_source_does_not_change_the_fingerprint(installed):
    before = fingerprint_of(installed)
    (installed / "__pycache__").mkdir(exist_ok=True)
    (installed / "__pycache__" / "wire.py").write_text("stale = True\n")
    (installed / "notes.txt").write_text("nothing\n")
    assert fingerprint_of(installed) == before


def test_names_and_contents_cannot_pose_as_each_other(tmp_path):
    """One file under three names, and the same bytes in one file or the next, are five different sources."""
    layouts = [
        {"a.py": "x = 1"},
        {"b.py": "x = 1"},
        {"a.py": "x = 1", "b.py": ""},
        {"a.py": "", "b.py": "x = 1"},
        {"c/a.py": "x = 1"},
    ]
    seen = set()
    for index, layout in enumerate(layouts):
        for name, text in layout.items():
            file = tmp_path / str(index) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        seen.add(fingerprint_of(tmp_path / str(index)))
    assert len(seen) == len(layouts)
