"""Utilities of coalitions by masking: the accuracies they are, and what one record can move."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedveil.clients.contribution import mask_utilities, split_validation
from fedveil.models import build_learner
from fedveil.privacy.contribution import ContributionRelease
from fedveil.privacy.shapley import shapley_values
from fedveil.streams import Streams

Floats = NDArray[np.float32]

SHAPE = (1, 6, 6)
CLASSES = 4


def groups_of(size: int, num_groups: int) -> tuple[NDArray[np.bool_], Floats]:
    owner = np.arange(size) * num_groups // size
    masks = owner == np.arange(num_groups)[:, None]
    return masks, np.linspace(-0.5, 0.5, size, dtype=np.float32)


def problem(
    num_records: int, seed: int = 0
) -> tuple[nn.Module, dict[str, Floats], Floats, NDArray[np.int64]]:
    """A small network with random parameters, and records whose labels it gets right about half the time."""
    rng = np.random.default_rng(seed)
    module = build_learner("mlp", SHAPE, CLASSES, hidden=8).module
    arrays = {
        name: rng.standard_normal(tuple(value.shape)).astype(np.float32)
        for name, value in module.named_parameters()
    }
    features = rng.standard_normal((num_records, *SHAPE)).astype(np.float32)
    predicted = scores(module, arrays, features).argmax(axis=1)
    labels = np.where(rng.uniform(size=num_records) < 0.5, predicted, rng.integers(0, CLASSES, num_records))
    return module, arrays, features, labels


def scores(module: nn.Module, arrays: dict[str, Floats], features: Floats) -> NDArray[np.float64]:
    values = {name: torch.tensor(value) for name, value in arrays.items()}
    with torch.no_grad():
        return torch.func.functional_call(module, values, (torch.tensor(features),)).double().numpy()


def looped(
    module: nn.Module,
    arrays: dict[str, Floats],
    features: Floats,
    labels: NDArray[np.int64],
    masks: NDArray[np.bool_],
    baseline: Floats,
) -> list[float]:
    """One coalition after another, one record after another."""
    found = []
    for mask in range(2 ** len(masks)):
        right = 0
        for record, label in zip(features.reshape(len(features), -1), labels, strict=True):
            seen = baseline.copy()
            for player, group in enumerate(masks):
                if mask >> player & 1:
                    seen[group] = record[group]
            right += int(scores(module, arrays, seen.reshape(1, *SHAPE)).argmax() == label)
        found.append(right / len(labels))
    return found


# what they are


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_utilities_are_the_accuracies_of_masked_records_one_by_one(num_groups):
    module, arrays, features, labels = problem(40)
    masks, baseline = groups_of(36, num_groups)
    found = mask_utilities(module, arrays, features, labels, masks, baseline)
    assert found.dtype == np.float64
    assert found.tolist() == looped(module, arrays, features, labels, masks, baseline)


def test_asked_coalitions_are_those_of_the_whole_table():
    module, arrays, features, labels = problem(50)
    masks, baseline = groups_of(36, 5)
    table = mask_utilities(module, arrays, features, labels, masks, baseline)
    asked = np.array([31, 0, 7, 7, 20])
    assert (
        mask_utilities(module, arrays, features, labels, masks, baseline, asked).tolist()
        == table[asked].tolist()
    )


def test_how_records_and_coalitions_fall_into_batches_changes_nothing(monkeypatch):
    module, arrays, features, labels = problem(50)
    masks, baseline = groups_of(36, 3)
    whole = mask_utilities(module, arrays, features, labels, masks, baseline)
    for rows in (1, 7, 50, 120):
        monkeypatch.setattr("fedveil.clients.contribution._BATCH_ROWS", rows)
        parts = mask_utilities(module, arrays, features, labels, masks, baseline)
        assert parts.tolist() == whole.tolist()


def test_no_batch_is_larger_than_its_public_bound(monkeypatch):
    monkeypatch.setattr("fedveil.clients.contribution._BATCH_ROWS", 64)
    sizes = []

    class Counting(nn.Linear):
        def forward(self, records: Tensor) -> Tensor:
            sizes.append(len(records))
            assert not torch.is_grad_enabled()
            assert not self.training
            return super().forward(records.flatten(1))

    module = Counting(36, CLASSES)
    arrays = {name: value.detach().numpy() for name, value in module.named_parameters()}
    _, _, features, labels = problem(150)
    masks, baseline = groups_of(36, 6)
    mask_utilities(module, arrays, features, labels, masks, baseline)
    assert max(sizes) <= 64
    assert sum(sizes) == 150 * 64
    assert module.training


def test_a_score_that_is_not_finite_is_a_wrong_prediction():
    class Breaking(nn.Linear):
        def forward(self, records: Tensor) -> Tensor:
            found = super().forward(records)
            return torch.where(records[:, :1] > 2, torch.full_like(found, torch.inf), found)

    module = Breaking(2, 3)
    arrays = {"weight": np.zeros((3, 2), np.float32), "bias": np.array([1, 0, 0], np.float32)}
    features = np.array([[3.0, 0.0], [0.0, 0.0]], dtype=np.float32)
    labels = np.zeros(2, dtype=np.int64)
    masks = np.eye(2, dtype=bool)
    found = mask_utilities(module, arrays, features, labels, masks, np.zeros(2, np.float32))
    assert found.tolist() == [1.0, 0.5, 1.0, 0.5]


# what one record can move


def vectors(kind: str, *arguments: object) -> NDArray[np.float64]:
    utilities = mask_utilities(*arguments)  # type: ignore[arg-type]
    return shapley_values(utilities) if kind == "shapley" else utilities


@pytest.mark.parametrize("kind", ["shapley", "utilities"])
@pytest.mark.parametrize(("num_groups", "num_private"), [(2, 1), (4, 1), (4, 2)])
def test_replacing_a_record_moves_the_vector_no_further_than_stated(kind, num_groups, num_private):
    rng = np.random.default_rng(8)
    module, arrays, features, labels = problem(12)
    masks, baseline = groups_of(36, num_groups)
    release = ContributionRelease(kind, num_groups, num_private, 12, 1.0)
    before = vectors(kind, module, arrays, features, labels, masks, baseline)
    moved = {"record": 0.0, "attribute": 0.0}
    private = masks[:num_private].any(axis=0).reshape(SHAPE)
    for _ in range(150):
        replaced, changed = features.copy(), labels.copy()
        row, scale = rng.integers(12), 10 ** rng.uniform(-1, 3)
        other = (scale * rng.standard_normal(SHAPE)).astype(np.float32)
        replaced[row] = np.where(private, other, features[row])
        after = vectors(kind, module, arrays, replaced, changed, masks, baseline)
        moved["attribute"] = max(moved["attribute"], np.linalg.norm(after - before))
        replaced[row], changed[row] = other, rng.integers(CLASSES)
        after = vectors(kind, module, arrays, replaced, changed, masks, baseline)
        moved["record"] = max(moved["record"], np.linalg.norm(after - before))
    for relation, distance in moved.items():
        assert 0 < distance <= release.sensitivity(relation)
    assert moved["attribute"] > 0.5 * release.sensitivity("attribute")


def test_private_attributes_leave_coalitions_without_them_as_they_are():
    module, arrays, features, labels = problem(30)
    masks, baseline = groups_of(36, 4)
    private = masks[1].reshape(SHAPE)
    before = mask_utilities(module, arrays, features, labels, masks, baseline)
    features[:, private] = 1e30
    after = mask_utilities(module, arrays, features, labels, masks, baseline)
    with_private = np.arange(16) & 0b10 != 0
    assert (before[~with_private] == after[~with_private]).all()
    assert (before[with_private] != after[with_private]).any()


# which records


def test_a_split_is_a_partition_of_public_sizes():
    stream = Streams.seeded("test", 1).stream("validation")
    training, validation = split_validation(103, 0.25, stream)
    assert len(validation) == 26
    assert sorted([*training, *validation]) == list(range(103))
    assert (np.diff(training) > 0).all()
    assert (np.diff(validation) > 0).all()
    again = split_validation(103, 0.25, Streams.seeded("test", 1).stream("validation"))
    assert again[1].tolist() == validation.tolist()


def test_all_records_may_validate_and_one_always_does():
    stream = Streams.seeded("test", 1).stream("validation")
    assert [len(part) for part in split_validation(7, 1.0, stream)] == [0, 7]
    assert [len(part) for part in split_validation(7, 0.01, stream)] == [6, 1]
    assert [len(part) for part in split_validation(1, 0.25, stream)] == [0, 1]


# bad input

MASKS, BASELINE = groups_of(36, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"masks": np.stack([MASKS[0], MASKS[0] | MASKS[1]])}, "overlap or leave attributes out"),
        ({"masks": np.stack([MASKS[0], MASKS[0] & MASKS[1]])}, "none empty"),
        ({"masks": MASKS[:1]}, "overlap or leave attributes out"),
        ({"masks": MASKS.astype(int)}, "bool mask"),
        ({"masks": MASKS[:, :-1], "baseline": BASELINE[:-1]}, "do not fit records of 36"),
        ({"baseline": BASELINE[:-1]}, "baseline"),
        ({"baseline": np.full(36, np.nan, np.float32)}, "finite"),
        ({"coalitions": np.array([4])}, "bit masks of 2 groups"),
        ({"coalitions": np.array([-1])}, "bit masks of 2 groups"),
        ({"coalitions": np.array([1.0])}, "bit masks of 2 groups"),
        ({"features": np.zeros((0, 36), np.float32), "labels": np.zeros(0, np.int64)}, "at least one"),
        ({"labels": np.zeros(4, np.int64)}, "one label each"),
        ({"masks": np.eye(36, dtype=bool)}, "36 groups have too many coalitions"),
    ],
)
def test_groups_and_records_that_do_not_fit_are_refused(changes, words):
    module, arrays, features, labels = problem(5)
    arguments = {"features": features, "labels": labels, "masks": MASKS, "baseline": BASELINE, **changes}
    with pytest.raises(ValueError, match=words):
        mask_utilities(module, arrays, **arguments)


@pytest.mark.parametrize(("num_records", "fraction"), [(0, 0.5), (10, 0.0), (10, 1.1), (10, np.nan)])
def test_splits_outside_their_range_are_refused(num_records, fraction):
    with pytest.raises(ValueError, match="validation-fraction"):
        split_validation(num_records, fraction, Streams.seeded("test", 1).stream("validation"))
