"""The model, a node's records, and what is done with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Records = tuple[Tensor, Tensor]


def network(hidden_units: int) -> nn.Module:
    """A perceptron for digits of 8 x 8 pixels."""
    return nn.Sequential(nn.Linear(64, hidden_units), nn.ReLU(), nn.Linear(hidden_units, 10))


def load(path: Path) -> tuple[Records, Records]:
    """Read this node's digits: four fifths to train on, the rest to evaluate on."""
    rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
    features, labels = torch.from_numpy(rows[:, :-1] / 16), torch.from_numpy(rows[:, -1]).long()
    cut = len(rows) * 4 // 5
    return (features[:cut], labels[:cut]), (features[cut:], labels[cut:])


def train(model: nn.Module, records: Records, steps: int, learning_rate: float) -> float:
    """Some steps of gradient descent; the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(records[0]), records[1])
        loss.backward()
        optimizer.step()
    return float(loss)


def test(model: nn.Module, records: Records) -> tuple[float, float]:
    """Loss and accuracy."""
    with torch.no_grad():
        scores = model(records[0])
    return float(cross_entropy(scores, records[1])), float((scores.argmax(1) == records[1]).float().mean())
