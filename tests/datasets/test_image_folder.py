"""A folder of images with a sub-folder for each class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedveil.datasets.image_folder import FolderOptions, load, load_image_folder
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, check_records

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def pixels(seed: int, rows: int = 4, columns: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


def save(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Five images: cats 0, 1, 2 and dogs 3, 4."""
    root = tmp_path / "animals"
    for index in range(5):
        save(root / ("cat" if index < 3 else "dog") / f"{index}.png", pixels(index))
    (root / ".DS_Store").write_bytes(b"\0")
    (root / "cat" / ".hidden").write_bytes(b"\0")
    (root / "README.txt").write_text("about these animals")
    return root


def features(*seeds: int) -> np.ndarray:
    return np.array([pixels(seed).transpose(2, 0, 1).reshape(-1) / 255 for seed in seeds]).astype(np.float32)


def whole(root: Path, **options: Any) -> Dataset:
    return load_image_folder(root, FolderOptions(**options), test_fraction=0.0)


def test_sub_folders_are_classes_and_images_come_in_the_order_of_their_paths(animals: Path) -> None:
    data = whole(animals)
    assert data.name == "animals"
    assert data.schema.shape == (3, 4, 5)
    assert data.schema.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.train.client_ids is None
    np.testing.assert_array_equal(data.train.features, features(0, 1, 2, 3, 4))
    check_records(data.train, data.schema, "train")


def test_a_configuration_asks_for_a_folder_and_its_options(animals: Path) -> None:
    data = load(
        DataRequest(path=str(animals), test_fraction=0.4, seed=1, options={"channels": 1, "size": [2, 3]})
    )
    assert (len(data.train), len(data.test)) == (3, 2)
    assert data.schema.shape == (1, 2, 3)


def test_colours_become_grey_by_their_luma_and_grey_becomes_colour(tmp_path: Path, animals: Path) -> None:
    """ITU-R 601: 0.299 red + 0.587 green + 0.114 blue, to one of 255 levels."""
    grey = whole(animals, channels=1).train.features
    colours = np.array([pixels(seed).reshape(-1, 3) for seed in range(5)])
    np.testing.assert_allclose(grey, colours @ [0.299, 0.587, 0.114] / 255, atol=1 / 255)
    for index, name in enumerate("ab"):
        save(tmp_path / "grey" / name / "1.png", pixels(index)[..., 0])
    data = whole(tmp_path / "grey")
    assert data.schema.shape == (3, 4, 5)
    red, green, blue = data.train.features.reshape(2, 3, 20).transpose(1, 0, 2)
    np.testing.assert_array_equal(red, green)
    np.testing.assert_array_equal(red, blue)


def test_the_option_size_resizes_every_image_by_itself(tmp_path: Path) -> None:
    """Bilinear halving of an image that is constant in 2 x 2 blocks away from the others' influence."""
    flat = np.full((8, 6, 3), 77, dtype=np.uint8)
    save(tmp_path / "f" / "a" / "1.png", flat)
    save(tmp_path / "f" / "b" / "1.png", np.full((5, 9, 3), 200, dtype=np.uint8))
    data = whole(tmp_path / "f", size=4)
    assert data.schema.shape == (3, 4, 4)
    np.testing.assert_array_equal(data.train.features[0], np.float32(77 / 255))
    np.testing.assert_array_equal(data.train.features[1], np.float32(200 / 255))
    with pytest.raises(
        ValueError,
        match=r"image 2 in the order of paths, from 1, has 5 x 9 pixels, others 8 x 6: set the option size",
    ):
        whole(tmp_path / "f")


def test_train_and_test_folders_are_the_two_parts(tmp_path: Path, animals: Path) -> None:
    both = tmp_path / "both"
    both.mkdir()
    animals.rename(both / "train")
    save(both / "test" / "dog" / "9.png", pixels(9))
    data = load(DataRequest(path=str(both)))
    assert data.schema.classes == ("cat", "dog")
    assert (len(data.train), data.test.labels.tolist()) == (5, [1])
    np.testing.assert_array_equal(data.test.features, features(9))
    given = load(DataRequest(path=str(both / "train"), test_path=str(both / "test")))
    np.testing.assert_array_equal(given.test.features, data.test.features)


def test_with_clients_the_upper_folders_are_natural_clients(tmp_path: Path) -> None:
    for index, path in enumerate(("bob/cat/1", "bob/dog/1", "anna/dog/1", "anna/dog/2", "carl/cat/1")):
        save(tmp_path / "p" / f"{path}.png", pixels(index))
    data = whole(tmp_path / "p", clients=True)
    assert data.train.client_ids is not None
    assert data.train.client_ids.tolist() == [0, 0, 1, 1, 2]
    assert data.train.labels.tolist() == [1, 1, 0, 1, 0]
    np.testing.assert_array_equal(data.train.features, features(2, 3, 0, 1, 4))
    with pytest.raises(ValueError, match=r"leave one level of classes, or set the option clients = true"):
        whole(tmp_path / "p")


def test_a_client_that_lacks_a_class_lists_all_of_them(animals: Path) -> None:
    data = whole(animals, classes=["dog", "bird", "cat"])
    assert data.schema.classes == ("dog", "bird", "cat")
    assert data.train.labels.tolist() == [2, 2, 2, 0, 0]
    with pytest.raises(
        ValueError, match=r"sub-folder 1, by name and from 1, is none of the classes \('dog', 'bat'\)"
    ):
        whole(animals, classes=["dog", "bat"])


def test_images_of_several_kinds_are_read(tmp_path: Path) -> None:
    flat = np.full((6, 6, 3), 100, dtype=np.uint8)
    for kind in ("png", "bmp", "gif", "ppm", "jpg", "webp", "tiff", "JPEG"):
        save(tmp_path / "k" / "a" / f"1.{kind}", flat)
    Image.fromarray(np.dstack([flat, flat[..., 0]])).save(tmp_path / "k" / "a" / "alpha.png")
    save(tmp_path / "k" / "b" / "1.png", flat)
    np.testing.assert_allclose(whole(tmp_path / "k").train.features, 100 / 255, atol=2 / 255)


# bad input


def refused(root: Path, message: str, **options: Any) -> str:
    with pytest.raises(ValueError, match=message) as error:
        load(DataRequest(path=str(root), options=options))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_damaged_image_is_told_by_its_place_without_its_name_and_class(animals: Path) -> None:
    whole_file = (animals / "dog" / "4.png").read_bytes()
    sixteen = animals.parent / "deep.png"
    Image.fromarray(np.full((4, 5), 40000, dtype=np.uint16)).save(sixteen)
    for content in (whole_file[:60], b"", b"no image", whole_file[:-30], sixteen.read_bytes()):
        (animals / "dog" / "4.png").write_bytes(content)
        said = refused(animals, "image 5 in the order of paths, from 1, is damaged, or no image of 8 bits")
        assert "dog" not in said
        assert "4.png" not in said


def test_what_is_no_image_among_them_is_told_by_its_place(animals: Path) -> None:
    (animals / "cat" / "labels.csv").write_text("0,cat\n")
    said = refused(animals, "file 4 of sub-folder 1, by name and from 1, is no image: move it away")
    assert "cat" not in said
    assert "labels" not in said
    (animals / "cat" / "labels.csv").unlink()
    save(animals / "loose.png", pixels(0))
    assert "loose" not in refused(animals, "holds an image outside its sub-folders")


@pytest.mark.parametrize("where", ["cat", "."])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to nothing"])
def test_what_has_the_name_of_an_image_and_is_no_file_is_refused_unread(
    animals: Path, kind: str, where: str
) -> None:
    pipe, entry = animals.parent / "pipe", animals / where / "f.png"
    if kind == "link to a pipe":
        os.mkfifo(pipe)
    if kind == "pipe":
        os.mkfifo(entry)
    else:
        entry.symlink_to(pipe)
    said = (
        "an image outside its sub-folders"
        if where == "."
        else "file 4 of sub-folder 1, by name and from 1, is no"
    )
    assert "f.png" not in refused(animals, said)


def test_a_link_to_an_image_is_one(animals: Path) -> None:
    outside = save(animals.parent / "outside.png", pixels(9))
    (animals / "cat" / "3.png").symlink_to(outside)
    assert np.array_equal(whole(animals).train.features.reshape(6, -1)[3], features(9)[0])


def test_folders_that_hold_nothing_to_learn_are_refused(tmp_path: Path, animals: Path) -> None:
    refused(tmp_path / "none", "none does not exist: give the path of a folder")
    refused(animals / "README.txt", "is a file: give the path of a folder")
    refused(animals.parent / "animals" / "cat", "holds an image outside its sub-folders")
    (tmp_path / "empty" / "a").mkdir(parents=True)
    refused(tmp_path / "empty", "has 1 classes: make a sub-folder for each of two or more")
    (tmp_path / "empty" / "b").mkdir()
    refused(tmp_path / "empty", "holds no images")
    with pytest.raises(ValueError, match="needs data-path"):
        load(DataRequest())
    with pytest.raises(
        ValueError, match="target = 'x': dataset 'image-folder' takes data-path, test-path, options"
    ):
        load(DataRequest(path=str(animals), target="x"))


def test_a_test_folder_must_have_the_same_classes_and_sizes(tmp_path: Path, animals: Path) -> None:
    save(tmp_path / "t" / "cow" / "1.png", pixels(0))
    with pytest.raises(
        ValueError, match="test sub-folder 1, by name and from 1, is none of the classes"
    ) as error:
        load_image_folder(animals, test_path=tmp_path / "t")
    assert "cow" not in str(error.value)
    save(tmp_path / "u" / "cat" / "1.png", pixels(0, 9, 9))
    with pytest.raises(
        ValueError, match=r"image 1 in the order of paths, from 1, has 9 x 9 pixels, others 4 x 5"
    ):
        load_image_folder(animals, test_path=tmp_path / "u")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sise": 32}, "image-folder has no option 'sise'; nearest: 'size'"),
        ({"size": 0}, "size = 0 is not understood"),
        ({"size": "32"}, "size = '32' is not understood"),
        ({"size": 3.5}, "size = 3.5 is not understood"),
        ({"size": True}, "size = True is not understood"),
        ({"size": [32]}, r"size = \[32\] is not understood"),
        ({"size": [32, 10**9]}, "each 1 to 4096"),
        ({"channels": 2}, "channels = 2: write 3 for colour or 1 for grey"),
        ({"channels": True}, "channels = True: write 3"),
        ({"clients": "yes"}, "clients = 'yes': write true or false"),
        ({"classes": "cat"}, "classes = 'cat': write a list of names"),
        ({"classes": ["cat", "cat"]}, "has 1 classes"),
    ],
)
def test_options_that_cannot_be_are_refused(animals: Path, options: dict[str, Any], message: str) -> None:
    refused(animals, message, **options)


# real files


def test_cifar_10_as_a_folder_of_its_jpegs_loads(tmp_path: Path) -> None:
    path = SHARED / "cifar10_jpegs.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    raw = np.load(path, allow_pickle=False)
    blob, off, labels, is_train = raw["blob"], raw["off"], raw["y"], raw["is_train"]
    for index in range(0, 60000, 200):
        part = "train" if is_train[index] else "test"
        folder = tmp_path / "cifar" / part / f"class {labels[index]}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.jpg").write_bytes(blob[off[index] : off[index + 1]].tobytes())
    data = load(DataRequest(path=str(tmp_path / "cifar")))
    assert data.schema.shape == (3, 32, 32)
    assert data.schema.num_classes == 10
    assert (len(data.train), len(data.test)) == (250, 50)
    check_records(data.train, data.schema, "train")
    check_records(data.test, data.schema, "test")
