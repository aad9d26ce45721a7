"""A finished run of a linear model with two outputs, written down in numpy: what hooks are given, and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.artifacts import RunFolder
from fedveil.strategies.hooks import FinishedRun

Arrays = Mapping[str, NDArray[np.float32]]


def course(rounds: int = 20, seed: int = 0) -> list[dict[str, NDArray[np.float32]]]:
    """Models that wander about one model, so that several quantizers have several configurations."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(2, 6)), rng.normal(size=2)
    return [
        {
            "weight": (weight + 0.3 * rng.normal(size=(2, 6))).astype(np.float32),
            "bias": (bias + 0.3 * rng.normal(size=2)).astype(np.float32),
        }
        for _ in range(rounds)
    ]


class Finished:
    """A run's folder with a trajectory, and public records that losses are taken on."""

    def __init__(
        self,
        root: Path,
        models: Sequence[Arrays] | None = None,
        *,
        records: int = 50,
        final: Arrays | None = None,
        **config: Any,
    ) -> None:
        rng = np.random.default_rng(1)
        self.models = course() if models is None else list(models)
        self.features = rng.normal(size=(records, 6))
        self.targets = rng.normal(size=(records, 2))
        self.said: list[str] = []
        self.config = {"quantizers": "sign,int4", "candidates": 64, "trajectory-skip": 0.0, **config}
        self.folder = RunFolder.create(root, "scene", self.config)
        for number, model in enumerate(self.models):
            self.folder.save_trajectory(number, model, keep=1000)
        self.final = final or (self.models[-1] if self.models else course(1)[0])
        self.folder.finish(
            self.final, [], (), {"app": "scene", "model": "linear", "guarantees": ["a secret"]}
        )

    def losses(self, candidates: Arrays) -> NDArray[np.float64]:
        """Mean squared error of every record under every candidate (n, M)."""
        scores = np.einsum("nf,mkf->nmk", self.features, candidates["weight"].astype(np.float64))
        errors = scores + candidates["bias"].astype(np.float64) - self.targets[:, None]
        found: NDArray[np.float64] = np.square(errors).mean(axis=2)
        return found

    def figures(self, arrays: Arrays) -> dict[str, float]:
        """The mean loss, and its negative as the figure to show."""
        loss = float(self.losses({name: array[None] for name, array in arrays.items()}).mean())
        return {"fit": -loss, "loss": loss}

    def run(self, **changes: Any) -> FinishedRun:
        """What hooks are given."""
        given: dict[str, Any] = {
            "folder": self.folder,
            "app": "scene",
            "config": self.config,
            "arrays": self.folder.load_model()[0],
            "trajectory": self.folder.load_trajectory(),
            "losses": self.losses,
            "figures": self.figures,
            "num_records": len(self.features),
            "say": self.said.append,
        }
        return FinishedRun(**(given | changes))

    @property
    def report(self) -> dict[str, Any]:
        """The hook's file."""
        found: dict[str, Any] = json.loads((self.folder.path / "rq.json").read_text())
        return found

    @property
    def files(self) -> dict[str, bytes]:
        """Every file in the folder, by its place."""
        return {
            str(file.relative_to(self.folder.path)): file.read_bytes()
            for file in self.folder.path.rglob("*")
            if file.is_file()
        }
