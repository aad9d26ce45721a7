"""Retraining on all coalitions as one batched model, beside one ordinary training after another.

Made-up records as large as an 8x8 digit, one thread, the best of several repetitions of each. The largest difference is
between parameters of the two after all steps.

    python benchmarks/retrain.py [--model mlp] [--records 200] [--attributes 64] [--steps 20] [--most 8]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedveil.clients.coalitions import AttributeGroups, Labelled
from fedveil.clients.retraining import retrain, retrain_utilities
from fedveil.models import Learner, build_learner
from fedveil.streams import Streams

CLASSES = 10
LEARNING_RATE = 0.3


def one_by_one(
    learner: Learner, training: Labelled, groups: AttributeGroups, steps: int
) -> list[dict[str, Tensor]]:
    """An ordinary training loop for each coalition."""
    models = []
    for coalition in range(2**groups.num_groups):
        inside = [bool(coalition >> player & 1) for player in range(groups.num_groups)]
        features = torch.tensor(
            np.where(groups.masks[inside].any(axis=0), training.features, groups.baseline)
        )
        labels = torch.tensor(training.labels)
        module = copy.deepcopy(learner.module)
        optimiser = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
        for _ in range(steps):
            optimiser.zero_grad()
            learner.loss(module(features), labels).backward()
            optimiser.step()
        models.append({name: value.detach() for name, value in module.named_parameters()})
    return models


def seconds(function: Callable[[], object], repetitions: int) -> float:
    """Shortest of several times."""
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--attributes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--most", type=int, default=8, help="largest number of groups")
    options = parser.parse_args()
    torch.set_num_threads(1)

    stream = Streams.seeded("benchmark", 0).stream("records")
    learner = build_learner(options.model, (options.attributes,), CLASSES)
    arrays = {name: value.detach().numpy().copy() for name, value in learner.module.named_parameters()}
    features = stream.normal((options.records, options.attributes)).astype(np.float32)
    labels = (stream.uniform(options.records) * CLASSES).astype(np.int64)
    records = Labelled(features, labels)
    owner = np.arange(options.attributes)
    table = Table(
        "groups", "coalitions", "one by one, s", "together, s", "times faster", "largest difference"
    )
    for num_groups in range(2, options.most + 1):
        masks = owner * num_groups // options.attributes == np.arange(num_groups)[:, None]
        groups = AttributeGroups(masks, np.zeros(options.attributes, dtype=np.float32))
        repetitions = max(1, 64 // 2**num_groups)
        alone = one_by_one(learner, records, groups, options.steps)
        coalitions = np.arange(2**num_groups)
        together = retrain(
            learner, arrays, records, groups, coalitions, steps=options.steps, learning_rate=LEARNING_RATE
        )
        difference = max(
            float((together[name][index] - value).abs().max())
            for index, model in enumerate(alone)
            for name, value in model.items()
        )
        loop = seconds(partial(one_by_one, learner, records, groups, options.steps), repetitions)
        measure = partial(retrain_utilities, steps=options.steps, learning_rate=LEARNING_RATE)
        batch = seconds(partial(measure, learner, arrays, records, records, groups), repetitions)
        table.add_row(
            str(num_groups),
            str(2**num_groups),
            f"{loop:.2f}",
            f"{batch:.2f}",
            f"{loop / batch:.1f}",
            f"{difference:.0e}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
