"""Per-record gradients: those of one record alone, whichever way they are computed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from fedveil.clients.record_gradients import gradient_blocks
from fedveil.models import Learner


class OneUnused(nn.Module):
    """A network with a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(5, 3), nn.Parameter(torch.ones(4))

    def forward(self, records: Tensor) -> Tensor:
        return self.used(records).tanh()


def user_loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nll_loss(scores.log_softmax(1), labels)


@pytest.mark.parametrize("loss", [cross_entropy, user_loss])
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        OneUnused(),
        nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 3)),
    ],
)
def test_a_row_is_the_gradient_of_its_record_alone_at_each_view(module: nn.Module, loss: object):
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.normal(size=tuple(value.shape)).astype(np.float32)
        for name, value in module.named_parameters()
    }
    module.load_state_dict({name: torch.tensor(value) for name, value in arrays.items()})
    views = tuple(rng.normal(size=(7, 5)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 3, 7)
    (block,) = gradient_blocks(Learner(module, loss), arrays, views, labels)
    for view, (rows,) in zip(views, block, strict=True):
        for record, label, row in zip(view, labels, rows, strict=True):
            module.zero_grad()
            cross_entropy(module(torch.tensor(record[None])), torch.tensor([label])).backward()
            expected = [
                torch.zeros_like(value) if value.grad is None else value.grad for value in module.parameters()
            ]
            torch.testing.assert_close(
                row.float(), torch.cat([value.flatten() for value in expected]), rtol=1e-4, atol=1e-6
            )


def test_a_process_that_trains_a_perceptron_does_not_load_the_compiler_of_pytorch():
    code = (
        "import sys, numpy as np\n"
        "from torch import nn\n"
        "from fedveil.clients.record_gradients import gradient_blocks\n"
        "from fedveil.models import Learner\n"
        "module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))\n"
        "arrays = {name: value.detach().numpy() for name, value in module.named_parameters()}\n"
        "list(gradient_blocks(Learner(module), arrays, (np.ones((3, 2), np.float32),), np.zeros(3, np.int64)))\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
