"""Which settings a run may be resumed with: patience may change, results may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedveil.artifacts import ConfigMismatch, RunFolder
from fedveil.config import FedSVAConfig
from fedveil.config.modulated import ModulatedConfig
from fedveil.config.places import open_resumed

PATIENCE = {"round-timeout": 7.5, "min-replies": 2, "round-attempts": 3}
APPS = {"fedsva": FedSVAConfig, "modulated": ModulatedConfig}


@pytest.fixture(params=APPS)
def died(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """The configuration of an app, and the folder of a run under its defaults whose process is gone."""
    config = APPS[request.param]
    return config, RunFolder.create(tmp_path, request.param, config().to_run_config()).path


@pytest.mark.parametrize("key", PATIENCE)
def test_how_long_and_how_often_a_resumed_run_asks_may_differ(died: tuple[Any, Path], key: str):
    config, path = died
    settings = {"resume": str(path), key: PATIENCE[key]}
    assert open_resumed(config.from_run_config(settings)).path == path


def test_what_is_computed_may_not_differ(died: tuple[Any, Path]):
    config, path = died
    with pytest.raises(ConfigMismatch, match="data-seed"):
        open_resumed(config.from_run_config({"resume": str(path), "data-seed": 1}))
