"""CIFAR-10 from a copy of the hub's repository, from its cache, and from the authors' archive; and without any."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.datasets import hub
from fedveil.datasets.cifar import CLASSES, load, load_cifar_10
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import check_records

REVISION = "0b2714987fa478483af9968de7c934580d0bb9a2"
Image = np.ndarray


def images(num: int, seed: int, side: int = 32) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (num, side, side, 3), dtype=np.uint8)


def png(pixels: Image) -> dict[str, Any]:
    from PIL import Image as Pillow

    file = BytesIO()
    Pillow.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def split_of(pixels: Image, labels: list[int], classes: tuple[str, ...] = CLASSES) -> Any:
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageColumn

    columns = {"img": [png(image) for image in pixels], "label": labels}
    return Dataset.from_dict(columns, Features(img=ImageColumn(), label=ClassLabel(names=list(classes))))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face's, and no network."""
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "_answers", lambda: False)
    return tmp_path / "cache"


TRAIN, TEST = images(5, 0), images(3, 1)


@pytest.fixture
def copy(tmp_path: Path, cache: Path) -> Path:
    """What ``hf download`` would write, with few images."""
    folder = tmp_path / "copy"
    (folder / "plain_text").mkdir(parents=True)
    split_of(TRAIN, [3, 0, 9, 1, 1]).to_parquet(folder / "plain_text" / "train-00000-of-00001.parquet")
    split_of(TEST, [2, 4, 6]).to_parquet(folder / "plain_text" / "test-00000-of-00001.parquet")
    (folder / "README.md").write_text("---\nlicense: unknown\n---\n# CIFAR-10\n")
    return folder


def expected(pixels: Image) -> Image:
    """Channels first, and bytes divided by 255, in a way of its own."""
    return (
        np.array([[image[..., k].ravel() for k in range(3)] for image in pixels]).reshape(len(pixels), -1)
        / 255
    )


def test_a_local_copy_of_the_repository_is_loaded_with_its_official_test_set(copy: Path) -> None:
    data = load(DataRequest(path=str(copy), test_fraction=0.5))
    assert data.schema.shape == (3, 32, 32)
    assert data.schema.classes[3] == "cat"
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([3, 0, 9, 1, 1], [2, 4, 6])
    np.testing.assert_array_equal(data.train.features, expected(TRAIN).astype(np.float32))
    np.testing.assert_array_equal(data.test.features, expected(TEST).astype(np.float32))
    check_records(data.train, data.schema, "train")
    assert data.scaled == "pixels divided by 255, from uoft-cs/cifar10"


def test_the_hub_is_asked_for_one_revision_and_its_answer_is_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    from datasets import DatasetDict

    asked = []

    def load_dataset(**arguments: Any) -> Any:
        asked.append(arguments)
        return DatasetDict(train=split_of(TRAIN, [3, 0, 9, 1, 1]), test=split_of(TEST, [2, 4, 6]))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "_answers", lambda: True)
    data = load(DataRequest())
    assert asked == [{"path": "uoft-cs/cifar10", "name": None, "revision": REVISION}]
    np.testing.assert_array_equal(data.test.features, expected(TEST).astype(np.float32))
    assert data.scaled.endswith("from uoft-cs/cifar10 at 0b2714987fa4")


def test_without_network_the_cache_serves_the_pinned_revision_and_no_other(copy: Path, cache: Path) -> None:
    from datasets import config, load_dataset

    load_dataset(str(copy))
    (made,) = {file.parent for file in cache.rglob("*.arrow")}
    kept = cache / "uoft-cs___cifar10" / "plain_text" / "0.0.0" / REVISION
    shutil.copytree(made, kept)
    for part in ("train", "test"):
        (kept / f"copy-{part}.arrow").rename(kept / f"cifar10-{part}.arrow")
    info = kept / "dataset_info.json"
    said = info.read_text().replace('"dataset_name": "copy"', '"dataset_name": "cifar10"')
    info.write_text(re.sub(r'("config_name": )"[^"]*"', r'\1"plain_text"', said))
    before = config.HF_HUB_OFFLINE
    np.testing.assert_array_equal(load_cifar_10().test.features, expected(TEST).astype(np.float32))
    assert config.HF_HUB_OFFLINE is before
    kept.rename(kept.with_name("1" * 40))
    with pytest.raises(ValueError, match=r"is not in its cache \(another revision\)"):
        load_cifar_10()


def test_without_network_one_sentence_comes_at_once(cache: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match="dataset = 'cifar-10': the hub does not answer") as error:
        load(DataRequest())
    assert time.monotonic() - begun < 60  # a hang guard: minutes of retries would pass it
    said = str(error.value)
    assert f"hf download uoft-cs/cifar10 --repo-type dataset --revision {REVISION} --local-dir FOLDER" in said
    assert all(name in said for name in ("data-path", "'mnist-5k'", "'digits'", "'npz'", "'image-folder'"))
    assert "\n" not in said


def test_a_hub_that_never_answers_is_given_up_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that listens and says nothing is what a firewall looks like."""
    import socket

    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "_PATIENCE", 0.2)
        begun = time.monotonic()
        assert not hub._answers()
        assert time.monotonic() - begun < 60  # a hang guard: minutes of retries would pass it


def test_other_records_and_damaged_ones_are_told_apart(tmp_path: Path, cache: Path, copy: Path) -> None:
    train = copy / "plain_text" / "train-00000-of-00001.parquet"
    split_of(images(2, 0, side=28), [0, 1]).to_parquet(train)
    with pytest.raises(ValueError, match="an image of rows 0 to 1 is damaged, or not of 32 x 32 pixels"):
        load_cifar_10(copy)
    split_of(TRAIN, [0, 1, 2, 0, 1], ("a", "b", "c")).to_parquet(train)
    with pytest.raises(ValueError, match="no column 'label' of its 10 classes"):
        load_cifar_10(copy)
    for part in ("train", "test"):
        other = split_of(TRAIN, [0] * 5).rename_column("img", "picture")
        other.to_parquet(train.with_name(f"{part}-00000-of-00001.parquet"))
    with pytest.raises(ValueError, match="no column 'img'"):
        load_cifar_10(copy)
    shutil.rmtree(copy / "plain_text")
    with pytest.raises(ValueError, match=r"copy is no whole copy of uoft-cs/cifar10 .* run 'hf download"):
        load_cifar_10(copy)
    with pytest.raises(ValueError, match="nowhere is no whole copy"):
        load_cifar_10(tmp_path / "nowhere")


# the authors' archive


def opcode_bomb(marker: Path) -> bytes:
    """A pickle (protocol 0, by hand) that makes a folder when it is loaded."""
    return f"cos\nmkdir\n(V{marker}\ntR.".encode()


def batches(folder: Path, content: Callable[[str], bytes]) -> Path:
    from torchvision.datasets import CIFAR10

    path = folder / "cifar-10-batches-py"
    path.mkdir()
    for name, _ in CIFAR10.train_list + CIFAR10.test_list:
        (path / name).write_bytes(content(name))
    (path / "batches.meta").write_bytes(content("batches.meta"))
    return path


def test_an_archive_with_wrong_sums_is_refused_before_anything_is_unpickled(tmp_path: Path) -> None:
    path = batches(tmp_path, lambda name: opcode_bomb(tmp_path / "loaded"))
    for given in (tmp_path, path):
        with pytest.raises(ValueError, match=r"MD5 sums are wrong.*CIFAR10\('FOLDER', download=True\)"):
            load(DataRequest(path=str(given)))
    assert not (tmp_path / "loaded").exists()


def test_an_archive_with_the_right_sums_is_read_by_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums are those of small files, written here in pickle's text protocol as the archive's are in binary."""
    from torchvision.datasets import CIFAR10

    def batch(name: str) -> bytes:
        if name == "batches.meta":
            names = "".join(f"V{label}\na" for label in CLASSES)
            return f"(dVlabel_names\n(l{names}s.".encode()
        rows = {"test_batch": TEST}.get(name, TRAIN)
        flat = [image.transpose(2, 0, 1).reshape(-1).tolist() for image in rows]
        data = "".join("(l" + "".join(f"I{value}\na" for value in row) + "a" for row in flat)
        labels = "".join(f"I{index}\na" for index in range(len(rows)))
        return f"(dVdata\n(l{data}sVlabels\n(l{labels}s.".encode()

    path = batches(tmp_path, batch)
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in path.iterdir()}
    for key in ("train_list", "test_list"):
        monkeypatch.setattr(CIFAR10, key, [[name, sums[name]] for name, _ in getattr(CIFAR10, key)])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    data = load_cifar_10(path)
    np.testing.assert_array_equal(data.test.features, expected(TEST).astype(np.float32))
    np.testing.assert_array_equal(data.train.features, np.tile(expected(TRAIN), (5, 1)).astype(np.float32))
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4] * 5


def test_cifar_takes_a_path_and_nothing_else() -> None:
    with pytest.raises(ValueError, match=r"target = 'x': dataset 'cifar-10' takes data-path"):
        load(DataRequest(target="x"))


def test_the_hub_is_not_asked_where_the_environment_says_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("httpx.head", lambda *_, **__: pytest.fail("the hub was asked"))
    assert not hub._answers()
