"""The examples of docs/models.md: they run, and do what the page says."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedveil.models import build_learner

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """All Python of the page as one module."""
    file = tmp_path_factory.mktemp("page") / "examples.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), encoding="utf-8")
    spec = spec_from_file_location("examples", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["small_cnn", "by_squares", "small_cnn_with_momentum"])
def test_every_factory_of_the_page_passes_the_trial(examples: ModuleType, name: str) -> None:
    learner = build_learner(getattr(examples, name), (1, 8, 8), 3, hidden=5)
    assert [value.shape[0] for value in learner.module.parameters()][-4:] == [5, 5, 3, 3]


def test_the_loss_of_the_page_is_the_squared_distance(examples: ModuleType) -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert float(examples.squared_distance(scores, torch.tensor([2, 0]))) == (1 + 4 + 4 + 1) / 2


def test_the_momentum_of_the_page_is_torchs(examples: ModuleType) -> None:
    rng = np.random.default_rng(0)
    gradients = tuple(rng.standard_normal((4, 6)))
    change = np.zeros(6)
    value = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.3, momentum=0.9)
    for step in range(4):
        change = examples.momentum(change, gradients[: step + 1], 0.3)
        value.grad = torch.tensor(gradients[step])
        optimizer.step()
        np.testing.assert_allclose(change, value.detach().numpy(), rtol=0, atol=1e-12)


def test_the_fedprox_of_the_page_minimises_the_loss_plus_the_proximal_term(examples: ModuleType) -> None:
    """On the loss 1/2 |change - a|^2 the minimum with 0.05 |change|^2 is a/1.1."""
    target, change, gradients = np.array([1.0, -2.0, 0.5]), np.zeros(3), ()
    for _ in range(200):
        gradients = (*gradients, change - target)
        change = examples.fedprox(change, gradients, 0.3)
    np.testing.assert_allclose(change, target / 1.1, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "said"),
    [
        ("softmax", (28, 28), 10, "7,850"),
        ("mlp", (28, 28), 10, "50,890"),
        ("cnn", (1, 28, 28), 62, "6.6 million"),
        ("resnet-18", (3, 32, 32), 10, "11.2 million"),
    ],
)
def test_the_table_states_the_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, said: str
) -> None:
    count = sum(value.numel() for value in build_learner(name, shape, classes).module.parameters())
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}`"))
    assert said in row
    assert said in (f"{count:,}", f"{count / 1e6:.1f} million")
