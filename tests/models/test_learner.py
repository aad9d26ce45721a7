"""What a user's factory may return beside a network: a loss and a local step, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedveil.models import Learner, build_learner, gradient_descent

Gradients = tuple[NDArray[np.float64], ...]


def network(_: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(4, outputs)


def with_loss(loss: Any) -> Callable[[tuple[int, ...], int], Learner]:
    return lambda shape, outputs: Learner(network(shape, outputs), loss=loss)


def with_step(step: Any) -> Callable[[tuple[int, ...], int], Learner]:
    return lambda shape, outputs: Learner(network(shape, outputs), local_step=step)


def test_a_network_alone_learns_by_cross_entropy_and_gradient_descent() -> None:
    learner = build_learner(network, (4,), 3)
    assert learner.loss is cross_entropy
    assert learner.local_step is gradient_descent
    change, gradient = np.array([1.0, 2.0]), np.array([10.0, -4.0])
    np.testing.assert_array_equal(learner.advance(change, (gradient,), 0.5), [-4.0, 4.0])
    np.testing.assert_array_equal(change, [1.0, 2.0])


def test_a_learner_of_the_users_own_comes_back_as_it_is() -> None:
    def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(scores, labels, label_smoothing=0.1)

    def averaged(change: NDArray[np.float64], gradients: Gradients, rate: float) -> NDArray[np.float64]:
        return change - rate * np.mean(gradients, axis=0)

    mine = Learner(nn.Linear(4, 3), smoothed, averaged)
    assert build_learner(lambda shape, outputs: mine, (4,), 3) is mine
    assert (
        build_learner(with_loss(nn.CrossEntropyLoss(label_smoothing=0.1)), (4,), 3).module is not mine.module
    )


def test_a_factory_gets_hidden_units_where_it_asks_for_them() -> None:
    def wide(shape: tuple[int, ...], outputs: int, *, hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    widths = [
        module.out_features for module in build_learner(wide, (4,), 3, 17).module if hasattr(module, "weight")
    ]
    assert widths == [17, 3]


def test_a_local_step_may_not_write_to_its_arguments() -> None:
    def in_place(change: NDArray[np.float64], gradients: Gradients, rate: float) -> NDArray[np.float64]:
        change -= rate * gradients[-1]
        return change

    with pytest.raises(ValueError, match=r"its local step '.*in_place' failed \(ValueError: .*read-only\)"):
        build_learner(with_step(in_place), (4,), 3)


def test_what_a_local_step_returns_is_not_its_to_change_afterwards() -> None:
    kept: list[NDArray[np.float64]] = []

    def keeping(change: NDArray[np.float64], gradients: Gradients, rate: float) -> NDArray[np.float64]:
        kept.append(change - rate * gradients[-1])
        return kept[-1]

    after = Learner(nn.Linear(1, 1), local_step=keeping).advance(np.zeros(2), (np.ones(2),), 1.0)
    kept[0][:] = 7.0
    np.testing.assert_array_equal(after, [-1.0, -1.0])


COUNTER = itertools.count()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda change, gradients, rate: change[:-1],
            r"returned float64 of shape \(14,\): return a float array of",
        ),
        (lambda change, gradients, rate: change.astype(complex), r"returned complex128 of shape \(15,\)"),
        (lambda change, gradients, rate: None, "returned NoneType"),
        (lambda change, gradients, rate: torch.zeros(15), "returned Tensor"),
        (
            lambda change, gradients, rate: change * np.nan,
            "gives NaN or infinity from gradients between -1 and 1",
        ),
        (lambda change, gradients: change, r"failed \(TypeError"),
        (
            lambda change, gradients, rate: change + next(COUNTER),
            "gives something else when it is called again",
        ),
    ],
)
def test_a_local_step_that_breaks_its_contract_is_refused_by_name(step: Any, message: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^model = '.*<lambda>': its local step '.*<lambda>' {message}"
    ) as error:
        build_learner(with_step(step), (4,), 3)
    assert "\n" not in str(error.value)


def test_a_training_that_diverges_is_no_fault_of_the_local_step() -> None:
    after = Learner(nn.Linear(1, 1)).advance(np.zeros(2), (np.array([np.nan, 1.0]),), 1.0)
    np.testing.assert_array_equal(after, [np.nan, -1.0])


def summed(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores, labels, reduction="sum")


def unreduced(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores, labels, reduction="none")


def centred(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores - scores.mean(dim=0), labels)


def one_hot(scores: Tensor, labels: Tensor) -> Tensor:
    return ((scores - nn.functional.one_hot(labels, 3)) ** 2).sum(dim=1).mean()


def branching(scores: Tensor, labels: Tensor) -> Tensor:
    loss = cross_entropy(scores, labels)
    return loss if bool(loss < 1e9) else 2 * loss


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (summed, "of two records is not the mean of the losses of each alone"),
        (centred, "of two records is not the mean of the losses of each alone"),
        (unreduced, r"gives shape \(2,\): return one finite number"),
        (lambda scores, labels: 0.5, "gives 0.5: return one finite number"),
        (lambda scores, labels: scores.sum() / 0, "gives -inf: return one finite number"),
        (lambda scores: scores.sum(), r"fails on scores of shape \(2, 3\) or \(1, 3\) .*\(TypeError"),
        (
            lambda scores, labels: cross_entropy(scores, labels) + next(COUNTER),
            "changes from one call to the next",
        ),
        (one_hot, "cannot be taken for one record at a time.*torch.arange"),
        (branching, "cannot be taken for one record at a time.*no branches"),
    ],
)
def test_a_loss_in_which_records_meet_or_that_is_no_mean_is_refused_by_name(loss: Any, message: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^model = '.*<lambda>': .*its loss '.*{loss.__name__}' {message}"
    ) as error:
        build_learner(with_loss(loss), (4,), 3)
    assert "\n" not in str(error.value)
    assert "vmap" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7,), "needs a torch.nn.Module, got int"),
        ((nn.Identity(), 7), "loss must be a function, got int"),
        ((nn.Identity(), cross_entropy, "sgd"), "local_step must be a function, got str"),
    ],
)
def test_a_learner_of_something_else_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Learner(*arguments)
