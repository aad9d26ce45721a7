"""The players of a Shapley value, as a configuration writes them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.datasets.groups import Groups, parse_groups
from fedveil.datasets.images import image_schema
from fedveil.datasets.schema import Records, Schema
from fedveil.datasets.table import load_csv


def image(channels: int = 1, side: int = 28) -> Schema:
    count = channels * side * side
    names = tuple(f"r{i}c{j}{k}" for k in range(channels) for i in range(side) for j in range(side))
    zeros = np.zeros(count, np.float32)
    shape = (channels, side, side)
    return Schema(names, shape, zeros, zeros + 255, zeros, "digit", tuple(map(str, range(10))))


def table() -> Schema:
    """Age, a job of three categories, "hours, a week", a zone of one category."""
    return Schema(
        names=("age", "job=farm", "job=office", "job=shop, stall", "hours, a week", "zone=1"),
        shape=(6,),
        low=np.array([18, 0, 0, 0, 0, 0], np.float32),
        high=np.array([90, 1, 1, 1, 80.1, 1], np.float32),
        baseline=np.array([0.5, 0, 1, 0, 0.5, 1], np.float32),
        target="income",
        classes=("low", "middle", "high, very"),
        sources=("age", "job", "job", "job", "hours, a week", "zone"),
        client_column="site",
    )


def marked(schema: Schema, *names: str) -> np.ndarray:
    return np.isin(schema.names, names)


CENTRE = image().region("10:18,10:18")
AGE = marked(table(), "age")


def held(groups: Groups, schema: Schema) -> dict[str, set[str]]:
    return {
        name: {schema.names[i] for i in np.flatnonzero(mask)}
        for name, mask in zip(groups.names, groups.masks)
    }


# attributes


def test_no_text_means_the_private_attributes_and_the_others() -> None:
    groups = parse_groups("", image(), CENTRE)
    assert (groups.names, groups.kind, groups.private) == (("private", "others"), "attributes", (0,))
    np.testing.assert_array_equal(groups.masks, [CENTRE, ~CENTRE])
    assert parse_groups("  ", image(), CENTRE).names == groups.names


def test_regions_become_groups_and_what_is_left_is_private_or_others() -> None:
    groups = parse_groups("top=0:10,0:28;sides = 10:18,0:10 + 10:18 , 18:28", image(), CENTRE)
    assert groups.names == ("top", "sides", "private", "others")
    assert groups.private == (2,)
    assert groups.masks.sum(axis=1).tolist() == [280, 160, 64, 280]
    np.testing.assert_array_equal(groups.masks[2], CENTRE)
    np.testing.assert_array_equal(
        groups.masks[1], image().region("10:18,0:10") | image().region("10:18,18:28")
    )


def test_a_group_inside_the_private_attributes_is_private_by_its_own_name() -> None:
    groups = parse_groups("left = 10:18,10:14; right = 10:18,14:18; top = 0:10,0:28", image(), CENTRE)
    assert groups.names == ("left", "right", "top", "others")
    assert groups.private == (0, 1)


def test_a_region_holds_every_channel_of_its_pixels() -> None:
    schema = image(3, 4)
    groups = parse_groups("corner = 0:2,0:2", schema, schema.region("2:4,2:4"))
    assert groups.masks.sum(axis=1).tolist() == [12, 12, 24]


def test_columns_become_groups_and_a_category_column_is_whole() -> None:
    groups = parse_groups('time = "hours, a week",age; work = job', table(), marked(table(), "zone=1"))
    assert held(groups, table()) == {
        "time": {"hours, a week", "age"},
        "work": {"job=farm", "job=office", "job=shop, stall"},
        "private": {"zone=1"},
    }
    assert groups.private == (2,)
    one = parse_groups('a = job=farm; b = "job=shop, stall"', table(), AGE)
    assert held(one, table())["b"] == {"job=shop, stall"}


@given(st.lists(st.sampled_from(["a", "b", "private", "others"]), min_size=28, max_size=28))
def test_groups_of_attributes_are_a_partition_whatever_the_regions(owners: list[str]) -> None:
    """One column of pixels each; an item for a and b where they hold any, the private mask by ``private``."""
    schema = image()
    private = np.zeros((28, 28), dtype=np.bool_)
    private[:, [owner == "private" for owner in owners]] = True
    items = {
        name: "+".join(f"0:28,{c}:{c + 1}" for c, owner in enumerate(owners) if owner == name)
        for name in ("a", "b")
    }
    text = ";".join(f"{name}={regions}" for name, regions in items.items() if regions)
    if "private" not in owners or len(set(owners)) < 2:
        with pytest.raises(ValueError, match=r"is private|only group"):
            parse_groups(text, schema, private.reshape(-1))
        return
    groups = parse_groups(text, schema, private.reshape(-1))
    assert set(groups.names) == set(owners)
    assert [groups.names[j] for j in groups.private] == ["private"]
    for name, mask in zip(groups.names, groups.masks):
        assert mask.reshape(28, 28)[0].tolist() == [owner == name for owner in owners]
        assert mask.reshape(28, 28).all(axis=0).tolist() == [owner == name for owner in owners]


# records


def digits() -> Records:
    return Records(np.zeros((10, 784), np.float32), np.arange(10, dtype=np.int64)[::-1].copy())


def test_records_are_grouped_by_the_classes_of_the_target() -> None:
    groups = parse_groups("rare = class:3, 8; frequent=class:0", image(), None, "rare")
    assert (groups.names, groups.kind) == (("rare", "frequent", "others"), "records")
    assert groups.private == (0,)
    assert groups.masks.shape == (0, 784)
    assert groups.owner(digits(), image()).dtype == np.int64
    assert groups.owner(digits(), image()).tolist() == [2, 0, 2, 2, 2, 2, 0, 2, 2, 1]


def test_there_are_no_others_where_every_class_is_in_a_group() -> None:
    groups = parse_groups('few = class:"high, very"; many = class:low,middle', table(), None, "few")
    assert groups.names == ("few", "many")


def test_the_private_groups_of_records_are_named_and_may_be_the_others() -> None:
    groups = parse_groups("a = class:0; b = class:1", image(), CENTRE, "others , a")
    assert groups.private == (0, 2)


def records(*rows: list[float]) -> Records:
    return Records(table().scale(np.array(rows)), np.zeros(len(rows), np.int64))


def test_records_are_grouped_by_the_categories_of_a_column() -> None:
    three = records([20, 1, 0, 0, 5, 1], [30, 0, 1, 0, 5, 1], [40, 0, 0, 1, 5, 1])
    some = parse_groups('trade = where:job="shop, stall"', table(), None, "trade")
    assert some.names == ("trade", "others")
    assert some.owner(three, table()).tolist() == [1, 1, 0]
    every = parse_groups(
        'trade = where:job = "shop, stall" ,office; land = where:job=farm', table(), None, "land"
    )
    assert every.names == ("trade", "land")
    assert every.owner(three, table()).tolist() == [1, 0, 0]
    text = 'long = where:"hours, a week"=80.1,0'
    assert parse_groups(text, table(), None, "long").owner(three, table()).tolist() == [1, 1, 1]


def test_a_pixel_of_several_channels_is_named_with_its_channel() -> None:
    schema = image_schema((3, 2, 2), "kind", ("a", "b"))
    blue = np.zeros((2, 12), np.float32)
    blue[1, 8] = 1
    groups = parse_groups("bright = where:r0c0k2=255", schema, None, "bright")
    assert groups.owner(Records(blue, np.zeros(2, np.int64)), schema).tolist() == [1, 0]
    with pytest.raises(ValueError, match="'r0c0' has several channels: name one, r0c0k0, r0c0k1, r0c0k2"):
        parse_groups("bright = where:r0c0=255", schema, None, "bright")


@given(st.integers(0, 720), st.integers(0, 720))
def test_a_number_is_compared_on_the_public_scale_as_it_stands_in_the_records(
    tenths: int, other: int
) -> None:
    """18.0 to 90.0 in steps of 0.1, which float32 tells apart: equal as decimals if and only if found."""
    number, another = 18 + tenths / 10, 18 + other / 10
    groups = parse_groups(f"them = where:age={number!r}", table(), None, "them")
    owner = groups.owner(records([number, 1, 0, 0, 5, 1], [another, 1, 0, 0, 5, 1]), table())
    assert owner.tolist() == [0, int(tenths != other)]


def test_a_real_table_is_grouped_by_a_value_in_its_own_file(example_table: Path) -> None:
    data = load_csv(example_table, "income", test_fraction=0.0, client_column="site")
    groups = parse_groups('stall = where:job="shop, stall"; land = where:job=farm', data.schema, None, "land")
    rows = example_table.read_text().splitlines()[1:]
    expected = ["stall" if "shop, stall" in row else "land" if ",farm," in row else "others" for row in rows]
    assert [groups.names[j] for j in groups.owner(data.train, data.schema)] == expected
    assert set(expected) == set(groups.names)


def test_groups_of_attributes_own_no_records_and_other_records_do_not_fit() -> None:
    with pytest.raises(ValueError, match="use their masks"):
        parse_groups("", image(), CENTRE).owner(digits(), image())
    with pytest.raises(ValueError, match="Records of 6 features do not fit groups of 784"):
        parse_groups("a=class:0", image(), None, "a").owner(records([20, 1, 0, 0, 5, 1]), table())


# bad input


def image_error(text: str, message: str, private: np.ndarray | None = CENTRE, names: str = "") -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_groups(text, image(), private, names)
    assert str(error.value).count("\n") == 0
    assert re.search(r"[^.]\.$", str(error.value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top", "'top' is not understood: write name = what"),
        ("a=0:2,0:2;", "'' is not understood"),
        ("=0:2,0:2", "'=0:2,0:2' is not understood"),
        ("a,b=0:2,0:2", "is not understood"),
        ("top=", "'top' covers nothing"),
        ("private=0:2,0:2", "the name 'private' is kept"),
        ("others=0:2,0:2", "the name 'others' is kept"),
        ("a=0:2,0:2;a=4:6,4:6", "two groups are named 'a'"),
        ("a=0:2,0:2; b=1:3,1:3", "'a' and 'b' overlap, both hold 'r1c10'"),
        ("a=0:2,0:29", "Region '0:2,0:29' is empty or outside the image"),
        ("a=0:2,5:5", "Region '0:2,5:5' is empty or outside"),
        ("a=0:2,0:2+30:40,0:2", "'30:40,0:2' is empty or outside"),
        ("a=0:2", "'a' has the unknown column '0:2': write a rectangle"),
        ("a=age", "'a' has the unknown column 'age': write a rectangle of the image as rows,columns"),
        ("a=9:12,10:18", r"'a' is partly private \(16 of its 24 attributes are private\): split it"),
        ("a=0:2,0:2; b=class:3", "attributes and records cannot be mixed"),
        ("a=class:3; b=where:r0c00=1", "'a' and 'b' go by different columns"),
        ("a=class:3,8; b=class:8", "'a' and 'b' overlap: give each value to one group"),
        ("a=class:", "'a' is not understood, since 'class:' covers nothing"),
        ("a=class:3,", "covers nothing or holds an empty name"),
        ("a=class:three", r"the target 'digit' has no class 'three': nearest: '\d'"),
        ("a=where:digit=3", "'digit' is the target: write class:"),
        ('a="r0c00', "double quote that is never closed"),
    ],
)
def test_a_line_of_image_groups_that_cannot_be_is_one_sentence(text: str, message: str) -> None:
    image_error(text, message)


def test_groups_without_anything_to_compare_are_refused() -> None:
    image_error("", "'others' is the only group and holds all attributes", None)
    image_error("", "'private' is the only group", np.ones(784, np.bool_))
    image_error("all=0:28,0:28", "'all' is the only group", None)
    image_error(
        "top=0:10,0:28", "none of the groups top, others is private: name in private-attributes", None
    )
    image_error("top=0:10,0:28", r"all groups \(top, private\) are private", np.ones(784, np.bool_))
    image_error("all=class:0,1,2,3,4,5,6,7,8,9", "'all' is the only group and holds all records", None, "all")
    image_error("a=class:0", "none of the groups a, others is private: name in private-groups", CENTRE)
    image_error("a=class:0", r"all groups \(a, others\) are private", None, "others,a")


def test_private_groups_are_for_records_and_must_exist() -> None:
    image_error("top=0:10,0:28", "private-groups = 'top' is for groups of records", CENTRE, "top")
    image_error("", "private-groups = 'others' is for groups of records", CENTRE, "others")
    image_error("rare=class:0", "there is no group 'rear'; nearest: 'rare'", None, "rear")


def test_more_than_62_groups_are_refused() -> None:
    cells = [f"g{r}x{c}={r}:{r + 1},{c}:{c + 1}" for r in range(9) for c in range(7)]
    assert len(parse_groups(";".join(cells[:60]), image(), CENTRE).names) == 62
    image_error(";".join(cells[:61]), "63 groups are more than 62")


def test_a_private_mask_of_another_schema_is_refused() -> None:
    image_error("", r"private mask of shape \(6,\) does not fit 784 attributes", AGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 0:2,0:2", "was given for a table"),
        ("a = agee", "'a' has the unknown column 'agee': nearest: 'age'"),
        ("a = age,", "has the unknown column ''"),
        (
            "a = income",
            "'a' has the unknown column 'income': it is the target, write class: and names of classes",
        ),
        ("a = site", "'a' has the unknown column 'site': it is the client column"),
        ("a = job; b = job=farm", "'a' and 'b' overlap, both hold 'job=farm'"),
        ("a = job,age", r"partly private \(1 of its 4"),
        ("a = where:jbo=farm", "there is no column 'jbo': nearest: 'job'"),
        ("a = where:job=farn", "the column 'job' has no category 'farn': nearest: 'farm'"),
        ("a = where:job", "covers nothing"),
        ("a = where:age=100", "numbers within its public range, 18 to 90, not '100'"),
        ("a = where:age=old", "numbers within its public range, 18 to 90, not 'old'"),
        ("a = where:age=nan", "not 'nan'"),
        ("a = where:site=5", "'site' is the client column"),
        ("a = where:age=20; b = where:job=farm", "'a' and 'b' go by different columns"),
        ("a = where:age=20; b = where:age=20.0", "'a' and 'b' overlap"),
        ("a = where:zone=1", "'a' is the only group and holds all records"),
    ],
)
def test_a_line_of_table_groups_that_cannot_be_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_groups(text, table(), AGE)
    assert str(error.value).count("\n") == 0
