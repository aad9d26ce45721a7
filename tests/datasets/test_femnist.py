"""FEMNIST by its writers, and EMNIST from torchvision's folder."""

from __future__ import annotations

import string
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.datasets import hub
from fedveil.datasets.emnist import SPLITS, load_emnist
from fedveil.datasets.emnist import load as load_emnist_request
from fedveil.datasets.femnist import CLASSES, load, load_femnist
from fedveil.datasets.partition import partition
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import check_records

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
WRITERS = [
    "f0002_1",
    "f0000_14",
    "f0002_1",
    "f0010_0",
    "f0000_14",
    "f0000_14",
    "f0010_0",
    "f0002_1",
    "f0002_1",
]
LABELS = [53, 28, 0, 61, 10, 36, 9, 35, 1]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small local copy of the repository, an empty cache, no network."""
    from PIL import Image as Pillow

    from datasets import ClassLabel, Dataset, Features, Image, Value, config

    def png(pixels: np.ndarray) -> dict[str, Any]:
        file = BytesIO()
        Pillow.fromarray(pixels).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "_answers", lambda: False)
    features = Features(
        image=Image(),
        writer_id=Value("string"),
        hsf_id=Value("int64"),
        character=ClassLabel(names=list(CLASSES)),
    )
    columns = {
        "image": [png(image) for image in PIXELS],
        "writer_id": WRITERS,
        "hsf_id": [0] * 9,
        "character": LABELS,
    }
    (tmp_path / "copy" / "data").mkdir(parents=True)
    Dataset.from_dict(columns, features).to_parquet(
        tmp_path / "copy" / "data" / "train-00000-of-00001.parquet"
    )
    return tmp_path / "copy"


def test_writers_are_natural_clients_in_the_order_of_their_names(copy: Path) -> None:
    data = load_femnist(copy, test_fraction=0.0)
    assert data.schema.shape == (1, 28, 28)
    assert data.schema.client_column == "writer_id"
    assert data.train.client_ids is not None
    assert data.train.client_ids.tolist() == [1, 0, 1, 2, 0, 0, 2, 1, 1]
    np.testing.assert_array_equal(data.train.features, (PIXELS.reshape(9, 784) / 255).astype(np.float32))
    assert [data.schema.classes[label] for label in data.train.labels] == list("rS0zAa9Z1")
    assert set(data.schema.baseline.tolist()) == {1.0}
    check_records(data.train, data.schema, "train")
    parts = list(partition(data.train, "natural"))
    assert [part.tolist() for part in parts] == [[1, 4, 5], [0, 2, 7, 8], [3, 6]]


def test_the_first_writers_alone_can_be_loaded(copy: Path) -> None:
    data = load(DataRequest(path=str(copy), test_fraction=0.3, options={"writers": 2}))
    assert (len(data.train), len(data.test)) == (5, 2)
    both = np.concatenate([data.train.features, data.test.features])
    rows = [row for row, writer in enumerate(WRITERS) if writer != "f0010_0"]
    expected = (PIXELS[rows].reshape(7, 784) / 255).astype(np.float32)
    np.testing.assert_array_equal(both[np.lexsort(both.T)], expected[np.lexsort(expected.T)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writers": 4}, "writers = 4: there are 3; write at most that"),
        ({"writers": 0}, "writers = 0: write a whole number of 1 or more"),
        ({"writers": "2"}, "writers = '2': write a whole number"),
        ({"writer": 2}, "femnist has no option 'writer'"),
    ],
)
def test_other_options_are_refused(copy: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(DataRequest(path=str(copy), options=options))


def test_without_network_one_sentence_says_how_to_fetch_it(copy: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'femnist': the hub does not answer.*hf download flwrlabs/femnist .*--local-dir"
    ):
        load(DataRequest())


# EMNIST


def idx(values: np.ndarray) -> bytes:
    """The format of MNIST's files: two zeros, type 8, dimensions, sizes, bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def write_emnist(folder: Path, split: str, labels: list[int]) -> None:
    raw = folder / "EMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, seed in (("train", 1), ("test", 2)):
        pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        (raw / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(pixels.transpose(0, 2, 1)))
        (raw / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(np.array(labels)))


@pytest.mark.parametrize(
    ("split", "labels", "named"),
    [("byclass", [0, 10, 36, 61], "0Aaz"), ("letters", [1, 2, 26], "abz"), ("balanced", [9, 46], "9t")],
)
def test_a_split_of_emnist_is_upright_and_its_labels_are_its_classes(
    tmp_path: Path, split: str, labels: list[int], named: str
) -> None:
    write_emnist(tmp_path, split, labels)
    data = load_emnist_request(DataRequest(path=str(tmp_path), options={"split": split}))
    for records, seed in ((data.train, 1), (data.test, 2)):
        pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        np.testing.assert_array_equal(records.features, (pixels.reshape(-1, 784) / 255).astype(np.float32))
        assert [data.schema.classes[label] for label in records.labels] == list(named)
        check_records(records, data.schema, "records")


def test_every_split_of_emnist_has_its_number_of_classes(tmp_path: Path) -> None:
    """The counts are those of the publication, arXiv 1702.05373, table 2."""
    counts = {}
    for split in SPLITS:
        write_emnist(tmp_path, split, [1, 2])
        counts[split] = load_emnist(tmp_path, split).schema.num_classes
    assert counts == {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}
    assert set(CLASSES) == set(string.digits + string.ascii_letters)


def test_a_folder_without_emnist_says_how_to_fetch_it(tmp_path: Path) -> None:
    for call in (lambda: load_emnist_request(DataRequest()), lambda: load_emnist(tmp_path)):
        with pytest.raises(
            ValueError, match=r"EMNIST\('FOLDER', 'balanced', download=True\).*'mnist-5k'"
        ) as error:
            call()
        assert "\n" not in str(error.value)
    write_emnist(tmp_path, "digits", [1, 2])
    labels = tmp_path / "EMNIST" / "raw" / "emnist-digits-test-labels-idx1-ubyte"
    for damage in (b"", labels.read_bytes()[:-1], b"\0" * 20):
        labels.write_bytes(damage)
        with pytest.raises(ValueError, match="does not hold the whole split 'digits'"):
            load_emnist(tmp_path, "digits")
    with pytest.raises(ValueError, match="no split 'byclas'; nearest: 'byclass'"):
        load_emnist(tmp_path, "byclas")
    with pytest.raises(ValueError, match="emnist has no option 'splits'"):
        load_emnist_request(DataRequest(path=str(tmp_path), options={"splits": "digits"}))
