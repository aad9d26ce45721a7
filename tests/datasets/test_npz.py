"""A user's own NPZ file, its public description, and what neither may hold."""

from __future__ import annotations

import re
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.datasets.npz import load, load_npz
from fedveil.datasets.partition import partition
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import check_records

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
OMNIGLOT = Path(__file__).resolve().parents[2] / "benchmarks" / "schemas" / "omniglot.schema.toml"

Write = Callable[..., Path]
SCHEMA = "[classes]\ny = 3\n"
X = np.random.default_rng(0).integers(0, 256, (6, 4, 5), dtype=np.uint8)
Y = np.array([0, 1, 2, 2, 1, 0])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes arrays, and the schema text beside them unless None."""

    def make(schema: str | None, name: str = "data.npz", **arrays: Any) -> Path:
        path = tmp_path / name
        np.savez(path, **arrays)
        if schema is not None:
            Path(f"{path}.schema.toml").write_text(schema, encoding="utf-8")
        return path

    return make


def whole(path: Path, **arguments: Any) -> Any:
    return load_npz(path, **{"target": "y", "test_fraction": 0.0, **arguments})


def test_bytes_are_images_and_need_only_their_classes(write: Write) -> None:
    data = whole(write(SCHEMA, x=X, y=Y))
    assert data.name == "data"
    assert data.schema.shape == (1, 4, 5)
    assert data.schema.names[6] == "r1c1"
    assert data.schema.classes == ("0", "1", "2")
    np.testing.assert_array_equal(data.train.features, (X.reshape(6, 20) / 255).astype(np.float32))
    assert data.train.labels.tolist() == Y.tolist()
    assert data.train.client_ids is None
    assert set(data.schema.baseline.tolist()) == {0.0}
    check_records(data.train, data.schema, "train")


@pytest.mark.parametrize("compress", [False, True])
def test_a_configuration_asks_for_arrays_by_target_and_client_column(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "d.npz"
    (np.savez_compressed if compress else np.savez)(
        path, x=X, y=Y, word=list("abcabc"), site=[9, 10, 9, 9, 10, 8]
    )
    schema = tmp_path / "other.toml"
    schema.write_text(
        'features = "x"\ntarget = "y"\nclient = "word"\n[classes]\ny = 3\nword = ["a", "b", "c"]\n'
    )
    own = load(DataRequest(path=str(path), schema_path=str(schema), test_fraction=1 / 3, seed=4))
    assert (own.schema.target, own.schema.client_column, len(own.test)) == ("y", "word", 2)
    chosen = load_npz(path, "word", schema, 0.0, client_column="site")
    assert (chosen.schema.target, chosen.schema.client_column) == ("word", "site")
    assert chosen.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert chosen.train.client_ids is not None
    assert chosen.train.client_ids.tolist() == [1, 2, 1, 1, 2, 0]


def test_clients_are_counted_by_size_where_they_are_numbers_and_alphabetically_otherwise(
    write: Write,
) -> None:
    def ids(owners: list[Any]) -> list[int]:
        data = whole(write(SCHEMA, x=X, y=Y, who=owners), client_column="who", schema_path=described)
        return list(data.train.client_ids)

    described = write('features = "x"\n' + SCHEMA, "s.npz", x=X).with_name("s.npz.schema.toml")
    assert ids(["10", "9", "2", "10", "9", "2"]) == [2, 1, 0, 2, 1, 0]
    assert ids(["b10", "b9", "b2", "b10", "b9", "b2"]) == [0, 2, 1, 0, 2, 1]
    assert ids([b"z", b"a", b"z", b"a", b"z", b"a"]) == [1, 0, 1, 0, 1, 0]
    assert ids([10, -9, 2, 10, -9, 2]) == [2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("layout", ["", "channels-last", "channels-first"])
def test_channels_first_and_last_give_the_same_records(write: Write, layout: str) -> None:
    last = np.random.default_rng(1).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    first = last.transpose(0, 3, 1, 2).copy()
    given = {"": last, "channels-last": last, "channels-first": first}[layout]
    data = whole(write((f'layout = "{layout}"\n' if layout else "") + SCHEMA, x=given, y=Y))
    assert data.schema.shape == (3, 4, 5)
    np.testing.assert_array_equal(data.train.features, (first.reshape(6, 60) / 255).astype(np.float32))
    assert (data.schema.names[1], data.schema.names[20]) == ("r0c1k0", "r0c0k1")
    assert data.schema.columns("r0c1").nonzero()[0].tolist() == [1, 21, 41]
    assert data.schema.region("0:1,1:2").nonzero()[0].tolist() == [1, 21, 41]


def test_numbers_are_scaled_by_the_public_range_and_clipped(write: Write) -> None:
    values = np.array([[-2.0, 5], [0, 10], [2, 20], [9, 0]])
    schema = "low = [-2, 0]\nhigh = [2, 10]\nbaseline = [0, 5]\n[classes]\ny = [5, 7.5]\n"
    data = whole(write(schema, x=values, y=np.array([5, 7.5, 5.0, 7.5])))
    assert data.schema.names == ("x0", "x1")
    assert data.train.features.tolist() == [[0, 0.5], [0.5, 1], [1, 1], [1, 0]]
    assert data.schema.baseline.tolist() == [0.5, 0.5]
    assert data.train.labels.tolist() == [0, 1, 0, 1]


def test_scaling_in_blocks_is_scaling_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveil.datasets import images

    path = write(
        "low = -3\nhigh = 3\nbaseline = 0\n" + SCHEMA, x=np.random.default_rng(2).normal(size=(6, 7)), y=Y
    )
    at_once = whole(path).train.features
    monkeypatch.setattr(images, "_BLOCK", 14)
    np.testing.assert_array_equal(whole(path).train.features, at_once)


def test_the_test_set_is_another_file_or_rows_chosen_by_their_number_alone(write: Write) -> None:
    path, other = write(SCHEMA, x=X, y=Y), write(None, "t.npz", x=X[:2] // 2, y=Y[:2])
    data = load(DataRequest(path=str(path), target="y", test_path=str(other)))
    assert (len(data.train), len(data.test)) == (6, 2)
    np.testing.assert_array_equal(data.test.features, (X[:2] // 2 / 255).reshape(2, 20).astype(np.float32))
    drawn = load_npz(path, "y", test_fraction=0.5, seed=1).test.features
    everything = (X.reshape(6, 20) / 255).astype(np.float32)
    chosen = [int((everything == row).all(axis=1).argmax()) for row in drawn]
    again = load_npz(write(SCHEMA, x=X[::-1], y=Y[::-1]), "y", test_fraction=0.5, seed=1).test.features
    np.testing.assert_array_equal(again, everything[::-1][chosen])


def test_texts_and_truths_may_be_labels(write: Write) -> None:
    named = '[classes]\ny = ["cat", "dög"]\n'
    assert whole(write(named, x=X, y=["dög", "cat"] * 3)).train.labels.tolist() == [1, 0] * 3
    encoded = np.array(["dög".encode(), b"cat"] * 3)
    assert whole(write(named, x=X, y=encoded)).train.labels.tolist() == [1, 0] * 3
    assert whole(write("[classes]\ny = 2\n", x=X, y=[True, False] * 3)).train.labels.tolist() == [1, 0] * 3
    truths = whole(write(SCHEMA, x=X > 100, y=Y)).train.features
    np.testing.assert_array_equal(truths, (X > 100).reshape(6, 20).astype(np.float32))


# bad input


def pasted(error: ValueError) -> str:
    """What stands below the one sentence of an error; all of it must be TOML."""
    toml = str(error).partition("\n\n")[2]
    tomllib.loads(toml)
    return toml


def test_what_the_error_says_to_write_works(write: Write) -> None:
    for name in ("y", "my label"):
        path = write(None, f"{name[0]}.npz", x=X, **{name: Y})
        with pytest.raises(
            ValueError, match=f"is not there to say which classes the target '{name}' has"
        ) as error:
            load_npz(path, name)
        assert f"{path}.schema.toml" in str(error.value)
        Path(f"{path}.schema.toml").write_text(pasted(error.value))
        assert load_npz(path, test_fraction=0.0).train.labels.tolist() == Y.tolist()
    path = write(SCHEMA, x=X / 255, y=Y)
    with pytest.raises(
        ValueError, match="does not say low, high, baseline of the features 'x', numbers of type float64"
    ):
        whole(path)
    with pytest.raises(ValueError, match=r"There is no schema file .*none\.toml") as error:
        whole(path, schema_path=path.with_name("none.toml"))
    pasted(error.value)


BAD_ARRAYS = [
    ({"x": X[:5], "y": Y}, r"array 'y' has shape \(6,\), but 'x' has 5 rows"),
    ({"x": X, "y": Y[:, None]}, r"array 'y' has shape \(6, 1\)"),
    ({"x": X, "y": np.array([0, 1, 2, 777, 1, 0])}, r"array 'y', row 3 is not one of the 3 classes"),
    ({"x": X, "y": np.array([0, 1, 2, np.nan, 1, 0])}, r"array 'y', row 3 is not one of the 3 classes"),
    (
        {"x": X, "y": np.array(["0", "1", "2", "secret777", "1", "0"])},
        r"array 'y', row 3 is not one of the 3",
    ),
    ({"x": X, "y": np.array([b"\xff777"] * 6)}, "array 'y' holds texts that are not UTF-8"),
    ({"x": X, "y": Y + 1j}, "array 'y' is of type complex128: save it as whole numbers or texts"),
    ({"x": X.astype(object), "y": Y}, "array 'x' is damaged or holds pickled objects, which are not read"),
    ({"x": X, "y": Y.astype(object)}, "array 'y' is damaged or holds pickled objects"),
    ({"x": X.astype(str), "y": Y}, "array 'x' is of type <U3: save it as numbers"),
    ({"x": X[0, 0, 0], "y": Y}, "array 'x' has no rows"),
    ({"x": X[:0], "y": Y[:0]}, "array 'x' has no rows"),
    ({"x": X[:, :0], "y": Y}, r"array 'x' has shape \(6, 0, 5\)"),
    ({"x": X[:, 0, 0], "y": Y}, r"array 'x' has shape \(6,\)"),
    ({"x": np.zeros((6, 3, 4, 3), np.uint8), "y": Y}, "which does not tell where the channels are"),
    ({"x": np.zeros((6, 4, 4, 4), np.uint8), "y": Y}, 'write layout = "channels-first" or "channels-last"'),
    ({"x": X, "z": Y}, "has no array 'y' for the target: correct the name"),
    ({"x": X, "y": Y, "z": Y}, r'features is not said: write features = "x" .* one of the 3 arrays'),
]


@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS)
def test_a_bad_array_is_named_with_its_row_and_no_value(
    write: Write, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        whole(write(SCHEMA, **arrays))
    assert "777" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_no_number_is_named_by_its_row(write: Write, value: float) -> None:
    values = X.astype(np.float32)
    values[4, 1, 1] = value
    path = write("low = 0\nhigh = 255\nbaseline = 0\n" + SCHEMA, x=values, y=Y)
    with pytest.raises(ValueError, match="array 'x', row 4 holds NaN or an infinite number"):
        whole(path)


BAD_SCHEMAS = [
    ("classes = 3\n", "needs the classes by array"),
    ("[classes]\ny = 1\n", "needs as classes of 'y' a number from 2 to 1000000"),
    ("[classes]\ny = 1000000000000\n", "needs as classes of 'y' a number from 2 to 1000000"),
    ("[classes]\ny = [1, 1]\n", "two or more different values"),
    ("[classes]\ny = true\n", "needs as classes of 'y'"),
    ("lows = 3\n" + SCHEMA, "unknown key 'lows'; nearest: 'low'"),
    ("low = 300\n" + SCHEMA, "needs low < high"),
    ("baseline = -1\n" + SCHEMA, "baseline between"),
    (f"high = {'9' * 400}\n" + SCHEMA, "needs a finite number as high, got 999"),
    (f"[targets.y]\nlow = 0\nhigh = {'9' * 400}\n" + SCHEMA, "needs finite numbers, low, high"),
    ("high = inf\n" + SCHEMA, "needs a finite number as high"),
    ('high = "9"\n' + SCHEMA, "needs a finite number as high"),
    ("high = [1, 2]\n" + SCHEMA, "has a list of 2 as high: write one number for images"),
    ('layout = "last"\n' + SCHEMA, "one of channels-first, channels-last as layout, got 'last'"),
    ('layout = "channels-last"\n' + SCHEMA, "layout is for arrays of four dimensions"),
    ("features = 3\n" + SCHEMA, 'needs the name of an array as features, as in features = "x"'),
    ('features = "y"\n' + SCHEMA, "must be different arrays"),
    ('features = "z"\n' + SCHEMA, "has no array 'z' for the features"),
    ('client = "z"\nfeatures = "x"\n' + SCHEMA, "has no array 'z' for the client"),
    ("[classes", "is not valid TOML"),
]


@pytest.mark.parametrize(("schema", "message"), BAD_SCHEMAS)
def test_a_bad_schema_file_is_refused(write: Write, schema: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        whole(write(schema, x=X, y=Y))


def test_files_that_are_no_npz_are_refused(tmp_path: Path, write: Write) -> None:
    path = write(SCHEMA, x=X, y=Y)
    with pytest.raises(ValueError, match=r"There is no data file .*none\.npz"):
        whole(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="is a folder: give the path of an NPZ file"):
        whole(tmp_path)
    single = tmp_path / "one.npy"
    np.save(single, X)
    for content in (single.read_bytes(), b"", b"\x80\x04N.", path.read_bytes()[:-40]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a whole NPZ file"):
            whole(path)
    damaged = bytearray(write(SCHEMA, x=X, y=Y).read_bytes())
    damaged[150:170] = b"\0" * 20
    path.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match="array 'x' is damaged"):
        whole(path)


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        header("(10**15,)".replace("10**15", str(10**15))),
        header(f"({2**62}, {2**62})"),
        header("(1,)", "[" * 3000 + "]" * 3000),
        header("(1,)", "[" * 150 + "]" * 150),
        header("(1,)", "-" * 9000 + "1"),
        header("(1,)", "(" * 50 + "'<f8'"),
        header("(1, '"),
    ],
    ids=["rows", "product", "deep", "nested", "signs", "open", "quote"],
)
def test_an_array_with_an_impossible_header_is_named(write: Write, content: bytes) -> None:
    path = write(SCHEMA)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", content)
        file.writestr("y.npy", header("(1,)") + b"\0" * 8)
    with pytest.raises(ValueError, match=r"data\.npz, array 'x' (is damaged|cannot be read)"):
        whole(path)


@pytest.mark.parametrize(("place", "value"), [(8, 1), (10, 97)], ids=["encrypted", "compression"])
def test_an_array_that_zip_cannot_unpack_is_named(write: Write, place: int, value: int) -> None:
    path = write(SCHEMA, x=X, y=Y)
    content = bytearray(path.read_bytes())
    central = content.find(b"PK\x01\x02")
    content[place - 2] = content[central + place] = value
    path.write_bytes(bytes(content))
    with pytest.raises(
        ValueError, match=r"data\.npz, array 'x' cannot be read, being encrypted, compressed in"
    ):
        whole(path)


@pytest.mark.parametrize(("place", "value"), [(0, b"XX"), (6, b"\xff")], ids=["mark", "version"])
def test_a_damaged_list_of_arrays_is_told(write: Write, place: int, value: bytes) -> None:
    path = write(SCHEMA, x=X, y=Y)
    content = bytearray(path.read_bytes())
    start = content.find(b"PK\x01\x02") + place
    content[start : start + len(value)] = value
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"data\.npz has a damaged list of its arrays and cannot be read"):
        whole(path)


def test_a_schema_file_may_begin_with_a_byte_order_mark(write: Write) -> None:
    assert whole(write("\ufeff" + SCHEMA, x=X, y=Y)).schema.classes == ("0", "1", "2")


def test_arrays_that_are_not_said_are_asked_for(write: Write) -> None:
    with pytest.raises(ValueError, match=r"Which array of .* holds the labels is not said: set target"):
        load_npz(write(SCHEMA, x=X, y=Y))
    with pytest.raises(ValueError, match="needs data-path"):
        load(DataRequest())
    with pytest.raises(ValueError, match="array 'who', row 2 is empty: write whose the record is"):
        whole(
            write('features = "x"\n' + SCHEMA, x=X, y=Y, who=["a", "b", " ", "a", "b", "a"]),
            client_column="who",
        )
    with pytest.raises(
        ValueError, match=r"records of shape \(1, 2, 5\) and type uint8, but .* \(1, 4, 5\) and uint8"
    ):
        whole(write(SCHEMA, x=X, y=Y), test_path=write(None, "t.npz", x=X[:, :2], y=Y))


# real files


@pytest.mark.parametrize(("target", "num_classes"), [("alphabet", 8), ("character", 242)])
def test_omniglot_by_drawer_has_160_natural_clients(target: str, num_classes: int) -> None:
    path = SHARED / "omniglot_small_28x28.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    data = load(DataRequest(path=str(path), schema_path=str(OMNIGLOT), target=target, test_fraction=0.2))
    assert data.schema.shape == (1, 28, 28)
    assert data.schema.num_classes == num_classes
    assert data.train.client_ids is not None
    assert data.test.client_ids is not None
    assert len(data.train) + len(data.test) == 4840
    assert set(data.train.client_ids.tolist()) | set(data.test.client_ids.tolist()) == set(range(160))
    assert len(list(partition(load_npz(path, target, OMNIGLOT, 0.0).train, "natural"))) == 160
    check_records(data.train, data.schema, "train")
    raw = np.load(path, allow_pickle=False)
    everything = load_npz(path, target, OMNIGLOT, 0.0).train
    assert [data.schema.classes[label] for label in everything.labels] == raw[target].tolist()
    assert everything.client_ids is not None
    owners: dict[int, set[str]] = {}
    for client, drawer in zip(everything.client_ids.tolist(), raw["drawer"].tolist()):
        owners.setdefault(client, set()).add(drawer)
    assert all(len(drawers) == 1 for drawers in owners.values())


def test_cifar_10_as_an_npz_made_from_its_jpegs_loads(tmp_path: Path) -> None:
    path = SHARED / "cifar10_jpegs.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    from io import BytesIO

    from PIL import Image

    raw = np.load(path, allow_pickle=False)
    blob, off, chosen = raw["blob"], raw["off"], np.arange(0, 60000, 300)
    pixels = np.stack([np.asarray(Image.open(BytesIO(blob[off[i] : off[i + 1]].tobytes()))) for i in chosen])
    np.savez(tmp_path / "cifar.npz", x=pixels, y=raw["y"][chosen])
    (tmp_path / "cifar.npz.schema.toml").write_text("[classes]\ny = 10\n")
    data = load(DataRequest(path=str(tmp_path / "cifar.npz"), target="y", test_fraction=0.25))
    assert data.schema.shape == (3, 32, 32)
    assert (len(data.train), len(data.test)) == (150, 50)
    assert set(data.train.labels.tolist()) == set(range(10))
    check_records(data.train, data.schema, "train")


@pytest.mark.parametrize("target", ["", "y", "nowhere"])
def test_arrays_that_nobody_named_are_not_named_in_errors(tmp_path: Path, target: str) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y, JaneDoe=Y)
    (tmp_path / "data.npz.schema.toml").write_text("")
    with pytest.raises(ValueError, match=r"data[.]npz") as refused:
        load(DataRequest(path=str(tmp_path / "data.npz"), target=target))
    assert "Jane" not in str(refused.value)


def test_a_file_that_the_system_does_not_let_be_read_is_not_told_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from fedveil.datasets.npz_arrays import read_array

    file = tmp_path / "data.npz"
    np.savez(file, x=np.zeros(3))

    def refused(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PermissionError, match=r"data\.npz"):
        read_array(file, "x", "features", "f", "numbers")
