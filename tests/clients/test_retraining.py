"""Utilities of coalitions by retraining: what one training after another would give."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedveil.clients.coalitions import AttributeGroups, Labelled, RecordGroups
from fedveil.clients.retraining import retrain, retrain_utilities
from fedveil.models import Learner, build_learner

Floats = NDArray[np.float32]

SIZE, CLASSES = 36, 4


def made_up(num_records: int, shape: tuple[int, ...] = (SIZE,), seed: int = 0) -> Labelled:
    """Records of a noisy linear rule, so that training on more attributes or records helps."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((num_records, *shape)).astype(np.float32)
    rule = np.random.default_rng(99).standard_normal((int(np.prod(shape)), CLASSES))
    noisy = features.reshape(num_records, len(rule)) @ rule + rng.standard_normal((num_records, CLASSES))
    return Labelled(features, noisy.argmax(axis=1))


def start_of(learner: Learner, seed: int = 1) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        name: (0.2 * rng.standard_normal(tuple(value.shape))).astype(np.float32)
        for name, value in learner.module.named_parameters()
    }


def attribute_groups(num_groups: int) -> AttributeGroups:
    owner = np.arange(SIZE) % num_groups
    return AttributeGroups(owner == np.arange(num_groups)[:, None], np.full(SIZE, 0.1, np.float32))


def record_groups(num_records: int, num_groups: int) -> RecordGroups:
    return RecordGroups(np.random.default_rng(4).integers(0, num_groups, num_records), num_groups)


def trained(
    learner: Learner,
    arrays: dict[str, Floats],
    training: Labelled,
    groups: AttributeGroups | RecordGroups,
    coalition: int,
    steps: int,
    learning_rate: float,
) -> nn.Module:
    """One ordinary training: a module, an optimiser, backward."""
    module = copy.deepcopy(learner.module)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.tensor(arrays[name]))
    features, labels = seen(training, groups, coalition), torch.tensor(training.labels)
    if isinstance(groups, RecordGroups):
        inside = torch.tensor([bool(coalition >> owner & 1) for owner in groups.owner.tolist()])
        features, labels = features[inside], labels[inside]
    optimiser = torch.optim.SGD(module.parameters(), lr=learning_rate)
    for _ in range(steps if len(labels) else 0):
        optimiser.zero_grad()
        learner.loss(module(features), labels).backward()
        optimiser.step()
    return module


def seen(records: Labelled, groups: AttributeGroups | RecordGroups, coalition: int) -> Tensor:
    features = records.features.copy()
    if isinstance(groups, AttributeGroups):
        flat = features.reshape(len(features), -1)
        for player, mask in enumerate(groups.masks):
            if not coalition >> player & 1:
                flat[:, mask] = groups.baseline[mask]
    return torch.tensor(features)


def looped_utilities(
    learner: Learner,
    arrays: dict[str, Floats],
    training: Labelled,
    validation: Labelled,
    groups: AttributeGroups | RecordGroups,
    steps: int,
    learning_rate: float,
) -> NDArray[np.float64]:
    found = []
    for coalition in range(2**groups.num_groups):
        module = trained(learner, arrays, training, groups, coalition, steps, learning_rate)
        with torch.no_grad():
            predicted = module(seen(validation, groups, coalition)).argmax(dim=1).numpy()
        if coalition == 0 and isinstance(groups, AttributeGroups):
            values, counts = np.unique(training.labels, return_counts=True)
            predicted = values[counts.argmax()]
        found.append(np.mean(predicted == validation.labels))
    return np.array(found)


def squared(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores - nn.functional.one_hot(labels, CLASSES)).square().mean()


# the same as a loop


@pytest.mark.parametrize("model", ["softmax", "mlp"])
@pytest.mark.parametrize("kind", ["attributes", "records"])
def test_models_trained_together_are_those_trained_one_by_one(model, kind):
    learner = build_learner(model, (SIZE,), CLASSES, hidden=16)
    arrays, training = start_of(learner), made_up(60)
    groups = attribute_groups(3) if kind == "attributes" else record_groups(60, 3)
    together = retrain(learner, arrays, training, groups, np.arange(8), steps=15, learning_rate=0.3)
    for coalition in range(8):
        alone = trained(learner, arrays, training, groups, coalition, 15, 0.3)
        for name, value in alone.named_parameters():
            np.testing.assert_allclose(
                together[name][coalition].numpy(), value.detach().numpy(), rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("kind", ["attributes", "records"])
def test_utilities_are_the_accuracies_of_models_trained_one_by_one(kind):
    learner = build_learner("mlp", (SIZE,), CLASSES, hidden=16)
    arrays, training, validation = start_of(learner), made_up(80), made_up(50, seed=2)
    groups = attribute_groups(4) if kind == "attributes" else record_groups(80, 4)
    found = retrain_utilities(learner, arrays, training, validation, groups, steps=15, learning_rate=0.3)
    expected = looped_utilities(learner, arrays, training, validation, groups, 15, 0.3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert len(set(found)) > 4


def test_convolutions_are_trained_together_too():
    learner = Learner(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES)))
    arrays, training = start_of(learner), made_up(20, shape=(1, 6, 6))
    groups = attribute_groups(2)
    together = retrain(learner, arrays, training, groups, np.arange(4), steps=5, learning_rate=0.2)
    for coalition in range(4):
        alone = trained(learner, arrays, training, groups, coalition, 5, 0.2)
        for name, value in alone.named_parameters():
            np.testing.assert_allclose(
                together[name][coalition].numpy(), value.detach().numpy(), rtol=0, atol=1e-5
            )


def test_a_learners_own_loss_is_used():
    learner = Learner(nn.Linear(SIZE, CLASSES), loss=squared)
    arrays, training = start_of(learner), made_up(40)
    groups = attribute_groups(2)
    together = retrain(learner, arrays, training, groups, np.arange(4), steps=8, learning_rate=0.3)
    other = retrain(
        Learner(learner.module, loss=cross_entropy),
        arrays,
        training,
        groups,
        np.arange(4),
        steps=8,
        learning_rate=0.3,
    )
    alone = trained(learner, arrays, training, groups, 3, 8, 0.3)
    for name, value in alone.named_parameters():
        np.testing.assert_allclose(together[name][3].numpy(), value.detach().numpy(), rtol=0, atol=1e-5)
        assert (together[name] - other[name]).abs().max() > 0.01


def test_how_models_and_records_fall_into_blocks_changes_little(monkeypatch):
    learner = build_learner("mlp", (SIZE,), CLASSES, hidden=16)
    arrays, training, validation = start_of(learner), made_up(25), made_up(20, seed=2)
    groups = attribute_groups(3)
    whole = retrain(learner, arrays, training, groups, np.arange(8), steps=2, learning_rate=0.3)
    utilities = retrain_utilities(learner, arrays, training, validation, groups, steps=2, learning_rate=0.3)
    for block in (1, 20_000, 60_000):
        monkeypatch.setattr("fedveil.clients.retraining._BLOCK", block)
        parts = retrain(learner, arrays, training, groups, np.arange(8), steps=2, learning_rate=0.3)
        for name, value in whole.items():
            np.testing.assert_allclose(parts[name].numpy(), value.numpy(), rtol=0, atol=1e-5)
        again = retrain_utilities(learner, arrays, training, validation, groups, steps=2, learning_rate=0.3)
        np.testing.assert_allclose(again, utilities, rtol=0, atol=1e-5)


def test_asked_coalitions_are_those_of_the_whole_table():
    learner = build_learner("softmax", (SIZE,), CLASSES)
    arrays, training, validation = start_of(learner), made_up(60), made_up(40, seed=2)
    groups = attribute_groups(3)
    table = retrain_utilities(learner, arrays, training, validation, groups, steps=5, learning_rate=0.3)
    asked = np.array([7, 0, 5])
    found = retrain_utilities(
        learner, arrays, training, validation, groups, steps=5, learning_rate=0.3, coalitions=asked
    )
    np.testing.assert_allclose(found, table[asked], rtol=0, atol=1e-5)


# the ends


def test_the_empty_coalition_of_attributes_predicts_the_most_frequent_label():
    learner = build_learner("softmax", (SIZE,), CLASSES)
    training = made_up(5)._replace(labels=np.array([2, 1, 2, 1, 0]))
    validation = made_up(4)._replace(labels=np.array([1, 1, 1, 2]))
    found = retrain_utilities(
        learner, start_of(learner), training, validation, attribute_groups(2), steps=1, learning_rate=0.1
    )
    assert found[0] == 0.75


def test_a_group_without_records_adds_nothing():
    learner = build_learner("softmax", (SIZE,), CLASSES)
    training, validation = made_up(30), made_up(30, seed=2)
    groups = RecordGroups(np.where(np.arange(30) < 15, 0, 2), 3)
    found = retrain_utilities(
        learner, start_of(learner), training, validation, groups, steps=5, learning_rate=0.3
    )
    assert found[[0, 1, 4, 5]].tolist() == found[[2, 3, 6, 7]].tolist()


def test_a_record_outside_a_coalition_cannot_break_its_model():
    def broken_above_two(scores: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(scores * torch.where(labels > 2, torch.inf, 1.0)[:, None], labels)

    learner = Learner(nn.Linear(SIZE, CLASSES), loss=broken_above_two)
    training = made_up(20)._replace(labels=np.repeat([0, 3], 10))
    groups = RecordGroups(np.repeat([0, 1], 10), 2)
    models = retrain(learner, start_of(learner), training, groups, np.array([1]), steps=3, learning_rate=0.1)
    assert all(bool(torch.isfinite(value).all()) for value in models.values())


def test_a_model_that_diverged_predicts_wrong():
    learner = Learner(nn.Linear(SIZE, CLASSES), loss=squared)
    training, validation = made_up(30), made_up(30, seed=2)
    found = retrain_utilities(
        learner, start_of(learner), training, validation, attribute_groups(2), steps=60, learning_rate=50.0
    )
    assert found[1:].tolist() == [0.0, 0.0, 0.0]


def test_training_leaves_the_learner_and_the_start_as_they_were():
    learner = build_learner("mlp", (SIZE,), CLASSES, hidden=8)
    arrays = start_of(learner)
    module = {name: value.clone() for name, value in learner.module.named_parameters()}
    before = {name: value.copy() for name, value in arrays.items()}
    training = made_up(30)
    retrain_utilities(
        learner, arrays, training, made_up(30, seed=2), attribute_groups(2), steps=2, learning_rate=0.5
    )
    assert all((arrays[name] == value).all() for name, value in before.items())
    assert all(bool((value == module[name]).all()) for name, value in learner.module.named_parameters())
    assert all(value.grad is None for value in learner.module.parameters())


# bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "retraining steps"),
        ({"learning_rate": 0.0}, "learning rate"),
        ({"learning_rate": np.inf}, "learning rate"),
        ({"training": made_up(0)}, "training records"),
        ({"validation": made_up(0)}, "validation records"),
        ({"training": made_up(5)._replace(labels=np.zeros(4, np.int64))}, "one label each"),
        ({"training": made_up(5, shape=(7,))}, "do not fit records of 7"),
        ({"validation": made_up(5, shape=(7,))}, "do not fit records of 7"),
        ({"groups": RecordGroups(np.zeros(5, np.int64), 2)}, "5 entries for 10"),
        ({"groups": RecordGroups(np.zeros(10, np.int64), 13)}, "13 groups have too many coalitions"),
        ({"coalitions": np.array([4])}, "bit masks"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes, words):
    learner = build_learner("softmax", (SIZE,), CLASSES)
    arguments = {
        "training": made_up(10),
        "validation": made_up(10),
        "groups": attribute_groups(2),
        "steps": 2,
        "learning_rate": 0.1,
        **changes,
    }
    with pytest.raises(ValueError, match=words):
        retrain_utilities(learner, start_of(learner), **arguments)


@pytest.mark.parametrize(
    "owner", [np.array([0, 2]), np.array([-1, 0]), np.array([0.0, 1.0]), np.zeros((2, 1), int)]
)
def test_records_of_no_group_are_refused(owner):
    with pytest.raises(ValueError, match="number of its group, from 0 to 1"):
        RecordGroups(owner, 2)
